"""Exceptions that backward raises at inferred inputs: mistakes whatever the inputs, or what a guess makes."""

from __future__ import annotations

import re

from gradverify.model import Finding
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.handed_on import asks_of_what_is_handed_on
from gradverify.verifier.doubt.other_sizes import takes_more_dimensions
from gradverify.verifier.doubt.written_sizes import takes_written_sizes

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them."""

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")

_NO_AXIS = re.compile(r"Dimension out of range|too many indices")
_NO_ENTRY = re.compile(r"index \d+ is out of (?:bounds|range)")


def is_accident(sample: Sample, finding: Finding) -> bool:
    """Whether backward raised what no choice of inputs explains."""
    raised = finding.raised
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return False
    return not _lacks_an_attribute(sample, raised.message) and not _is_of_a_guess(sample, raised.message)


def _is_of_a_guess(sample: Sample, message: str) -> bool:
    """Whether an axis or an entry is missing that inputs of shapes have which forward also takes."""
    if _NO_AXIS.search(message):
        return takes_more_dimensions(sample)
    return _NO_ENTRY.search(message) is not None and takes_written_sizes(sample)


def _lacks_an_attribute(sample: Sample, message: str) -> bool:
    """Whether what backward asks in vain may be a constant, which was guessed to be a tensor or a number.

    One that forward hands on through ctx without a look is often an object, of which nothing else tells; and
    where backward's source does not say what gets a gradient, it was guessed to be a tensor that gets one.
    """
    named = _NO_ATTRIBUTE.match(message)
    if named is None:
        return False
    constants = {type(a.value).__name__ for a in sample.arguments if not a.differentiable}
    function = sample.subject.function_class
    return named[1] in constants or (function is not None and asks_of_what_is_handed_on(function, named[2]))
