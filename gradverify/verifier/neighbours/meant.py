"""What the finding itself leaves open: a write that may be meant, a gradient of the author's choice.

What forward returns as it got it needs no backward, and a step has no derivative to give: with such a forward
somebody wrote a gradient that is meant to be another one, and so did who draws it at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import Entry, Finding, tensors_of
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.neighbours.asking import (
    Neighbour,
    are_near,
    gradients_at,
    inputs_of,
    is_right,
    outputs_at,
)
from gradverify.verifier.neighbours.values import OF_THE_DERIVATIVE, OF_THE_DTYPE
from gradverify.verifier.questions.findings import NOT_REPEATED, deliberate, if_guessed, joined, refused
from gradverify.verifier.questions.subject import Sample

OF_AN_EXCEPTION = "GV102"
"""Backward raises."""

OF_THE_COUNT = "GV105"
"""Another number of gradients than of arguments, or one for what is no tensor and may be meant to be."""

OF_A_WRITE = "GV402"
"""A write into an input: a spec says of one that is kept for it `mutated: true`."""

WRITES = frozenset({"GV401", "GV402", "GV403"})
"""Writes into grad_output, an input, what was saved."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them. An index beyond the end
is one of a size or a rank that was guessed."""

FLAT = (1e-5, -1e-5)
"""How far entries are moved to see whether forward is flat: short beside the distance to a step."""

REACH = 2.0
"""How far one entry moves on both sides to see whether forward jumps, in the largest entry, or in 1."""

PARTS = 16
"""Parts of that distance."""

CUTS = 5
"""How often the part in which it changes most is cut into as many again."""

STAYS = 0.01
"""Share of the first change which remains where it is a jump: of 8 bits 1/32 does, of a kink 16^-4."""

REPEATS = 1e-5
"""Relative difference of two gradients at the same inputs that no order of additions makes."""

AGAIN = "it gives another gradient each time"

MEANT = "that backward should be the derivative ({})"


def guesses_behind(sample: Sample, finding: Finding) -> Iterator[str]:
    """What was guessed if this very finding is meant: a size of 0, a write, the length of a list, a dtype."""
    code, name, inputs = finding.code, finding.input, inputs_of(sample)
    yield from (
        f"that `{t.name}` may be empty" for i in sample.case.inputs for t in tensors_of(i) if 0 in t.shape
    )
    if code == OF_A_WRITE and name not in {None, *inputs}:
        yield f"that `{name}` is no buffer to be written into"
    for a in sample.arguments:
        if code in WRITES and a.value is True and "inplace" in a.name.replace("_", "").lower():
            yield f"`{a.name}` = True, which may ask for that,"
        if code == OF_THE_COUNT and a.name.endswith("]"):
            yield f"how many tensors `{a.name.partition('[')[0]}` holds"
    if code == OF_THE_DTYPE and name in inputs:  # its author calls it with one dtype
        yield f"that `{name}` is {str(inputs[name].dtype).removeprefix('torch.')}"


def is_meant(sample: Sample, finding: Finding) -> Finding | None:
    """The finding as one that hangs on the first such guess."""
    return if_guessed(finding, [next(guesses_behind(sample, finding), "")])


def raises_on_purpose(sample: Sample, finding: Finding) -> Finding | None:
    """An exception of backward that inputs which are meant may not give.

    What is asked in vain of a tensor or a number may have been meant to be another kind of argument.
    """
    raised = finding.raised
    if finding.code != OF_AN_EXCEPTION:
        return None
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return refused(finding)
    kinds = tuple(f"'{type(a.value).__name__}' object has no attribute" for a in sample.arguments)
    return refused(finding) if raised.message.startswith(kinds) else None


def no_derivative_meant(sample: Sample, finding: Finding) -> Finding | None:
    """The finding where the source or the numbers show that the gradient is a choice."""
    if finding.cause == NOT_REPEATED:
        return deliberate(finding, MEANT.format(AGAIN))
    if finding.code not in OF_THE_DERIVATIVE or finding.cause == "grad-output-ones":
        return None
    said = [d.what for d in sample.subject.doubts if d.intent][:1]
    shown = _chosen(sample, finding) if finding.code != "GV108" else ""
    signs = [*said, *([MEANT.format(shown)] if shown else [])]
    return deliberate(finding, joined(signs)) if signs else None


def _chosen(sample: Sample, finding: Finding) -> str:
    """How forward shows that the gradient of an input is a choice; empty where it does not."""
    given, base = inputs_of(sample), outputs_at(sample)
    name = finding.input if finding.input in given else next(iter(given))
    primal = given[name]
    if base is None or primal.is_complex() or not primal.numel():
        return ""
    if not _repeats(sample, name):
        return AGAIN
    if any(torch.equal(value, primal) for value in sample.problem.outputs.unflatten(base)):
        return f"forward returns `{name}` as it is"
    hidden = any(d.of_values for d in sample.subject.doubts)  # labels all alike leave nothing to depend on
    still = [e for e in worst_entries(finding) if e.expected == 0 and finding.input == name]
    first, last = _jump(sample, name, still)
    if last > STAYS * first:
        return f"forward is a step in `{name}`, and backward gives it a gradient"
    far = REACH * (1 + primal.abs())
    ends = [outputs_at(sample, {name: primal + sign * far}) for sign in (1, -1)] if first == 0 else []
    if ends and not hidden and all(end is not None and torch.equal(end, base) for end in ends):
        return f"no output depends on `{name}`, and backward gives it a gradient"
    return _drawn(sample, name)


def _repeats(sample: Sample, name: str) -> bool:
    """Whether backward gives the same twice; what it leaves unwritten is no gradient of its own."""
    with filled_memory():
        first, again = (gradients_at(sample).get(name) for _ in range(2))
    return first is None or again is None or are_near(first.nan_to_num(), again.nan_to_num(), REPEATS)


def _moved(sample: Sample, name: str, entries: Sequence[Entry], distance: float) -> Tensor | None:
    """The outputs where some entries of an input move alone."""
    moved = inputs_of(sample)[name].clone()
    for entry in entries:
        moved[entry.input or ()] += distance
    return outputs_at(sample, {name: moved})


def _jump(sample: Sample, name: str, still: Sequence[Entry]) -> tuple[float, float]:
    """How much forward changes in a part of the way where an entry moves alone, and in a small part of that.

    The entry is one in which it is constant. The part in which it changes most is cut into parts again.
    """
    low, width, first, last = -REACH, 2 * REACH, 0.0, 0.0
    scale = float(inputs_of(sample)[name].abs().max().clamp_min(1.0))
    for _ in range(CUTS if still else 0):
        ends = [(low + width * k / PARTS) * scale for k in range(PARTS + 1)]
        values = [_moved(sample, name, still[:1], end) for end in ends]
        changes = [0.0 if a is None or b is None else float((b - a).abs().max()) for a, b in pairwise(values)]
        last = max(changes)
        low, width, first = low + width * changes.index(last) / PARTS, width / PARTS, first or last
        if not last:
            break
    return first, last


def worst_entries(finding: Finding) -> Sequence[Entry]:
    """The entries that it shows."""
    return finding.entries.worst if finding.entries is not None else ()


def is_constant_there(finding: Finding) -> bool:
    """Whether forward does not move wherever backward is wrong."""
    worst = worst_entries(finding)
    return bool(worst) and all(e.expected == 0 for e in worst)


def is_still(sample: Sample, finding: Finding) -> bool:
    """Whether no output moves where the entries that are most wrong move alone: at a tie one does."""
    name = finding.input
    if name not in sample.problem.input_names or not is_constant_there(finding):
        return False
    base, *moved = (_moved(sample, name, worst_entries(finding), distance) for distance in (0.0, *FLAT))
    return base is not None and all(there is not None and torch.equal(there, base) for there in moved)


def _drawn(sample: Sample, name: str) -> str:
    """That backward draws random numbers, and not to get those again that forward drew."""
    states = sample.problem.random_states
    forward_draws = outputs_at(sample) is None or not states.untouched()
    if not gradients_at(sample) or states.untouched():
        return ""
    again = replace(sample.problem, random_states=states.forwards_alone())
    if forward_draws and is_right(Neighbour(replace(sample, problem=again)), name) is not False:
        return ""
    return f"backward draws random numbers{' beside those of forward' if forward_draws else ''}"
