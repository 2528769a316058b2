"""Other values than those that ran: of tensors that may be left out, of options, of invented numbers.

A default always runs, and often goes round a part of the code: a stride that is the size of the window, a
padding of 0, a flag that is off, None for a parameter that backward gives a gradient for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import copysign, isnan
from typing import Any, TypeGuard

from torch import Tensor

from gradverify.model import Nested, RaisedError
from gradverify.source import definition
from gradverify.verifier.guard.dispatching import Dispatched
from gradverify.verifier.infer import costs
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.guesses import FACTORS, looks_real
from gradverify.verifier.infer.known import Known
from gradverify.verifier.infer.search import Solution, on_one_line, search
from gradverify.verifier.infer.shapes import reranked
from gradverify.verifier.infer.state import Argument, Dim, Guess, Kind, State
from gradverify.verifier.infer.sweep import other_choices
from gradverify.verifier.infer.trial import MOST_JACOBIAN, Caller, Ran, attempt, works
from gradverify.verifier.infer.uses import numbers_beside
from gradverify.verifier.targets.discover import backward_name

MOST_SHAPES = 12
"""Shapes tried for one optional tensor."""


def with_optional_tensors(known: Known, state: State) -> tuple[State, frozenset[str]]:
    """The same with a tensor for every optional one whose shape can be found, and their names.

    A shape counts if forward takes it and backward gives a gradient of that shape by itself.
    """
    found = set()
    for place, argument in enumerate(state.arguments):
        if _runs_without(known, state, place):
            found.add(argument.name)
        for dims in shapes_of(state) if _may_be_tensor(known, argument) else ():
            trial = with_tensor(state, place, Kind.FLOAT, dims)
            ran = attempt(known.caller, trial)
            if _ran_backward(ran) and (ran.gradients or {}).get(argument.name) is not None:
                state = trial
                found.add(argument.name)
                break
    return state, frozenset(found)


def with_optional_constants(known: Known, state: State) -> tuple[State, frozenset[str]]:
    """The same with a tensor for what is None still, is compared with it, and has no gradient; their names.

    As the weights of classes, or a mask: any shape counts that forward takes.
    """
    found = set()
    for place, argument in enumerate(state.arguments):
        facts = known.facts(argument.name)
        is_constant = argument.guess.is_nothing and facts.gradient is not True and "none" in facts.kinds
        for kind, dims in product((Kind.FLOAT, Kind.BOOL), shapes_of(state)) if is_constant else ():
            given = with_tensor(state, place, kind, dims)
            trial = given.with_argument(place, replace(given.arguments[place], requires_grad=False))
            if _ran_backward(attempt(known.caller, trial)):
                state = trial
                found.add(argument.name)
                break
    return state, frozenset(found)


def _ran_backward(ran: object) -> TypeGuard[Ran]:
    """Whether forward and backward ran."""
    return isinstance(ran, Ran) and ran.backward is None


def none_in_every_case(known: Known, state: State) -> Iterator[tuple[str, str, bool]]:
    """(parameter, sentence, whether it should be a tensor) of what is None and has no default."""
    for argument in state.arguments:
        required = known.caller.defaults.get(argument.name, ...) is ...
        if required and argument.guess.is_nothing:
            tensor = _may_be_tensor(known, argument)
            why = ": no tensor was found that forward takes for it" if tensor else ""
            yield argument.name, f"`{argument.name}` is None in every case{why}", tensor


def with_tensor(state: State, place: int, kind: Kind, dims: tuple[Dim, ...]) -> State:
    """The state with a tensor of that kind and shape in the place of what is there."""
    argument = state.arguments[place]
    guess = Guess(kind, argument.guess.cost, found=False)
    return state.with_argument(place, Argument(argument.name, guess, dims))


def _may_be_tensor(known: Known, argument: Argument) -> bool:
    return argument.guess.is_nothing and known.facts(argument.name).gradient is True


def _runs_without(known: Known, state: State, place: int) -> bool:
    """Whether a tensor was guessed for what is None by default or forward compares with it, and None runs."""
    argument = state.arguments[place]
    may_be_nothing = known.default(argument.name) is None or "none" in known.facts(argument.name).kinds
    if argument.guess.kind not in {Kind.FLOAT, Kind.INDEX, Kind.BOOL} or not may_be_nothing:
        return False
    nothing = Argument(argument.name, Guess(Kind.LITERAL, choices=(None,)))
    result = attempt(known.caller, state.with_argument(place, nothing))
    if not isinstance(result, Ran):
        return False
    # A default for which backward breaks is one to be reported, not one to be left out.
    breaks = result.fails_in_backward and known.default(argument.name) is None
    return result.backward is None or breaks


def shapes_of(state: State) -> list[tuple[Dim, ...]]:
    """One dimension first, as a bias has it, the last of the arguments' before others; then whole shapes."""
    tensors = [a for a in state.arguments if a.is_tensor and a.dims]
    single = ((a.dims[-1 - k],) for k in range(3) for a in reversed(tensors) if k < len(a.dims))
    return list(dict.fromkeys([*single, *(a.dims for a in tensors), ()]))[:MOST_SHAPES]


COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
"""Operators of torch that compare."""

WHOLE = (2, 1, 3)
"""Integers for a number that integers are compared with: places and labels lie on both sides of them."""


class _Comparing(Dispatched):  # type: ignore[no-untyped-call]
    """Notes the real numbers that tensors of integers are compared with."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: set[float] = set()

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        name, tensors = func.overloadpacket.__name__, [a for a in args if isinstance(a, Tensor)]
        if name in COMPARISONS and not any(t.is_floating_point() for t in tensors):
            self.numbers |= {a for a in args if isinstance(a, float)}
        return func(*args, **given)


def with_whole_numbers(known: Known, state: State) -> State:
    """The same with integers for the real numbers that were made up and are compared with integers.

    As a window, and a label to ignore: no label is 0.75, and no place differs by it.
    """
    reals = [k for k, a in enumerate(state.arguments) if a.guess.is_invented_number and _is_real(a.guess)]
    comparing = _Comparing()
    if reals:
        with comparing:
            attempt(known.caller, state)
    for place in reals:
        if state.arguments[place].guess.choices[0] in comparing.numbers:
            others = (with_choices(state, place, (whole,)) for whole in WHOLE)
            state = next((other for other in others if works(known.caller, other)), state)
    return state


def _is_real(guess: Guess) -> bool:
    return guess.kind is Kind.LITERAL and type(guess.choices[0]) is float


MOST_NAMED = 4
"""Other numbers of one parameter that its source names; of strings, all are tried."""

MOST_ASKED = 40
"""Calls of a search for inputs at which forward takes an option's value that it refuses at those found."""

FURTHER_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
"""Sizes to try for such a value: each of the first numbers of entries, and even ones."""

FURTHER_RANKS = (3, 4, 5, 1, 2)
"""Dimensions to try for it, the likeliest first: of sequences, of images, of volumes."""

REFUSING = frozenset({"NotImplementedError"})
"""What authors raise for a value that they do not support, whatever the other inputs are."""

ROOM = (6, 9, 12, 16)
"""Sizes to try where a number that the source names asks for more entries, as of coefficients."""

SHARE = 0.625
"""Of a real default, another value of it: one that is exact in binary, and what is left of 1 differs, too."""

MODERATE = 2.0
"""Beyond it a default is a bound or a scale that ordinary inputs do not come to."""

BESIDE_LARGE, BESIDE_TINY, BESIDE_ZERO = 1.25, 0.02, 0.25
"""Other values of such a default, of an epsilon, and of 0: ordinary inputs show a difference at each."""

LONGER = 2
"""By how much a table is longer than what is read of it: an offset of 1 leads past neither end."""

TINY = 0.01
"""Below it a default is an epsilon."""

UNNAMED = "other"
"""A word that no source compares with."""

MOST_VARIED = 6
"""Parameters whose default is varied: each makes more cases, and its values are invented."""


@dataclass(frozen=True)
class _Choice:
    """One literal for a parameter, and what else the source says of it."""

    argument: Argument
    facts: Facts
    default: Any
    """`...` for none."""

    @property
    def value(self) -> Nested:
        """The literal."""
        return self.argument.guess.choices[0]

    @property
    def is_default(self) -> bool:
        """Whether it is the default; the same literal in another call proves no more."""
        return type(self.value) is type(self.default) and self.value == self.default

    @property
    def is_guessed(self) -> bool:
        """Whether it is an invented number."""
        return self.argument.guess.is_invented_number

    @property
    def may_be_nothing(self) -> bool:
        """Whether forward compares it with None, which it is not."""
        return self.value is not None and "none" in self.facts.kinds

    @property
    def closed(self) -> tuple[Nested, ...]:
        """The other values of an option that has few: the source names them, or there are but two."""
        return (not self.value,) if isinstance(self.value, bool) else self.named

    @property
    def named(self) -> tuple[Nested, ...]:
        """Other values that the source names: of the same type."""
        known, value = self.facts, self.value
        others: Iterable[Nested] = ()
        if isinstance(value, str):
            others = known.strings
        elif type(value) is float:
            others = map(float, known.numbers)
        elif type(value) is int:
            others = (int(n) for n in known.numbers if int(n) == n)
        return tuple(dict.fromkeys(v for v in others if v != value))

    def others(self) -> Iterator[Nested]:
        """Other values that nothing names, the likeliest first."""
        match self.value:
            case bool(value):
                yield not value
            case int(value) if value < -1:  # a mark, such as the label to ignore: one that occurs
                yield from (1, 0)
            case int(value):
                # Twice nothing is nothing: that is the default again, and no other value.
                yield from (v for v in (value + 1, 2 * value, value - 1) if v != value)
            case float(value) if self.is_default and not isnan(value):
                yield _another_real(value)
            case None if not self.facts.kinds & {"tensor", "index", "bool", "callable"}:
                if self.facts.gradient is not True:
                    yield from (FACTORS[0], 2) if looks_real(self.argument.name, self.facts) else (2, 1, 3)
            case _:
                return


def _choices(known: Known, state: State) -> Iterator[tuple[int, _Choice]]:
    """Parameters that have one literal."""
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is Kind.LITERAL and len(argument.guess.choices) == 1:
            default = known.default(argument.name)
            yield place, _Choice(argument, known.facts(argument.name), default)


def _options(known: Known, state: State) -> Iterator[tuple[int, _Choice, list[Nested]]]:
    """Every literal, and the values of an option that no case has."""
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is Kind.LITERAL:
            default = known.default(argument.name)
            choice = _Choice(argument, known.facts(argument.name), default)
            yield place, choice, [v for v in choice.closed if v not in argument.guess.choices]


def with_other_values(known: Known, state: State) -> State:
    """The same with a second value for the parameters that are left to a default, where forward takes one."""
    caller, varied = known.caller, 0
    for place, choice in list(_choices(known, state)):
        named = choice.named
        nothing: tuple[Nested, ...] = (None,) if choice.may_be_nothing else ()
        if varied == MOST_VARIED or not (choice.is_default or choice.is_guessed or named or nothing):
            continue
        if choice.is_guessed:
            state = _roomier(caller, state, place, named)
        for value in choice.closed:
            state = _accepting(caller, state, place, value)
        # Each string or number of the source names a path of its own; of other numbers one is enough.
        most = None if isinstance(choice.value, str) else MOST_NAMED
        taken = tuple(islice((v for v in named if is_taken(caller, state, place, v)), most))
        others: Iterator[Nested] = iter(())
        if choice.is_default and type(choice.value) is int and not taken:
            state = _with_longer_tables(caller, state, place, [*choice.others()])
        # Numbers of the source are where paths part, as a probability of 0 does: none is an ordinary value.
        if choice.is_default and (not taken or type(choice.value) is float):
            others = (v for v in choice.others() if v not in taken)
        elif choice.is_guessed and not choice.is_default:
            others = _beside(choice.value, taken)
        taken += tuple(islice((v for v in others if is_taken(caller, state, place, v)), 1))
        taken += tuple(v for v in nothing if is_taken(caller, state, place, v))
        if taken:
            state = with_choices(state, place, (choice.value, *taken))
            varied += 1
    return _with_unnamed(known, state)


def _with_unnamed(known: Known, state: State) -> State:
    """The same with a word that has no name, where an option of words takes an `else` with it."""
    for place, argument in enumerate(state.arguments):
        words = argument.guess.choices
        is_option = bool(known.facts(argument.name).strings) and all(isinstance(w, str) for w in words)
        if argument.guess.kind is not Kind.LITERAL or not is_option:
            continue
        taken = is_taken(known.caller, state, place, UNNAMED)
        if taken and _is_another(known.caller, state, place, words, UNNAMED):
            state = with_choices(state, place, (*words, UNNAMED))
    return state


def _is_another(caller: Caller, state: State, place: int, known: Sequence[Nested], other: Nested) -> bool:
    """Whether forward gives with a value what it gives with none of those that are known."""
    ran = attempt(caller, with_choices(state, place, (other,)))
    several = (attempt(caller, with_choices(state, place, (value,))) for value in known)
    return isinstance(ran, Ran) and not any(ran.has_outputs_of(one) for one in several)


def _another_real(value: float) -> float:
    """Another real number that is likely to be as valid as a default is."""
    size = abs(value)
    if size > MODERATE:
        return copysign(BESIDE_LARGE, value)
    if size >= TINY:
        return SHARE * value
    return copysign(BESIDE_TINY, value) if size else BESIDE_ZERO


def _beside(value: Nested, taken: tuple[Nested, ...]) -> Iterator[Nested]:
    """Other values of an invented count, none of one or none.

    A step below it, so that windows overlap; past the numbers that the source names, what follows them.
    """
    counts = [v for v in (value, *taken) if type(v) is int]
    if type(value) is int and len(counts) == 1 and value > 2:
        yield value - 1
    if counts:
        yield max(counts) + 1


def _roomier(caller: Caller, state: State, place: int, named: tuple[Nested, ...]) -> State:
    """The same at a larger size where forward takes more of the numbers that the source names."""
    counts = [v for v in named if type(v) is int]
    if not counts or is_taken(caller, state, place, max(counts)):
        return state
    value = state.arguments[place].guess.choices[0]
    larger = (state.at({symbol: size}) for symbol in state.symbols() for size in ROOM)
    fit = (s for s in larger if all(is_taken(caller, s, place, v) for v in (max(counts), value)))
    return next(fit, state)


def _with_longer_tables(caller: Caller, state: State, place: int, others: Sequence[Nested]) -> State:
    """The same, or with tensors longer than what is read of them where forward takes another number then.

    An offset into a table that is as long as what it goes with can be nothing but 0.
    """
    if any(is_taken(caller, state, place, v) for v in others):
        return state
    places = [k for k, a in enumerate(state.arguments) if a.is_real and a.dims and a.dims[0].is_plain]
    for longer in (places[1:], *([k] for k in places[1:])):
        tried = state
        for k in longer:
            tried = tried.with_dim(k, 0, replace(state.arguments[k].dims[0], plus=LONGER))
        if works(caller, tried) and any(is_taken(caller, tried, place, v) for v in others):
            return tried
    return state


def _accepting(caller: Caller, state: State, place: int, value: Nested) -> State:
    """The same, or at another rank or size where forward takes a further value of an option as well.

    Every value that it takes by now it must take there.
    """
    refused = attempt(caller, with_choices(state, place, (value,)))
    if not isinstance(refused, RaisedError) or _is_invalid(refused, value):
        return state
    for tried in _further(caller, state, place, value):
        others = all(isinstance(attempt(caller, one), Ran) for one in other_choices(tried))
        if others and works(caller, tried) and is_taken(caller, tried, place, value):
            return tried
    return state


def _further(caller: Caller, state: State, place: int, value: Nested) -> Iterator[State]:
    """States of other ranks and sizes: what errors say of them, each size in turn, all sizes alike."""
    chosen, first = (
        with_choices(state, place, (value,)),
        next((a for a in state.arguments if a.is_real), None),
    )
    alike = [
        k for k, a in enumerate(state.arguments) if first and a.is_real and len(a.dims) == len(first.dims)
    ]
    deeper = filter(None, (reranked(chosen, alike, rank) for rank in FURTHER_RANKS))
    begun = [chosen, *(s.dearer(costs.ANOTHER_RANK * k) for k, s in enumerate(deeper, start=1))]
    found = search(caller, begun, [a.name for a in state.arguments], MOST_ASKED)
    if isinstance(found, Solution) and found.state.arguments[place].guess.choices == (value,):
        yield with_choices(found.state, place, state.arguments[place].guess.choices)
    yield from (state.at({symbol: size}) for symbol in state.symbols() for size in FURTHER_SIZES)
    yield from (state.at(dict.fromkeys(state.symbols(), size)) for size in FURTHER_SIZES)


def _is_invalid(error: RaisedError, value: Nested) -> bool:
    """Whether an author refuses a value whatever the other inputs are: one without support, a number."""
    return error.deliberate and (error.type in REFUSING or not isinstance(value, bool | str))


def unverified_values(known: Known, state: State) -> Iterator[tuple[str, str, bool]]:
    """(parameter, sentence, whether it leaves the target open) of each value of an option that no case has.

    Where forward raises, or gives what is not finite, as a logarithm of negative inputs, it may be valid at
    other inputs, which is no reason to pass over it.
    """
    for place, choice, missing in _options(known, state):
        name, cases = choice.argument.name, choice.argument.guess.choices
        for other in missing or (islice(choice.others(), 1) if choice.is_default and len(cases) == 1 else ()):
            ran = attempt(known.caller, with_choices(state, place, (other,)))
            only = f"`{name}` is {' or '.join(map(repr, cases))} in every case"
            if isinstance(ran, RaisedError) and other in missing:
                said = f"with {other!r}, forward raises {on_one_line(ran)}"
                is_open = not _is_invalid(ran, other) or _has_a_path_in_backward(known, name, other)
                yield name, f"{only}: {said}", is_open
            elif isinstance(ran, Ran) and not ran.finite:
                said = f"with {other!r}, what forward gives at these inputs is not finite"
                # Of a number as of one that an author refuses: a share of 1, a logarithm of 0.
                yield name, f"{only}: {said}", choice.is_default and isinstance(other, bool | str)


def _has_a_path_in_backward(known: Known, name: str, value: Nested) -> bool:
    """Whether backward compares an option, or what ctx keeps, with a number: its author means that one."""
    function = known.caller.function
    body = None if function is None else definition(getattr(function, backward_name(function)))
    if body is None or isinstance(value, tuple | str):
        return False
    equal = ast.Eq | ast.NotEq
    return any(
        isinstance(operator, equal) and value in numbers_beside(operator, other)
        for node in ast.walk(body)
        if isinstance(node, ast.Compare) and _may_be_option(node.left, name, body)
        for operator, other in zip(node.ops, node.comparators, strict=True)
    )


def _may_be_option(left: ast.expr, name: str, backward: ast.FunctionDef) -> bool:
    """Whether an expression of backward is a parameter of forward by its name, or an attribute of ctx."""
    match left:
        case ast.Name(id=called):
            return called == name
        case ast.Attribute(value=ast.Name(id=owner)):
            return owner == next((a.arg for a in backward.args.args), "")
        case _:
            return False


def with_valid_choices(caller: Caller, state: State, sizes: Iterable[Mapping[int, int]]) -> State:
    """The same without the swept choices that forward refuses, here or at one of further sizes."""
    at = [state, *(state.at(row) for row in sizes)]
    for place, argument in enumerate(state.arguments):
        if argument.guess.kind is Kind.LITERAL and len(argument.guess.choices) > 1:
            first, *others = argument.guess.choices
            kept = [c for c in others if all(is_taken(caller, one, place, c) for one in at)]
            state = with_choices(state, place, (first, *kept))
    return state


def with_choices(state: State, place: int, choices: tuple[Nested, ...]) -> State:
    """The same with other literals for one argument."""
    argument = state.arguments[place]
    return state.with_argument(place, replace(argument, guess=replace(argument.guess, choices=choices)))


def is_taken(caller: Caller, state: State, place: int, value: Nested) -> bool:
    """Whether forward works with another literal; and backward, unless it raises by accident.

    A value for which backward breaks is one to be reported, not one to be left out.
    """
    chosen = with_choices(state, place, (value,))
    ran = attempt(caller, chosen)
    if isinstance(ran, RaisedError) or not ran.connected or ran.jacobian > MOST_JACOBIAN:
        return False
    if not ran.finite or (ran.backward is not None and ran.backward.deliberate):
        return False
    given = [g for g in (ran.gradients or {}).values() if g is not None]
    idle = ran.backward is None and not any(bool((g != 0).any()) for g in given)
    # Where other inputs give the same outputs nothing of them is read, and nothing can be verified.
    return not idle or not ran.has_outputs_of(attempt(caller, chosen, draw=1))
