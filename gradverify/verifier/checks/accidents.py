"""Exceptions that backward raises at inferred inputs: mistakes whatever the inputs, or what a guess makes."""

from __future__ import annotations

import re

from gradverify.model import Finding
from gradverify.verifier.checks.subject import Sample

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them."""

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute ")


def is_accident(sample: Sample, finding: Finding) -> bool:
    """Whether backward raised what no choice of inputs explains."""
    raised = finding.raised
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return False
    return not _lacks_an_attribute(sample, raised.message)


def _lacks_an_attribute(sample: Sample, message: str) -> bool:
    """Whether what backward asks in vain may be a constant, which was guessed to be a tensor or a number.

    One that forward hands on through ctx without a look is often an object, of which nothing else tells.
    """
    named = _NO_ATTRIBUTE.match(message)
    constants = {type(a.value).__name__ for a in sample.arguments if not a.differentiable}
    return named is not None and named[1] in constants
