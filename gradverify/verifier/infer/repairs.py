"""What an error says about the inputs: one table of what is seen, what to do, and what that costs."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gradverify.model import RaisedError
from gradverify.verifier.infer import kinds, ranks, sizes
from gradverify.verifier.infer.state import Dim, Kind, State

MOST_LINES = 6
"""From a condition to the `raise` under it."""


@dataclass(frozen=True)
class Row:
    """A repair: what the message holds, a pattern; what to do; what that and each further way costs."""

    seen: str
    repair: Callable[[State, re.Match[str], Sequence[int]], Iterator[State | None]]
    """(state, match in the message, places of the suspects) -> states in which the error would not have been
    raised; None for one that cannot be."""
    cost: float = 0.0
    """Beside what the repair itself adds for sizes."""
    step: float = 0.0


_SIZE = r"(?P<of{0}>\w+)\.(?:shape\[|size\()(?P<at{0}>-?\d)[\])]"

BY_RANK = Row("", ranks.by_rank, 0.15, 0.05)

TABLE = (
    # A real tensor is refused, or one that is not complex like another.
    Row(
        r"(?i)non-complex|only supported for complex|ComplexDouble|c10::complex|complex<double>"
        r"|(?:must|should|ha(?:s|ve) to|expects?|expected|requires?|needs?) .{0,30}complex",
        kinds.as_complex,
        0.1,
    ),
    Row(
        r"scalar type (?:Long|Int)|indices must be (?:long|int)|dtype int(?:32/int)?64|LongTensor"
        r"|to be (?:Long|int64)|index must be|must be (?:of d?type )?(?:torch\.)?(?:long|u?int\d+)"
        r"|applicable to (?:index|integral) tensor",
        partial(kinds.as_kind, kind=Kind.INDEX),
        0.1,
        0.02,
    ),
    Row(
        r"[Bb]ool(?:ean)?(?:Tensor|[- ]type| tensor| mask)|dtype bool|mask dtype|\(operator.invert\)",
        partial(kinds.as_kind, kind=Kind.BOOL),
        0.1,
        0.02,
    ),
    Row(r"\b(?:torch\.)?(u?int(?:8|16|32))\b|(?:scalar|found) type Int\b", kinds.as_narrow, 0.1),
    Row(
        r"only one element tensors|cannot be converted to Scalar|Boolean value of Tensor"
        r"|only be called on tensors with one|only tensors with one element|single element can be converted",
        kinds.as_number,
        0.15,
    ),
    Row(r"(?:not enough|too many) values to unpack \(expected (\d+)", kinds.as_returning, 0.1),
    Row(
        r"not enough values to unpack \(expected (\d)|type 'List\[Tensor\]'|must be 2-tuple"
        r"|'(?:float|int|NoneType)' object is not iterable|expected Tensor as element",
        kinds.as_several,
        0.1,
    ),
    # A number where a tensor is meant; with the attribute that it is asked for, if it is one.
    Row(
        r"'(?:float|int|bool|NoneType)' object has no attribute '(?P<attribute>\w+)'"
        r"|must be Tensor, not (?:float|int|bool|NoneType)|'(?:float|int)' object is not subscriptable"
        r"|expected Tensor as|(?:float|int)\b.* has no len\(\)|'NoneType'",
        kinds.as_tensor,
        0.1,
        0.02,
    ),
    Row(r"must be (?:a )?tuple of (?:Sym)?[Ii]nts", kinds.as_sizes, 0.1, 0.05),
    Row(
        r"(?i)positive[- ]definite|NotPSD|singular|not invertible|must be symmetric|leading minor",
        partial(kinds.as_structure, structure="spd"),
        0.1,
    ),
    Row(
        r"linalg[._](?:eigh|eigvalsh)\b.*square matrices|symeig.*square",
        partial(kinds.as_structure, structure="symmetric"),
        0.1,
    ),
    BY_RANK,
    Row(r"out of (?:range|bounds)|[Cc]lass values|smaller than|must be in range", sizes.bounds, 0.1, 0.1),
    Row(r"Number of indices|index_add|[Ee]xpected index|scatter|gather", ranks.without_last, 0.55),
    Row(
        r"must match the size of tensor|not broadcastable|could not be broadcast", ranks.broadcast, 1.0, 0.02
    ),
    # Into parts whose number does not divide a dimension.
    Row(r"shape '\[([-\d, ]+)\]' is invalid for input of size \d+", sizes.by_reshape),
    Row(r"values to unpack \(expected (\d+)", sizes.by_unpacking),
    Row(
        r"have size (\d+) in (?:the )?last dimension"
        r"|last dimension (?:of |must be |should be |to be )(?:of )?(?:size |a )*(\d+)",
        sizes.by_last_size,
    ),
    Row(r"index (\d+) is out of bounds for dimension (\d+) with size \d+", sizes.by_index),
    Row("", sizes.by_size),
)
"""Repairs by what a message says."""

CONDITIONS = (
    Row(
        r"(?:(?P<of>\w+)\.(?:dim\(\)|ndim\b)|len\((?P<whole>\w+)\.shape\)) *[!=]= *(?P<rank>\d)",
        ranks.by_condition,
        0.05,
    ),
    Row(
        _SIZE.format(1) + r"(?: *% *(?P<divisor>\d+))? *[!=]= *(?:(?P<number>\d+)|" + _SIZE.format(2) + ")",
        sizes.by_condition,
        0.05,
    ),
    Row(
        r"(?i)(?P<share>[\[(]0(?:\.0)?, ?1(?:\.0)?[\])]|between (?:0|zero) and (?:1|one)|probabilit)"
        r"|non-?negative|positive|negative values|>=? ?0\b|<=? ?0\b"
        r"|greater than (?:or equal to )?(?:0|zero)",
        kinds.in_domain,
        0.1,
        0.05,
    ),
)
"""Repairs by what the author's own condition, or the message about it, says."""


def repairs(state: State, error: RaisedError) -> Iterator[State]:
    """States to try next, each with its own cost."""
    suspects, message = suspects_of(state, error), error.message
    rows = [(row, message) for row in TABLE]
    if error.deliberate:
        rows = [*((row, f"{condition_of(error)} {message}") for row in CONDITIONS), *rows]
    for row, text in rows:
        yield from applied(row, state, text, suspects)


def applied(row: Row, state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What one row offers after a message."""
    found = re.search(row.seen, message)
    changed = row.repair(state, found, suspects) if found is not None else iter(())
    for number, one in enumerate(filter(None, changed)):
        yield one.dearer(row.cost + row.step * number)


def suspects_of(state: State, error: RaisedError) -> list[int]:
    """Positions of the arguments that the innermost frame names which names some; of all where none does."""
    names = [a.name for a in state.arguments]
    for frame in reversed(error.frames):
        words = set(re.findall(r"[A-Za-z_]\w*", frame.source))
        if not words.isdisjoint(names):
            return [k for k, name in enumerate(names) if name in words]
    return list(range(len(names)))


def condition_of(error: RaisedError) -> str:
    """The source of the failing `assert`, or from the `if` above the `raise` on; empty for other errors."""
    if not error.deliberate or not error.frames:
        return ""
    frame = error.frames[-1]
    lines = linecache.getlines(frame.file)[: frame.line]
    for number in range(len(lines) - 1, max(-1, len(lines) - 1 - MOST_LINES), -1):
        if re.match(r"\s*(?:if|elif|assert)\b", lines[number]):
            return " ".join(line.strip() for line in lines[number:])
    return ""


_REFUSED = re.compile(
    r"invalid gradient at index (\d+) - got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]"
)


class RefusedGradient(NamedTuple):
    """A gradient of a parameter that the engine refused for its shape."""

    name: str
    got: tuple[int, ...]
    expected: tuple[int, ...]


def refused_gradient(message: str, names: Sequence[str]) -> RefusedGradient | None:
    """What `invalid gradient` says; None for every other message."""
    found = _REFUSED.search(message)
    if found is None or int(found[1]) >= len(names):
        return None
    got, expected = (tuple(int(n) for n in found[k].split(",") if n.strip()) for k in (2, 3))
    return RefusedGradient(names[int(found[1])], got, expected)


def unbroadcast(state: State, message: str, names: Sequence[str]) -> State | None:
    """After `invalid gradient`: the input shaped like the gradient that backward returned for it.

    Only a gradient of fewer numbers says that the input was broadcast. One of as many numbers is a mistake
    of backward's, which another shape would hide.
    """
    refused = refused_gradient(message, names)
    place = next((k for k, a in enumerate(state.arguments) if refused and a.name == refused.name), None)
    if refused is None or place is None or math.prod(refused.got) >= math.prod(refused.expected):
        return None
    left, dims = list(state.arguments[place].dims), []
    if len(refused.got) == len(left):
        pairs = zip(refused.got, left, strict=True)
        dims = [Dim(plus=1) if got == 1 else dim for got, dim in pairs]
        return (
            state.with_dims(place, dims) if [d.value(state.values) for d in dims] == [*refused.got] else None
        )
    for size in refused.got:
        dim = next((d for d in left if d.value(state.values) == size), None)
        if dim is None:
            return None
        dims.append(dim)
        left.remove(dim)
    return state.with_dims(place, dims)
