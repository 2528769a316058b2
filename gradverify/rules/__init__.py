"""The table of codes: what each one means, how severe it is, and the page that `explain` prints.

Codes are never reused. A code has one default severity; a check may lower it for a single finding
where the numbers say that the gradient itself is right, and then says so in the message.
"""

from __future__ import annotations

import difflib

from gradverify.errors import UsageError
from gradverify.rules.pages_calling import PAGES as CALLING
from gradverify.rules.pages_devices import PAGES as DEVICES
from gradverify.rules.pages_first_order import PAGES as FIRST_ORDER
from gradverify.rules.pages_lint_contract import PAGES as LINT_CONTRACT
from gradverify.rules.pages_lint_outside import PAGES as LINT_OUTSIDE
from gradverify.rules.pages_lint_saved import PAGES as LINT_SAVED
from gradverify.rules.pages_lint_written import PAGES as LINT_WRITTEN
from gradverify.rules.pages_operators import PAGES as OPERATORS
from gradverify.rules.pages_precision import PAGES as PRECISION
from gradverify.rules.pages_reference import PAGES as REFERENCE
from gradverify.rules.pages_returned import PAGES as RETURNED
from gradverify.rules.pages_second_order import PAGES as SECOND_ORDER
from gradverify.rules.pages_sweep import PAGES as SWEEP
from gradverify.rules.pages_transforms import PAGES as TRANSFORMS
from gradverify.rules.pages_written import PAGES as WRITTEN
from gradverify.rules.rule import Family, Rule

__all__ = ["RULES", "Family", "Rule", "matching", "nearest_code", "rule"]

RULES: tuple[Rule, ...] = tuple(
    sorted(
        CALLING
        + FIRST_ORDER
        + RETURNED
        + SECOND_ORDER
        + REFERENCE
        + PRECISION
        + WRITTEN
        + SWEEP
        + TRANSFORMS
        + OPERATORS
        + DEVICES
        + LINT_CONTRACT
        + LINT_OUTSIDE
        + LINT_SAVED
        + LINT_WRITTEN,
        key=lambda entry: entry.code,
    )
)
"""Every code of this version, in order."""

_BY_CODE = {entry.code: entry for entry in RULES}


def rule(code: str) -> Rule:
    """Return the rule of a code, in either case; a code that does not exist is a `UsageError`."""
    found = _BY_CODE.get(code.upper())
    if found is None:
        nearest = nearest_code(code)
        hint = f"did you mean {nearest}?" if nearest else "`gradverify rules` lists every code"
        raise UsageError(f"there is no code {code!r}; {hint}")
    return found


def nearest_code(code: str) -> str:
    """Return the code that a mistyped one was probably meant to be, empty where none is near."""
    wanted = code.upper()
    near = difflib.get_close_matches(wanted, _BY_CODE, n=5, cutoff=0.5)
    # GV110 is nearer to GV11x than GV411 is: what counts is the same character at the same place.
    return max(near, key=lambda known: sum(map(str.__eq__, known, wanted)), default="")


def matching(prefix: str) -> tuple[Rule, ...]:
    """Return the rules whose code starts with a prefix such as `GV1`, in either case; empty if none does."""
    wanted = prefix.upper()
    return tuple(entry for entry in RULES if wanted and entry.code.startswith(wanted))
