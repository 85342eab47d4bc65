"""Long work that outlives a screen and a lost terminal."""
