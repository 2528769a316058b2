"""Functions that communicate: a target on several ranks, seen as one map of whole tensors."""
