"""What an error says about the inputs: states in which it would not have been raised, the likeliest first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.called_names import names_in_forward
from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.channels import by_channels
from gradverify.verifier.collect.inference.complexes import by_refusal
from gradverify.verifier.collect.inference.conditions import PARTS, demands
from gradverify.verifier.collect.inference.kinds import RETYPE, by_kind
from gradverify.verifier.collect.inference.multiples import (
    by_fixed_size,
    by_halves,
    by_parts,
    by_split,
    by_sums,
    by_unpacking,
)
from gradverify.verifier.collect.inference.ranks import by_broadcast, by_fewer, by_lower_rank, by_rank
from gradverify.verifier.collect.inference.relaxed import squares
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State, dearer
from gradverify.verifier.collect.inference.stated_shapes import by_stated_shape

MERGE, DERIVE, PIN, BOUND = 0.1, 0.35, 0.45, 0.1
"""What a repair costs: an agreement of two sizes is likelier than a size that is a number of its own."""

SMALLEST = 2
"""A size of 1 or 0 is broadcast or summed away: forward runs, and little is verified."""

SQUARE = 1.5
"""What a merge costs that gives a tensor two equal dimensions: a transposed gradient fits a square input."""

TOLD = 0.03
"""What an agreement costs that the message itself asks for."""

MOST_NUMBERS = 8
"""Numbers of a message that are looked at."""

DOMAIN = 0.1
"""What it costs that values are positive, or between nought and one."""

COUNTS = (2, 1, 3)
"""Integers that an argument may be whose use as one is all that is known."""

_SIGNED = re.compile(
    r"non-?negative|positive|negative values|>=? ?0\b|<=? ?0\b|greater than (?:or equal to )?(?:0|zero)",
    re.IGNORECASE,
)
_SHARES = re.compile(
    r"[\[(]0(?:\.0)?, ?1(?:\.0)?[\])]|between (?:0|zero) and (?:1|one)|probabilit", re.IGNORECASE
)
_INTEGER = re.compile(
    r"only integer tensors of a single element|slice indices must be integers"
    r"|'float' object cannot be interpreted as an integer|can't multiply sequence by non-int"
)
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)")
_PLACE = re.compile(r"\b(?:dim(?:ension)?|index|position|argument|operand|#)s? ?-?\d+")
"""Where something is wrong: no size."""
_PAIRS = (
    re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"),
    re.compile(r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)"),
    re.compile(r"got input \(\d+\), mat \(\d+x(\d+)\), vec \((\d+)\)"),
    re.compile(r"tensor \[(\d+)\] and src \[(\d+)\]"),
    re.compile(r"Expected size (\d+) but got size (\d+)"),
    re.compile(r"to have (\d+) channels, but got (\d+) channels"),
    re.compile(r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)"),
    re.compile(r"first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]"),
    re.compile(r"first two dimensions of batch2 tensor to be: \[(\d+), \d+\] but got: \[(\d+), \d+\]"),
    re.compile(r"Number of indices \((\d+)\) should be equal to source\.size\(dim\): \((\d+)\)"),
    re.compile(
        r"normalized_shape=\[(?:[\d, ]+, )?(\d+)\], expected .*"
        r" but got input of size\s?\[(?:[\d, ]*, )?(\d+)\]"
    ),
    re.compile(r"batch_size \((\d+)\) to match target batch_size \((\d+)\)"),
)
"""Messages that name the two sizes that disagree."""

_RESHAPED = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size \d+")
"""A `view` or `reshape` into parts whose number does not divide a dimension."""


def repairs(state: State, error: RaisedError, *, broadcast: bool = False) -> Iterator[State]:
    """States to try next, each with its own cost; `broadcast` says that some inputs may be numbers."""
    suspects = suspects_of(state, error)
    yield from _by_conditions(state, error)
    yield from _by_domain(state, error, suspects)
    yield from _by_integer(state, error.message, suspects)
    yield from (dearer(s, RETYPE) for s in by_refusal(state, error.message, suspects))
    yield from by_stated_shape(state, error, suspects)
    yield from by_kind(state, error, suspects)
    yield from by_rank(state, error, suspects)
    yield from _by_bound(state, error, suspects)
    yield from _by_parts(state, error.message, suspects)
    yield from (dearer(s, cost) for s, cost in by_unpacking(state, error.message, suspects))
    yield from (dearer(s, cost) for s, cost in by_fixed_size(state, error.message, suspects))
    yield from (dearer(s, cost) for s, cost in by_split(state, error.message))
    yield from (dearer(s, cost) for s, cost in by_channels(state, error.message))
    yield from _by_size(state, error.message)
    yield from by_lower_rank(state, error.message, suspects)
    yield from by_broadcast(state, error.message, suspects) if broadcast else ()
    yield from by_fewer(state, error)


def suspects_of(state: State, error: RaisedError) -> list[int]:
    """Positions of the arguments that the failing line names; of all where it names none.

    A helper may call them by other names; what it computes of them may have any name of its own.
    """
    names = [a.name for a in state.arguments]
    for end in range(len(error.frames), 0, -1):
        frames = error.frames[:end]
        words = set(re.findall(r"[A-Za-z_]\w*", frames[-1].source))
        of_helper = names_in_forward(frames, names) if end > 1 else {}
        known = {of_helper.get(word, word) for word in words}
        found = [k for k, name in enumerate(names) if name in known]
        if found:
            return found
    return list(range(len(state.arguments)))


def _by_conditions(state: State, error: RaisedError) -> Iterator[State]:
    for number, changed in enumerate(demands(state, error)):
        yield dearer(changed, 0.05 + 0.1 * number)


def _by_domain(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """What the author refuses for its sign, or for not being a share: all suspects are in that range."""
    said = " ".join((error.message, *(f.source for f in error.frames[-1:])))
    domain = "unit" if _SHARES.search(said) else "positive" if _SIGNED.search(said) else ""
    if not domain or not error.deliberate:
        return
    free = [a.guess.kind is Kind.FLOAT and a.domain == "real" and not a.structure for a in state.arguments]
    floats = [k for k, is_free in enumerate(free) if is_free]
    own = [k for k in suspects if k in floats]
    for number, places in enumerate(dict.fromkeys((tuple(own), tuple(floats)))):
        changed = state
        for place in places:
            changed = changed.with_argument(place, replace(changed.arguments[place], domain=domain))
        if places:
            yield dearer(changed, DOMAIN + 0.05 * number)


def _by_integer(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What is used as a count or as the end of a slice is an integer."""
    for place in suspects if _INTEGER.search(message) else ():
        guess = state.arguments[place].guess
        real = guess.kind is Kind.LITERAL and not guess.found and isinstance(guess.choices[0], float)
        if real or guess.kind is Kind.FLOAT:
            for number, value in enumerate(COUNTS):
                literal = Guess(Kind.LITERAL, 0.0, (value,), found=False)
                changed = Argument(state.arguments[place].name, literal)
                yield dearer(state.with_argument(place, changed), RETYPE + 0.05 * number)


def _by_bound(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    message = error.message
    if not re.search(r"out of (?:range|bounds)|[Cc]lass values|smaller than|must be in range", message):
        return
    numbers = [int(n) for n in _NUMBER.findall(message)[:MOST_NUMBERS]]
    dims = list(dict.fromkeys(d for a in state.arguments if a.guess.kind is Kind.FLOAT for d in a.dims))
    values = state.values
    dims.sort(key=lambda d: d.value(values) not in numbers)
    places = [k for k, a in enumerate(state.arguments) if a.guess.kind is Kind.INDEX]
    for place in [k for k in places if k in suspects] or places:
        argument = state.arguments[place]
        for number, bound in enumerate([*dims[:6], Dim(plus=2), Dim(plus=1)]):
            if bound != argument.bound:
                yield dearer(state.with_argument(place, replace(argument, bound=bound)), BOUND * (1 + number))
    # A size or an axis that is too large.
    for argument in state.arguments:
        if argument.guess.kind is Kind.SIZE:
            for dim in dims[:4]:
                changed = state.substituted(argument.dims[0].symbol, dim)
                if changed is not None and argument.dims[0] != dim:
                    yield dearer(_pinned(changed, argument), PIN)


def _by_size(state: State, message: str) -> Iterator[State]:
    values = state.values
    of_size = {values[s]: s for s in reversed(state.symbols())}
    told = [(int(m[1]), int(m[2])) for p in _PAIRS for m in p.finditer(message)]
    numbers = list(dict.fromkeys(int(n) for n in _NUMBER.findall(_PLACE.sub("", message))))[:MOST_NUMBERS]
    pairs = [(a, b) for k, a in enumerate(numbers) for b in numbers[k + 1 :]]
    ordered = dict.fromkeys([*told, *pairs])
    for place, (a, b) in enumerate(ordered):
        cost = TOLD - MERGE if (a, b) in told else 0.15 + 0.05 * place + 0.5 * bool(told)
        if a in of_size and b in of_size and a != b:
            for first, second in ((a, b), (b, a)):
                merged = state.substituted(of_size[second], Dim(of_size[first]))
                if merged is not None:
                    squared = SQUARE if squares(merged) > squares(state) else 0.0
                    yield dearer(merged, MERGE + cost + squared)
                    break
        for live, other in ((a, b), (b, a)):
            if live in of_size and other not in of_size and other >= SMALLEST:
                yield from _derived(state, of_size[live], other, cost)
    further_sizes = (*by_parts(state, told), *by_halves(state, told), *by_sums(state, told or pairs))
    for further, cost in further_sizes:
        yield dearer(further, cost)


def _by_parts(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After `reshape(n, groups, -1)`: a dimension that is a multiple of the number that no dimension has."""
    values = state.values
    sizes = {values[s] for s in state.symbols()}
    for found in _RESHAPED.finditer(message):
        parts = [int(n) for n in found[1].split(",")]
        kept = {p for p in parts if p in sizes}
        dims = dict.fromkeys(
            d
            for k in suspects
            for d in (state.arguments[k].dims if state.arguments[k].is_tensor else ())
            if d.is_plain and d.value(values) not in kept
        )
        for part in [p for p in parts if p >= SMALLEST and p not in kept]:
            for number, dim in enumerate(dims):
                changed = state.substituted(dim.symbol, Dim(dim.symbol, times=part))
                if changed is not None:
                    yield dearer(changed, DERIVE + 0.05 * number)
        for number, changed in enumerate(_into_product(state, parts, list(dims))):
            yield dearer(changed, DERIVE + 0.05 * number)


def _into_product(state: State, parts: Sequence[int], dims: Sequence[Dim]) -> Iterator[State]:
    """After `x.reshape(-1, n, b)`, where another tensor has n and b: a dimension that is 2 b, and n is 2."""
    values = state.values
    of_size = {values[s]: s for s in state.symbols()}
    for first, second in itertools.pairwise(p for p in parts if p in of_size):
        count, width = of_size[first], of_size[second]
        free = [d for d in dims if d.symbol not in {count, width}]
        for dim in reversed(free):
            changed = state.substituted(dim.symbol, Dim(width, times=PARTS))
            fixed = changed.substituted(count, Dim(plus=PARTS)) if changed is not None else None
            if fixed is not None:
                yield fixed


def _derived(state: State, symbol: int, wanted: int, cost: float) -> Iterator[State]:
    """A size that must be a number which no dimension has: it follows from one, or is a constant."""
    expressions = [
        dim
        for other in state.symbols()
        if other != symbol
        for dim in (
            *(Dim(other, times=k) for k in (2, 3, 4)),
            *(Dim(other, over=k) for k in (2,)),
            *(Dim(other, plus=k) for k in (-1, 1, -2, 2)),
        )
        if dim.value(state.values) == wanted
    ]
    owners = [a for a in state.arguments if any(d.symbol == symbol for d in a.dims)]
    for number, dim in enumerate([*expressions, Dim(plus=wanted)]):
        changed = state.substituted(symbol, dim)
        if changed is not None:
            for owner in owners:
                changed = _pinned(changed, owner)
            yield dearer(changed, (PIN if dim.symbol < 0 else DERIVE) + cost + 0.05 * number)


def _pinned(state: State, argument: Argument) -> State:
    return replace(state, pinned=state.pinned | {argument.name})
