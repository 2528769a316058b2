"""Where forward returns early at all inputs that were inferred: what never ran is not verified."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from gradverify.model import Finding
from gradverify.source import last_return
from gradverify.verifier.checks.subject import Sample

HINT = "Write a spec with inputs (values, sizes, options) at which forward runs to its end."


def never_at_its_end(samples: Iterable[Sample]) -> Finding | None:
    """GV109 where none of the samples comes to the last `return` of forward; each runs forward once."""
    lines: range | None = None
    first: Sample | None = None
    for sample in samples:
        function = sample.subject.function_class
        forward = None if function is None else inspect.unwrap(function.forward)
        code = getattr(forward, "__code__", None)
        last = last_return(forward)
        if code is None or last is None:
            return None
        above = code.co_firstlineno - 1
        lines = range(above + last.start, above + last.stop)
        if _runs(sample, code) & {*lines}:
            return None
        first = first or sample
    if first is None or lines is None:
        return None
    said = f"at all inputs that were inferred forward returns before line {lines.start}, which never ran"
    return first.finding("GV109", said, hint=HINT)


def _runs(sample: Sample, code: CodeType) -> set[int]:
    """Lines of a function that run in one call of forward."""
    seen: set[int] = set()

    def of_line(frame: FrameType, *_: object) -> Any:  # noqa: ANN401 - as `sys.settrace` has it
        seen.add(frame.f_lineno)
        return of_line

    def of_call(frame: FrameType, *_: object) -> Any:  # noqa: ANN401
        return of_line if frame.f_code is code else None

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        sample.problem.evaluate(sample.problem.primals)
    finally:
        sys.settrace(before)
    return seen
