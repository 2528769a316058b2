"""What a guess excuses: a mismatch at inputs that nobody gave, asked again at the neighbours of the guess."""
