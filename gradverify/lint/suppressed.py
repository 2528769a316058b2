"""`# noqa` and `# noqa: GV803` on the line of a finding, as other linters read them."""

from __future__ import annotations

import re

_NOQA = re.compile(r"#\s*noqa(?P<codes>\s*:\s*[A-Z]+\d+(?:[\s,]+[A-Z]+\d+)*)?", re.IGNORECASE)


def is_suppressed(line: str, code: str) -> bool:
    """Whether a source line waives a code: by name, or everything by a bare `# noqa`."""
    for match in _NOQA.finditer(line):
        codes = match["codes"]
        if codes is None:
            return True
        if code in re.split(r"[\s,:]+", codes.upper()):
            return True
    return False
