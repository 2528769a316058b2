"""A set of arguments to try: shapes are symbols, whose sizes differ until an error says that they agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from gradverify.model import Nested, Scalar
from gradverify.verifier.inputs.arguments import OWN_OBJECTS

DISTINCT = (4, 3, 5, 7, 6, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
"""Sizes of symbols in order of appearance: all differ, so that a number in an error names its dimension."""

LENGTHS = "lengths"
"""Integers that add up to a size. No spec has such a structure: in the end they are what they were."""


class Kind(StrEnum):
    """What an argument can be."""

    FLOAT = "float tensor"
    INDEX = "integer tensor"
    BOOL = "boolean tensor"
    LITERAL = "literal"
    SIZE = "size"
    LIST = "list of tensors"
    CALLABLE = "callable"
    OBJECT = "object"
    OMITTED = "left to its default"
    PARAMETERS = "parameters of a module"


@dataclass(frozen=True)
class Guess:
    """One thing that a parameter may be."""

    kind: Kind
    cost: float = 0.0
    choices: tuple[Nested, ...] = ()
    """Of a literal; further ones are swept."""
    found: bool = True
    """The source says so; otherwise it is invented."""
    path: str = ""
    """Of a live object; of parameters the name of the argument whose they are."""
    structure: str = ""
    """Of an integer tensor: `offsets`, `lengths`, `permutation`."""
    made: bool = False
    """The object behind the path is called, and what it returns is passed."""
    init: tuple[Scalar, ...] = ()
    """What it is called with."""

    @property
    def is_nothing(self) -> bool:
        """Whether it is None alone."""
        return self.kind is Kind.LITERAL and self.choices == (None,)

    @property
    def is_invented_number(self) -> bool:
        """Whether it is a number that the source does not give."""
        number = self.kind is Kind.LITERAL and type(self.choices[0]) in {int, float}
        return not self.found and (number or self.kind is Kind.SIZE)


def literal(value: Nested, cost: float = 0.0) -> Guess:
    """An invented value."""
    return Guess(Kind.LITERAL, cost, (value,), found=False)


@dataclass(frozen=True)
class Dim:
    """`times * symbol // over + plus + added`; without a symbol, the constant `plus`."""

    symbol: int = -1
    times: int = 1
    over: int = 1
    plus: int = 0
    added: int = -1
    """Another symbol, of what is beside it in a concatenation."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a symbol by itself."""
        return self.symbol >= 0 and (self.times, self.over, self.plus, self.added) == (1, 1, 0, -1)

    @property
    def symbols(self) -> tuple[int, ...]:
        """Those it is made of."""
        return tuple(s for s in (self.symbol, self.added) if s >= 0)

    def value(self, sizes: Mapping[int, int]) -> int:
        """Its size."""
        beside = sizes[self.added] if self.added >= 0 else 0
        own = 0 if self.symbol < 0 else sizes[self.symbol] * self.times // self.over
        return own + self.plus + beside

    def written(self, names: Mapping[int, str]) -> str:
        """As a size expression."""
        if self.symbol < 0:
            return str(self.plus)
        text = names[self.symbol]
        text = f"{self.times}*{text}" if self.times != 1 else text
        text = f"{text}//{self.over}" if self.over != 1 else text
        text = f"{text} + {names[self.added]}" if self.added >= 0 else text
        return text if not self.plus else f"{text} {'+' if self.plus > 0 else '-'} {abs(self.plus)}"

    def substituted(self, symbol: int, by: Dim) -> Dim | None:
        """The same with a symbol replaced; None where an expression would be nested."""
        if symbol not in self.symbols:
            return self
        if self.is_plain:
            return by
        if self.added == symbol:
            return replace(self, added=by.symbol) if by.is_plain and self.symbol != symbol else None
        if by.is_plain:
            return replace(self, symbol=by.symbol)
        constant = by.symbol < 0 and self.added < 0
        return Dim(plus=by.plus * self.times // self.over + self.plus) if constant else None


@dataclass(frozen=True)
class Argument:
    """One argument of an attempt."""

    name: str
    guess: Guess
    dims: tuple[Dim, ...] = ()
    """Shape of a tensor; the one dimension that a size is."""
    bound: Dim | None = None
    """Exclusive upper bound of an integer tensor."""
    dtype: str = ""
    """Set where an error asked for another one."""
    domain: str = "real"
    span: tuple[float, float] | None = None
    """Between which numbers its entries lie, where a domain does not say it."""
    structure: str = ""
    value: Nested = None
    """Entries of a tensor that is passed as it is; None where they are drawn."""
    items: int = 0
    """How many tensors of one shape a list holds."""
    requires_grad: bool = True
    least_rank: int = 0
    """Dimensions that the source states: fewer may run, and are not what the author calls it with."""

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """Its dimensions and its bound."""
        return (*self.dims, self.bound) if self.bound is not None else self.dims

    @property
    def is_tensor(self) -> bool:
        """Whether it has a shape."""
        return self.guess.kind in {Kind.FLOAT, Kind.INDEX, Kind.BOOL, Kind.LIST}

    @property
    def is_float(self) -> bool:
        """Whether it is a real or complex tensor."""
        return self.guess.kind is Kind.FLOAT

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers of any sign and no structure."""
        plain = self.is_float and not self.structure and self.domain == "real" and self.span is None
        return plain and not self.dtype.startswith("complex")

    def with_dims(self, dims: Iterable[Dim]) -> Argument:
        """The same in another shape."""
        return replace(self, dims=tuple(dims))

    def substituted(self, symbol: int, dim: Dim) -> Argument | None:
        """The same with a symbol replaced; None where an expression would be nested."""
        dims = [d.substituted(symbol, dim) for d in self.dims]
        bound = self.bound.substituted(symbol, dim) if self.bound is not None else None
        whole = tuple(d for d in dims if d is not None)
        return replace(self, dims=whole, bound=bound) if len(whole) == len(dims) else None


@dataclass(frozen=True)
class State:
    """One set of arguments to try."""

    arguments: tuple[Argument, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    """(symbol, size) pairs."""
    cost: float = 0.0
    pinned: frozenset[str] = frozenset()
    """Arguments of which an error, not the source, fixed a size to a number or an expression."""
    parts: frozenset[int] = frozenset()
    """Numbers of parts into which the source cuts tensors up."""
    joins: bool = False
    """The source joins tensors."""
    named: frozenset[int] = frozenset()
    """Symbols that the author has a name for: it is one size wherever it stands."""

    @cached_property
    def values(self) -> dict[int, int]:
        """Sizes by symbol."""
        return dict(self.sizes)

    def shape(self, argument: Argument) -> tuple[int, ...]:
        """The shape of a tensor argument at the present sizes."""
        return tuple(d.value(self.values) for d in argument.dims)

    def symbols(self) -> tuple[int, ...]:
        """Symbols in use, in order of appearance."""
        return tuple(dict.fromkeys(s for a in self.arguments for d in a.sizes for s in d.symbols))

    def places(self, kind: Kind) -> list[int]:
        """Positions of the arguments of a kind."""
        return [k for k, a in enumerate(self.arguments) if a.guess.kind is kind]

    def first_dims(self) -> tuple[Dim, ...]:
        """The shape of the first tensor that has dimensions; empty without one."""
        return next((a.dims for a in self.arguments if a.is_tensor and a.dims), ())

    def substituted(self, symbol: int, dim: Dim) -> State | None:
        """The same with a symbol replaced everywhere; None where an expression would be nested."""
        changed = tuple(a.substituted(symbol, dim) for a in self.arguments)
        whole = tuple(a for a in changed if a is not None)
        return replace(self, arguments=whole) if len(whole) == len(changed) else None

    def at(self, sizes: Mapping[int, int]) -> State:
        """The same at other sizes."""
        return replace(self, sizes=tuple((s, sizes.get(s, v)) for s, v in self.sizes))

    def with_argument(self, place: int, argument: Argument) -> State:
        """The same with one argument replaced."""
        return replace(self, arguments=(*self.arguments[:place], argument, *self.arguments[place + 1 :]))

    def with_dims(self, place: int, dims: Iterable[Dim]) -> State:
        """The same with another shape for one argument."""
        return self.with_argument(place, self.arguments[place].with_dims(dims))

    def with_dim(self, place: int, along: int, dim: Dim) -> State:
        """The same with one dimension of one argument replaced."""
        dims = self.arguments[place].dims
        return self.with_dims(place, (*dims[:along], dim, *dims[along + 1 :]))

    def with_pinned(self, names: Iterable[str]) -> State:
        """The same with more arguments of which a size was fixed."""
        return replace(self, pinned=self.pinned.union(names))

    def held_at(self, place: int, value: Nested) -> State | None:
        """The same with the entries of a tensor as they are; its sizes are numbers from then on."""
        argument = self.arguments[place]
        held = replace(argument, structure="", bound=None, value=value)
        changed: State | None = self.with_argument(place, held)
        for symbol in {s for d in argument.sizes for s in d.symbols}:
            fixed = Dim(plus=self.values[symbol])
            changed = changed.substituted(symbol, fixed) if changed is not None else None
        return changed

    def dearer(self, cost: float) -> State:
        """The same at a higher cost."""
        return replace(self, cost=self.cost + cost)

    def fresh(self, count: int) -> tuple[State, tuple[Dim, ...]]:
        """So many new symbols, of sizes that no other has."""
        taken, known = {v for _, v in self.sizes}, len(self.sizes)
        # A number of parts is no size: one entry in each would be broadcast.
        spare = [v for v in DISTINCT if v not in taken | self.parts]
        added = tuple((known + k, spare[k] if k < len(spare) else 50 + known + k) for k in range(count))
        return replace(self, sizes=(*self.sizes, *added)), tuple(Dim(s) for s, _ in added)

    def key(self) -> tuple[object, ...]:
        """What two states that make the same call have in common."""
        return tuple(
            (
                a.guess.kind, a.guess.choices, a.guess.path, a.guess.init, self.shape(a), a.dtype, a.domain,
                a.span, a.structure, a.items, a.requires_grad, a.value,
                a.bound.value(self.values) if a.bound is not None else None,
            )
            for a in self.arguments
        )  # fmt: skip

    def keeps_ranks(self) -> bool:
        """Whether every tensor has the dimensions that the source states."""
        return all(len(a.dims) >= a.least_rank for a in self.arguments if a.is_float)

    def elements(self) -> int:
        """How many numbers the arguments hold."""
        return sum(math.prod(self.shape(a)) * max(1, a.items) for a in self.arguments if a.is_tensor)

    def described(self) -> str:
        """The arguments in words: `x [4, 3], index integers [4] below 3, eps=0.75`."""
        return ", ".join(map(self._described, self.arguments)) or "no arguments"

    def _described(self, argument: Argument) -> str:
        guess, shape = argument.guess, list(self.shape(argument))
        match guess.kind:
            case Kind.LITERAL:
                said = f"={guess.choices[0]!r}"
            case Kind.SIZE:
                said = f"={shape[0]}"
            case Kind.CALLABLE | Kind.OBJECT:
                said = " an object of gradverify's own" if guess.path in OWN_OBJECTS else f"={guess.path}"
            case Kind.OMITTED:
                said = " left out"
            case Kind.PARAMETERS:
                said = f" the parameters of {guess.path}"
            case Kind.LIST:
                said = f" {argument.items} tensors {shape}"
            case Kind.INDEX:
                below = argument.bound.value(self.values) if argument.bound is not None else 2
                said = f" integers {shape} below {below}"
            case Kind.BOOL:
                said = f" booleans {shape}"
            case Kind.FLOAT:
                said = f" {shape}"
        return argument.name + said


@dataclass(frozen=True)
class Waiting:
    """A state that is made when its turn comes: hundreds wait, and few are tried."""

    cost: float
    made: Callable[[], State]

    @cached_property
    def state(self) -> State:
        """The state, once."""
        return replace(self.made(), cost=self.cost)


def squares(state: State) -> int:
    """How many tensors have two dimensions of one size."""
    return sum(len(set(a.dims)) < len(a.dims) for a in state.arguments if a.is_tensor)


def lengths_of(total: int, parts: int) -> tuple[int, ...]:
    """So many rising integers that add up to a total."""
    rising = range(1, parts)
    return (*rising, total - sum(rising)) if parts else ()


def combined(several: Sequence[Guess]) -> float:
    """What a combination of guesses costs."""
    return math.fsum(g.cost for g in several)
