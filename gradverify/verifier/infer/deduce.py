"""From a live target to a deduced spec entry, with what was guessed said; or to the attempts that failed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from gradverify.deduced import (
    Attempt,
    Deduced,
    DeducedInput,
    DeducedList,
    DeducedLiteral,
    DeducedObject,
    DeducedSize,
    DeducedTensor,
)
from gradverify.model import Doubt, Target
from gradverify.verifier.infer.choices import (
    never_otherwise,
    with_optional_tensors,
    with_other_values,
    with_valid_choices,
)
from gradverify.verifier.infer.doubts import doubts_of_source
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.guesses import guesses
from gradverify.verifier.infer.kinds import made_complex
from gradverify.verifier.infer.known import Known, known_of
from gradverify.verifier.infer.search import Solution, search
from gradverify.verifier.infer.siblings import sibling
from gradverify.verifier.infer.starting import started
from gradverify.verifier.infer.state import Argument, Kind, State
from gradverify.verifier.infer.sweep import Apart, Sweeping, apart, rows, without_unread
from gradverify.verifier.infer.trial import Ran, attempt, works
from gradverify.verifier.infer.windows import with_windows
from gradverify.verifier.inputs.stand_ins import STAND_IN

FEWER_TRIES = 150
"""Calls of the search in float32: by then every state has been refused in float64."""

NAMES = ("n", "d", "m", "k", "p", "q", "r", "s", "t", "u", "v", "w")
"""What sizes are called where the author has no name for them; `n0`, `n1`, ... after these."""

INVENTED = frozenset({Kind.INDEX, Kind.BOOL, Kind.CALLABLE, Kind.SIZE, Kind.LIST})
"""Kinds that are made up whatever the source says; of the last ones it may say what they are."""


def deduce(value: Any, target: Target, module: ModuleType | None) -> Deduced | tuple[Attempt, ...]:  # noqa: ANN401
    """Inputs that the target accepts as a spec entry, or the attempts with how they were answered."""
    found, known = _searched(target, known_of(value, target, module))
    if not isinstance(found, Solution):
        return found
    entry = _entry_of(target, module, known, found)
    return replace(entry, doubts=(*entry.doubts, *doubts_of_source(value, module, known.evidence)))


def _searched(target: Target, known: Known) -> tuple[Solution | tuple[Attempt, ...], Known]:
    """What the search finds, with what is known for it."""
    defaults = known.caller.defaults
    each = [guesses(p, known.facts(p.name), defaults.get(p.name, ...)) for p in known.parameters]
    states = list(started([p.name for p in known.parameters], each, known.evidence))
    names = [p.name for p in target.parameters]
    found = search(known.caller, states, names)
    if isinstance(found, Solution):
        return found, known
    # Kernels that know float32 alone: the verifier finds that float64 is refused, too.
    in_float32 = replace(known, caller=replace(known.caller, dtype=torch.float32))
    again = search(in_float32.caller, states, names, FEWER_TRIES)
    whole = isinstance(again, Solution) and again.ran.is_whole
    return (again, in_float32) if whole else (found, known)


def _entry_of(target: Target, module: ModuleType | None, known: Known, found: Solution) -> Deduced:
    """The spec entry of inputs that forward accepts."""
    caller = known.caller
    state, remarks = _with_constants(known, found.state, found.ran)
    state, ran = without_unread(caller, state, found.ran)
    state, complexes = _with_complex(known, state)
    state, ran = with_windows(caller, Sweeping(caller, ran).shrunk(state), ran)
    sweeping = Sweeping(caller, ran)
    state, optional = with_optional_tensors(known, state)
    state = with_other_values(known, state)
    sizes = sweeping.second_sizes(state)
    state = with_valid_choices(caller, state, rows(sizes))
    fixed = sweeping.fixed_sizes(state, sizes)
    separated = apart(caller, state, sizes)
    state = separated.state
    written = _Written(state, _size_names(state, known.evidence.facts), optional)
    return Deduced(
        inputs=tuple(map(written.input, written.arguments)),
        sizes=written.sizes(separated),
        reference=sibling(module, target, caller, state),
        doubts=(
            *(d for a in written.arguments for d in _doubts(a, state, fixed)),
            *(Doubt(n, f"the shape of `{n}`", optional=True, of_shape=True) for n in sorted(optional)),
            *(Doubt(n, f"that `{n}` may be complex") for n in sorted(complexes)),
            *written.doubts(separated),
            *(Doubt(n, f"the shape of `{n}`", of_shape=True) for n in [found.reshaped] if n),
        ),
        remarks=tuple(remarks),
        never=tuple(never_otherwise(known, state)),
        tries=found.tries,
    )


def _with_constants(known: Known, state: State, ran: Ran) -> tuple[State, list[tuple[str, str]]]:
    """Inputs whose gradient the author leaves out count as constants, unless one is intended for them."""
    remarks = []
    for place, name in _without_gradient(known, state, ran):
        moves = _moves(known, state, ran, place)
        constant = state.with_argument(place, replace(state.arguments[place], requires_grad=False))
        if moves and known.facts(name).intended:
            continue
        state = constant
        depends = ", though the output depends on it" if moves else ""
        remarks.append((name, f"`{name}` counts as a constant: backward always returns None for it{depends}"))
    return state, remarks


def _without_gradient(known: Known, state: State, ran: Ran) -> Iterator[tuple[int, str]]:
    """(place, name) of the inputs for which backward gives None: as it ran, or by its source."""
    for place, argument in enumerate(state.arguments):
        gradient = known.facts(argument.name).gradient
        # Where no output has a gradient, the source is all there is to say.
        by_source = gradient is False and argument.is_float and ran.connected
        missing = by_source if ran.gradients is None else ran.gradients.get(argument.name, ...) is None
        if missing and gradient is not True and argument.name not in known.trained:
            yield place, argument.name


def _moves(known: Known, state: State, ran: Ran, place: int) -> bool:
    """Whether the output changes with one argument alone, which other values of it tell."""
    argument = state.arguments[place]
    other = replace(argument, domain="unit" if argument.domain == "real" else "real")
    return not ran.has_outputs_of(attempt(known.caller, state.with_argument(place, other)))


def _with_complex(known: Known, state: State) -> tuple[State, frozenset[str]]:
    """The same with complex tensors where the source provides for them, and which were made so.

    All real tensors together first, then those alone that are marked.
    """
    real = [k for k, a in enumerate(state.arguments) if a.is_real]
    alone = [k for k in real if state.arguments[k].name in known.evidence.complexes]
    for places in (real, alone) if alone else ():
        changed = made_complex(state, places)
        if works(known.caller, changed):
            return changed, frozenset(state.arguments[k].name for k in places)
    return state, frozenset()


def _size_names(state: State, facts: Mapping[str, Facts]) -> dict[int, str]:
    """The author's names of dimensions where they are unambiguous, else `n`, `d`, `m`, ..."""
    names: dict[int, str] = {}
    taken = {a.name for a in state.arguments}
    for argument in state.arguments:
        own = facts[argument.name].names if argument.name in facts else ()
        for dim, name in zip(argument.dims, own if len(own) == len(argument.dims) else (), strict=False):
            good = name.isidentifier() and name.strip("_") and name not in taken
            if dim.is_plain and dim.symbol not in names and good:
                names[dim.symbol] = name
                taken.add(name)
    more = (f"n{k}" for k in itertools.count())
    spare = (n for n in itertools.chain(NAMES, more) if n not in taken)
    for symbol in state.symbols():
        if symbol not in names:
            names[symbol] = next(spare)
    return names


@dataclass(frozen=True)
class _Written:
    """The inputs of a state as a spec has them."""

    state: State
    names: Mapping[int, str]
    """Of sizes, by symbol."""
    optional: frozenset[str]

    @property
    def arguments(self) -> list[Argument]:
        """Those that are written: what is left to its default is not."""
        return [a for a in self.state.arguments if a.guess.kind is not Kind.OMITTED]

    def sizes(self, swept: Apart) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Sizes with their values, by name."""
        used = {s for a in self.arguments for d in a.sizes for s in d.symbols}
        return tuple((self.names[s], values) for s, values in swept.sizes.items() if s in used)

    def doubts(self, swept: Apart) -> Iterator[Doubt]:
        """That two sizes may differ, which were one when forward accepted them."""
        if swept.pair:
            first, second = (self.names[s] for s in swept.pair)
            said = f"that `{first}` and `{second}` may differ"
            yield Doubt(second, said, differ=(first, second), of_shape=True)

    def input(self, argument: Argument) -> DeducedInput:
        """One argument."""
        guess, shape = argument.guess, tuple(d.written(self.names) for d in argument.dims)
        match guess.kind:
            case Kind.LITERAL:
                return DeducedLiteral(argument.name, guess.choices)
            case Kind.SIZE:
                return DeducedSize(argument.name, shape[0])
            case Kind.CALLABLE:
                return DeducedObject(argument.name, STAND_IN, guess.returns)
            case Kind.LIST:
                return DeducedList(argument.name, (self._tensor(argument, shape),) * argument.items)
            case _:
                return self._tensor(argument, shape)

    def _tensor(self, argument: Argument, shape: tuple[str, ...]) -> DeducedTensor:
        integers = argument.guess.kind in {Kind.INDEX, Kind.BOOL}
        return DeducedTensor(
            argument.name,
            shape,
            argument.dtype_name,
            argument.domain,
            ("0", argument.bound.written(self.names)) if argument.bound is not None else (),
            structure=argument.structure,
            requires_grad=None if integers or argument.requires_grad else False,
            optional=argument.name in self.optional,
        )


def _doubts(argument: Argument, state: State, fixed: Collection[int]) -> Iterator[Doubt]:
    """What of an argument was guessed."""
    guess, name = argument.guess, argument.name
    alone = [d.value(state.values) for d in argument.dims if set(d.symbols) & set(fixed)]
    if name in state.pinned:
        yield Doubt(name, f"a size of `{name}`", of_shape=True)
    elif alone and argument.is_tensor:
        said = f"what the {alone[0]} entries of `{name}` are (it runs at no other size)"
        yield Doubt(name, said, of_shape=True)
    number = guess.kind is Kind.LITERAL and not isinstance(guess.choices[0], str | bool)
    if guess.kind in INVENTED and not (guess.kind is Kind.LIST and guess.found):
        plain = guess.kind in {Kind.INDEX, Kind.BOOL} and not guess.structure
        yield Doubt(name, f"`{name}` ({guess.kind.value})", of_values=plain)
    elif guess.kind is Kind.LITERAL and not guess.found:
        yield Doubt(name, f"`{name}` ({guess.choices[0]!r})", of_values=True)
    elif number and len(guess.choices) > 1:
        yield Doubt(name, f"`{name}`", certain=(guess.choices[0],))
