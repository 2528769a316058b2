"""Inputs for targets without a spec: evidence from the source, repairs from errors, one search."""
