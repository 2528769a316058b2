"""Inputs for a target without a spec: evidence from its source, and a search guided by what torch says."""
