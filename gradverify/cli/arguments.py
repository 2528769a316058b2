"""The command line before it is parsed: an option whose value may be left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def with_revision(arguments: Sequence[str]) -> list[str]:
    """Give a bare `--changed` its revision: what follows it is one, unless it is an option or a TARGET."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    for index, word in enumerate(given[:end]):
        following = given[index + 1] if index + 1 < end else ""
        if word == "--changed" and _is_no_revision(following):
            given[index] = "--changed=HEAD"
    return given


def _is_no_revision(word: str) -> bool:
    target = "::" in word or re.search(r"\.(py|ya?ml)$", word) is not None
    return not word or word.startswith("-") or target or Path(word).exists()
