"""A slow target's first evidence, in some 25 calls. It counts where time runs out before the checks end."""

from __future__ import annotations

from gradverify.model import Finding
from gradverify.verifier.checks.subject import NoSample, Sample
from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.contradiction import contradiction

GIVE_TIME = "A longer --timeout, or smaller sizes, shows which entries are wrong, and why."


def contradicted(sample: Sample | NoSample) -> Finding | None:
    """GV101 without a place, where two random directions contradict backward beyond measured error."""
    if isinstance(sample, NoSample) or sample.disconnected or sample.subject.surrogate is not None:
        return None
    size = contradiction(sample.problem)
    if size is None:
        return None
    message = (
        f"backward is not the derivative of forward: along two random directions it is off by {number(size)} "
        "of its size or more; which entries are wrong was not found before it was stopped"
    )
    return sample.finding("GV101", message, hint=GIVE_TIME)
