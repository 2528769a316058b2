"""The gradient of another input was returned."""

from __future__ import annotations

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs


def swapped(pairs: Pairs) -> Cause | None:
    """What is returned for this input is the gradient of another one of the same shape."""
    first = pairs[0]
    for other in range(len(first.point.inputs.blocks)):
        if other != first.source and all(_is_of(pair, other) for pair in pairs):
            back = all(_is_of(pair.beside(other), pair.source) for pair in pairs)
            return Cause("swapped-inputs", other=first.point.input_names[other], kind="both" if back else "")
    return None


def _is_of(pair: Pair, other: int) -> bool:
    beside = pair.beside(other)
    if beside.source_block.shape != pair.source_block.shape:
        return False
    return pair.explained_by(beside.true, beside.bound)
