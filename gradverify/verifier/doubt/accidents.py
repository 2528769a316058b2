"""Exceptions that backward raises at inferred inputs: mistakes whatever the inputs, or what a guess makes."""

from __future__ import annotations

import inspect
import re

from gradverify.model import Finding, RaisedError
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.raised_errors import is_bound_nowhere

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them. An index beyond the end
is one of a size or a rank that was guessed."""

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


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
    """Whether backward raised what no choice of inputs explains.

    What is asked in vain of a tensor or a number may have been meant to be another kind of argument.
    """
    raised = finding.raised
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return False
    named = _NO_ATTRIBUTE.match(raised.message)
    return named is None or named[1] not in {type(a.value).__name__ for a in sample.arguments}
