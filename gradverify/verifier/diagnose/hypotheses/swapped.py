"""The gradient of another input was returned."""

from __future__ import annotations

from collections.abc import Callable

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Explanation, Hypothesis, Pair, Pairs


def swapped(pairs: Pairs) -> Cause | None:
    """What is returned for this input is the gradient of another one of the same shape."""
    first = pairs[0]
    for other, name in enumerate(first.point.input_names):
        what = f"the gradient returned for `{first.name}` is the one of `{name}`"
        cause = Cause("swapped-inputs", what)
        if other == first.source or not Hypothesis(cause, _gradient_of(other)).holds(pairs):
            continue
        back = Hypothesis(cause, _gradient_of(first.source))
        if back.holds([Pair(pair.point, pair.output, other) for pair in pairs]):
            advice = "Exchange the two values in backward's return statement."
            return Cause("swapped-inputs", f"{what}, and vice versa", advice)
        return cause
    return None


def _gradient_of(source: int) -> Callable[[Pair], Explanation | None]:
    def explain(pair: Pair) -> Explanation | None:
        other = Pair(pair.point, pair.output, source)
        is_alike = other.source_block.shape == pair.source_block.shape
        return (other.true, other.bound) if is_alike else None

    return explain
