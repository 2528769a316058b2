"""The right backward, derived by torch from what forward runs and written in the author's own names."""
