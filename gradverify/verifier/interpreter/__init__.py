"""Triton's interpreter, which runs kernels in Python where there is no GPU, and what kernels miss in it.

Each shim names a kernel that needs it. None is installed where kernels are compiled.
"""
