"""What a guess excuses: a mismatch on inferred inputs counts only if no other guess makes it go away.

`inferred_inputs` asks the questions in turn, `undeclared_values` those at extreme and special values. Each
question is a module: it tries neighbours of what was guessed, which forward has to accept, and gives in words
what was guessed where backward is right there. Nothing here is asked where a spec declares the inputs.
"""
