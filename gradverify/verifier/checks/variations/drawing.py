"""GV410: random numbers that backward draws for itself are other ones than forward's."""

from __future__ import annotations

from gradverify.model import Swept
from gradverify.verifier.checks.variations.running import backward, called
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.guard import Raised, RandomStates

OTHER_SEED = 53
"""Offset from a case's seed to that of the random states that backward finds here."""


def drawn_in_backward(base: Verified) -> Varied:
    """A backward that draws gives the verified gradient, whatever the random states are when it runs.

    Every other call here finds forward's random states again, and so the same mask; a training step does not.
    """
    if not base.backward_draws:
        return Varied()
    call = called(base.sample)
    if isinstance(call, Raised):
        return Varied()
    states = RandomStates(base.sample.case.seed + OTHER_SEED)
    result = backward(base.sample, call.value, base.grad_outputs(), states=states)
    swept = Swept(calls=("backward with other random states",))
    difference = None if isinstance(result, Raised) else base.difference(result.value)
    if difference is None:
        return Varied(swept=swept)
    finding = base.finding(
        "GV410",
        f"backward draws random numbers of its own: with others, {difference.place} is {difference.values}; "
        "it is right here only where it finds the random states that forward found",
        hint="Draw in forward and save what was drawn (ctx.save_for_backward). To draw it again, keep the "
        "random state in forward and set it in backward, inside torch.random.fork_rng().",
        input=difference.name,
    )
    return Varied((finding,), swept)
