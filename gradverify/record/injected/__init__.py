"""The folder that is first on PYTHONPATH while a program is recorded."""
