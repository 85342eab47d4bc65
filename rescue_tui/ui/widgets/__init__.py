"""Small widgets that draw with ASCII where the terminal needs it and never by colour alone."""
