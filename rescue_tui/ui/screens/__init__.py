"""One screen a module; `base` holds what all share."""
