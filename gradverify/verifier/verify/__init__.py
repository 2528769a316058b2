"""One target: its samples, what is asked of each, and what the answers add up to."""
