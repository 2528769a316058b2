"""What the finding itself leaves open: a write that may be meant, a gradient of the author's choice.

What forward returns as it got it needs no backward, and a step has no derivative to give: with such a forward
somebody wrote a gradient that is meant to be another one, and so did who draws it at random.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import torch
from torch import Tensor

from gradverify.model import Entry, Finding, RaisedError, tensors_of
from gradverify.verifier.guard.raised_errors import is_bound_nowhere
from gradverify.verifier.neighbours.asking import (
    Near,
    Neighbour,
    gradients_at,
    inputs_of,
    is_right,
    outputs_at,
    with_values,
)
from gradverify.verifier.neighbours.values import OF_THE_DERIVATIVE, OF_THE_DTYPE
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.result import NOT_REPEATED
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import deliberate, if_guessed, joined, refused

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
"""How far all entries are moved to see whether forward is flat: short beside the distance to a step."""

JUMPS = (0.37, 7.3, -7.3, 1.1, -1.1, 2.3, -2.3, 61.0, -61.0)
"""How far they are moved to see whether forward is a step: between two bounds there may be one step alone."""

PARTS = 8
"""Parts of the distance, twice the largest entry, by which one entry moves to see whether forward jumps."""

CUTS = 7
"""How often the part in which it changes most is cut into as many again."""

STAYS = 0.01
"""Share of the first change which remains where it is a jump: of 8 bits 1/32 does, of a kink 8^-6."""

INSIDE = 0.1
"""Factor on an input whose values may lie outside of its domain: moderate ones are inside of most then."""

NO_ONE_GRADIENT = "that backward should be the derivative (it gives another gradient each time)"

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


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


def is_meant(near: Near, finding: Finding) -> Finding | None:
    """The finding as one that hangs on the first such guess."""
    return if_guessed(finding, islice(guesses_behind(near.sample, finding), 1))


def raises_on_purpose(near: Near, finding: Finding) -> Finding | None:
    """An exception of backward that inputs which are meant may not give."""
    by_guess = finding.code == OF_AN_EXCEPTION and not _is_accident(near.sample, finding)
    return refused(finding) if by_guess else None


def _is_accident(sample: Sample, finding: Finding) -> bool:
    """Whether backward raised what no choice of inputs explains.

    What is asked in vain of a tensor or a number may have been meant to be another kind of argument.
    """
    raised = finding.raised
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return False
    named = _NO_ATTRIBUTE.match(raised.message)
    return named is None or named[1] not in {type(a.value).__name__ for a in sample.arguments}


def hangs_on_no_guess(sample: Sample, error: RaisedError | None) -> bool:
    """Whether backward raised what no inputs at all explain: a name bound nowhere, its own signature."""
    if error is None or error.deliberate:
        return False
    return is_bound_nowhere(error) or (error.type == "TypeError" and _takes_another_count(sample))


def _takes_another_count(sample: Sample) -> bool:
    """Whether backward takes another number of grad_outputs than forward has outputs, whatever is passed.

    Where forward takes a list, how long it is may decide how many outputs there are.
    """
    function = sample.subject.function_class
    if function is None or any("[" in a.name or a.in_list for a in sample.arguments):
        return False
    try:
        signature = inspect.signature(own_backward(function))
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, *(None for _ in range(sample.outputs_returned)))
    except TypeError:
        return True
    return False


def no_derivative_meant(near: Near, finding: Finding) -> Finding | None:
    """The finding where the source or the numbers show that the gradient is a choice."""
    if finding.cause == NOT_REPEATED:
        return deliberate(finding, NO_ONE_GRADIENT)
    if finding.code not in OF_THE_DERIVATIVE or finding.cause == "grad-output-ones":
        return None
    said = [d.what for d in near.sample.subject.doubts if d.intent][:1]
    shown = near.once(chosen, finding.input or "") if finding.code != "GV108" else ""
    if not shown and _jumps(near.sample, finding):
        shown = f"forward is a step in entries of `{finding.input}`, and backward gives them a gradient"
    signs = [*said, *([f"that backward should be the derivative ({shown})"] if shown else [])]
    return deliberate(finding, joined(signs)) if signs else None


def chosen(sample: Sample, name: str) -> str:
    """How forward shows that the gradient of an input is a choice; empty where it does not."""
    given, base = inputs_of(sample), outputs_at(sample)
    named = name if name in given else next(iter(given), "")
    primal = given.get(named)
    if base is None or primal is None or primal.is_complex() or not primal.numel():
        return ""
    if any(torch.equal(value, primal) for value in sample.problem.outputs.unflatten(base)):
        return f"forward returns `{named}` as it is"
    near, moves = _changed(sample, named, FLAT), bool(_changed(sample, named, JUMPS).any())
    small = with_values(sample, {named: INSIDE * primal})  # what is clamped to a domain is flat outside alone
    if moves and _is_flat(near) and _is_flat(_changed(small, named, FLAT)):
        return f"forward is a step in `{named}`, flat between"
    hidden = any(d.of_values for d in sample.subject.doubts)  # labels all alike leave nothing to depend on
    if not (hidden or moves or near.any()):
        return f"no output depends on `{named}`, and backward gives it a gradient"
    return _drawn(sample, named)


def _changed(sample: Sample, name: str, steps: Sequence[float]) -> Tensor:
    """Which outputs (M) change when every entry of an input moves, each by another distance: a row a step."""
    primal, base = inputs_of(sample)[name], outputs_at(sample)
    if base is None:
        return torch.zeros(len(steps), 0, dtype=torch.bool)
    apart = torch.linspace(1.0, 1.5, primal.numel(), dtype=torch.float64).reshape(primal.shape).to(primal)
    several = [outputs_at(sample, {name: primal + step * apart}) for step in steps]
    return torch.stack([base != (base if there is None else there) for there in several])


def _is_flat(changed: Tensor) -> bool:
    """Whether outputs change on neither side, but for a few that lie at a step itself and do on one."""
    at_a_step = int(changed.any(dim=0).count_nonzero())
    return not bool(changed.all(dim=0).any()) and 2 * at_a_step <= changed.shape[1]


def _moved(sample: Sample, name: str, entries: Sequence[Entry], distance: float) -> Tensor | None:
    """The outputs where some entries of an input move alone."""
    moved = inputs_of(sample)[name].clone()
    for entry in entries:
        moved[entry.input or ()] += distance
    return outputs_at(sample, {name: moved})


def _jumps(sample: Sample, finding: Finding) -> bool:
    """Whether forward is constant, and jumps, where an entry that is wrong moves alone: it is rounded there.

    The part in which it changes most is cut into parts again: a jump stays.
    """
    still, primal = [e for e in _worst(finding) if e.expected == 0], inputs_of(sample)[str(finding.input)]
    if not still or primal.is_complex():
        return False
    low, width, first, last = -1.0, 2.0, 0.0, 0.0
    scale = float(primal.abs().max().clamp_min(1.0))
    for _ in range(CUTS):
        ends = [(low + width * k / PARTS) * scale for k in range(PARTS + 1)]
        values = [_moved(sample, str(finding.input), still[:1], end) for end in ends]
        changes = [0.0 if a is None or b is None else float((b - a).abs().max()) for a, b in pairwise(values)]
        last = max(changes)
        low, width, first = low + width * changes.index(last) / PARTS, width / PARTS, first or last
    return last > STAYS * first > 0


def _worst(finding: Finding) -> Sequence[Entry]:
    return finding.entries.worst if finding.entries is not None else ()


def is_still(sample: Sample, finding: Finding) -> bool:
    """Whether no output moves where the entries that are most wrong move alone: at a tie one does."""
    if finding.input not in sample.problem.input_names:
        return False
    name, entries = finding.input, _worst(finding)
    base, *moved = (_moved(sample, name, entries, distance) for distance in (0.0, *FLAT))
    return base is not None and all(there is not None and torch.equal(there, base) for there in moved)


def _drawn(sample: Sample, name: str) -> str:
    """That backward draws random numbers, and not to get those again that forward drew."""
    states = sample.problem.random_states
    forward_draws = outputs_at(sample) is None or not states.untouched()
    if not gradients_at(sample) or states.untouched():
        return ""
    if not forward_draws:
        return "backward draws random numbers, and forward none"
    again = replace(sample.problem, random_states=states.forwards_alone())
    drew_others = is_right(Neighbour(replace(sample, problem=again)), name) is False
    return "backward draws random numbers beside those of forward" if drew_others else ""
