"""Whether a mismatch is gone on a domain, or along a manifold, that nobody declared.

A forward that clamps its input to its domain, against rounding, is constant outside of it, where backward
goes on with the derivative at the edge. A solver gives its fixed point the implicit gradient, whatever rounds
lead there: where forward stops before it converges, its derivative is another one. A root, a rate or a
variance is meant to be positive, and often neither says so nor refuses what is not. Such a backward is right
for every value that is meant; so the mismatch is looked for again at other values of the kinds below.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold. Inputs guessed off it make a right backward look wrong. So the mismatch is measured again at
row-normalised and at symmetrised inputs, and only its part along the manifold counts. A forward that
projects its inputs onto the manifold itself is made for inputs off it, if backward goes by where they were:
nothing is measured again. If backward does not, forward normalises only what is normal already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import (
    Finding,
    Point,
    TensorInput,
)
from gradverify.model.case import is_floating
from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.kept import judged_jacobians
from gradverify.verifier.checks.neighbours import (
    FLAT,
    JUMPS,
    LARGEST_JACOBIAN,
    OF_A_SLOPE,
    Neighbours,
    Projection,
    compared,
    is_far_off_along,
    is_square,
    mismatched,
    moved_by_any,
    with_values,
)
from gradverify.verifier.checks.samples import arguments_at
from gradverify.verifier.checks.structured_grad_outputs import wrong_with_structure
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    declare,
    doubted,
    invented,
    undeclared,
)
from gradverify.verifier.doubt.manifolds import (
    DEFINITE,
    NEAR_IDENTITY,
    ORTHOGONAL,
    SHORT_ROWS,
    SIMPLEX,
    SMALL,
    SUPPORTS,
    SYMMETRIC,
    UNIT_ROWS,
    Manifold,
    Move,
    definite,
    row_normalised,
)
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

SPREAD = 0.05
"""Relative half-width of the values that are tried around a single one at which backward is right."""


DOMAINS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "`domain: positive`": torch.abs,
    "`domain: unit`": lambda x: x.abs().frac(),
    "`range: [1, 4]`": lambda x: 1 + x.abs(),
    "`range: [-0.3, 0.3]`": lambda x: SMALL * x,
}
"""How a spec declares a domain, and values in it made of an input's own: most domains hold one kind."""


@dataclass(frozen=True)
class _Block:
    """One (output, input) block of the Jacobian, rows of the output by entries of the input."""

    numerical: Tensor
    wrong: Tensor
    telling: Tensor
    """Known, and not zero."""
    rows_of_all: Tensor
    """The same rows of the whole numerical Jacobian: by every input."""


def is_locally_constant(sample: Sample, finding: Finding) -> bool:
    """Whether forward is constant beside the sample in every entry in which backward is wrong."""
    block = _block(sample, finding)
    return block is not None and _is_constant(sample, finding, block)


def right_inside(near: Neighbours, finding: Finding) -> str:
    """How a spec declares the domain in which backward is right, where it is wrong outside alone.

    Outside forward is constant. Where whole outputs are, the inputs are outside of whatever domain there is;
    where others depend on the same inputs, as in a sum over entries, backward must be right for all values
    inside. Empty where forward is not constant, or constant everywhere: no domain explains that.
    """
    sample = near.sample
    block = _block(sample, finding)
    if block is None or not _is_constant(sample, finding, block):
        return ""
    if inside := next(_right_inside(sample, finding, block), ""):
        return inside
    rows = block.wrong.any(dim=1)
    whole = not block.rows_of_all[rows].any() and bool(_reacting(sample, finding)[rows].all())
    return f"a `range:` of `{finding.input}` inside its domain" if whole else ""


def _is_constant(sample: Sample, finding: Finding, block: _Block) -> bool:
    """Whether forward is constant where backward is wrong: that output for the whole input, or all outputs.

    That is, of every wrong entry of the Jacobian, either its output stays as it is when all of the input
    moves, or every output does when its entry of the input moves. One output that another entry has no part
    in is no plateau. A derivative of zero is not enough: where a distance vanishes, its cube has one, too.
    """
    if not block.wrong.any() or block.numerical[block.wrong].any():
        return False
    problem = sample.problem
    place, output = problem.input_names.index(str(finding.input)), _output(sample, finding)
    primal, base = problem.primals[place], problem.evaluate(problem.primals)
    if isinstance(base, Raised):
        return False
    moving = moved_by_any(sample, place, output, base.value[output], FLAT).reshape(-1).cpu()
    columns = block.wrong[moving].any(dim=0).reshape(primal.shape).to(primal)
    for step in FLAT:
        value = primal + step * columns * primal.abs().clamp_min(1.0)
        moved = problem.evaluate((*problem.primals[:place], value, *problem.primals[place + 1 :]))
        if isinstance(moved, Raised) or not all(map(torch.equal, moved.value, base.value)):
            return False
    return True


def _output(sample: Sample, finding: Finding) -> int:
    """The number of the output of a finding among those that are differentiated."""
    return next(k for k, at in enumerate(sample.problem.output_positions) if at == finding.output)


def _reacting(sample: Sample, finding: Finding) -> Tensor:
    """Entries of the output of a finding (bool, flat) that change for large moves of its input."""
    problem = sample.problem
    output, place = _output(sample, finding), problem.input_names.index(str(finding.input))
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised):
        return torch.zeros(problem.outputs.blocks[output].stop - problem.outputs.blocks[output].start).bool()
    moved = moved_by_any(sample, place, output, base.value[output], JUMPS)
    return moved.reshape(-1).cpu()


def _right_inside(sample: Sample, finding: Finding, block: _Block) -> Iterator[str]:
    """How a spec declares other values, for each kind of them at which backward is right and not all zero."""
    names, primals = sample.problem.input_names, sample.problem.primals
    name, primal = str(finding.input), primals[names.index(str(finding.input))]
    right = block.telling.any(dim=0) & ~block.wrong.any(dim=0)
    if right.any():
        inside = primal.flatten()[right.to(primal.device)]
        least, most = inside.min().item(), inside.max().item()
        # One value alone is no range that anybody means.
        if f"{least:.3g}" != f"{most:.3g}" and _is_right(sample, {name: _between(primal, least, most)}, name):
            others = primal.flatten()[~right.to(primal.device)]
            yield f"`range: {_written(*_widest(sample, name, (least, most), others))}` of `{name}`"
    for declared, move in DOMAINS.items():
        if _is_right(sample, {name: move(primal)}, name):
            yield f"{declared} of `{name}`"


WELL_INSIDE = 0.9
"""Share of the way to the end of a domain that is proposed: at the end itself slopes may be infinite."""


HALVINGS = 6
"""Of the gap between values at which backward is right and the next one at which it is not."""


def _widest(sample: Sample, name: str, right: tuple[float, float], others: Tensor) -> tuple[float, float]:
    """The range of an input in which backward is right, widened towards others, at which it is not."""
    least, most = right
    primal = sample.problem.primals[sample.problem.input_names.index(name)]
    below = [v for v in others.tolist() if v < least]
    above = [v for v in others.tolist() if v > most]

    def is_right(lower: float, upper: float) -> bool:
        return _is_right(sample, {name: _spanning(primal, lower, upper)}, name)

    lower = _furthest(lambda end: is_right(end, most), least, max(below)) if below else least
    upper = _furthest(lambda end: is_right(least, end), most, min(above)) if above else most
    return (lower, upper) if is_right(lower, upper) else right


def _furthest(is_right: Callable[[float], bool], inside: float, outside: float) -> float:
    """The end of a range between one at which backward is right and one at which it is not, well inside."""
    first = inside
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_right(middle) else (inside, middle)
    return first + WELL_INSIDE * (inside - first)


def _written(least: float, most: float) -> str:
    """A range as a spec has it: rounded to what is inside of it."""
    step = 10.0 ** (math.floor(math.log10(most - least)) - 1)
    return f"[{math.ceil(least / step) * step:.3g}, {math.floor(most / step) * step:.3g}]"


def _spanning(primal: Tensor, least: float, most: float) -> Tensor:
    """Different values in the order of an input's own, the first and the last at the ends of a range."""
    ranks = primal.flatten().argsort().argsort().to(primal)
    return (least + (most - least) * ranks / max(1, len(ranks) - 1)).reshape(primal.shape)


def _between(primal: Tensor, least: float, most: float) -> Tensor:
    """Different values in the order of an input's own, from one to another."""
    middle, half = (least + most) / 2, (most - least) / 2
    half = max(half, SPREAD * abs(middle))
    ranks = primal.flatten().argsort().argsort().to(primal)
    return (middle - half + 2 * half * (ranks + 1) / (len(ranks) + 1)).reshape(primal.shape)


def _is_right(sample: Sample, values: dict[str, Tensor], name: str) -> bool:
    """Whether backward is right at these values, at which every entry of the input has an effect."""
    moved = with_values(sample, values)
    if mismatched(moved, name) is not False:
        return False
    problem = moved.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    found = problem.pull_back(problem.primals, u)
    gradient = None if isinstance(found, Raised) else found.value[problem.input_names.index(name)]
    return gradient is not None and bool((gradient != 0).all())


def _block(sample: Sample, finding: Finding) -> _Block | None:
    """The block of a finding; None where it was not measured."""
    problem = sample.problem
    if finding.input not in problem.input_names or finding.output not in problem.output_positions:
        return None
    output = problem.outputs.blocks[problem.output_positions.index(finding.output)]
    if problem.primals[problem.input_names.index(finding.input)].is_complex() or output.dtype.is_complex:
        return None
    if 1 not in sample.judged and sample.inputs.size * problem.outputs.size > LARGEST_JACOBIAN:
        return None
    judged = judged_jacobians(sample, problem, largest=LARGEST_JACOBIAN)
    if not isinstance(judged, Judged) or judged.in_groups or judged.inputs.size != sample.inputs.size:
        return None
    columns = judged.inputs.blocks[problem.input_names.index(finding.input)]
    rows = judged.outputs.blocks[problem.output_positions.index(finding.output)]
    compared, c, r = judged.comparison, slice(columns.start, columns.stop), slice(rows.start, rows.stop)
    wrong = compared.wrong | compared.nonfinite
    return _Block(compared.numerical[r, c], wrong[r, c], compared.telling[r, c], compared.numerical[r])


TAKES_BACK = 1e-2
"""Relative change of the outputs below which forward projects its inputs onto the manifold: the epsilon
under a root, and the like, may change them a little."""


BLIND = 1e-6
"""Relative change of a gradient, and of the outputs, that is rounding alone."""


LOPSIDED = 3.0
"""Factor between the rows of an input that is tried: another one for each row."""


def right_along(sample: Sample) -> str:
    """The structure of some input, as a spec declares it, along which the mismatch is not there; or empty.

    Only those count that may be meant: unit rows unless forward normalises them, and backward knows; rows
    with the sum 1 if both are blind to how long rows are; diagonal and triangular matrices of the inputs for
    which backward gives nothing outside of that; symmetric and orthogonal ones.
    """
    return next(filter(None, _structures(sample)), "")


def _structures(sample: Sample) -> Iterator[str]:
    wrong = _wrong_places(sample)
    blind = all(_is_blind_to_lengths(sample, place) for place in wrong)
    of_any_length = not blind and all(_takes_back(sample, place, row_normalised) for place in wrong)
    if not of_any_length:
        along = _along(sample, UNIT_ROWS)
        yield along and (_along(sample, SHORT_ROWS) or along)
    if blind:
        yield _along(sample, SIMPLEX)
    if any(map(is_square, sample.problem.primals)):
        yield from _along_supports(sample)
        yield _along(sample, SYMMETRIC)
        if not of_any_length:  # the rows of an orthogonal matrix are unit vectors
            yield _along(sample, ORTHOGONAL)


def _along(sample: Sample, kind: Manifold, only: Collection[str] | None = None) -> str:
    """The structure, if the mismatch is not there along it, of the one input that needs it, or of all."""
    pairs = zip(sample.problem.input_names, sample.problem.primals, strict=True)
    real = [(n, p) for n, p in pairs if p.dim() and not p.is_complex()]
    names = [n for n, p in real if not kind.of_squares or is_square(p)]
    names = [n for n in names if only is None or n in only]
    shares = _shares(sample)
    if _mismatch_along(sample, kind, names, shares):
        return ""
    alone = [[name] for name in names if not _mismatch_along(sample, kind, [name], shares)]
    return f"{kind.declared} of {' and '.join(f'`{name}`' for name in (alone or [names])[0])}"


def _along_supports(sample: Sample) -> Iterator[str]:
    """The same for matrices that are zero outside of some entries, of the inputs whose gradient is, too."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    pulled = problem.pull_back(problem.primals, u)
    if isinstance(pulled, Raised):
        return
    given = zip(problem.input_names, problem.primals, pulled.value, strict=True)
    gradients = {n: g for n, p, g in given if g is not None and is_square(p) and p.shape[-1] > 1 and g.any()}
    for kind in SUPPORTS:
        names = [n for n, g in gradients.items() if g.shape[-2:] == g.mT.shape[-2:]]
        names = [n for n in names if torch.equal(kind.along(gradients[n], gradients[n]), gradients[n])]
        yield _along(sample, kind, names) if names else ""


def right_at_definite(sample: Sample) -> str:
    """The structure of positive definite matrices, if backward is right along symmetric ones there; or empty.

    An iteration that solves with such a matrix alone overflows, or divides by zero, at any other one; a
    series, or a fixed number of rounds, has converged near the identity.
    """
    return _along(sample, DEFINITE) or _along(sample, NEAR_IDENTITY)


def linear_at_definite(sample: Sample) -> str:
    """The structure of positive definite matrices, if backward is linear in grad_output there; or empty.

    An iteration that solves with such a matrix alone need not converge at any other one.
    """
    if not any(is_square(p) and not p.is_complex() for p in sample.problem.primals):
        return ""
    moved = tuple(
        replace(a, value=definite(a.value)) if a.differentiable and is_square(a.value) else a
        for a in sample.arguments
    )
    problem = replace(sample.problem, arguments=moved)
    u = random_signs(problem.outputs.size, sample.key)
    with filled_memory():  # what is never written is no derivative, there or elsewhere
        gradient = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
    if isinstance(gradient, Raised) or not sample.inputs.flatten(gradient.value).isfinite().all():
        return ""
    subject = replace(sample.subject, is_first_of_options=True)
    there = replace(sample, arguments=moved, problem=problem, point=Point.TYPICAL, draw=0, subject=subject)
    return "" if wrong_with_structure(there) else "`structure: spd`"


def _wrong_places(sample: Sample) -> list[int]:
    """Places of the inputs whose gradient is wrong; all where that is not known."""
    names = sample.problem.input_names
    return [names.index(name) for name in _shares(sample)] or list(range(len(names)))


def _shares(sample: Sample) -> dict[str, float]:
    """Inputs whose gradient is wrong, with the largest difference as a share of the largest derivative."""
    comparison = compared(sample)
    if comparison is None:
        return {}
    wrong = comparison.wrong | comparison.nonfinite
    difference = (comparison.analytical - comparison.numerical).abs().nan_to_num(0.0, 0.0, 0.0)
    found = {}
    for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True):
        columns = slice(block.start, block.stop)
        if wrong[:, columns].any():
            largest = comparison.numerical[:, columns].abs().nan_to_num(0.0, 0.0, 0.0).max().item()
            share = difference[:, columns].max().item() / largest if largest else 1.0
            found[name] = min(share, 1.0) or 1.0
    return found


def _takes_back(sample: Sample, place: int, move: Move) -> bool:
    """Whether forward gives for an input what it gives for the nearest one on a manifold."""
    problem = sample.problem
    primal = problem.primals[place]
    if not primal.dim():
        return False
    outputs = []
    for value in (_lopsided(primal), move(primal)):
        result = problem.evaluate((*problem.primals[:place], value, *problem.primals[place + 1 :]))
        if isinstance(result, Raised):
            return False
        outputs.append(result.value)
    return all(
        a.shape == b.shape and bool(((a - b).norm() <= TAKES_BACK * b.norm()).all())
        for a, b in zip(*outputs, strict=True)
    )


def _lopsided(primal: Tensor) -> Tensor:
    """Every row longer than it was, each by another factor."""
    rows = torch.linspace(1.0, LOPSIDED, max(1, primal[..., 0].numel()) + 1, dtype=torch.float64)[1:]
    return primal * rows.reshape(primal.shape[:-1]).unsqueeze(-1).to(primal)


def _is_blind_to_lengths(sample: Sample, place: int) -> bool:
    """Whether neither forward nor the gradient of an input goes by how long its rows are.

    Where forward does not, the derivative is the smaller the longer the row.
    """
    problem = sample.problem
    primal = problem.primals[place]
    if not primal.dim() or primal.is_complex():
        return False
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    found = []
    for value in (primal, _lopsided(primal)):
        moved = (*problem.primals[:place], value, *problem.primals[place + 1 :])
        values, gradients = problem.evaluate(moved), problem.pull_back(moved, u)
        gradient = None if isinstance(gradients, Raised) else gradients.value[place]
        if isinstance(values, Raised) or gradient is None:
            return False
        found.append((*values.value, gradient))
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=BLIND) for a, b in zip(*found, strict=True))


def _mismatch_along(
    sample: Sample, kind: Manifold, names: Collection[str], shares: Mapping[str, float]
) -> bool:
    """Whether there is a mismatch where some inputs are on a manifold, and move along it.

    Or one would hide: where a gradient all but vanishes, a mistake of the same share of it is not seen.
    """
    arguments = tuple(
        replace(a, value=kind.move(a.value)) if a.differentiable and a.name in names else a
        for a in sample.arguments
    )
    problem = replace(sample.problem, arguments=arguments)
    if is_far_off_along(sample, problem, problem.input_names, dict.fromkeys(names, kind.along)):
        return True
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    values = problem.evaluate(problem.primals)
    if not isinstance(judged, Judged) or isinstance(values, Raised):
        return True  # forward or backward refuses such inputs: it is not meant for them
    if not all(bool(v.isfinite().all()) for v in values.value) or ignoring_grad_output(problem):
        return True  # it is not meant for such inputs either
    return _differs_along(problem, judged.comparison, dict.fromkeys(names, kind.along), shares)


def _differs_along(
    problem: CallProblem,
    comparison: Comparison,
    projections: Mapping[str, Projection],
    shares: Mapping[str, float],
) -> bool:
    """Whether both Jacobians differ along the manifolds of some inputs, or a mistake would hide."""
    nonfinite = comparison.nonfinite.any()
    # All of a row with a wrong entry: what a projection sets against that entry may be too small to be wrong.
    wrong = comparison.wrong.any(dim=1, keepdim=True)
    difference = torch.where(wrong, comparison.analytical - comparison.numerical, 0.0)
    pairs = zip(Layout.of(problem.primals).blocks, problem.primals, strict=True)
    for name, (block, primal) in zip(problem.input_names, pairs, strict=True):
        columns = slice(block.start, block.stop)
        allowed = (
            comparison.bound[:, columns].nan_to_num(0.0, 0.0, 0.0).amax() if block.stop > block.start else 0.0
        )
        projection, at = projections.get(name, _as_it_is), primal.cpu()
        slopes = [projection(r.reshape(block.shape), at).abs() for r in comparison.numerical[:, columns]]
        if name in shares and not any(bool((shares[name] * slope > allowed).any()) for slope in slopes):
            return True
        for row in difference[:, columns]:
            along = projection(row.reshape(block.shape), at)
            if along.numel() and (along.abs() > allowed + 1e-9 * row.abs().max()).any():
                return True
    return bool(nonfinite)


def _as_it_is(difference: Tensor, _: Tensor) -> Tensor:
    return difference


OF_AN_EXCEPTION = "GV102"
"""Backward raises."""

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output, whatever forward is."""


OF_NO_VALUE = "GV108"
"""A gradient that is NaN or infinite: its author may divide by what is never zero, or never alike."""


ON_NO_MANIFOLD = ("GV102", "GV104", "GV106", "GV2", "GV501")
"""Codes that no manifold explains. Where the first derivative is right in every direction, there is none; and
a backward is linear in grad_output wherever the inputs lie, but for an iteration that does not converge."""


CONSTANT = "forward is constant wherever it is wrong, as outside of a domain"


OF_A_DOMAIN = OF_A_SLOPE | {OF_NO_VALUE}
"""Codes that values outside of a domain can have made."""


def outside_domain(near: Neighbours, finding: Finding) -> Finding | None:
    """Forward is constant where it is there."""
    inside = right_inside(near, finding) if finding.code in OF_A_DOMAIN else ""
    what = f"that `{finding.input}` has other values (forward is constant wherever backward is wrong)"
    return invented(finding, [what], declare(inside)) if inside else None


def constant_there(near: Neighbours, finding: Finding) -> Finding | None:
    """At undeclared values of what is no label or mask: of those a spec says all that it means."""
    sample = near.sample
    if finding.code not in OF_A_DOMAIN or not is_locally_constant(sample, finding):
        return None
    drawn = {i.name: i for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None}
    decisive = _decisive(sample, finding.input, drawn)
    if decisive and not sample.subject.inferred and not any(is_floating(drawn[name]) for name in decisive):
        return None
    names = decisive or [str(finding.input)]
    declared = " and ".join(_declared_by(sample.point, n, drawn.get(n)) for n in names)
    if not sample.subject.inferred:
        return undeclared(finding, CONSTANT, declared)
    what = f"that `{finding.input}` has such values (forward is constant wherever backward is wrong)"
    return invented(finding, [what], declare(declared))


def _decisive(sample: Sample, name: str | None, drawn: Mapping[str, TensorInput]) -> list[str]:
    """The inputs of which one with typical values makes the gradient of an input right."""
    typical = arguments_at(sample.subject, sample.case, Point.TYPICAL, 0)
    others = () if isinstance(typical, Raised) or sample.point is Point.TYPICAL else typical
    values = {a.name: a.value for a in others if a.name in drawn}
    return [k for k, v in values.items() if mismatched(with_values(sample, {k: v}), name) is False]


def _declared_by(point: Point, name: str, drawn: TensorInput | None) -> str:
    """What limits the values of an input; a parameter of a module is an input of its Function."""
    if name.startswith("self."):
        return f"in an entry for the Function that gets `{name}`, with a `range:` of it"
    if drawn is not None and not is_floating(drawn):
        return f"a `make:` function for `{name}`"
    return f"`avoid: [0]` of `{name}`" if point is Point.SPECIAL else f"a `range:` of `{name}`"


def manifold(near: Neighbours, finding: Finding) -> Finding | None:
    """It is gone along a manifold, or at definite matrices."""
    along = ""
    if not finding.code.startswith(ON_NO_MANIFOLD):
        along = near.once(right_along) or near.once(right_at_definite)
    return doubted(finding, along) if along else None


def linear_elsewhere(near: Neighbours, finding: Finding) -> Finding | None:
    """Backward is linear in grad_output at definite matrices, so that nothing was chosen in its place."""
    along = near.once(linear_at_definite) if finding.code == OF_GRAD_OUTPUT else ""
    return doubted(finding, along) if along else None
