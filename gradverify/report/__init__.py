"""Reports: a `Report` in, text out. These rooms see the model and the rules only, and print nothing."""
