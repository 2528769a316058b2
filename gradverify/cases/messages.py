"""Words that every message about a spec shares: nearest names, values described, paths in a file."""

from __future__ import annotations

import difflib
from collections.abc import Collection

Path = tuple[str | int, ...]
"""Where something is in a spec: `("functions", "softmax", "inputs", "w", "shape", 0)`."""

SHOWN_LENGTH = 40
"""Characters of a user's string that a message repeats."""


def nearest(name: str, candidates: Collection[str]) -> str:
    """Return the candidate that was probably meant, or an empty string."""
    unique = sorted(set(candidates))
    by_case = [candidate for candidate in unique if candidate.lower() == name.lower()]
    if by_case:
        return by_case[0]
    found = difflib.get_close_matches(name[:SHOWN_LENGTH], unique, n=1, cutoff=0.6)
    return found[0] if found else ""


def did_you_mean(name: str, candidates: Collection[str]) -> str:
    """Return `; did you mean ...?`, or an empty string where nothing is near."""
    meant = nearest(name, candidates)
    return f"; did you mean `{meant}`?" if meant else ""


def shown(value: str) -> str:
    """Return a user's string in one short line."""
    line = " ".join(value.split())
    return line if len(line) <= SHOWN_LENGTH else f"{line[: SHOWN_LENGTH - 1]}…"


def described(value: object) -> str:
    """Return what a YAML value is, in words: the string `abc`, a list, empty."""
    match value:
        case None:
            return "empty"
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f"the string `{shown(value)}`"
        case int() | float():
            return f"the number {shown(number(value))}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def number(value: float) -> str:
    """Return a number as YAML writes it: `.inf` and `.nan` included; huge integers are cut."""
    if isinstance(value, int):
        digits = value.bit_length() // 3
        return str(value) if digits < 1000 else "with thousands of digits"
    text = repr(value)
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)


def dotted(path: Path) -> str:
    """Return `functions.softmax.inputs.w` for a place in the file."""
    return ".".join(str(part) for part in path)
