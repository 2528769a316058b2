"""A cause in the user's own names."""
