"""The whole block is the true one times one number: nothing, a constant, or a size.

Wrong in one part of a tensor only: a slice, a tail, all but the first slice, what is off the diagonal.

Complex gradients that are conjugated.

So little is wrong that a shorter dtype rounded it: the sizes and signs of the differences are its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.diagnose.evidence import (
    Cause,
    Explanation,
    Hypothesis,
    Pair,
    Pairs,
    Shapes,
    cotangent,
    first_that_holds,
    has_other_sizes,
    of_gradient,
    same_everywhere,
    times_too_large,
    wrong_ones,
)
from gradverify.verifier.questions.findings import number

SAME_FACTOR = 1e-6
"""Factors that are fitted at two points are the same number within this share."""

ADVICE = {
    -1.0: "Turn the sign.",
    2.0: "Is a term counted twice, or a 1/2 dropped?",
    0.5: "Was the 2 of a square dropped?",
}
"""What to do about a factor that has mostly one reason."""


_LAWS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("{}", lambda n: n),
    ("1 / {}", lambda n: 1 / n),
    ("sqrt({})", math.sqrt),
    ("1 / sqrt({})", lambda n: 1 / math.sqrt(n)),
    ("{}**2", lambda n: n * n),
    ("1 / {}**2", lambda n: 1 / (n * n)),
    ("n / (n - 1) with n = {}", lambda n: n / (n - 1)),
    ("(n - 1) / n with n = {}", lambda n: (n - 1) / n),
    ("sqrt(n / (n - 1)) with n = {}", lambda n: math.sqrt(n / (n - 1))),
    ("sqrt((n - 1) / n) with n = {}", lambda n: math.sqrt((n - 1) / n)),
    ("n - 1 with n = {}", lambda n: n - 1),
    ("1 / (n - 1) with n = {}", lambda n: 1 / (n - 1)),
)
_MULTIPLES: tuple[tuple[str, float], ...] = (("", 1.0), ("-", -1.0), ("2 * ", 2.0), ("1/2 * ", 0.5))


def zero(pairs: Pairs) -> Cause | None:
    """Backward gives zeros where the function does depend on the input."""
    if any(pair.claimed.any() for pair in pairs):
        return None
    first = wrong_ones(pairs)[0]
    name, output = first.name, first.output_name
    others = [k for k in range(len(first.point.outputs.blocks)) if k != first.output]
    if any(Pair(first.point, k, first.source).claimed.any() for k in others):
        return Cause(
            "ignored-output",
            f"the part of the gradient of `{name}` that comes through output `{output}` is missing",
            f"Backward does not use the grad_output of `{output}` for `{name}`: add its term.",
        )
    return Cause(
        "zero",
        f"{of_gradient(first)} is zero at every entry",
        "Is it None, or zeros, or do the terms that it is made of cancel? If none is intended, say so in "
        f"the spec: `{name}: {{..., requires_grad: false}}`.",
        factor=0.0,
    )


def constant_factor(pairs: Pairs) -> Cause | None:
    """Every entry is off by one factor: the same at all points, or a law of the sizes."""
    factors = _fitted(pairs)
    if not factors:
        return None
    c = factors[0][1]
    what = f"{of_gradient(pairs[0])} {times_too_large(c)} at every entry"
    if same_everywhere([c for _, c in factors], SAME_FACTOR):
        return Cause("constant-factor", what, _of_constant(c, pairs), factor=c)
    law = size_law(factors) if _depends_on_sizes_alone(factors) else ""
    if not law:
        return None
    other = next(
        times_too_large(other) for _, other in factors if not same_everywhere([c, other], SAME_FACTOR)
    )
    what += f" (at another size it {other}): the factor is `{law}`"
    return Cause("constant-factor", what, _of_law(law), factor=c)


def factor_of(claimed: Tensor, true: Tensor) -> float | None:
    """The least-squares factor; None where nothing depends on anything."""
    square = (true @ true).item()
    return (claimed @ true).item() / square if square > 0 else None


def _fitted(pairs: Pairs) -> list[tuple[Shapes, float]] | None:
    """The factor of each point that has one to show; None where some entry has another one."""
    factors = []
    for pair in pairs:
        if not pair.informative.any():
            continue
        c = factor_of(pair.claimed[pair.known], pair.true[pair.known])
        if c is None or c == 0 or not pair.explained_by(c * pair.true, abs(c) * pair.bound):
            return None
        factors.append((pair.point.shapes, c))
    return factors


def _depends_on_sizes_alone(factors: Sequence[tuple[Shapes, float]]) -> bool:
    by_size: dict[Shapes, list[float]] = {}
    for shapes, c in factors:
        by_size.setdefault(shapes, []).append(c)
    return all(same_everywhere(values, SAME_FACTOR) for values in by_size.values())


def _of_constant(c: float, pairs: Pairs) -> str:
    """What to do about a factor that is the same everywhere, and what it may also be."""
    divide = f"Divide by {number(c)}." if abs(c) > 1 else f"Multiply by {number(1 / c)}."
    point = pairs[0].point
    same = [] if has_other_sizes(pairs) else sizes_equal_to(point.shapes, abs(c))
    same += [name for name, value in point.scalars if value and abs(c) in {abs(value), abs(1 / value)}]
    also = f" Here it may also be {' or '.join(f'`{name}`' for name in same[:2])}." if same else ""
    return ADVICE.get(round(c, 6), divide) + also


def _of_law(law: str) -> str:
    """What to do about a factor that follows the sizes."""
    above, _, below = law.partition(" / ")
    if below and " " not in above + below:
        inverse = {"1": below, "1/2": f"2 * {below}"}.get(above, f"{below} / {above}")
        return f"Multiply by `{inverse}`."
    mean = (
        " Is a sum taken where a mean is meant?" if law.endswith(("]", "numel()")) and " " not in law else ""
    )
    return f"Divide by `{law}`.{mean}"


def size_law(factors: Sequence[tuple[Shapes, float]]) -> str:
    """The simplest law of the sizes that gives the factor at every point; empty where none does.

    Needs points of at least two sizes: at one size everything is a law.
    """
    for numbers, laws in ((_numbers, _LAWS), (_quotients, _LAWS[:1])):
        tables = [dict(numbers(shapes)) for shapes, _ in factors]
        for (multiple, times), (form, law), name in itertools.product(_MULTIPLES, laws, tables[0]):
            if all(
                name in table and _is_near(law, times, table[name], c)
                for table, (_, c) in zip(tables, factors, strict=True)
            ):
                return _written(multiple, form.format(name))
    return ""


def sizes_equal_to(shapes: Shapes, factor: float) -> list[str]:
    """Which sizes have the value of a factor, or its inverse: where one size was seen, it may be these."""
    return [
        name
        for name, n in _dimensions(shapes)
        if n > 1 and (n == factor or abs(1 / n - factor) < SAME_FACTOR)
    ]


def _written(multiple: str, form: str) -> str:
    """`2 / n`, and not `2 * 1 / n`."""
    if not form.startswith("1 / "):
        return multiple + form
    return {"2 * ": "2 / ", "1/2 * ": "1/2 / "}.get(multiple, f"{multiple}1 / ") + form.removeprefix("1 / ")


def _is_near(law: Callable[[float], float], times: float, n: float, factor: float) -> bool:
    try:
        return n > 0 and abs(times * law(n) - factor) <= SAME_FACTOR * abs(factor)
    except ZeroDivisionError:
        return False


def _numbers(shapes: Shapes) -> Iterator[tuple[str, float]]:
    """Dimensions of every tensor, then how many entries each has, then products of two dimensions."""
    yield from _dimensions(shapes)
    for name, shape in shapes:
        if len(shape) > 1:
            yield f"{name}.numel()", math.prod(shape)
    for name, shape in shapes:
        if len(shape) > 2:
            for a, b in itertools.combinations(range(len(shape)), 2):
                yield f"({name}.shape[{a}] * {name}.shape[{b}])", shape[a] * shape[b]
            for a in range(len(shape)) if len(shape) > 3 else ():
                yield f"({name}.numel() / {name}.shape[{a}])", math.prod(shape) // max(1, shape[a])


def _quotients(shapes: Shapes) -> Iterator[tuple[str, float]]:
    """One dimension over another one."""
    for (above, m), (below, n) in itertools.permutations(_dimensions(shapes), 2):
        yield f"{above} / {below}", m / max(1, n)


def _dimensions(shapes: Shapes) -> Iterator[tuple[str, int]]:
    for name, shape in shapes:
        for dim, n in enumerate(shape):
            yield f"{name}.shape[{dim}]", n


LEAST_BEYOND = 4
"""Slices on either side of an index from which on a gradient is wrong: fewer are named otherwise."""

LOST = (
    "Look at the bounds of the loop, slice or mask that backward uses there. Is something that depends on "
    "these entries taken for a constant?"
)
MULTIPLIED = "Look at what backward multiplies by there, and at the bounds of a loop, slice or mask."

Part = Callable[[Tensor, int], Tensor]
"""Which indices (bool) of a dimension are meant, by the indices and the length."""


def _remainder(width: int) -> Part:
    return lambda k, n: k >= n - n % width


FIRST, LAST = "the first slice", "the last slice"

PARTS: dict[str, Part] = {
    FIRST: lambda k, _: k == 0,
    LAST: lambda k, n: k == n - 1,
    "the slices behind the first one": lambda k, _: k > 0,
    "the slices before the last one": lambda k, n: k < n - 1,
    "the odd indices": lambda k, _: k % 2 == 1,
    "the even indices": lambda k, _: k % 2 == 0,
    # Widths of vectorised loops and of blocks whose remainder may be forgotten.
    **{f"the remainder after groups of {2**e}": _remainder(2**e) for e in range(1, 11)},
}
"""Of the slices along a dimension."""


def not_summed(pairs: Pairs) -> Cause | None:
    """The input is broadcast over a dimension of the output, and one slice was taken instead of the sum."""
    if all(pair.claimed.shape[1] >= pair.claimed.shape[0] for pair in pairs):
        return None
    name, output, g = pairs[0].name, pairs[0].output_name, cotangent(pairs[0])
    for dim in range(len(pairs[0].output_shape)):
        for one in (FIRST, LAST):
            masks = _masks(pairs, dim, PARTS[one], is_input=False)
            if masks is not None and _factor_within(pairs, [~mask for mask in masks]) == 0.0:
                return Cause(
                    "not-summed-over-broadcast",
                    f"`{name}` takes part in every slice of `{output}` along dimension {dim}, but its "
                    f"gradient comes from {one} only",
                    f"Sum over dimension {dim} of {g} instead of indexing it.",
                )
    return None


def region(pairs: Pairs) -> Cause | None:
    """Wrong by one factor in a part of a tensor that is the same at all points, right elsewhere."""
    if not has_other_sizes(pairs):
        return None
    for is_input in (True, False):
        for place, masks in _places(pairs, is_input=is_input):
            factor = None if masks is None else _factor_within(pairs, masks)
            if factor is not None and masks is not None:
                name = pairs[0].name if is_input else pairs[0].output_name
                return Cause(
                    "region",
                    f"{of_gradient(pairs[0])} is wrong only at {place} of `{name}`, where it "
                    f"{times_too_large(factor)}, and right everywhere else",
                    LOST if factor == 0 else MULTIPLIED,
                )
    return None


def _places(pairs: Pairs, *, is_input: bool) -> Iterator[tuple[str, list[Tensor] | None]]:
    """Parts of a tensor along each dimension, then of its matrices: in words, and a mask for each point."""
    shapes = [_shape(pair, is_input=is_input) for pair in pairs]
    for dim in range(len(shapes[0])):
        start = _first_wrong(pairs, dim, is_input=is_input)
        parts = {} if start is None else {f"the slices from index {start} on": _from(start)}
        for words, part in {**parts, **PARTS}.items():
            yield f"{words} along dimension {dim}", _masks(pairs, dim, part, is_input=is_input)
    if all(len(shape) > 1 and min(shape[-2:]) > 1 for shape in shapes):
        off = [~torch.eye(*shape[-2:], dtype=torch.bool).expand(shape) for shape in shapes]
        masks = [_of_entries(p, mask, is_input=is_input) for p, mask in zip(pairs, off, strict=True)]
        yield "the entries off the diagonal", masks


def _from(start: int) -> Part:
    return lambda k, _: k >= start


def _first_wrong(pairs: Pairs, dim: int, *, is_input: bool) -> int | None:
    """The index from which on slices of a dimension are wrong, if it is one at all points and far inside."""
    starts = set()
    for pair in wrong_ones(pairs):
        shape = _shape(pair, is_input=is_input)
        if dim >= len(shape):
            return None
        lines = pair.wrong.any(dim=0 if is_input else 1)
        if (pair.source_block if is_input else pair.output_block).is_complex:
            lines = lines.reshape(-1, 2).any(dim=1)
        slices = lines.reshape(shape).movedim(dim, 0).reshape(shape[dim], -1).any(dim=1)
        start = int(slices.int().argmax())
        starts.add(start)
        if not LEAST_BEYOND <= start <= shape[dim] - LEAST_BEYOND:
            return None
    return starts.pop() if len(starts) == 1 else None


def _shape(pair: Pair, *, is_input: bool) -> tuple[int, ...]:
    return pair.source_shape if is_input else pair.output_shape


def _masks(pairs: Pairs, dim: int, part: Part, *, is_input: bool) -> list[Tensor] | None:
    masks = []
    for pair in pairs:
        shape = _shape(pair, is_input=is_input)
        if dim >= len(shape) or shape[dim] < 1:
            return None
        along = [-1 if k == dim else 1 for k in range(len(shape))]
        chosen = part(torch.arange(shape[dim]), shape[dim]).reshape(along).expand(shape)
        masks.append(_of_entries(pair, chosen, is_input=is_input))
    return masks


def _of_entries(pair: Pair, mask: Tensor, *, is_input: bool) -> Tensor:
    """A mask of a tensor's entries as one of the entries of the block."""
    lined_up = mask.reshape(-1)
    if (pair.source_block if is_input else pair.output_block).is_complex:
        lined_up = lined_up.repeat_interleave(2)
    return (lined_up[None, :] if is_input else lined_up[:, None]).expand_as(pair.claimed)


def _factor_within(pairs: Pairs, masks: Sequence[Tensor]) -> float | None:
    """The one factor inside the masks, if everything outside of them is right."""
    if all(bool(mask.all()) for mask in masks):
        return None
    factors = []
    for pair, mask in zip(pairs, masks, strict=True):
        inside = mask & pair.nonzero
        if pair.is_wrong and not ((pair.wrong & mask).any() and ((~mask & pair.nonzero).any() or mask.all())):
            return None
        if inside.any():
            c = factor_of(pair.claimed[inside], pair.true[inside])
            factors.append(0.0 if c is None or not pair.claimed[inside].any() else c)
    if not factors or not same_everywhere(factors, SAME_FACTOR):
        return None
    factor = factors[0]
    entries = sum(int((mask & pair.nonzero).sum()) for pair, mask in zip(pairs, masks, strict=True))
    if factor != 0 and entries < 2 * len(factors):
        return None
    for pair, mask in zip(pairs, masks, strict=True):
        explained = torch.where(mask, factor * pair.true, pair.true)
        bound = torch.where(mask, abs(factor) * pair.bound, pair.bound)
        if not pair.explained_by(explained, bound):
            return None
    return factor


TURNS = {"1": "", "-1": ", with the wrong sign", "1j": ", times `1j`", "-1j": ", times `-1j`"}
"""Constants of magnitude 1 that are forgotten, or one too many, and how they are said."""


def conjugate(pairs: Pairs) -> Cause | None:
    """The gradient, grad_output or what stands between them is conjugated where it must not be, or not so.

    With another sign, or times the imaginary unit, where that is forgotten, too.
    """
    return first_that_holds(_hypotheses(pairs[0]), pairs)


def _hypotheses(first: Pair) -> Iterator[Hypothesis]:
    columns, rows = first.source_block.is_complex, first.output_block.is_complex
    gradient = of_gradient(first)
    for turn, turned in TURNS.items() if columns else list(TURNS.items())[:2]:
        if columns and rows:
            what = f"{gradient} is built with a factor that lacks `.conj()`, or has one too many{turned}"
            advice = "PyTorch wants grad_output * conj(dy/dz): conjugate what was saved, not grad_output."
            yield Hypothesis(Cause("conjugate", what, advice), _explained(turn, columns=True, rows=True))
        if columns:
            minus = "minus " if turn == "-1" else ""
            advice = f"Return {minus}the conjugate of what `{first.name}` gets now."
            cause = Cause("conjugate", f"{gradient} is conjugated{turned}", advice)
            yield Hypothesis(cause, _explained(turn, columns=True, rows=False))
        if rows:
            what = f"{gradient} is computed with the conjugate of grad_output{turned}"
            yield Hypothesis(Cause("conjugate", what), _explained(turn, columns=False, rows=True))


def _explained(turn: str, *, columns: bool, rows: bool) -> Callable[[Pair], Explanation]:
    """The true block with the signs of imaginary columns, rows, or both turned, times a constant."""

    def explain(pair: Pair) -> Explanation:
        true = pair.true.clone()
        if rows:
            true[1::2] *= -1
        if columns:
            true[:, 1::2] *= -1
        return _turned(true, turn), _turned(pair.bound, turn).abs()

    return explain


def _turned(block: Tensor, turn: str) -> Tensor:
    """The gradients, a row each, times a constant of magnitude 1."""
    sign = -1 if turn.startswith("-") else 1
    if not turn.endswith("j"):
        return sign * block
    other = block.clone()
    other[:, 0::2], other[:, 1::2] = -sign * block[:, 1::2], sign * block[:, 0::2]
    return other


LARGEST = 1e-6
"""Differences in units of the largest entry: some eight times float32's half unit in the last place, 6e-8."""

FEWER_DIGITS = (
    "Look for what computes in float32 in backward (`.float()`, torch.empty without dtype, a float32 "
    "constant), or for an iteration or a series that ends too early."
)

LEAST_DIFFERENCES = 8
"""Fewer have different signs by chance."""

LEAST_OF_A_SIGN = 0.2
"""Share of the differences: rounding goes both ways, a truncated constant mostly one."""


def float32_inside(pairs: Pairs) -> Cause | None:
    """Every difference is of the size of float32's rounding, and they go both ways."""
    larger: list[torch.Tensor] = []
    for pair in wrong_ones(pairs):
        difference = (pair.claimed - pair.true)[pair.wrong]
        if bool((difference.abs() > LARGEST * pair.scale).any()):
            return None
        larger.append(difference * pair.true[pair.wrong] > 0)
    share = torch.cat(larger).double().mean().item()
    is_rounding = LEAST_OF_A_SIGN <= share <= 1 - LEAST_OF_A_SIGN
    enough = sum(signs.numel() for signs in larger) >= LEAST_DIFFERENCES
    what = f"{of_gradient(pairs[0])} is right to float32's digits alone"
    return Cause("float32-inside", what, FEWER_DIGITS, is_weak=True) if is_rounding and enough else None
