"""Where forward returns early at all inputs that were inferred: what never ran is not verified."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from gradverify.model import Finding
from gradverify.source import definition
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
        lines = _last_return(forward, code) if code is not None else None
        if code is None or lines is None or _runs(sample, code) & {*lines}:
            return None
        first = first or sample
    if first is None or lines is None:
        return None
    said = f"at all inputs that were inferred forward returns before line {lines.start}, which never ran"
    return first.finding("GV109", said, hint=HINT)


def _last_return(forward: Any, code: CodeType) -> range | None:  # noqa: ANN401 - the user's
    """The lines of the last `return` of a function that has others before it; None for any other."""
    tree = definition(forward)
    returns = [node for node in _own(tree) if isinstance(node, ast.Return)] if tree is not None else []
    if len(returns) < 2:
        return None
    last, start = max(returns, key=lambda node: node.lineno), code.co_firstlineno - 1
    return range(start + last.lineno, start + (last.end_lineno or last.lineno) + 1)


def _own(tree: ast.AST) -> Iterable[ast.AST]:
    """Nodes that are of no function inside."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield from _own(node)


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
