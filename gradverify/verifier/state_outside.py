"""GV816: what the calls of a target changed that is neither their result nor ctx, as seen from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradverify.model import Finding, Severity

SHOWN = 3
"""Names that are reported."""

HINT = (
    "Keep what backward needs on ctx. What is kept elsewhere outlives the call: another call may find it, "
    "and a verdict need not hold for what is called later."
)


def outside_ctx(changed: Sequence[str], running: Sequence[str], replaced: Sequence[str]) -> Iterator[Finding]:
    """A note for each kind: state that changed, what still runs, what the module replaced on import."""
    for names, what in (
        (changed, "its calls change {}, outside ctx"),
        (running, "its calls leave {} running"),
        (replaced, "its module replaces {} when it is imported"),
    ):
        if names:
            yield Finding("GV816", Severity.NOTE, what.format(_listed(names)), hint=HINT, part=what)


def _listed(names: Sequence[str]) -> str:
    shown = [name if " " in name else f"`{name}`" for name in names[:SHOWN]]
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    *first, last = [*shown, *more]
    return f"{', '.join(first)} and {last}" if first else last
