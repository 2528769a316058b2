"""From inputs that ran to a spec entry: settled, swept, named, and with what was guessed said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType

from gradverify.deduced import (
    Deduced,
    DeducedInput,
    DeducedList,
    DeducedLiteral,
    DeducedObject,
    DeducedSize,
    DeducedTensor,
)
from gradverify.model import Doubt, Target, TargetKind
from gradverify.verifier.infer.choices import unverified_values, with_other_values, with_valid_choices
from gradverify.verifier.infer.constants import Remark, with_constants
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.kinds import made_complex
from gradverify.verifier.infer.known import Known, short_name
from gradverify.verifier.infer.optional import none_in_every_case, with_optional_tensors
from gradverify.verifier.infer.search import Solution, on_one_line
from gradverify.verifier.infer.siblings import sibling
from gradverify.verifier.infer.state import LENGTHS, Argument, Kind, State, lengths_of
from gradverify.verifier.infer.sweep import Apart, Sweeping, apart, rows, with_windows
from gradverify.verifier.infer.trial import works

NAMES = ("n", "d", "m", "k", "p", "q", "r", "s", "t", "u", "v", "w")
"""What sizes are called where the author has no name for them."""

MORE_NAMES = 50
"""Further names, `n0` on, where these do not do."""

INVENTED = frozenset({Kind.INDEX, Kind.BOOL, Kind.CALLABLE, Kind.OBJECT, Kind.SIZE, Kind.LIST})
"""Kinds that are made up whatever the source says; of the last ones it may say what they are."""

MAY_BE_FOUND = frozenset({Kind.LIST, Kind.OBJECT, Kind.CALLABLE, Kind.SIZE})


def entry_of(target: Target, module: ModuleType | None, known: Known, found: Solution) -> Deduced:
    """The spec entry of inputs that forward accepts."""
    caller = known.caller
    definite = _definite(found.state) if known.evidence.roots else found.state
    state = definite if definite != found.state and works(caller, definite) else found.state
    state, remarks = with_constants(known, _with_lengths_held(state), found.ran)
    state, complexes = _with_complex(known, state)
    shrinking = Sweeping(caller, found.ran)
    state, ran = with_windows(caller, shrinking.shrunk(state), found.ran)
    state, optional = with_optional_tensors(known, state)
    state = with_other_values(known, state)
    sweeping = Sweeping(caller, ran, shrinking.avoided)
    sizes = sweeping.second_sizes(state)
    state = with_valid_choices(caller, state, rows(sizes))
    fixed = sweeping.fixed_sizes(state, sizes)
    separated = apart(caller, state, sizes)
    state = separated.state
    nothing = list(none_in_every_case(known, state))
    remarks += [(name, said) for name, said, tensor in nothing if not tensor]
    left = list(unverified_values(known, state))
    remarks += [(name, said) for name, said, is_open in left if not is_open]
    written = _Written(state, _size_names(state, known.evidence.facts), optional)
    reshaped = (
        [Doubt(found.reshaped, f"the shape of `{found.reshaped}`", of_shape=True)] if found.reshaped else []
    )
    return Deduced(
        inputs=tuple(map(written.input, written.arguments)),
        sizes=written.sizes(separated),
        reference=_reference(target, module, known, state),
        doubts=(
            *(d for a in written.arguments for d in _doubts(a, state, fixed)),
            *(Doubt(n, f"the shape of `{n}`", optional=True, of_shape=True) for n in sorted(optional)),
            *(Doubt(n, f"that `{n}` may be complex") for n in sorted(complexes)),
            *written.doubts(separated),
            *reshaped,
        ),
        remarks=tuple(remarks),
        never=(
            *((name, said) for name, said, is_open in (*left, *nothing) if is_open),
            *_avoided(found, sweeping),
        ),
        tries=found.tries,
    )


def _avoided(found: Solution, sweeping: Sweeping) -> Iterator[Remark]:
    """The first inputs that forward accepts and backward does not, where others were found.

    That these get through may mean that backward is wrong for all but them.
    """
    searched = [(one.state, one.ran.backward) for one in found.avoided]
    for state, error in (*searched, *sweeping.avoided)[:1]:
        name = next((a.name for a in state.arguments if a.is_tensor), "")
        if error is not None:
            said = f"at {state.described()}, which forward takes, backward raises {on_one_line(error)}"
            yield name, f"{said}; other sizes were verified"


def _definite(state: State) -> State:
    """The same with symmetric matrices that are positive definite: roots and logarithms of eigenvalues."""
    arguments = (replace(a, structure=a.structure.replace("symmetric", "spd")) for a in state.arguments)
    return replace(state, arguments=tuple(arguments))


def _with_lengths_held(state: State) -> State:
    """The same with integers that add up to a size as they are: those sizes stay what they are, too."""
    for place, argument in enumerate(state.arguments):
        if argument.structure == LENGTHS and argument.bound is not None:
            (parts,), total = state.shape(argument), argument.bound.value(state.values)
            state = state.held_at(place, lengths_of(total, parts)) or state
    return state


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


def _reference(target: Target, module: ModuleType | None, known: Known, state: State) -> str:
    if module is None or target.kind not in {TargetKind.FUNCTION, TargetKind.CUSTOM_OP}:
        return ""
    name = sibling(module, target.name.rpartition(".")[2], known.caller, state)
    return f"{short_name(module)}:{name}" if name else ""


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
    spare = (n for n in (*NAMES, *(f"n{k}" for k in range(MORE_NAMES))) if n not in taken)
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
        return [a for a in self.state.arguments if a.guess.kind not in {Kind.OMITTED, Kind.PARAMETERS}]

    def sizes(self, swept: Apart) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Sizes with their values, by name."""
        used = {s for a in self.arguments for d in a.sizes for s in d.symbols}
        return tuple((self.names[s], values) for s, values in swept.sizes.items() if s in used)

    def doubts(self, swept: Apart) -> Iterator[Doubt]:
        """That two sizes may differ, which were one when forward accepted them."""
        for pair in swept.pairs:
            first, second = (self.names[s] for s in pair)
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
            case Kind.CALLABLE | Kind.OBJECT:
                of_it = (a.name for a in self.state.arguments if a.guess.kind is Kind.PARAMETERS)
                init = guess.init if guess.made else None
                return DeducedObject(argument.name, guess.path, init, next(of_it, ""))
            case Kind.LIST:
                return DeducedList(argument.name, (self._tensor(argument, shape),) * argument.items)
            case _:
                return self._tensor(argument, shape)

    def _tensor(self, argument: Argument, shape: tuple[str, ...]) -> DeducedTensor:
        plain = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(argument.guess.kind, "float64")
        integers = argument.guess.kind in {Kind.INDEX, Kind.BOOL}
        return DeducedTensor(
            argument.name,
            shape,
            argument.dtype or plain,
            argument.domain,
            ("0", argument.bound.written(self.names)) if argument.bound is not None else (),
            structure=argument.structure,
            value=argument.value,
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
    if argument.value is not None:
        yield Doubt(name, f"what `{name}` holds")
    elif guess.kind in INVENTED and not (guess.kind in MAY_BE_FOUND and guess.found):
        plain = guess.kind in {Kind.INDEX, Kind.BOOL} and not guess.structure
        yield Doubt(name, f"`{name}` ({guess.kind.value})", of_values=plain)
    elif guess.kind is Kind.LITERAL and not guess.found:
        yield Doubt(name, f"`{name}` ({guess.choices[0]!r})", of_values=True)
    elif number and len(guess.choices) > 1:
        for other in guess.choices[1:]:
            rest = tuple(choice for choice in guess.choices if choice != other)
            yield Doubt(name, f"`{name}` ({other!r})", certain=rest)
