"""What of inferred inputs was made up, and what says that a gradient is not meant to be the derivative."""

from __future__ import annotations

from gradverify.model import Doubt, Finding, tensors_of
from gradverify.verifier.checks.result import NOT_REPEATED
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.deliberate import looks_deliberate

OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV108", "GV110", "GV201", "GV202"})
"""Codes that say nothing of a gradient which is not meant to be the derivative."""

OF_A_SLOPE = frozenset({"GV101", "GV107", "GV110"})
"""Codes that rest on a derivative of forward as it was measured."""


OF_THE_COUNT = "GV105"
"""Another number of gradients than of arguments, or one for what is no tensor and may be meant to be."""

OF_A_WRITE = "GV402"
"""A write into an input: a spec says of one that is kept for it `mutated: true`."""

WRITES = frozenset({"GV401", "GV402", "GV403"})
"""Writes into grad_output, an input, what was saved."""


def signs_of(sample: Sample, finding: Finding) -> list[str]:
    """What shows that the gradient is not meant to be the derivative: in the source, in the numbers."""
    if finding.cause == NOT_REPEATED:
        return ["that backward should be the derivative (it gives another gradient each time)"]
    if finding.code not in OF_THE_DERIVATIVE:
        return []
    said = [d.what for d in sample.subject.doubts if d.intent][:1]
    return [*said, *filter(None, [looks_deliberate(sample, finding)])]


def inventions_of(sample: Sample) -> tuple[Doubt, ...]:
    """What of the inputs of this case was invented."""
    options, sizes = dict(sample.case.options), dict(sample.case.sizes)
    return tuple(
        d
        for d in sample.subject.doubts
        if not d.intent
        and not d.extreme
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
        and not (d.differ and len({sizes.get(n) for n in d.differ}) == 1)
    )


def size_in_doubt(sample: Sample) -> str:
    """The input of which a size of 0 was guessed, which says nothing of any other size; else empty."""
    empty = (t.name for i in sample.case.inputs for t in tensors_of(i) if 0 in t.shape)
    name = next(empty, "")
    return f"that `{name}` may be empty" if name else ""


def count_in_doubt(sample: Sample, finding: Finding) -> str:
    """What was guessed if another number of gradients is meant: how long a list of tensors is; else empty."""
    lists = (a.name.partition("[")[0] for a in sample.arguments if a.name.endswith("]"))
    name = next(lists, "") if finding.code == OF_THE_COUNT else ""
    return f"how many tensors `{name}` holds" if name else ""


def write_in_doubt(sample: Sample, finding: Finding) -> str:
    """What was guessed if a write is meant: a buffer kept for it, an option that asks for it; else empty."""
    if finding.code == OF_A_WRITE and finding.input not in {None, *sample.problem.input_names}:
        return f"that `{finding.input}` is no buffer to be written into"
    named = (a.name for a in sample.arguments if a.value is True and finding.code in WRITES)
    asking = next((name for name in named if "inplace" in name.replace("_", "").lower()), "")
    return f"`{asking}` = True, which asks for that," if asking else ""
