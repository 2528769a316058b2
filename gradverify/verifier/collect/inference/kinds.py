"""What an error says of the kinds of the inputs: integers, truths, a function, a module, several tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import FACTORS, Guess, Kind
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State, dearer
from gradverify.verifier.inputs.stand_ins import STAND_IN

RETYPE, SCALAR = 0.1, 0.15
"""What another kind costs, and one number in place of many."""

_INDEX = re.compile(
    r"scalar type (?:Long|Int)|indices must be (?:long|int)|dtype int(?:32/int)?64|LongTensor"
    r"|to be (?:Long|int64)|index must be|must be (?:of d?type )?(?:torch\.)?(?:long|u?int\d+)"
    r"|applicable to (?:index|integral) tensor"
)
_BOOL = re.compile(
    r"[Bb]ool(?:ean)?(?:Tensor|[- ]type| tensor| mask)|dtype bool|mask dtype|\(operator.invert\)"
)
_NARROW = re.compile(r"\b(?:torch\.)?(u?int(?:8|16|32))\b|(?:scalar|found) type (Int)\b")
"""A narrower dtype of integers; `Int` is torch's word for int32."""

_SCALAR = re.compile(
    r"only one element tensors|cannot be converted to Scalar|Boolean value of Tensor"
    r"|only be called on tensors with one|only tensors with one element|single element can be converted"
)


_DEFINITE = re.compile(
    r"positive[- ]definite|NotPSD|singular|not invertible|must be symmetric|leading minor", re.IGNORECASE
)
_EIGH = re.compile(r"linalg[._](?:eigh|eigvalsh)\b.*square matrices|symeig.*square")
"""It reads one triangle and takes the other one for the same."""

_MODULE = re.compile(
    r"'(?:Tensor|function|builtin_function_or_method|float|int)' object has no attribute"
    r" '(forward|parameters|modules|children|named_parameters|state_dict|train|eval|training|buffers)'"
)
_FUNCTION = re.compile(r"'(Tensor|int|float|bool|NoneType)' object is not callable")
_OF_NUMPY = re.compile(r"must be Tensor, not numpy\.ndarray")
_SPARSE = re.compile(
    r"is_sparse|sparse_coo|sparse_csr|to be sparse|Sparse|coalesce|sparse tensor"
    r"|\._?(col_|crow_)?indices\(|\._?values\("
)
_COMPRESSED = re.compile(r"csr|crow_indices|col_indices", re.IGNORECASE)
_SEVERAL = re.compile(
    r"type 'List\[Tensor\]'|'(float|int|NoneType)' object is not iterable|must be 2-tuple"
    r"|expected Tensor as element"
)

_NO_TENSOR = re.compile(
    r"'(?:float|int|bool|NoneType)' object has no attribute '(\w+)'"
    r"|must be Tensor, not (?:float|int|bool|NoneType)|'(?:float|int)' object is not subscriptable"
    r"|expected Tensor as|(?:float|int)\b.* has no len\(\)"
)
"""A number where a tensor is meant; with the attribute that it is asked for, if it is one."""

_NOTHING = re.compile(r"'NoneType'")

_ARITY = re.compile(r"takes \d+ positional arguments? but (\d+) (?:was|were) given")
_NOT_TAKEN = re.compile(
    r"unexpected keyword argument|takes no keyword arguments|got multiple values"
    r"|missing \d+ required positional"
    r"|takes (?:from )?\d+ .*positional arguments? but|must be Tensor, not|received an invalid combination"
    r"|takes exactly \w+ argument|argument 'out'|appears to not have been used in the graph"
)
"""A function that was put in takes other arguments."""
_UNUSED = re.compile(r"appears to not have been used in the graph|returned an incorrect number of gradients")
_UNPACKED = re.compile(
    r"(?:not enough|too many) values to unpack \(expected (\d+)|iteration over a 0-d tensor"
    r"|cannot unpack non-iterable"
)
_TOO_FEW = re.compile(r"not enough values to unpack \(expected (\d)")
OF_SEVERAL = {"2": "torch.mul", "3": "torch.addcmul"}
"""Functions of so many tensors."""

A_MODULE = Guess(Kind.CALLABLE, 0.0, found=False, path="torch.nn.Tanh", made=True)
A_STAND_IN = Guess(Kind.CALLABLE, 0.0, found=False, path=STAND_IN, made=True)
"""Of any arguments, and a module as well."""

OF_ARRAYS = Guess(Kind.CALLABLE, 0.0, found=False, path="numpy.negative")
"""Linear and its own adjoint: a function and its adjoint go together."""

A_FUNCTION = Guess(Kind.CALLABLE, 0.0, found=False, path="torch.tanh")


def by_kind(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """States in which the `suspects` are of the kind that the code asks for."""
    yield from _by_type(state, error.message, suspects)
    yield from _by_width(state, error.message)
    yield from by_call(state, error, suspects)
    yield from _by_iteration(state, error.message, suspects)
    yield from _by_attribute(state, error.message, suspects)
    yield from _by_structure(state, error.message, suspects)
    yield from _by_layout(state, error, suspects)


def _by_type(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    kinds = [k for k, words in ((Kind.INDEX, _INDEX), (Kind.BOOL, _BOOL)) if words.search(message)]
    for wanted in kinds:
        for place in suspects:
            argument = state.arguments[place]
            if argument.guess.kind is Kind.FLOAT or (
                argument.guess.kind is Kind.INDEX and wanted is Kind.BOOL
            ):
                bound = Dim(plus=3) if wanted is Kind.INDEX else None
                changed = replace(argument, guess=Guess(wanted, 0.0, found=False), bound=bound)
                yield dearer(state.with_argument(place, changed), RETYPE + 0.02 * (wanted is not kinds[0]))
    if _SCALAR.search(message):
        for place in suspects:
            argument = state.arguments[place]
            if argument.is_tensor and argument.dims:
                yield dearer(state.with_argument(place, replace(argument, dims=())), SCALAR)


def _by_width(state: State, message: str) -> Iterator[State]:
    """All integer tensors have the width that the code asks for: what it names is often a local."""
    named = _NARROW.search(message)
    places = [k for k, a in enumerate(state.arguments) if a.guess.kind is Kind.INDEX]
    if named is None or not places:
        return
    dtype = "int32" if named[2] else named[1]
    narrow = state
    for place in places:
        narrow = narrow.with_argument(place, replace(narrow.arguments[place], dtype=dtype))
    if narrow != state:
        yield dearer(narrow, RETYPE)


def by_call(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """What the code calls, or asks for its parameters, is a function or a module."""
    module, function = _MODULE.search(error.message), _FUNCTION.search(error.message)
    wanted = A_MODULE if module else A_FUNCTION if function else None
    if _OF_NUMPY.search(error.message):
        yield from _with_functions_of_numpy(state)
    of_several = list(_by_arity(state, error.message))
    yield from of_several or _by_stand_in(state, error.message)
    yield from _by_leaving_out(state, error.message)
    for place in suspects if wanted is not None else ():
        argument = state.arguments[place]
        number = argument.guess.kind is Kind.LITERAL and not argument.guess.found
        of_one = argument.guess.kind is Kind.CALLABLE and wanted is A_MODULE and not argument.guess.made
        if wanted is not None and (argument.guess.kind is Kind.FLOAT or number or of_one):
            yield dearer(state.with_argument(place, Argument(argument.name, wanted)), RETYPE)


def _by_arity(state: State, message: str) -> Iterator[State]:
    """Invented functions of one tensor that are called with several."""
    found = _ARITY.search(message)
    path = OF_SEVERAL.get(found[1], "") if found is not None else ""
    for place, argument in enumerate(state.arguments if path else ()):
        if argument.guess == replace(A_FUNCTION, cost=argument.guess.cost):
            guess = replace(argument.guess, path=path)
            yield dearer(state.with_argument(place, replace(argument, guess=guess)), RETYPE)


def _by_leaving_out(state: State, message: str) -> Iterator[State]:
    """Parameters of a function that was invented, under `*args`: it has none."""
    place = len(state.arguments) - 1
    if (
        _UNUSED.search(message)
        and place >= 0
        and state.arguments[place].guess.kind in {Kind.LIST, Kind.FLOAT}
    ):
        left_out = Argument(state.arguments[place].name, Guess(Kind.OMITTED, 0.0, found=False))
        yield state.with_argument(place, left_out)


def _by_stand_in(state: State, message: str) -> Iterator[State]:
    """In the place of invented functions one that takes anything, and gives as many as are unpacked."""
    unpacked = _UNPACKED.search(message)
    if unpacked is None and not _NOT_TAKEN.search(message):
        return
    for place, argument in enumerate(state.arguments):
        guess = argument.guess
        if guess.kind is not Kind.CALLABLE or guess.found:
            continue
        returns = int(unpacked[1]) if unpacked is not None and unpacked[1] else 0
        stand_in = replace(A_STAND_IN, init=(returns,) if returns else guess.init if guess.made else ())
        if (guess.path, guess.init) != (stand_in.path, stand_in.init):
            yield dearer(state.with_argument(place, replace(argument, guess=stand_in)), RETYPE)


def _by_attribute(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What is asked for what tensors alone have is one: of the shape of another one, or of one entry."""
    asked = _NO_TENSOR.search(message)
    as_tensor = asked is not None and (not asked[1] or hasattr(torch.Tensor, asked[1]))
    as_number = not as_tensor and _NOTHING.search(message) is not None
    for place in suspects if as_tensor or as_number else ():
        argument = state.arguments[place]
        nothing = argument.guess.kind is Kind.LITERAL and argument.guess.choices[0] is None
        if not nothing and (as_number or not _is_invented_number(argument)):
            continue
        if nothing:
            number = Guess(Kind.LITERAL, 0.0, (FACTORS[0],), found=False)
            yield dearer(state.with_argument(place, Argument(argument.name, number)), RETYPE + 0.02)
        for cost, dims in enumerate(_shapes(state)):
            made = Argument(argument.name, Guess(Kind.FLOAT, 0.0), dims)
            yield dearer(state.with_argument(place, made), RETYPE + 0.05 * cost)


def _is_invented_number(argument: Argument) -> bool:
    guess = argument.guess
    return guess.kind is Kind.SIZE or (
        guess.kind is Kind.LITERAL and not guess.found and isinstance(guess.choices[0], int | float)
    )


def _shapes(state: State) -> list[tuple[Dim, ...]]:
    """The shape of the first tensor, without its last and without its first dimension, and of one entry."""
    first = next((a.dims for a in state.arguments if a.is_tensor and a.dims), ())
    return list(dict.fromkeys((first, first[:-1], first[1:], ())))


def _by_iteration(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """What is gone through is several tensors, as many as it is unpacked to."""
    unpacked = _TOO_FEW.search(message)
    for place in suspects if unpacked is not None else ():
        argument, items = state.arguments[place], int(unpacked[1]) if unpacked is not None else 0
        if argument.guess.kind in {Kind.FLOAT, Kind.LIST} and not argument.parts and argument.items != items:
            listed = replace(argument, guess=Guess(Kind.LIST, 0.0, found=False), items=items)
            yield dearer(state.with_argument(place, listed), SCALAR)
    for place in suspects if _SEVERAL.search(message) else ():
        argument = state.arguments[place]
        if argument.guess.kind in {Kind.LITERAL, Kind.FLOAT}:
            dims = argument.dims or next((a.dims for a in state.arguments if a.is_tensor and a.dims), ())
            guess = Guess(Kind.LIST, 0.0, found=False)
            yield dearer(state.with_argument(place, Argument(argument.name, guess, dims, items=2)), RETYPE)


def _with_functions_of_numpy(state: State) -> Iterator[State]:
    """Every invented function of one tensor replaced by one that takes an array."""
    changed = state
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is Kind.CALLABLE and not argument.guess.made:
            changed = changed.with_argument(place, replace(argument, guess=OF_ARRAYS))
    if changed is not state:
        yield dearer(changed, RETYPE)


def _by_structure(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """A factorization that refuses a matrix of any kind takes a positive definite one, or a symmetric one."""
    structure = "spd" if _DEFINITE.search(message) else "symmetric" if _EIGH.search(message) else ""
    for place in suspects if structure else ():
        argument = state.arguments[place]
        if argument.guess.kind is Kind.FLOAT and len(argument.dims) > 1 and not argument.structure:
            *batch, rows, columns = argument.dims
            changed = state.with_argument(
                place, replace(argument, structure=structure, domain="real", dims=(*batch, rows, rows))
            )
            # The other arguments go on with the size that is left.
            squared = changed.substituted(columns.symbol, rows) if columns.is_plain else changed
            yield from (dearer(s, RETYPE) for s in (squared, changed) if s is not None)


def _by_layout(state: State, error: RaisedError, suspects: Sequence[int]) -> Iterator[State]:
    """What is asked for its indices, or to be sparse, is."""
    asked = " ".join((error.message, *(f.source for f in error.frames[-1:])))
    if not _SPARSE.search(asked):
        return
    layout = "sparse_csr" if _COMPRESSED.search(asked) else "sparse_coo"
    for place in suspects:
        argument = state.arguments[place]
        if argument.guess.kind is Kind.FLOAT and len(argument.dims) > 1 and not argument.layout:
            yield dearer(state.with_argument(place, replace(argument, layout=layout)), RETYPE)
