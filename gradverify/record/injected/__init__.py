"""The folder that stands first on PYTHONPATH while a program is recorded."""
