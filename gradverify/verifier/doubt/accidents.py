"""Exceptions that backward raises at inferred inputs: mistakes whatever the inputs, or what a guess makes."""

from __future__ import annotations

import inspect
import re

from gradverify.model import Finding, RaisedError
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.handed_on import asks_of_what_is_handed_on
from gradverify.verifier.doubt.other_sizes import takes_more_dimensions
from gradverify.verifier.doubt.written_sizes import takes_written_sizes
from gradverify.verifier.raised_errors import is_bound_nowhere

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them."""

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")

_NO_AXIS = re.compile(r"Dimension out of range|too many indices")
_NO_ENTRY = re.compile(r"index \d+ is out of (?:bounds|range)")


def hangs_on_no_guess(sample: Sample, error: RaisedError | None) -> bool:
    """Whether backward raised what no inputs at all explain: a name bound nowhere, its own signature."""
    if error is None or error.deliberate:
        return False
    return is_bound_nowhere(error) or (error.type == "TypeError" and _takes_another_count(sample))


def _takes_another_count(sample: Sample) -> bool:
    """Whether backward takes another number of grad_outputs than forward has outputs, whatever is passed.

    Where forward takes a list, how long it is may decide how many outputs there are.
    """
    function = sample.subject.function_class
    if function is None or any("[" in a.name or a.in_list for a in sample.arguments):
        return False
    try:
        signature = inspect.signature(own_backward(function))
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, *(None for _ in range(sample.outputs_returned)))
    except TypeError:
        return True
    return False


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
