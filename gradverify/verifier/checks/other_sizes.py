"""Whether a mismatch hangs on a size that was invented: it is looked for again where every size is even.

Halves are turned, pairs are taken, channels are split in two: such a Function means an even size, and often
neither says so nor refuses an odd one. Where sizes were guessed, a backward that is right at even ones may be
right for every caller.
"""

from __future__ import annotations

from gradverify.verifier.checks.manifolds import mismatched
from gradverify.verifier.checks.subject import Sample, prepare


def odd_sizes_alone(sample: Sample, name: str | None) -> tuple[str, ...]:
    """Names of odd sizes of this sample's case where the mismatch for an input is not there at even ones.

    Empty where it is there as well, where no case with even sizes is known, or forward refuses that.
    """
    case = sample.case
    odd = tuple(size for size, n in case.sizes if n % 2)
    for spare in sample.subject.spares if odd else ():
        if spare.options != case.options or any(n % 2 for _, n in spare.sizes):
            continue
        other = prepare(sample.subject, spare, sample.point, sample.draw)
        if isinstance(other, Sample):
            return odd if mismatched(other, name) is False else ()
    return ()
