"""What an error says about the inputs: one table of what is seen, what to do, and what that costs.

First of their kinds: integers, truths, a function, a module, several tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradverify.model import RaisedError
from gradverify.verifier.infer import costs, shapes
from gradverify.verifier.infer.frames import demanded, suspects_of
from gradverify.verifier.infer.guesses import FACTORS
from gradverify.verifier.infer.shapes import Priced, numbers_in
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State, literal
from gradverify.verifier.inputs.arguments import BLOCK, STAND_IN
from gradverify.verifier.inputs.structures import fits

COMPLEX = "complex128"

_INDEX = re.compile(
    r"scalar type (?:Long|Int)|indices must be (?:long|int)|dtype int(?:32(?:/| or )int)?64|LongTensor"
    r"|to be (?:Long|int64)|index must be|must be (?:of d?type )?(?:torch\.)?(?:long|u?int\d+)"
    r"|applicable to (?:index|integral) tensor|not implemented for 'Double'"
    r"|\b(?:must|should|has to|expects?|expected|needs?)\b.{0,30}\bint(?:eger|egers|egral|64)?\b"
)
_BOOL = re.compile(
    r"[Bb]ool(?:ean)?(?:Tensor|[- ]type| tensor| mask)|dtype bool|mask dtype|\(operator.invert\)"
)
_NARROW = re.compile(r"\b(?:torch\.)?(u?int(?:8|16|32))\b|(?:scalar|found) type (Int)\b")
"""A narrower dtype of integers; `Int` is torch's word for int32."""

_COMPLEX = re.compile(
    r"non-complex|only supported for complex|(?:must|should|ha(?:s|ve) to|expects?|expected|requires?|needs?)"
    r" .{0,30}complex|ComplexDouble|c10::complex|complex<double>",
    re.IGNORECASE,
)
"""Messages by which a real tensor is refused, or one that is not complex like another."""

_DEFINITE = re.compile(
    r"positive[- ]definite|NotPSD|singular|not invertible|must be symmetric|leading minor", re.IGNORECASE
)
_EIGH = re.compile(r"linalg[._](?:eigh|eigvalsh)\b.*square matrices|symeig.*square")
"""It reads one triangle and takes the other one for the same."""

_SQUARE = re.compile(r"\bsquare\b", re.IGNORECASE)

_MODULE = re.compile(
    r"'(?:Tensor|function|builtin_function_or_method|float|int)' object has no attribute"
    r" '(forward|parameters|modules|children|named_parameters|state_dict|train|eval|training|buffers)'"
)
_FUNCTION = re.compile(r"'(Tensor|int|float|bool|NoneType)' object is not callable")
_SIZES = re.compile(r"must be (?:a )?tuple of (?:Sym)?[Ii]nts")
"""torch's refusal of anything but a tuple of sizes."""

_NO_TENSOR = re.compile(
    r"'(?:float|int|bool|NoneType)' object has no attribute '(\w+)'"
    r"|must be Tensor, not (?:float|int|bool|NoneType)|'(?:float|int)' object is not subscriptable"
    r"|expected Tensor as|(?:float|int)\b.* has no len\(\)"
)
"""A number where a tensor is meant; with the attribute that it is asked for, if it is one."""

_NOT_TAKEN = re.compile(
    r"unexpected keyword argument|takes no keyword arguments|missing \d+ required positional"
    r"|takes (?:from )?\d+ .*positional arguments? but|must be Tensor, not|received an invalid combination"
    r"|takes exactly \w+ argument|argument 'out'|appears to not have been used in the graph"
)
"""A function that was put in takes other arguments."""

_UNPACKED = re.compile(
    r"(?:not enough|too many) values to unpack \(expected (\d+)|iteration over a 0-d tensor"
)

A_FUNCTION = Guess(Kind.CALLABLE, found=False, path="torch.tanh")
A_MODULE = Guess(Kind.CALLABLE, found=False, path="torch.nn.Tanh", made=True)


def by_type(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """A suspect is of integers or of truths; all integers are of the width that the code asks for."""
    for wanted, words in ((Kind.INDEX, _INDEX), (Kind.BOOL, _BOOL)):
        takes = {Kind.FLOAT} if wanted is Kind.INDEX else {Kind.FLOAT, Kind.INDEX}
        for place in suspects if words.search(message) else ():
            argument = state.arguments[place]
            if argument.guess.kind in takes:
                bound = Dim(plus=3) if wanted is Kind.INDEX else None
                guess = Guess(wanted, found=False)
                yield state.with_argument(place, replace(argument, guess=guess, bound=bound))
    named = _NARROW.search(message)
    narrow = state
    for place in state.places(Kind.INDEX) if named is not None else ():
        dtype = "int32" if named is None or named[2] else named[1]
        narrow = narrow.with_argument(place, replace(narrow.arguments[place], dtype=dtype))
    if narrow != state:
        yield narrow


def by_complex(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After a message that asks for complex tensors: each suspect, and all of them."""
    real = [k for k in suspects if state.arguments[k].is_real] if _COMPLEX.search(message) else []
    for places in dict.fromkeys([*((k,) for k in real), tuple(real)]):
        if places:
            yield made_complex(state, places)


def made_complex(state: State, places: Sequence[int]) -> State:
    """The same with complex tensors at some places."""
    for place in places:
        state = state.with_argument(place, replace(state.arguments[place], dtype=COMPLEX))
    return state


def by_call(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What the code calls, or asks for its parameters, is a function or a module."""
    unpacked = _UNPACKED.search(message)
    for place in state.places(Kind.CALLABLE) if unpacked or _NOT_TAKEN.search(message) else ():
        argument = state.arguments[place]
        init = (int(unpacked[1]),) if unpacked is not None and unpacked[1] else argument.guess.init
        own = argument.guess.path if argument.guess.path == BLOCK else STAND_IN
        of_any = replace(A_MODULE, path=own, init=init)
        if not argument.guess.found and replace(argument.guess, cost=0.0) != of_any:
            yield state.with_argument(place, Argument(argument.name, of_any))
    module = _MODULE.search(message) is not None
    wanted = A_MODULE if module else A_FUNCTION
    for place in suspects if module or _FUNCTION.search(message) else ():
        argument = state.arguments[place]
        number = argument.guess.kind is Kind.LITERAL and not argument.guess.found
        plain = module and argument.guess.kind is Kind.CALLABLE and not argument.guess.made
        if argument.is_float or number or plain:
            yield state.with_argument(place, Argument(argument.name, wanted))


def by_attribute(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What is asked for what tensors alone have is one: of the shape of another one, or of one entry.

    What is None, and is asked for anything, is a number, or a tensor.
    """
    asked = _NO_TENSOR.search(message)
    as_tensor = asked is not None and (not asked[1] or hasattr(torch.Tensor, asked[1]))
    first = state.first_dims()
    for place in suspects if as_tensor or "'NoneType'" in message else ():
        argument = state.arguments[place]
        nothing = argument.guess.kind is Kind.LITERAL and argument.guess.choices[0] is None
        if nothing:
            yield state.with_argument(place, Argument(argument.name, literal(FACTORS[0])))
        if nothing or (as_tensor and argument.guess.is_invented_number):
            for dims in dict.fromkeys((first, first[:-1], first[1:], ())):
                yield state.with_argument(place, Argument(argument.name, Guess(Kind.FLOAT), dims))


def by_sizes(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What is no tuple of sizes is that of the last dimensions of a tensor, which are fixed by it."""
    shaped = next((k for k, a in enumerate(state.arguments) if a.is_float and a.dims), None)
    if shaped is None or not _SIZES.search(message):
        return
    for place in suspects:
        if place == shaped or not state.arguments[place].is_tensor:
            continue
        for count in range(1, len(state.arguments[shaped].dims) + 1):
            dims = state.arguments[shaped].dims[-count:]
            sizes = tuple(d.value(state.values) for d in dims)
            argument = Argument(state.arguments[place].name, replace(literal(sizes), found=True))
            changed: State | None = state.with_argument(place, argument)
            for dim in dims:
                fixed = Dim(plus=dim.value(state.values))
                changed = changed.substituted(dim.symbol, fixed) if changed is not None else None
            if changed is not None:
                yield changed


def by_structure(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """A factorization that refuses a matrix of any kind takes a positive definite one, or a symmetric one."""
    structure = "spd" if _DEFINITE.search(message) else "symmetric" if _EIGH.search(message) else ""
    for place in suspects if structure else ():
        argument = state.arguments[place]
        if argument.is_float and len(argument.dims) > 1 and not argument.structure:
            *batch, rows, columns = argument.dims
            square = replace(argument, structure=structure, domain="real", dims=(*batch, rows, rows))
            changed = state.with_argument(place, square)
            # The other arguments go on with the size that is left.
            squared = changed.substituted(columns.symbol, rows) if columns.is_plain else None
            yield from filter(None, (squared, changed))


def by_square(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What asks for a square matrix, and does not name the two sizes, has the last two dimensions equal."""
    if len(numbers_in(message)) > 1:
        return
    for place in suspects:
        argument = state.arguments[place]
        if argument.is_float and len(argument.dims) > 1 and argument.dims[-1] != argument.dims[-2]:
            rows, columns = argument.dims[-2:]
            merged = state.substituted(columns.symbol, rows) if columns.is_plain else None
            yield from filter(None, (merged,))


MOST_BOUNDS = 6
"""Sizes of tensors that are tried as the bound of an index."""

_OUT_OF_RANGE = re.compile(r"out of (?:range|bounds)|[Cc]lass values|smaller than|must be in range")
_SIGNED = re.compile(
    r"non-?negative|positive|negative values|>=? ?0\b|<=? ?0\b|greater than (?:or equal to )?(?:0|zero)",
    re.IGNORECASE,
)
_SHARES = re.compile(
    r"[\[(]0(?:\.0)?, ?1(?:\.0)?[\])]|between (?:0|zero) and (?:1|one)|probabilit", re.IGNORECASE
)
_INDEXED = re.compile(r"Number of indices|index_add|[Ee]xpected index|scatter|gather")
_ELEMENTWISE = re.compile(r"must match the size of tensor|not broadcastable|could not be broadcast")


@dataclass(frozen=True)
class Row:
    """A repair: what it costs, and what each further way that it offers costs besides."""

    cost: float
    step: float
    repair: Callable[[State, str, Sequence[int]], Iterator[State]]
    """(state, message, places of the suspects) -> states in which the error would not have been raised."""
    seen: re.Pattern[str] = re.compile("")
    """What the message holds."""


def _bounds(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """An index is below another size; the suspects, where one of them is an index."""
    found = numbers_in(message)
    dims = list(dict.fromkeys(d for a in state.arguments if a.is_float for d in a.dims))
    dims.sort(key=lambda d: d.value(state.values) not in found)
    indices = state.places(Kind.INDEX)
    for place in [k for k in indices if k in suspects] or indices:
        argument = state.arguments[place]
        for bound in (*dims[:MOST_BOUNDS], Dim(plus=2), Dim(plus=1)):
            if bound != argument.bound:
                yield state.with_argument(place, replace(argument, bound=bound))


TABLE = (
    Row(0.1, 0.0, by_complex),
    Row(0.1, 0.02, by_type),
    Row(0.1, 0.0, by_call),
    Row(0.1, 0.02, by_attribute),
    Row(0.1, 0.05, by_sizes),
    Row(0.1, 0.0, by_structure),
    Row(costs.MERGE, 0.0, by_square, _SQUARE),
    Row(0.15, 0.05, shapes.by_rank),
    Row(0.1, 0.1, _bounds, _OUT_OF_RANGE),
    Row(0.55, 0.0, lambda state, _, suspects: shapes.without_last(state, suspects), _INDEXED),
)
"""Of sizes see `shapes.py`, of conditions in the source `frames.py`."""

BROADCAST = Row(0.3, 0.02, lambda state, _, suspects: shapes.broadcast(state, suspects), _ELEMENTWISE)
"""Among all else that shapes may be this finds what hides mistakes, so it is for a second search."""


def repairs(state: State, error: RaisedError, further: Sequence[Row] = ()) -> Iterator[State]:
    """States to try next, each with its own cost; by `further` rows as well."""
    suspects, message = suspects_of(state, error), error.message
    for number, changed in enumerate(demanded(state, error)):
        yield changed.dearer(costs.DEMANDED + costs.NEXT_DEMANDED * number)
    if error.deliberate:
        for number, changed in enumerate(_of_values(state, error, suspects)):
            yield changed.dearer(costs.NEXT_DOMAIN * number)
        for number, changed in enumerate(_bounds(state, message, suspects)):
            yield changed.dearer(costs.OF_VALUES + costs.NEXT_DOMAIN * number)
    for row in (*TABLE, *further):
        if row.seen.search(message):
            for number, changed in enumerate(row.repair(state, message, suspects)):
                yield changed.dearer(row.cost + row.step * number)
    for several in (shapes.by_reshape, shapes.by_order, shapes.by_unpacking, shapes.by_fixed_size):
        yield from _priced(several(state, message, suspects))
    yield from _priced(shapes.by_size(state, message))


def _priced(several: Priced) -> Iterator[State]:
    yield from (state.dearer(cost) for state, cost in several if state is not None)


OF_VALUES: tuple[Mapping[str, Any], ...] = (
    {"domain": "unit"},
    {"domain": "positive"},
    *({"structure": s} for s in ("unit-norm", "simplex", "symmetric", "spd", "sorted")),
)
"""What an author's own check may ask of values, what is asked most often first."""


def _of_values(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """What an author's own check refuses, drawn as the message says, of all suspects and of all real inputs.

    Where it names no range: the suspects as one kind of values after another.
    """
    said = " ".join((error.message, *(f.source for f in error.frames[-1:])))
    domain = "unit" if _SHARES.search(said) else "positive" if _SIGNED.search(said) else ""
    kinds = (*OF_VALUES, {"dtype": COMPLEX}) if "complex" in said.lower() else OF_VALUES
    for wanted in ({"domain": domain},) if domain else kinds:
        structure = str(wanted.get("structure", ""))
        real = [k for k, a in enumerate(state.arguments) if a.is_real and fits(structure, state.shape(a))]
        those = tuple(k for k in suspects if k in real and (domain or state.arguments[k].dims))
        for places in filter(None, dict.fromkeys((those, tuple(real)) if domain else (those,))):
            changed = state.dearer(costs.ASKED_DOMAIN if domain else costs.OF_VALUES)
            for place in places:
                changed = changed.with_argument(place, replace(changed.arguments[place], **wanted))
            yield changed


_REFUSED = re.compile(
    r"invalid gradient at index (\d+) - got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]"
)


@dataclass(frozen=True)
class RefusedGradient:
    """A gradient that the engine refused for its shape."""

    name: str
    """Of the parameter."""
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
