"""What is checked of one sample: its first and second order, references, the contract of backward."""
