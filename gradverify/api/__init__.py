"""The Python API: `gradcheck`, `gradgradcheck`, `verify` and `check`, loaded when they are first asked for.

Apart from the verifier itself these are the only modules that load torch, and they run in the caller's own
process: what user code raises reaches the caller as it is.
"""
