"""GV803: a path of backward that returns more or fewer gradients than forward has parameters."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass
from gradverify.lint.returned import gives_gradient, is_none, returned
from gradverify.lint.words import plural


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Count the entries of each return whose tuple is written out."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.variadic or not function.is_whole:
        return
    if not gives_gradient(backward):
        return  # nobody calls it: an output that is not differentiable
    inputs = function.inputs
    fewest = len(inputs) - forward.defaults
    for path in returned(backward):
        if path.values is None:
            continue
        count = len(path.values)
        surplus = path.values[len(inputs) :]
        if count < fewest or any(not is_none(value, backward) for value in surplus):
            takes = plural(len(inputs), "input")
            gives = plural(count, "gradient")
            yield Alarm(
                "GV803",
                path.node,
                f"{backward.name} returns {gives} here, forward takes {takes} ({', '.join(inputs)})",
                "Return one gradient for each input of forward in order, None for those that have none.",
            )
