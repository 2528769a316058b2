"""Write the generated parts of the documentation, and what its commands print today.

python tests/house/documentation/renew.py             everything
python tests/house/documentation/renew.py --tables    only what takes no verification, in a second
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from console_blocks import corrected, followed
from generated_pages import PAGES, ROOT, RULE_PAGES, renewed, rule_pages


def main() -> None:
    """Renew every page."""
    for stale in set(RULE_PAGES.glob("GV*.md")) - rule_pages().keys():
        stale.unlink()
    for file, text in rule_pages().items():
        file.write_text(text, encoding="utf-8")
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        text = renewed(old)
        if "--tables" not in sys.argv[1:]:
            text = _run(text)
        page.write_text(text, encoding="utf-8")
        print(f"{'renewed  ' if text != old else 'unchanged'} {page.relative_to(ROOT)}")  # noqa: T201


def _run(text: str) -> str:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "here"
        folder.mkdir()
        return corrected(text, list(followed(text, folder)))


if __name__ == "__main__":
    main()
