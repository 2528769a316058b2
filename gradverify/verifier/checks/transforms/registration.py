"""GV504: what an operator promises torch beside its gradient, by `torch.library.opcheck`.

opcheck says nothing on gradients: it asks whether the schema is true, where autograd is registered, and
whether the fake kernel describes what the real one returns. A wrong answer is an error, a missing one a note.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradverify.model import Finding, RaisedError, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.checks.transforms.answer import NOT_RUN, Answer
from gradverify.verifier.checks.variations.running import is_accident
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import copies, substitute

CODE = "GV504"

CLOSE = 1e-5
"""Relative and absolute difference that tracing may make: no mistake of a registration is so small."""

_MUTATED = re.compile(r"Argument (\w+) is not defined as mutable but was mutated")
_ALIASED = re.compile(r"Argument (\w+) is not defined to alias output|outputs\[\d+\] is (\w+)")
_OUTPUTS_ALIASED = re.compile(r"Outputs (\d+) and (\d+) alias")
_OF_AUTOGRAD_KEY = "requires_grad-ness"
"""The fake kernel is not at fault: autograd stands under the wrong key, which another test says."""

_NO_FAKE = re.compile(r"no fake impl|Unsupported(Operator|FakeTensor)|missing a fake")


@dataclass(frozen=True)
class _Told:
    """What the failure of one test means."""

    message: str
    hint: str
    severity: Severity
    input: str | None = None
    traced: bool = True
    """The exception says more than the message."""


@dataclass(frozen=True)
class _Test:
    """One test of opcheck, and what its exceptions mean; None where another test says it."""

    name: str
    told: Callable[[Operator, RaisedError], _Told | None]


def registration(base: Verified) -> Answer:
    """Run the tests of opcheck one by one; the last, which builds on the fake kernel, only where that holds.

    An operator that draws random numbers is not traced: it would draw others.
    """
    operator = base.sample.subject.operator
    if operator is None:
        return NOT_RUN
    findings: list[Finding] = []
    for test in _TESTS:
        traced = test.name == "test_aot_dispatch_dynamic"
        if traced and (base.forward_draws or base.backward_draws or _fails(findings, "test_faketensor")):
            continue
        result = guard.call(_checked, base, operator, test.name)
        told = test.told(operator, result.error) if isinstance(result, Raised) else None
        if isinstance(result, Raised) and told is not None:
            explained = _explained(findings, told) if traced else None
            findings = explained or [*findings, _finding(base, test, told, result.error)]
    severities = {f.severity for f in findings}
    if severities & {Severity.ERROR, Severity.WARNING}:
        return Answer("wrong", tuple(findings))
    return Answer("no" if findings else "yes", tuple(findings))


def _explained(findings: Sequence[Finding], told: _Told) -> list[Finding] | None:
    """The findings with an autograd key that is wrong made an error: tracing shows what comes of it."""
    if told.severity is not Severity.ERROR or not _fails(findings, "test_autograd_registration"):
        return None
    said = ": traced by torch.compile's dispatcher, it gives another gradient"
    return [
        replace(f, severity=Severity.ERROR, message=f.message + said)
        if f.part == "test_autograd_registration"
        else f
        for f in findings
    ]


def _fails(findings: Sequence[Finding], test: str) -> bool:
    return any(f.part == test for f in findings)


def _finding(base: Verified, test: _Test, told: _Told, error: RaisedError) -> Finding:
    return base.finding(
        CODE,
        told.message,
        hint=told.hint,
        severity=told.severity,
        input=told.input,
        part=test.name,
        raised=error if told.traced else None,
    )


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


def _of_schema(operator: Operator, error: RaisedError) -> _Told:
    mutated, aliased = _MUTATED.search(error.message), _ALIASED.search(error.message)
    outputs = _OUTPUTS_ALIASED.search(error.message)
    if mutated is not None:
        return _Told(
            f"`{operator.name}` writes into `{mutated[1]}`, which its schema declares as only read",
            "Name it in `mutates_args`, as `Tensor(a!)` in a schema, or work on a copy: torch.compile moves "
            "and drops writes that no schema declares.",
            Severity.ERROR,
            mutated[1],
        )
    if aliased is not None:
        name = aliased[1] or aliased[2]
        return _aliases(operator, f"`{name}` itself or a view of it", name)
    if outputs is not None:
        return _aliases(operator, f"the same memory for outputs {outputs[1]} and {outputs[2]}", None)
    return _Told(
        f"the schema of `{operator.name}` could not be held against what it does: {_said(error)}",
        "See the traceback with -vv.",
        Severity.NOTE,
    )


def _aliases(operator: Operator, what: str, name: str | None) -> _Told:
    return _Told(
        f"`{operator.name}` returns {what}, and its schema promises new tensors",
        "Return a copy (.clone()): torch.compile takes results for memory of their own.",
        Severity.ERROR,
        name,
    )


def _of_autograd(operator: Operator, error: RaisedError) -> _Told:
    if error.type != "AssertionError":
        return _refused(operator, "autograd registration", error)
    return _Told(
        f"the backward of `{operator.name}` is registered under a backend's key, not under Autograd",
        "Register it with torch.library.register_autograd, or under the key Autograd, and the plain kernel "
        "under CPU or CUDA; an operator that is made of torch's operators belongs under "
        "CompositeImplicitAutograd.",
        Severity.WARNING,
    )


def _of_fake(operator: Operator, error: RaisedError) -> _Told | None:
    if _OF_AUTOGRAD_KEY in error.message:
        return None
    if error.type == "MetadataMismatchError":
        difference = error.message.partition("metadata:")[2].strip() or error.message
        return _Told(
            f"the fake kernel of `{operator.name}` describes another result than it returns: "
            f"{first_line(difference)}",
            "What `register_fake` got must return a tensor of the same shape, dtype, strides and device "
            "(real first, fake second): torch.compile allocates and plans by it.",
            Severity.ERROR,
        )
    if _NO_FAKE.search(f"{error.type} {error.message}"):
        return _Told(
            f"`{operator.name}` has no fake kernel: torch.compile and export refuse it",
            "Add one with `register_fake`: it returns an empty tensor of the result's shape.",
            Severity.NOTE,
            traced=False,
        )
    if is_accident(error):
        return _Told(
            f"the fake kernel of `{operator.name}` raises {error.type}: {first_line(error.message)}",
            "It gets tensors without values: only their shape, dtype and device may be used.",
            Severity.ERROR,
        )
    return _refused(operator, "fake kernel", error)


def _of_tracing(operator: Operator, error: RaisedError) -> _Told:
    what = "gradient" if "Gradients of the operator" in error.message else "result"
    if error.type == "AssertionError" and "of the operator are different" in error.message:
        return _Told(
            f"the {what} of `{operator.name}` is another one when torch.compile's dispatcher traces it",
            "Backward and setup_context are traced with tensors that have no values: no branches on values, "
            "no `.item()`, NumPy or pointers in them. What cannot be traced belongs into an operator of its "
            "own, which backward calls.",
            Severity.ERROR,
        )
    return _refused(operator, "tracing of forward and backward", error)


def _refused(operator: Operator, what: str, error: RaisedError) -> _Told:
    return _Told(
        f"the {what} of `{operator.name}` is refused: {_said(error)}",
        "torch.compile and export will refuse it as well. If they are not meant to be supported, nothing "
        "need be done.",
        Severity.NOTE,
    )


def _said(error: RaisedError) -> str:
    return f"{error.type}: {first_line(error.message)}"


_TESTS = (
    _Test("test_schema", _of_schema),
    _Test("test_autograd_registration", _of_autograd),
    _Test("test_faketensor", _of_fake),
    _Test("test_aot_dispatch_dynamic", _of_tracing),
)
"""The tests of opcheck, in the order in which one explains the next."""
