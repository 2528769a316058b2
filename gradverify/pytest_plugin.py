"""`pytest --gradverify`: spec files are test files, their cases test items.

Off unless asked for; until then nothing but pytest and this file is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SUFFIXES = (".gradverify.yaml", ".gradverify.yml")
"""What a spec file is called for pytest to collect it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that turns this plugin on."""
    group = parser.getgroup("gradverify")
    group.addoption(
        "--gradverify",
        action="store_true",
        default=False,
        help="verify the backwards that *.gradverify.yaml files name: one item for each case",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take spec files, where that is asked for."""
    if not parent.config.getoption("gradverify") or not file_path.name.endswith(SUFFIXES):
        return None
    from gradverify.pytest_items import GradverifySpec  # noqa: PLC0415 - with all of gradverify

    return GradverifySpec.from_parent(parent, path=file_path)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what workers were forked from."""
    items = sys.modules.get("gradverify.pytest_items")
    template = config.stash.get(items.TEMPLATE, None) if items is not None else None
    if template is not None:
        template.close()
