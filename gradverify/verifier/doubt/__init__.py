"""What a guess excuses: a mismatch on inferred inputs counts only if no other guess makes it go away.

`inferred_inputs` has the table of reasons, and gives the verdict by the first one that holds. Each other
module tries neighbours of what was guessed, which forward has to accept: other shapes, other values, and
those of a domain or a manifold. A reason gives in words what was guessed where backward is right there. Where
a spec declares the inputs, nothing is asked.
"""
