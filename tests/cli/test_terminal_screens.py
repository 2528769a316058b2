"""Whole screens of a terminal of 80 columns, as the documentation shows them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from extent import extent

if sys.platform == "win32":
    pytest.skip("needs a pty", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "house" / "documentation" / "screens.py"

_spec = importlib.util.spec_from_file_location("screens_of_docs", SCRIPT)
screens = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(screens)

SHORT = ("right", "one-mistake", "spec-error", "watch")


@pytest.mark.parametrize("name", extent(SHORT, screens.SCREENS))
def test_a_screen_is_what_the_documentation_shows(name):
    shown = screens.plain(screens.screen(name))
    assert shown == (screens.PICTURES / f"{name}.txt").read_text("utf-8")
    unbroken = ("reproduce", "explain", "- ", "+ ")  # commands and lines of source stay in one piece
    wide = [line for line in shown.splitlines() if len(line) > screens.COLUMNS]
    assert all(line.strip().startswith(unbroken) or line.endswith("`") for line in wide)


def test_every_screen_has_its_picture():
    page = (screens.PICTURES.parent / "screens.md").read_text("utf-8")
    assert all(f"screens/{name}.svg" in page for name in screens.SCREENS)
    assert {path.stem for path in screens.PICTURES.glob("*.svg")} == set(screens.SCREENS)
