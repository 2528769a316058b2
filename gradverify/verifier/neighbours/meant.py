"""What the finding itself leaves open: a write that may be meant, a gradient of the author's choice.

What forward returns as it got it needs no backward, and a step has no derivative to give: with such a forward
somebody wrote a gradient that is meant to be another one, and so did who draws it at random.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, tensors_of
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.result import NOT_REPEATED
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import deliberate, if_guessed, joined, refused
from gradverify.verifier.guard import Raised
from gradverify.verifier.neighbours.asking import Near, with_values
from gradverify.verifier.neighbours.values import OF_THE_DERIVATIVE, OF_THE_DTYPE, is_constant_there
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.raised_errors import is_bound_nowhere

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

SHARES = tuple(k / 8 for k in range(-8, 9))
"""How far one entry is moved to see whether forward jumps, in units of the largest."""

HALVINGS = 12
"""How often the distance is halved over which it changes most."""

STAYS = 0.1
"""Share of that change which remains where it is a jump; of a kink 2^-12 does."""

INSIDE = 0.1
"""Factor on an input whose values may lie outside of its domain: moderate ones are inside of most then."""

NO_ONE_GRADIENT = "that backward should be the derivative (it gives another gradient each time)"

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


def guess_behind(sample: Sample, finding: Finding) -> str:
    """What was guessed if this very finding is meant: a size of 0, a write, the length of a list; or ""."""
    empty = next((t.name for i in sample.case.inputs for t in tensors_of(i) if 0 in t.shape), "")
    if empty:
        return f"that `{empty}` may be empty"
    if finding.code == OF_A_WRITE and finding.input not in {None, *sample.problem.input_names}:
        return f"that `{finding.input}` is no buffer to be written into"
    named = (a.name for a in sample.arguments if a.value is True and finding.code in WRITES)
    asking = next((name for name in named if "inplace" in name.replace("_", "").lower()), "")
    if asking:
        return f"`{asking}` = True, which may ask for that,"
    lists = (a.name.partition("[")[0] for a in sample.arguments if a.name.endswith("]"))
    name = next(lists, "") if finding.code == OF_THE_COUNT else ""
    return f"how many tensors `{name}` holds" if name else ""


def is_meant(near: Near, finding: Finding) -> Finding | None:
    """The finding as one that hangs on that guess."""
    return if_guessed(finding, [guess_behind(near.sample, finding)])


def given_dtype(near: Near, finding: Finding) -> Finding | None:
    """A gradient in the one dtype that its author calls it with is of that of the input there."""
    problem = near.sample.problem
    if finding.code != OF_THE_DTYPE or finding.input not in problem.input_names:
        return None
    dtype = problem.primals[problem.input_names.index(finding.input)].dtype
    return if_guessed(finding, [f"that `{finding.input}` is {str(dtype).removeprefix('torch.')}"])


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
    if not shown and is_constant_there(finding) and _jumps(near.sample, finding):
        shown = f"forward is a step in entries of `{finding.input}`, and backward gives them a gradient"
    signs = [*said, *([f"that backward should be the derivative ({shown})"] if shown else [])]
    return deliberate(finding, joined(signs)) if signs else None


def chosen(sample: Sample, name: str) -> str:
    """How forward shows that the gradient of an input is a choice; empty where it does not."""
    problem = sample.problem
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised) or not problem.primals:
        return ""
    place = problem.input_names.index(name) if name in problem.input_names else 0
    named, primal = problem.input_names[place], problem.primals[place]
    if primal.is_complex() or not primal.numel():
        return ""
    if any(torch.equal(value, primal) for value in base.value):
        return f"forward returns `{named}` as it is"
    if all(_is_step(sample, place, k, value) for k, value in enumerate(base.value)):
        return f"forward is a step in `{named}`, flat between"
    hidden = any(d.of_values for d in sample.subject.doubts)  # labels all alike leave nothing to depend on
    if not hidden and not any(_moves(sample, place, k, v, (*FLAT, *JUMPS)) for k, v in enumerate(base.value)):
        return f"no output depends on `{named}`, and backward gives it a gradient"
    return _drawn(sample)


def _jumps(sample: Sample, finding: Finding) -> bool:
    """Whether forward jumps where the entry that is most wrong moves alone: what rounds it is a step there.

    The interval of the largest change is halved, always on its side: a jump stays.
    """
    problem = sample.problem
    place = problem.input_names.index(str(finding.input))
    entry = finding.entries.worst[0].input if finding.entries is not None else None

    def at(share: float) -> Tensor | None:
        primal = problem.primals[place].clone()
        primal[entry or ()] += share * primal.abs().max().clamp_min(1.0)
        result = problem.evaluate((*problem.primals[:place], primal, *problem.primals[place + 1 :]))
        return None if isinstance(result, Raised) else problem.outputs.flatten(result.value)

    if problem.primals[place].is_complex():
        return False
    ends = [*SHARES]
    values = [v for v in map(at, ends) if v is not None]
    if len(values) < len(ends):
        return False
    changes = [float((b - a).abs().max()) for a, b in pairwise(values)]
    k = max(range(len(changes)), key=changes.__getitem__)
    (low, high), (first, last) = ends[k : k + 2], values[k : k + 2]
    for _ in range(HALVINGS):
        middle = at((low + high) / 2)
        if middle is None:
            return False
        if float((middle - first).abs().max()) >= float((last - middle).abs().max()):
            high, last = (low + high) / 2, middle
        else:
            low, first = (low + high) / 2, middle
    return float((last - first).abs().max()) > STAYS * changes[k] > 0


def is_still(sample: Sample, finding: Finding) -> bool:
    """Whether no output moves where the entries that are most wrong move alone: at a tie one does."""
    problem = sample.problem
    worst = finding.entries.worst if finding.entries is not None else ()
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised) or finding.input not in problem.input_names:
        return False
    place = problem.input_names.index(finding.input)
    for step in FLAT:
        moved = problem.primals[place].clone()
        for entry in worst:
            moved[entry.input or ()] += step
        there = problem.evaluate((*problem.primals[:place], moved, *problem.primals[place + 1 :]))
        if isinstance(there, Raised) or not all(map(torch.equal, there.value, base.value)):
            return False
    return True


def _drawn(sample: Sample) -> str:
    """That backward draws random numbers, and forward none."""
    problem = sample.problem
    forward = problem.evaluate(problem.primals)
    if isinstance(forward, Raised) or not problem.random_states.untouched():
        return ""
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    pulled = problem.pull_back(problem.primals, u)
    drew = not isinstance(pulled, Raised) and not problem.random_states.untouched()
    return "backward draws random numbers, and forward none" if drew else ""


def _is_step(sample: Sample, place: int, output: int, value: Tensor) -> bool:
    """Whether an output is flat in an input here and at small values, and moves from one to the other.

    What is clamped to its domain is flat outside alone.
    """
    if not _is_flat(sample, place, output, value) or not _moves(sample, place, output, value, JUMPS):
        return False
    name, primal = sample.problem.input_names[place], sample.problem.primals[place]
    small = with_values(sample, {name: INSIDE * primal})
    there = small.problem.evaluate(small.problem.primals)
    return isinstance(there, Raised) or _is_flat(small, place, output, there.value[output])


def _is_flat(sample: Sample, place: int, output: int, value: Tensor) -> bool:
    """Whether an output stays as it is when an input moves a little: most of its entries on both sides.

    A few may lie at a step itself, and change on one side of it.
    """
    sides = [_changed(sample, place, output, value, step) for step in FLAT]
    ahead, behind = (torch.zeros_like(value, dtype=torch.bool) if s is None else s for s in sides)
    at_a_step = int((ahead | behind).count_nonzero())
    return not bool((ahead & behind).any()) and 2 * at_a_step <= value.numel()


def _moves(sample: Sample, place: int, output: int, value: Tensor, steps: Sequence[float]) -> bool:
    """Whether an output changes when all entries of an input are moved, each by another distance."""
    several = (_changed(sample, place, output, value, step) for step in steps)
    return any(entries is not None and bool(entries.any()) for entries in several)


def _changed(sample: Sample, place: int, output: int, value: Tensor, step: float) -> Tensor | None:
    """Entries of an output that change for such a move; None where forward raises."""
    moved = [p.clone() for p in sample.problem.primals]
    distance = step * torch.linspace(1.0, 1.5, moved[place].numel(), dtype=torch.float64)
    moved[place] += distance.to(moved[place]).reshape(moved[place].shape)
    result = sample.problem.evaluate(moved)
    return None if isinstance(result, Raised) else result.value[output] != value
