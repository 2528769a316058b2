"""Which comparisons of values in a target's source were true, and which were false, while it ran.

A branch for small or large values may hold a formula of its own. What no point has entered is verified
nowhere, and a pass says so. Comparisons of Python numbers (`x.item() > 20`) are not seen.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from gradverify.model import Swept
from gradverify.source import compares, module_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.dispatching import Dispatched
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample

COMPARING = frozenset({"aten::lt", "aten::le", "aten::gt", "aten::ge"})
"""Operations of torch that compare sizes of numbers."""


def branches_seen(sample: Sample) -> Swept:
    """What forward and backward compare at a sample. Each is called once more where its source compares."""
    function, forward = sample.subject.function_class, sample.subject.own_forward
    if function is None or forward is None or not (compares(forward) or compares(own_backward(function))):
        return Swept()
    seen = _Seen(getattr(getattr(inspect.unwrap(forward), "__code__", None), "co_filename", ""))
    with seen:
        values = sample.problem.evaluate(sample.problem.primals)
        if not isinstance(values, Raised):
            sample.problem.pull_back(sample.problem.primals, [torch.ones_like(v) for v in values.value])
    return Swept(ever_true=tuple(seen.true), ever_false=tuple(seen.false))


class _Seen(Dispatched):  # type: ignore[no-untyped-call]
    """Notes the comparisons of floating tensors of one file, as `theta < 1e-4 (line 31)`."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.true: dict[str, None] = {}
        self.false: dict[str, None] = {}

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        result = func(*args, **given)
        if func.name().partition(".")[0] in COMPARING and args[0].is_floating_point() and result.numel():
            written = self._written()
            self.true |= dict.fromkeys(written if bool(result.any()) else ())
            self.false |= dict.fromkeys(() if bool(result.all()) else written)
        return result

    def _written(self) -> tuple[str, ...]:
        """The comparison that is being computed; nothing where it is no code of the file."""
        frame = next(_callers(sys._getframe(), self.file), None)  # noqa: SLF001 - inspect's copies every frame
        if frame is None:
            return ()
        line, last, start, end = [*frame.f_code.co_positions()][frame.f_lasti // 2]
        if line is None or line != last:
            return ()
        lines = linecache.getlines(self.file)
        if (line, start, end) not in module_of("".join(lines)).comparisons:
            return ()
        # Columns of code are counted in bytes.
        return (f"{lines[line - 1].encode()[start:end].decode()} (line {line})",)


def _callers(frame: FrameType | None, file: str) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_code.co_filename == file:
            yield frame
        frame = frame.f_back
