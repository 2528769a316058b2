"""Forward is flat wherever it is measured and yet not constant: a staircase, whose backward is a choice."""

from __future__ import annotations

import torch

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs, wrong_ones

MOVES = (1.0, -1.0, 3.0)
"""How far the whole input is moved, in units of its typical size, to find the next step."""


def looks_surrogate(pairs: Pairs) -> Cause | None:
    """The derivative is exactly zero wherever it exists, backward's is not, and forward has steps.

    A forward that does not depend on the input at all is flat too: no surrogate, only a wrong gradient.
    """
    # Entries that are not known lie at a step itself.
    if not all(bool(pair.cut(pair.point.flat)[pair.known].all()) for pair in pairs):
        return None
    if not all(_has_steps(pair) for pair in wrong_ones(pairs)):
        return None
    return Cause(
        "looks-surrogate",
        f"forward is a step function of `{pairs[0].name}`, whose derivative is zero, and backward is not "
        "zero: this looks like a deliberate surrogate gradient",
        "If it is one (straight-through, spiking), declare it in the spec: `surrogate: module:function` with "
        'a composite whose gradient is meant, or `surrogate: {reason: "straight-through"}`.',
    )


def _has_steps(pair: Pair) -> bool:
    forward, block = pair.point.forward, pair.source_block
    typical = pair.x.abs().median().clamp_min(2.0**-8)
    for move in MOVES:
        x = pair.point.x.clone()
        # Each entry by another distance, so that what sums up cannot cancel.
        distance = torch.linspace(1.0, 1.5, pair.x.numel(), dtype=torch.float64)
        x[block.start : block.stop] += move * typical * distance
        y = forward(x)
        if y is None:
            continue
        own = y[pair.output_block.start : pair.output_block.stop]
        if not torch.equal(own, pair.y):
            return True
    return False
