"""`check --watch`: rounds of one session; a round verifies what depends on something that was saved."""
