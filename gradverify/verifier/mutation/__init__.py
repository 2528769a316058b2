"""Known faults planted in a right Function, to see whether its cases would notice them."""
