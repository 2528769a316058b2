"""Whether a text selects a case: its id, or some of the `name=value` in it."""

from __future__ import annotations


def matches(case_id: str, wanted: str) -> bool:
    """Whether a case is meant by a filter such as `b=3,mode=sum`, in any order."""
    parts = {part.strip() for part in wanted.split(",")}
    return case_id == wanted or parts <= set(case_id.split(","))
