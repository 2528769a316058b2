"""Text of user code without what differs in every process, so that two runs give the same report."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?<= at )0x[0-9A-Fa-f]{4,16}\b")
"""As in `<object object at 0x7f3a5c0d2e10>`, which is how Python and torch show what has no better name."""

_TEMPORARY = re.compile(r"(?<=[/\\]tmp)[a-z0-9_]{8}(?![\w-])")
"""The eight characters that `tempfile` draws for a name."""


def repeatable(text: str) -> str:
    """Text with `0x...` for the addresses of objects, and `tmp...` for the names of temporary files."""
    return _TEMPORARY.sub("...", _ADDRESS.sub("0x...", text))
