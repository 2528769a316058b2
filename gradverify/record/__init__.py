"""Recording what a program really does: the hook inside it, and what its calls have in common.

`hook` and `injected` run inside the user's own process, under its Python: only the standard library.
"""
