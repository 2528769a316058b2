"""GV504: what an operator promises torch beside its gradient, by `torch.library.opcheck`.

opcheck says nothing on gradients: it asks whether the schema is true, where autograd is registered, and
whether the fake kernel describes what the real one returns. What opcheck itself asserts is an error, in its
own words; what stops one of its tests, as a missing fake kernel does, is a note.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from gradverify.model import Finding, RaisedError, Severity
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.raised_errors import describe
from gradverify.verifier.numerics.calling import copies, substitute
from gradverify.verifier.questions.call import is_accident
from gradverify.verifier.questions.verified import NOT_RUN, Answer, Verified
from gradverify.verifier.targets.operators import Operator, with_keywords

CODE = "GV504"

CLOSE = 1e-5
"""Relative and absolute difference that tracing may make: no mistake of a registration is so small."""

MOST_SAID = 300
"""Characters of what opcheck says in the message of a finding."""


@dataclass(frozen=True)
class _Test:
    """One test of opcheck."""

    name: str
    about: str
    hint: str
    severity: Severity = Severity.ERROR


AUTOGRAD = _Test(
    "test_autograd_registration",
    "autograd registration",
    "Register backward with torch.library.register_autograd, or under the key Autograd, and the plain kernel "
    "under CPU or CUDA.",
    Severity.WARNING,
)
FAKE = _Test(
    "test_faketensor",
    "fake kernel",
    "What `register_fake` got must return a tensor of the same shape, dtype, strides and device: "
    "torch.compile allocates and plans by it. It gets tensors without values.",
)
TRACING = _Test(
    "test_aot_dispatch_dynamic",
    "tracing of forward and backward",
    "Forward, backward and setup_context are traced with tensors that have no values: no branches on values, "
    "no `.item()`, NumPy or pointers in them. What cannot be traced belongs into an operator of its own.",
)
TESTS = (
    _Test(
        "test_schema",
        "schema",
        "Name what is written in `mutates_args`, as `Tensor(a!)` in a schema, and return new tensors "
        "(.clone()): torch.compile moves and drops what no schema declares.",
    ),
    AUTOGRAD,
    FAKE,
    TRACING,
)
"""In the order in which one explains the next."""

ASSERTS = {
    "AssertionError": "torch.testing",
    "MetadataMismatchError": "torch._subclasses",
    "RuntimeError": "torch._subclasses.schema_check_mode",
}
"""The types of exceptions by which a test fails, and where torch raises them: any other one only stops it."""

_STOPPED = (
    "torch.compile and export may refuse it as well. If they are not meant to be supported, nothing need be "
    "done."
)


def registration(base: Verified) -> Answer:
    """Run the tests of opcheck one by one; the last, which builds on the fake kernel, only where that holds.

    An operator that draws random numbers is not traced: it would draw others.
    """
    operator = base.sample.subject.operator
    if operator is None:
        return NOT_RUN
    findings: list[Finding] = []
    for test in TESTS:
        if test is TRACING and (base.draws or any(f.part == FAKE.name for f in findings)):
            continue
        result = guard.call(_exception_of, base, operator, test)
        error, failed = (result.error, False) if isinstance(result, Raised) else result.value
        if error is not None:
            findings.append(_reported(base, operator, test, error, failed=failed))
    return Answer.of(*findings)


def _exception_of(base: Verified, operator: Operator, test: _Test) -> tuple[RaisedError | None, bool]:
    """What one test raised on fresh copies of the sample's arguments, and whether it failed by that."""
    sample = base.sample
    known = inspect.signature(torch.library.opcheck).parameters
    options = {"rtol": CLOSE, "atol": CLOSE} if {"rtol", "atol"} <= known.keys() else {}
    answers: dict[str, Any] = {}

    def check(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the operator's arguments
        of_test = torch.library.opcheck(
            operator.overload, arguments, named, test_utils=test.name, raise_exception=False, **options
        )
        answers.update(of_test)

    # With a graph, an autograd kernel under the wrong key would be held against the fake kernel.
    leaves = [leaf.requires_grad_(test is not FAKE) for leaf in copies(sample.problem.primals)]
    sample.problem.random_states.replay()
    given = substitute(sample.arguments, leaves)
    with_keywords(check, sample.subject.target.parameters, [a.name for a in sample.arguments])(*given)
    error = answers[test.name]
    if not isinstance(error, BaseException):
        return None, False
    frame, kind = error.__traceback__, ""
    while frame is not None:
        kind, frame = frame.tb_frame.f_globals.get("__name__", ""), frame.tb_next
    return describe(error), kind.startswith(ASSERTS.get(type(error).__name__, "nowhere"))


def _reported(
    base: Verified, operator: Operator, test: _Test, error: RaisedError, *, failed: bool
) -> Finding:
    """What the exception of a test says; a slip in a fake kernel is an error as well."""
    fails = failed or (test is FAKE and is_accident(error))
    said = " ".join(f"{error.type}: {error.message}".split())
    said = said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}..."
    how = "fails" if fails else "cannot be run"
    return base.finding(
        CODE,
        f"the {test.about} of `{operator.name}`: `{test.name}` of torch.library.opcheck {how}: {said}",
        hint=test.hint if fails else _STOPPED,
        severity=test.severity if fails else Severity.NOTE,
        part=test.name,
        raised=error,
    )
