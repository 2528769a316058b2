"""From inputs that ran to a spec entry: settled, swept, named, and with what was guessed said.

Inputs for which backward returns None, and its source intends no gradient, are constants. A function of the
same module that computes the same by itself, `foo_ref` beside `Foo`, is the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from gradverify.cases.inputs import ChoicesSpec, InputSpec, ListSpec, TensorSpec, ValueSpec
from gradverify.cases.sizes import Expression, size
from gradverify.cases.sweep import FunctionSpec, Sweep
from gradverify.deduced import Deduced
from gradverify.model import Doubt, Nested, ObjectInput, Target, TargetKind
from gradverify.source import is_sibling
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.choices import (
    UNNAMED,
    none_in_every_case,
    shapes_of,
    unverified_values,
    with_optional_constants,
    with_optional_tensors,
    with_other_values,
    with_tensor,
    with_valid_choices,
    with_whole_numbers,
)
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.known import Known, short_name
from gradverify.verifier.infer.repairs import made_complex, refused_gradient
from gradverify.verifier.infer.search import Solution, on_one_line
from gradverify.verifier.infer.state import LENGTHS, Argument, Kind, State, lengths_of
from gradverify.verifier.infer.sweep import Apart, Sweeping, apart, rows, with_windows
from gradverify.verifier.infer.trial import Caller, Ran, attempt, works

Remark = tuple[str, str]
"""(input, sentence)."""

Open = tuple[str, str, str]
"""(input, sentence, what to try) of what leaves the target open."""

OTHER_INPUTS = "Give it valid inputs in a spec, in an entry of its own: `Name@other:` with `target: Name`."
"""What is said of an option that the inferred inputs do not suit."""

NO_EVIDENCE = frozenset({"operands", "none"})
"""Kinds that a tensor may have as well as a number."""


def with_constants(known: Known, state: State, ran: Ran) -> tuple[State, list[Remark], list[Open]]:
    """Inputs whose gradient the author leaves out count as constants, unless one is intended for them.

    What the output depends on, and nothing shows to be a constant, is an open question.
    """
    remarks, questions = list[Remark](), list[Open]()
    for place, name in _without_gradient(known, state, ran):
        moves = _moves(known, state, ran, place)
        constant = state.with_argument(place, replace(state.arguments[place], requires_grad=False))
        if moves and (known.facts(name).intended or _misplaced(known, constant, ran)):
            continue
        state = constant
        if moves and not known.is_constant(name):
            line = f"{name}: {{shape: ..., requires_grad: false}}"
            questions.append(_asked(name, "whether that is a constant", line))
            continue
        depends = ", though the output depends on it" if moves else ""
        remarks.append((name, f"`{name}` counts as a constant: backward returns None for it{depends}"))
    return state, remarks, questions


def perhaps_learned(known: Known, state: State) -> Iterator[Open]:
    """Numbers and flags that were made up for what may be a tensor, whose gradient backward leaves out."""
    for place, argument in enumerate(state.arguments):
        name, guess, facts = argument.name, argument.guess, known.facts(argument.name)
        numbers = [value for value in guess.choices if isinstance(value, bool | int | float)]
        told = bool(facts.kinds - NO_EVIDENCE) or known.is_annotated(name) or known.is_constant(name)
        if told or not (numbers or guess.is_invented_number) or facts.gradient is not False:
            continue
        for given in (with_tensor(state, place, Kind.FLOAT, dims) for dims in shapes_of(state)):
            ran = attempt(known.caller, given)
            if not isinstance(ran, Ran) or ran.backward is not None or not ran.finite:
                continue
            if _moves(known, given, ran, place):
                value = str((*numbers, 3)[0]).lower()
                yield _asked(name, "whether that is a number or a tensor", f"{name}: {value}")
                break


def _asked(name: str, what: str, constant: str) -> Open:
    """The question whether None is meant, and the lines of a spec that settle it."""
    said = f"backward returns None for `{name}`, on which the output depends, and nothing shows {what}"
    hint = (
        f"If it is a constant, a spec says so: `{constant}`. If not, its gradient is missing: with its shape "
        "alone this fails (GV107)."
    )
    return name, said, hint


def _without_gradient(known: Known, state: State, ran: Ran) -> Iterator[tuple[int, str]]:
    """(place, name) of the inputs for which backward gives None: as it ran, or by its source."""
    for place, argument in enumerate(state.arguments):
        gradient = known.facts(argument.name).gradient
        # Where no output has a gradient, the source is all there is to say.
        by_source = gradient is False and argument.is_float and ran.connected
        missing = by_source if ran.gradients is None else ran.gradients.get(argument.name, ...) is None
        if missing and gradient is not True and not known.passed[argument.name].is_parameter:
            yield place, argument.name


def _misplaced(known: Known, constant: State, ran: Ran) -> bool:
    """Whether a gradient that the engine refused for its shape is there only if the input requires grad."""
    names = [a.name for a in constant.arguments]
    refused = ran.backward is not None and refused_gradient(ran.backward.message, names) is not None
    return refused and works(known.caller, constant)


NUDGE = 2.0**-12
"""So much more of a constant moves no output that is only compared with it; each entry by another share."""


def _moves(known: Known, state: State, ran: Ran, place: int) -> bool:
    """Whether the output changes as one tensor does, a little: what is only compared has no derivative."""
    value = ran.arguments[place]
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    more = NUDGE * torch.linspace(1, 2, value.numel(), dtype=torch.float64).view(value.shape)
    moved = cast("Nested", _nested((value.detach().to("cpu", torch.float64) + more).tolist()))
    other = replace(state.arguments[place], value=moved)
    return not ran.has_outputs_of(attempt(known.caller, state.with_argument(place, other)))


def _nested(value: Any) -> Any:  # noqa: ANN401 - lists of lists of numbers
    return tuple(map(_nested, value)) if isinstance(value, list) else value


AGREES = 1e-6
"""Relative difference up to which two forwards compute the same; a different one computes something else."""


def sibling(module: ModuleType, target: str, caller: Caller, state: State) -> str:
    """Name of a sibling whose forward agrees on these inputs and can be differentiated; empty for none.

    `target` is the name of the Function or operator.
    """
    own = [a.name for a in state.arguments]
    for name, candidate in sorted(vars(module).items()):
        if not inspect.isfunction(candidate) or candidate.__module__ != module.__name__:
            continue
        named = is_sibling(name, list(inspect.signature(candidate).parameters), target, own)
        if named and _takes(candidate, len(own)) and _agrees(candidate, target, caller, state):
            return name
    return ""


def _takes(candidate: Callable[..., Any], count: int) -> bool:
    parameters = list(inspect.signature(candidate).parameters.values())
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}
    ]
    return len(needed) <= count <= len(parameters)


def _agrees(candidate: Callable[..., Any], target: str, caller: Caller, state: State) -> bool:
    mine = attempt(caller, state)
    other = attempt(replace(caller, call=candidate, function=None), state)
    if not isinstance(mine, Ran) or not isinstance(other, Ran) or not other.connected:
        return False
    if [o.shape for o in mine.outputs] != [o.shape for o in other.outputs]:
        return False
    same = all(
        torch.allclose(a, b, rtol=AGREES, atol=AGREES, equal_nan=True)
        for a, b in zip(mine.outputs, other.outputs, strict=True)
    )
    own = {f"{target}Backward"} | {
        name for name in _nodes(caller.call, other) or () if name.startswith("GeneratedBackward")
    }
    nodes = _nodes(candidate, other)
    # A sibling that only calls the target itself is no other computation.
    return same and nodes is not None and not own & nodes


def _nodes(function: Callable[..., Any], ran: Ran) -> set[str] | None:
    """Names of all autograd nodes behind what a function returns; None where it raises."""
    result = guard.call(function, *ran.arguments)
    if isinstance(result, Raised):
        return None
    returned = result.value if isinstance(result.value, tuple | list) else (result.value,)
    pending: list[Any] = [r.grad_fn for r in returned if isinstance(r, Tensor)]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in seen}


NAMES = ("n", "d", "m", "k", "p", "q", "r", "s", "t", "u", "v", "w")
"""What sizes are called where the author has no name for them."""

MORE_NAMES = 50
"""Further names, `n0` on, where these do not do."""

INVENTED = frozenset({Kind.INDEX, Kind.BOOL, Kind.CALLABLE, Kind.OBJECT, Kind.SIZE, Kind.LIST})
"""Kinds that are made up whatever the source says; of the last ones it may say what they are."""

MAY_BE_FOUND = frozenset({Kind.LIST, Kind.CALLABLE, Kind.SIZE})


def entry_of(target: Target, module: ModuleType | None, known: Known, found: Solution) -> Deduced:
    """The spec entry of inputs that forward accepts."""
    caller = known.caller
    definite = _definite(found.state) if known.evidence.roots else found.state
    state = definite if definite != found.state and works(caller, definite) else found.state
    state, remarks, questions = with_constants(known, _with_lengths_held(state), found.ran)
    state, complexes = _with_complex(known, state)
    shrinking = Sweeping(caller, found.ran)
    state, ran = with_windows(caller, shrinking.shrunk(state), found.ran)
    state, optional = with_optional_tensors(known, state)
    state = with_other_values(known, with_whole_numbers(known, state))
    state, constants = with_optional_constants(known, state)
    optional |= constants
    sweeping = Sweeping(caller, ran, shrinking.avoided)
    sizes = sweeping.second_sizes(state)
    state = with_valid_choices(caller, state, rows(sizes))
    fixed = sweeping.fixed_sizes(state, sizes)
    separated = apart(caller, state, sizes)
    state = _ascending(known, separated.state)
    nothing = list(none_in_every_case(known, state))
    remarks += [(name, said) for name, said, tensor in nothing if not tensor]
    left = list(unverified_values(known, state))
    remarks += [(name, said) for name, said, is_open in left if not is_open]
    written = _Written(state, _size_names(state, known.evidence.facts), optional)
    reshaped = (
        [Doubt(found.reshaped, f"the shape of `{found.reshaped}`", of_shape=True)] if found.reshaped else []
    )
    sweep = Sweep(tuple(map(written.input, written.arguments)), written.sizes(separated))
    return Deduced(
        FunctionSpec(sweep, _reference(target, module, known, state)),
        doubts=(
            *(d for a in written.arguments for d in _doubts(a, state, fixed)),
            *(
                Doubt(n, f"the shape of `{n}`", optional=True, of_shape=True)
                for n in sorted(optional)
                if known.default(n) is None  # another one has its shape by what forward asks of it
            ),
            *(Doubt(n, f"that `{n}` may be complex") for n in sorted(complexes)),
            *_of_each_other(known, state),
            *written.doubts(separated),
            *reshaped,
        ),
        remarks=tuple(remarks),
        never=(
            *((name, said, OTHER_INPUTS) for name, said, is_open in (*left, *nothing) if is_open),
            *((name, said, OTHER_INPUTS) for name, said in _avoided(found, sweeping)),
            *questions,
            *perhaps_learned(known, state),
        ),
        tries=found.tries,
    )


def _of_each_other(known: Known, state: State) -> Iterator[Doubt]:
    """Inputs without a gradient that a call makes of another: backward may go through them to that one."""
    tensors = {a.name for a in state.arguments if a.is_float}
    for name in (a.name for a in state.arguments if not (a.is_float and a.requires_grad)):
        for other in sorted(known.passed[name].made_of & tensors):
            yield Doubt("", f"that `{name}` does not depend on `{other}`", of_gradient=other)


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


def _ascending(known: Known, state: State) -> State:
    """The same with what something is looked up in by `searchsorted` in order, where forward takes that."""
    changed = state
    for place, argument in enumerate(state.arguments):
        if argument.is_real and "searched" in known.facts(argument.name).kinds:
            changed = changed.with_argument(place, replace(argument, structure="sorted"))
    return changed if changed == state or works(known.caller, changed) else state


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

    def input(self, argument: Argument) -> InputSpec:
        """One argument."""
        guess = argument.guess
        match guess.kind:
            case Kind.LITERAL:
                return literal(argument.name, guess.choices)
            case Kind.SIZE:
                return ValueSpec(argument.name, Expression(argument.dims[0].written(self.names)))
            case Kind.CALLABLE | Kind.OBJECT:
                of_it = (a.name for a in self.state.arguments if a.guess.kind is Kind.PARAMETERS)
                init = guess.init if guess.made else None
                return ObjectInput(argument.name, guess.path, init, next(of_it, ""))
            case Kind.LIST:
                return ListSpec(argument.name, (self._tensor(argument),) * argument.items)
            case _:
                return self._tensor(argument)

    def _tensor(self, argument: Argument) -> TensorSpec:
        plain = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(argument.guess.kind, "float64")
        integers = argument.guess.kind in {Kind.INDEX, Kind.BOOL}
        return TensorSpec(
            argument.name,
            tuple(size(d.written(self.names)) for d in argument.dims),
            argument.dtype or plain,
            argument.domain,
            (0, size(argument.bound.written(self.names))) if argument.bound is not None else argument.span,
            structure=argument.structure,
            value=argument.value,
            requires_grad=None if integers or argument.requires_grad else False,
            optional=argument.name in self.optional,
        )


def literal(name: str, choices: tuple[Nested, ...]) -> ValueSpec | ChoicesSpec:
    """A literal argument; more than one choice is swept, and the first is in the source."""
    return ValueSpec(name, choices[0]) if len(choices) == 1 else ChoicesSpec(name, cast("Any", choices))


def _doubts(argument: Argument, state: State, fixed: Collection[int]) -> Iterator[Doubt]:
    """What of an argument was guessed."""
    guess, name = argument.guess, argument.name
    alone = [d.value(state.values) for d in argument.dims if set(d.symbols) & set(fixed)]
    if name in state.pinned:
        yield Doubt(name, f"a size of `{name}`", of_shape=True)
    elif alone and argument.is_tensor:
        said = f"what the {alone[0]} entries of `{name}` are (at no other size do forward and backward run)"
        yield Doubt(name, said, of_shape=True)
    number = guess.kind is Kind.LITERAL and not isinstance(guess.choices[0], str | bool)
    if argument.value is not None:
        yield Doubt(name, f"what `{name}` holds")
    elif guess.kind in INVENTED and not (guess.kind in MAY_BE_FOUND and guess.found):
        plain = guess.kind in {Kind.INDEX, Kind.BOOL} and not guess.structure
        of_count = guess.kind in {Kind.CALLABLE, Kind.OBJECT}
        yield Doubt(name, f"`{name}` ({guess.kind.value})", of_values=plain, of_count=of_count)
    elif guess.kind is Kind.LITERAL and not guess.found:
        yield Doubt(name, f"`{name}` ({guess.choices[0]!r})", of_values=True)
    elif guess.kind is Kind.LITERAL:
        for other in guess.choices[1:] if number else {UNNAMED} & {*guess.choices}:
            rest = tuple(choice for choice in guess.choices if choice != other)
            yield Doubt(name, f"`{name}` ({other!r})", certain=rest)
