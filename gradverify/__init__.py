"""gradverify: verify hand-written PyTorch backwards.

The command `gradverify check mymodule.py` is the way in. This package imports nothing heavy.
"""

__version__ = "0.1.0"
