"""From a planned case to tensors: domains, ranges, seeded points whose values a person can read."""
