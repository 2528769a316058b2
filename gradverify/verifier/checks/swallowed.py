"""What forward or backward raises and catches itself at all inputs that were inferred.

Where a guess makes the body of a `try` raise, its handler alone was verified, and the rest never ran.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd import Function

from gradverify.model import Finding
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised

HINT = "Write a spec with inputs (values, sizes, options, objects) at which that does not raise."

ON_NO_INPUTS = (ImportError, StopIteration)
"""What is missing on this machine, and how an iterator ends."""


@dataclass(frozen=True)
class _Caught:
    """An exception that a method raised, and caught."""

    method: str
    line: int
    said: str
    """Its type and message, on one line."""


def always_caught(samples: Iterable[Sample]) -> tuple[Sample, Finding] | None:
    """GV109, and where, if at each sample a method catches what it raises; each runs forward and backward."""
    first: tuple[Sample, _Caught] | None = None
    for sample in samples:
        function = sample.subject.function_class
        methods = {} if function is None else dict(_with_handlers(function))
        caught = _caught(sample, methods) if methods else None
        if caught is None:
            return None
        first = first or (sample, caught)
    if first is None:
        return None
    sample, found = first
    said = (
        f"{found.method} raises {found.said} at line {found.line} and catches it, at all inputs that were "
        "inferred: what is skipped there never ran"
    )
    return sample, sample.finding("GV109", said, hint=HINT)


def _with_handlers(function: type[Function]) -> Iterator[tuple[CodeType, str]]:
    """The code of the methods that could catch something, with their names."""
    for method in (function.forward, function.setup_context, own_backward(function)):
        code = getattr(inspect.unwrap(method), "__code__", None)
        if code is not None and code.co_exceptiontable:
            yield code, code.co_name


def _caught(sample: Sample, methods: Mapping[CodeType, str]) -> _Caught | None:
    """The first exception in one of the methods, none of which leaves them; None for none."""
    found: list[_Caught] = []

    def of_line(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ANN401 - of `sys.settrace`
        if event == "exception" and not issubclass(argument[0], ON_NO_INPUTS):
            lines = str(argument[1]).strip().splitlines() or [""]
            said = f"{argument[0].__name__}: {lines[0]}".removesuffix(": ")
            found.append(_Caught(methods[frame.f_code], frame.f_lineno, said))
        return of_line

    def of_call(frame: FrameType, *_: object) -> Any:  # noqa: ANN401
        return of_line if frame.f_code in methods else None

    problem = sample.problem
    ones = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        ran = problem.pull_back(problem.primals, ones)
    finally:
        sys.settrace(before)
    return found[0] if found and not isinstance(ran, Raised) else None
