"""What takes long and is run by name: `python -m pytest tests/exhaustive -n 2`."""

from tests.cli.conftest import place

__all__ = ["place"]
