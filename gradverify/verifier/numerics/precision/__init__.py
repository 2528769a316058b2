"""Rounding errors of a native dtype: what it may do to a value, measured, and what it may not."""
