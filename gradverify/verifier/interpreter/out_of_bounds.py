"""The errors of interpreted kernels, by name and type: nothing of Triton's is imported."""

OF_THE_INTERPRETER = "InterpreterError"
"""What Triton's interpreter raises for whatever happens in a kernel, its own gaps among it."""


class OutOfBoundsError(IndexError):
    """A kernel writes to memory that belongs to none of its tensors."""
