"""From a live target to a deduced spec entry, or to the attempts that failed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from gradverify.model import Doubt, Target, TargetKind
from gradverify.verifier.collect.inference.apart import apart
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.complexes import with_complex
from gradverify.verifier.collect.inference.constants import with_constants
from gradverify.verifier.collect.inference.doubted import doubts_of_source
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.held import with_lengths_held
from gradverify.verifier.collect.inference.optionals import (
    left_out,
    never_given,
    with_optional_tensors,
    with_pairs,
)
from gradverify.verifier.collect.inference.other_values import (
    never_otherwise,
    with_other_values,
    with_valid_choices,
)
from gradverify.verifier.collect.inference.relaxed import is_by_chance, squares
from gradverify.verifier.collect.inference.search import NoSolution, Solution, definite, is_whole, search
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State, Waiting
from gradverify.verifier.collect.inference.siblings import sibling
from gradverify.verifier.collect.inference.starting import Known, begun, known_of, observed, short_name
from gradverify.verifier.collect.inference.tables import with_whole_tables
from gradverify.verifier.collect.inference.taken_apart import hollowed, put_together, taken_apart
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt, works
from gradverify.verifier.collect.inference.unread import without_unread
from gradverify.verifier.collect.inference.widen import fixed_sizes, rows, second_sizes, shrunk
from gradverify.verifier.collect.inference.windows import with_windows
from gradverify.verifier.guard import default_dtype

NAMES = ("n", "d", "m", "k", "p", "q", "r", "s", "t", "u", "v", "w")
"""What sizes are called where the author has no name for them."""


FEWER_TRIES = 150
"""Calls of the last search, in float32: by then every state has been refused in float64."""

OF_FLOAT32, OF_FLOAT64 = 1e-4, 1e-10
"""How far outputs differ, relatively or not, that were rounded to float32 on the way; and that were not."""


def deduce(value: Any, target: Target, module: ModuleType | None) -> Deduced | tuple[Attempt, ...]:  # noqa: ANN401
    """Inputs that the target accepts as a spec entry, or the attempts with how they were answered."""
    passed, known = observed(value, target, module, known_of(value, target, module))
    evidence = known.evidence
    states = [*passed, *begun(known)]
    found: Solution | NoSolution | None = None
    if not passed:
        found = put_together(value, target, known, module) or taken_apart(value, target, known)
    found = found or search(known.caller, states, [p.name for p in target.parameters])
    if isinstance(found, Solution) and is_by_chance(found.state):
        found = _with_numbers(target, known, states, found)
    dtype = ""
    if isinstance(found, NoSolution):
        found, known, dtype = _otherwise(value, target, known, states, found)
    if isinstance(found, NoSolution):
        return found.attempts
    if not dtype and _follows_default(known.caller, found):
        dtype = "float64"
    found = found if not evidence.roots else definite(known.caller, found)
    found = with_whole_tables(known.caller, found, evidence.tables)
    with default_dtype(dtype):
        entry = _entry(target, module, known, found)
    doubts = (*entry.doubts, *doubts_of_source(value, module, evidence))
    return replace(entry, doubts=doubts, default_dtype=dtype)


def _with_numbers(
    target: Target, known: Known, states: Sequence[State | Waiting], square: Solution
) -> Solution:
    """Inputs with a number beside tensors whose sizes differ, which tell more than squares; else these."""
    found = search(known.caller, states, [p.name for p in target.parameters], broadcast=True)
    if not isinstance(found, Solution) or is_by_chance(found.state):
        return square
    return found if is_whole(found.ran) or not is_whole(square.ran) else square


def _otherwise(
    value: Any,  # noqa: ANN401
    target: Target,
    known: Known,
    states: Sequence[State | Waiting],
    before: NoSolution,
) -> tuple[Solution | NoSolution, Known, str]:
    """What else may be tried, with what is known for it, and the default dtype of torch that it takes."""
    names = [p.name for p in target.parameters]
    found = hollowed(value, target, known) or search(known.caller, states, names, broadcast=True)
    if isinstance(found, Solution):
        return found, known, ""
    if _mixes_dtypes(before):
        with default_dtype("float64"):
            again = search(known.caller, states, names)
        if isinstance(again, Solution):
            return again, known, "float64"
    # Kernels that know float32 alone: the verifier finds that float64 is refused, too.
    in_float32 = replace(known, caller=replace(known.caller, dtype=torch.float32))
    again = search(in_float32.caller, states, names, FEWER_TRIES)
    whole = isinstance(again, Solution) and is_whole(again.ran)
    return (again, in_float32, "") if whole else (before, known, "")


def _follows_default(caller: Caller, found: Solution) -> bool:
    """Whether forward keeps what it computes in torch's default dtype, which takes digits from float64."""
    if caller.dtype is not torch.float64 or not is_whole(found.ran):
        return False
    with default_dtype("float64"):
        wider = attempt(caller, found.state)
    if not isinstance(wider, Ran) or not is_whole(wider) or len(wider.outputs) != len(found.ran.outputs):
        return False
    pairs = [(a.to(b.dtype), b) for a, b in zip(found.ran.outputs, wider.outputs, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return False
    near = all(torch.allclose(a, b, rtol=OF_FLOAT32, atol=OF_FLOAT32) for a, b in pairs)
    return near and any(not torch.allclose(a, b, rtol=OF_FLOAT64, atol=OF_FLOAT64) for a, b in pairs)


def _mixes_dtypes(found: NoSolution) -> bool:
    words = " ".join(a.answer for a in found.attempts).lower()
    return "float" in words and ("double" in words or "overflow" in words)


def _entry(target: Target, module: ModuleType | None, known: Known, found: Solution) -> Deduced:
    state, ran = found.state, found.ran
    caller, facts = known.caller, known.evidence.facts
    state, remarks = with_constants(caller, with_lengths_held(state), ran, facts, known.passed)
    state, ran = without_unread(caller, state, ran)
    state, complexes = with_complex(state, known.evidence.complexes, partial(works, caller))
    state = shrunk(caller, state, ran)
    state, ran = with_windows(caller, state, ran)
    state, optional = with_optional_tensors(caller, state, facts)
    state, paired = with_pairs(caller, state, facts)
    state = with_other_values(caller, state, facts)
    sizes = second_sizes(caller, state, ran)
    state = with_valid_choices(caller, state, rows(sizes))
    fixed = frozenset[int]() if state.observed else fixed_sizes(caller, state, ran, sizes)
    separated = apart(caller, state, sizes)
    state, sizes = separated.state, {**separated.sizes}
    names = _size_names(state, facts)
    tied = _agreeing(caller, state) if found.ran.backward is not None else ()
    reference = ""
    if module is not None and target.kind in {TargetKind.FUNCTION, TargetKind.CUSTOM_OP}:
        reference = sibling(module, target.name.rpartition(".")[2], caller, state)
    kept = _without_trailing_omissions(state.arguments)
    return Deduced(
        inputs=tuple(_optional(_written(a, names), optional) for a in kept),
        sizes=tuple((names[s], values) for s, values in sizes.items() if _is_used(s, kept)),
        reference=f"{short_name(module)}:{reference}" if reference else "",
        doubts=(
            *(d for a in kept for d in _doubts(a, state, fixed)),
            *(Doubt(n, f"the shape of `{n}`", optional=True, of_shape=True) for n in sorted(optional)),
            *(Doubt(n, f"that `{n}` may be complex") for n in sorted(complexes)),
            *(Doubt(names[s], f"that `{names[s]}` and `{names[t]}` differ", of_shape=True) for s, t in tied),
            *(_of_two_sizes(names, *pair) for pair in separated.pairs),
            *(
                [Doubt(found.reshaped, f"the shape of `{found.reshaped}`", of_shape=True)]
                if found.reshaped
                else ()
            ),
        ),
        remarks=(
            *remarks,
            *_sizes_of_backward(state),
            *_other_members(state, known),
            *((name, f"`{name}` is a tensor in every case, never None") for name in paired),
            *left_out(caller, state, facts),
        ),
        never=(*never_otherwise(caller, state, facts), *never_given(caller, state, facts)),
        tries=found.tries,
    )


def _of_two_sizes(names: Mapping[int, str], first: int, second: int) -> Doubt:
    pair = (names[first], names[second])
    return Doubt(pair[1], f"that `{pair[0]}` and `{pair[1]}` may differ", differ=pair, of_shape=True)


def _sizes_of_backward(state: State) -> Iterator[tuple[str, str]]:
    for name, size in state.by_backward:
        yield name, f"the last dimension of `{name}` is {size} because backward takes no other"


def _other_members(state: State, known: Known) -> Iterator[tuple[str, str]]:
    """What else of an enumeration the source names: a case holds one object alone."""
    for argument in state.arguments:
        others = [o.path.rpartition(":")[2] for o in known.objects.get(argument.name, ()) if o.is_member]
        taken = argument.guess.path.rpartition(":")[2]
        left = [o for o in dict.fromkeys(others) if o != taken]
        if argument.guess.kind is Kind.OBJECT and taken in others and left:
            sentence = f"`{argument.name}` is {taken} in every case, never {' or '.join(left)}"
            yield argument.name, sentence


def _agreeing(caller: Caller, state: State) -> tuple[tuple[int, int], ...]:
    """The first two sizes that backward wants to agree, in no tensor of which both are.

    Two sizes of one tensor that must agree are a mistake of backward's; those of a state and of its cell may
    be meant to.
    """
    for first, second in itertools.combinations(state.symbols(), 2):
        merged = state.substituted(second, Dim(first))
        if merged is not None and squares(merged) <= squares(state) and works(caller, merged):
            return ((first, second),)
    return ()


def _optional(written: DeducedInput, optional: Collection[str]) -> DeducedInput:
    if isinstance(written, DeducedTensor) and written.name in optional:
        return replace(written, optional=True)
    return written


def _is_used(symbol: int, arguments: Sequence[Argument]) -> bool:
    return any(symbol in d.symbols for a in arguments for d in a.sizes)


def _without_trailing_omissions(arguments: Sequence[Argument]) -> list[Argument]:
    return [a for a in arguments if a.guess.kind is not Kind.OMITTED]


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
    spare = (n for n in (*NAMES, *(f"n{k}" for k in range(50))) if n not in taken)
    for symbol in state.symbols():
        if symbol not in names:
            names[symbol] = next(spare)
    return names


def _written(argument: Argument, names: Mapping[int, str]) -> DeducedInput:
    guess, shape = argument.guess, tuple(d.written(names) for d in argument.dims)
    match guess.kind:
        case Kind.LITERAL | Kind.OMITTED:
            return DeducedLiteral(argument.name, guess.choices)
        case Kind.SIZE:
            return DeducedSize(argument.name, shape[0])
        case Kind.CALLABLE | Kind.OBJECT:
            return DeducedObject(argument.name, guess.path, guess.init if guess.made else None)
        case Kind.LIST if argument.parts:
            written = (_written(p, names) for p in argument.parts)
            return DeducedList(argument.name, tuple(w for w in written if isinstance(w, DeducedTensor)))
        case Kind.LIST:
            constant = None if argument.requires_grad else False
            item = DeducedTensor(argument.name, shape, domain=argument.domain, requires_grad=constant)
            return DeducedList(argument.name, (item,) * argument.items)
        case _:
            kind = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(guess.kind, "float64")
            bound = ("0", argument.bound.written(names)) if argument.bound is not None else ()
            constant = False if guess.kind is Kind.FLOAT and not argument.requires_grad else None
            return DeducedTensor(
                argument.name,
                shape,
                argument.dtype or kind,
                argument.domain,
                bound,
                layout=argument.layout,
                structure=argument.structure,
                value=argument.value,
                requires_grad=constant,
            )


def _doubts(argument: Argument, state: State, fixed: Collection[int]) -> Iterator[Doubt]:
    guess = argument.guess
    alone = [d.value(state.values) for d in argument.dims if set(d.symbols) & set(fixed)]
    if argument.name in state.pinned:
        yield Doubt(argument.name, f"a size of `{argument.name}`", of_shape=True)
    elif alone and argument.is_tensor:
        yield Doubt(
            argument.name,
            f"what the {alone[0]} entries of `{argument.name}` are (it runs at no other size)",
            of_shape=True,
        )
    if argument.layout:
        yield Doubt(argument.name, f"the layout of `{argument.name}`")
    if argument.value is not None:
        yield Doubt(argument.name, f"what `{argument.name}` holds")
        return
    invented = {Kind.INDEX, Kind.BOOL, Kind.CALLABLE, Kind.OBJECT, Kind.SIZE, Kind.LIST}
    if guess.kind in invented and not (guess.kind in {Kind.LIST, Kind.OBJECT, Kind.CALLABLE} and guess.found):
        plain = guess.kind in {Kind.INDEX, Kind.BOOL} and not guess.structure
        yield Doubt(argument.name, f"`{argument.name}` ({guess.kind.value})", of_values=plain)
    elif guess.kind is Kind.LITERAL and not guess.found:
        yield Doubt(argument.name, f"`{argument.name}` ({guess.choices[0]!r})", of_values=True)
    elif (
        guess.kind is Kind.LITERAL and len(guess.choices) > 1 and not isinstance(guess.choices[0], str | bool)
    ):
        yield Doubt(argument.name, f"`{argument.name}`", certain=(guess.choices[0],))
