"""What a function is called with: sizes and conditions, tensors before and after sizes are bound, cases.

Standard library only, below the front and the verifier alike: both make the same cases from one `Sweep`.
"""
