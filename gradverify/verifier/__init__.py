"""Everything that imports torch, and nothing else does.

Runs in a worker process started by `gradverify.session.pool`, and directly under the Python API.
"""
