"""What a guess excuses: a mismatch on inferred inputs counts only if no other guess makes it go away.

`inferred_inputs` gives the verdict by the first of the `reasons` that holds. Each question is a module: it
tries neighbours of what was guessed, which forward has to accept, and gives in words what was guessed where
backward is right there. Nothing here is asked where a spec declares the inputs.
"""
