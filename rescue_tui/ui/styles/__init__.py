"""Style sheets (package data)."""
