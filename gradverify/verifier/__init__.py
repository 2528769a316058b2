"""Everything that imports torch, and nothing else does.

Runs in a worker process started by `gradverify.session.worker`, and directly under the Python API.
"""
