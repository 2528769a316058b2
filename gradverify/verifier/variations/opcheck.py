"""GV504: what an operator promises torch beside its gradient, by `torch.library.opcheck`.

opcheck says nothing on gradients: it asks whether the schema is true, where autograd is registered, and
whether the fake kernel describes what the real one returns. A wrong answer is an error, a missing one a note.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradverify.model import Finding, RaisedError, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import copies, substitute
from gradverify.verifier.variations.call import is_accident
from gradverify.verifier.variations.variation import NOT_RUN, Answer
from gradverify.verifier.variations.verified import Verified

CODE = "GV504"

CLOSE = 1e-5
"""Relative and absolute difference that tracing may make: no mistake of a registration is so small."""

SCHEMA, AUTOGRAD = "test_schema", "test_autograd_registration"
FAKE, TRACING = "test_faketensor", "test_aot_dispatch_dynamic"
TESTS = (SCHEMA, AUTOGRAD, FAKE, TRACING)
"""The tests of opcheck, in the order in which one explains the next."""


@dataclass(frozen=True)
class _Meaning:
    """What an exception of one test means: the first row whose pattern is found tells it."""

    test: str
    pattern: str
    """Searched in `Type: message`."""
    message: str
    """`{name}` is the operator; further fields are groups of the pattern."""
    hint: str
    severity: Severity = Severity.ERROR
    traced: bool = True
    """The exception says more than the message."""


_COPY = "Return a copy (.clone()): torch.compile takes results for memory of their own."

_MEANINGS = (
    _Meaning(
        SCHEMA,
        r"Argument (?P<input>\w+) is not defined as mutable but was mutated",
        "`{name}` writes into `{input}`, which its schema declares as only read",
        "Name it in `mutates_args`, as `Tensor(a!)` in a schema, or work on a copy: torch.compile moves "
        "and drops writes that no schema declares.",
    ),
    _Meaning(
        SCHEMA,
        r"Argument (?P<input>\w+) is not defined to alias output",
        "`{name}` returns `{input}` itself or a view of it, and its schema promises new tensors",
        _COPY,
    ),
    _Meaning(
        SCHEMA,
        r"outputs\[\d+\] is (?P<input>\w+)",
        "`{name}` returns `{input}` itself or a view of it, and its schema promises new tensors",
        _COPY,
    ),
    _Meaning(
        SCHEMA,
        r"Outputs (?P<one>\d+) and (?P<other>\d+) alias",
        "`{name}` returns the same memory for outputs {one} and {other}, and its schema promises new tensors",
        _COPY,
    ),
    _Meaning(
        SCHEMA,
        "",
        "the schema of `{name}` could not be held against what it does: {said}",
        "See the traceback with -vv.",
        Severity.NOTE,
    ),
    _Meaning(
        AUTOGRAD,
        r"^AssertionError: ",
        "the backward of `{name}` is registered under a backend's key, not under Autograd",
        "Register it with torch.library.register_autograd, or under the key Autograd, and the plain kernel "
        "under CPU or CUDA; an operator that is made of torch's operators belongs under "
        "CompositeImplicitAutograd.",
        Severity.WARNING,
    ),
    # The fake kernel is not at fault: autograd stands under the wrong key, which another test says.
    _Meaning(FAKE, "requires_grad-ness", "", ""),
    _Meaning(
        FAKE,
        r"^MetadataMismatchError: (?:.*?metadata:\s*)?(?P<difference>[^\n]*)",
        "the fake kernel of `{name}` describes another result than it returns: {difference}",
        "What `register_fake` got must return a tensor of the same shape, dtype, strides and device "
        "(real first, fake second): torch.compile allocates and plans by it.",
    ),
    _Meaning(
        FAKE,
        r"no fake impl|Unsupported(Operator|FakeTensor)|missing a fake",
        "`{name}` has no fake kernel: torch.compile and export refuse it",
        "Add one with `register_fake`: it returns an empty tensor of the result's shape.",
        Severity.NOTE,
        traced=False,
    ),
    _Meaning(
        TRACING,
        r"^AssertionError: (?=.*Gradients of the operator)(?=.*of the operator are different)",
        "the gradient of `{name}` differs when torch.compile's dispatcher traces it",
        "Backward and setup_context are traced with tensors that have no values: no branches on values, "
        "no `.item()`, NumPy or pointers in them. What cannot be traced belongs into an operator of its "
        "own, which backward calls.",
    ),
    _Meaning(
        TRACING,
        r"^AssertionError: (?=.*of the operator are different)",
        "the result of `{name}` differs when torch.compile's dispatcher traces it",
        "Forward is traced with tensors that have no values: no branches on values, no `.item()` in it.",
    ),
)

_REFUSED = "torch.compile and export will refuse it as well. If they are not meant to be supported, nothing "
_REFUSED += "need be done."

_PARTS = {
    AUTOGRAD: "autograd registration",
    FAKE: "fake kernel",
    TRACING: "tracing of forward and backward",
}


def registration(base: Verified) -> Answer:
    """Run the tests of opcheck one by one; the last, which builds on the fake kernel, only where that holds.

    An operator that draws random numbers is not traced: it would draw others.
    """
    operator = base.sample.subject.operator
    if operator is None:
        return NOT_RUN
    findings: list[Finding] = []
    for test in TESTS:
        if test == TRACING and (base.draws or _fails(findings, FAKE)):
            continue
        result = guard.call(_checked, base, operator, test)
        found = _reported(base, operator, test, result.error) if isinstance(result, Raised) else None
        if found is None:
            continue
        is_traced = test == TRACING and found.severity is Severity.ERROR
        findings = _explained(findings) if is_traced and _fails(findings, AUTOGRAD) else [*findings, found]
    severities = {f.severity for f in findings}
    if severities & {Severity.ERROR, Severity.WARNING}:
        return Answer("wrong", tuple(findings))
    return Answer("no" if findings else "yes", tuple(findings))


def _explained(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with an autograd key that is wrong made an error: tracing shows what comes of it."""
    said = ": traced by torch.compile's dispatcher, it gives another gradient"
    return [
        replace(f, severity=Severity.ERROR, message=f.message + said) if f.part == AUTOGRAD else f
        for f in findings
    ]


def _fails(findings: Sequence[Finding], test: str) -> bool:
    return any(f.part == test for f in findings)


def _checked(base: Verified, operator: Operator, test: str) -> None:
    """One test on fresh copies of the sample's arguments. Raises what the test found."""
    sample = base.sample
    known = inspect.signature(torch.library.opcheck).parameters
    options = {"rtol": CLOSE, "atol": CLOSE} if {"rtol", "atol"} <= known.keys() else {}

    def check(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the operator's arguments
        answers: dict[str, Any] = torch.library.opcheck(
            operator.overload, arguments, named, test_utils=test, raise_exception=False, **options
        )
        if isinstance(answers[test], BaseException):
            raise answers[test]

    leaves = [leaf.requires_grad_() for leaf in copies(sample.problem.primals)]
    sample.problem.random_states.replay()
    given = substitute(sample.arguments, leaves)
    with_keywords(check, sample.subject.target.parameters, [a.name for a in sample.arguments])(*given)


def _reported(base: Verified, operator: Operator, test: str, error: RaisedError) -> Finding | None:
    """What the exception of a test means; None where another test says it."""
    raised, said = f"{error.type}: {error.message}", f"{error.type}: {first_line(error.message)}"
    for meaning in _MEANINGS:
        found = re.search(meaning.pattern, raised, re.DOTALL) if meaning.test == test else None
        if found is not None:
            break
    else:
        found, meaning = None, _otherwise(test, error)
    if not meaning.message:
        return None
    groups = {} if found is None else {k: first_line(v) for k, v in found.groupdict().items()}
    return base.finding(
        CODE,
        meaning.message.format(name=operator.name, said=said, **groups),
        hint=meaning.hint,
        severity=meaning.severity,
        input=groups.get("input"),
        part=test,
        raised=error if meaning.traced else None,
    )


def _otherwise(test: str, error: RaisedError) -> _Meaning:
    """What no row tells: a slip in a fake kernel, else a refusal."""
    if test == FAKE and is_accident(error):
        hint = "It gets tensors without values: only their shape, dtype and device may be used."
        return _Meaning(test, "", "the fake kernel of `{name}` raises {said}", hint)
    said = f"the {_PARTS[test]} of `{{name}}` is refused: {{said}}"
    return _Meaning(test, "", said, _REFUSED, Severity.NOTE)
