"""The search: the cheapest state first, further ones from what its error says, a bounded number of calls.

Inputs that ran by chance hide mistakes: where all sizes are one, a transposed gradient fits, and what should
have fewer dimensions is broadcast. From them the search goes on to sizes that differ, and equal parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradverify.deduced import Attempt
from gradverify.model import RaisedError
from gradverify.model.case import SQUARE
from gradverify.verifier.guard import lacking
from gradverify.verifier.guard.raised_errors import is_bound_nowhere
from gradverify.verifier.infer import costs
from gradverify.verifier.infer.frames import suspects_of
from gradverify.verifier.infer.repairs import Row, by_call, by_type, refused_gradient, repairs, unbroadcast
from gradverify.verifier.infer.shapes import by_rank, lower_ranks, names_rank, one_number
from gradverify.verifier.infer.starting import is_weight
from gradverify.verifier.infer.state import Argument, Dim, Kind, State, Waiting
from gradverify.verifier.infer.trial import Caller, Ran, attempt

CUTTING = frozenset({"chunk", "tensor_split", "unsafe_chunk"})
"""Functions of torch that cut a tensor into a number of parts."""

Cut = tuple[int, int]
"""(size of the dimension, number of parts) of a call that cuts into parts."""


def idle_counts(state: State) -> int:
    """How many invented counts are one or none: of rounds, of groups, of terms."""
    invented = (a.guess.choices for a in state.arguments if a.guess.is_invented_number)
    return sum(choices in {(0,), (1,)} and type(choices[0]) is int for choices in invented if choices)


def is_by_chance(state: State) -> bool:
    """Whether the state hides mistakes: square tensors, sizes that are all fixed, counts of one or none."""
    held = any(a.value is not None for a in state.arguments)
    fixed = not held and not state.symbols() and any(a.is_tensor and a.dims for a in state.arguments)
    tied = any(a.is_tensor and _are_tied(a) for a in state.arguments)
    return tied or fixed or idle_counts(state) > 0


def _are_tied(argument: Argument) -> bool:
    """Whether two dimensions go together, as `3*n` and `n` do; those of a symmetric matrix have to."""
    symbols = [s for d in argument.dims for s in d.symbols]
    return argument.structure not in SQUARE and len(set(symbols)) < len(symbols)


def deepest(state: State) -> int:
    """The most dimensions of a tensor."""
    return max((len(a.dims) for a in state.arguments if a.is_tensor), default=0)


def begun_again(state: State) -> Iterator[State]:
    """The same guesses with sizes that all differ: of the same ranks, and with one dimension less for one."""
    places = [k for k, a in enumerate(state.arguments) if a.is_tensor and len(a.dims) > 1]
    ways = ((place, shares) for place in (None, *reversed(places)) for shares in (True, False))
    for number, (place, shares) in enumerate(ways):
        yield replace(_distinct(state, place, shares=shares), cost=state.cost + costs.AGAIN * number)


def _distinct(state: State, lowered: int | None, *, shares: bool) -> State:
    """`shares`: tensors of the highest rank agree in all dimensions but the last, unless they are weights."""
    highest = deepest(state)
    fresh, shared = replace(state, sizes=(), pinned=frozenset()).fresh(max(0, highest - 1) if shares else 0)
    for place, argument in enumerate(state.arguments):
        if not argument.sizes:
            continue
        rank = len(argument.dims) - (place == lowered)
        stands_alone = rank < highest or not argument.is_tensor or is_weight(argument.name)
        common = () if stands_alone else shared
        fresh, own = fresh.fresh(rank - len(common))
        bound = argument.bound
        if bound is not None and bound.symbol >= 0:
            fresh, (bound,) = fresh.fresh(1)
        fresh = fresh.with_argument(place, replace(argument, dims=(*common, *own), bound=bound))
    return fresh


class _Noting(TorchFunctionMode):
    """Notes the sizes of what is cut into parts that are unequal, or of one entry."""

    def __init__(self) -> None:
        super().__init__()
        self.uneven: dict[Cut, None] = {}

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = kwargs or {}
        if getattr(func, "__name__", "") in CUTTING and args and isinstance(args[0], Tensor):
            parts = args[1] if len(args) > 1 else given.get("chunks", given.get("sections"))
            dim = args[2] if len(args) > 2 else given.get("dim", 0)
            if isinstance(parts, int) and isinstance(dim, int) and parts > 1 and args[0].dim():
                size = args[0].shape[dim]
                if size % parts or size <= parts:
                    self.uneven[size, parts] = None
        return func(*args, **given)


def uneven_cuts(caller: Caller, state: State) -> tuple[Cut, ...]:
    """The calls that cut into parts of different sizes, or of one entry, while forward runs."""
    if not state.parts:
        return ()
    noting = _Noting()
    with noting:
        attempt(caller, state)
    return tuple(noting.uneven)


def evened(state: State, cuts: Sequence[Cut]) -> Iterator[State]:
    """States in which what was cut unevenly is a multiple of the number of parts."""
    for size, parts in cuts:
        same = (s for s in state.symbols() if state.values[s] == size)
        for number, symbol in enumerate(same):
            changed = state.substituted(symbol, Dim(symbol, times=parts))
            if changed is not None:
                yield replace(changed, cost=costs.AGAIN * number)
        fresh, (own,) = state.fresh(1)
        fixed, multiple = Dim(plus=size), replace(own, times=parts)
        arguments = (a.with_dims(multiple if d == fixed else d for d in a.dims) for a in fresh.arguments)
        changed = replace(fresh, arguments=tuple(arguments), cost=costs.AGAIN)
        if changed.arguments != state.arguments:
            yield changed


MOST_TRIES = 400
"""Calls of forward that a search may make."""

MOST_LACKING = 20
"""Calls after which a search ends in which every one kept lacks a device: shapes do not matter then."""

MORE_TRIES = 60
"""Calls after one that forward accepts and backward refuses, for inputs that both accept."""

OTHER_SEEDS = (1, 2)
"""Other numbers of the same kinds that forward has to take: three may ascend by chance."""

MORE_IF_CHANCE = 100
"""Calls after one that hides mistakes: with square tensors, unequal parts, a count of one."""

MOST_TELLING = 20_000
"""Entries of the Jacobian of inputs with more sizes of their own: they are verified at several of each."""

KEPT_ATTEMPTS = 5
"""Attempts that are reported where no inputs are found: one of each line that raised, the furthest first."""

LONGEST = 240
"""Characters of an exception that are quoted."""

DOMAINS = ("positive", "unit", "negative")
"""Tried where forward gives NaN or infinity: logarithms and roots, then inverse sines and cross entropies."""

BEYOND_ONE = (1.1, 4.0)
"""Tried then: inverse hyperbolic cosines, and what is longer than something else, which lies in `unit`."""

NEAR_ZERO = (-0.2, 0.2)
"""Tried at last: points of a ball or of a simplex, whose rows of up to 25 entries have a norm below one."""


@dataclass(frozen=True)
class Solution:
    """Inputs that forward accepts."""

    state: State
    ran: Ran
    tries: int
    reshaped: str = ""
    """An input of another shape got through as well, but then hardly anything was left to be wrong."""
    avoided: tuple[Solution, ...] = ()
    """Inputs of the same kinds and ranks that forward accepts, and at which backward raises."""


@dataclass(frozen=True)
class NoSolution:
    """Every attempt failed."""

    attempts: tuple[tuple[Attempt, State], ...]
    """The first one that came to each line, those that came furthest before others."""
    tries: int


def search(
    caller: Caller,
    started: Iterable[State | Waiting],
    parameters: Sequence[str],
    most: int = MOST_TRIES,
    further: Sequence[Row] = (),
) -> Solution | NoSolution:
    """Look for inputs that forward and backward accept; those that forward alone accepts, failing that.

    `further` are repairs beside those of the table.
    """
    running = _Search(caller, parameters, most, further)
    running.push(started)
    return running.run()


@dataclass
class _Refusals:
    """Gradients that were refused for having fewer dimensions than their input.

    An input that was broadcast gets one of the shape that it might have had from the start. One that is
    summed away is refused at that shape too, until nothing is left that could be summed.
    """

    first: Solution | None = None
    claimed: set[tuple[str, int]] = field(default_factory=set)
    """(parameter, dimensions of the gradient it got)."""
    contradicted: bool = False
    """An input of as many dimensions as its gradient had got one of fewer again."""

    def note(self, tried: Solution, parameters: Sequence[str]) -> None:
        """Take in inputs that did not go all the way."""
        error = tried.ran.backward
        refused = refused_gradient(error.message, parameters) if error is not None else None
        if refused is None or len(refused.got) >= len(refused.expected):
            return
        self.first = self.first or replace(tried, reshaped=refused.name)
        self.contradicted |= (refused.name, len(refused.expected)) in self.claimed
        self.claimed.add((refused.name, len(refused.got)))

    def settled(self, found: Solution, fallback: Solution | None) -> Solution:
        """The inputs found, or those of an earlier refusal, which may be the only ones to show it."""
        tensors = [a for a in found.state.arguments if a.is_tensor]
        nothing_left = bool(self.claimed) and not any(a.dims for a in tensors)
        doubting = self.first if self.contradicted or nothing_left else None
        return doubting or _refused_before(fallback, found) or found


@dataclass
class _Search:
    """One search, and the best that it has come across."""

    caller: Caller
    parameters: Sequence[str]
    most: int
    further: Sequence[Row] = ()
    tries: int = 0
    heap: list[tuple[float, int, State | Waiting]] = field(default_factory=list)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    refusals: _Refusals = field(default_factory=_Refusals)
    attempts: dict[tuple[int, ...], tuple[Attempt, State]] = field(default_factory=dict)
    """By the lines that the user's frames had come to."""
    fallback: Solution | None = None
    """Forward accepts it."""
    refused: list[Solution] = field(default_factory=list)
    """Forward accepts them, and backward does not."""
    unequal: Solution | None = None
    """Forward accepts it and backward does not, but it cuts a tensor into unequal parts."""
    by_chance: Solution | None = None
    """Both accept it, and it hides mistakes."""
    plainest: State | None = None
    """The first such: what has far more dimensions is broadcast, and takes long."""
    pushed: int = 0

    def push(self, states: Iterable[State | Waiting]) -> None:
        """Put states among those that wait."""
        for state in states:
            self.pushed += 1
            heapq.heappush(self.heap, (state.cost, self.pushed, state))

    def _next(self) -> State | None:
        """The cheapest state that was not tried."""
        while self.heap and self.tries < self.most:
            found = heapq.heappop(self.heap)[2]
            state = found.state if isinstance(found, Waiting) else found
            key = state.key()
            if key not in self.seen and state.keeps_ranks():
                self.seen.add(key)
                self.tries += 1
                return state
        return None

    def run(self) -> Solution | NoSolution:
        """Try until inputs tell enough, or the calls are spent."""
        while (state := self._next()) is not None:
            result = attempt(self.caller, state)
            if isinstance(result, RaisedError):
                missing = lacking(result, self.caller.device)
                failed = Attempt(state.described(), on_one_line(result), missing)
                self.attempts.setdefault(tuple(f.line for f in result.frames), (failed, state))
                always_lacks = all(failed.missing for failed, _ in self.attempts.values())
                if always_lacks and self.tries >= MOST_LACKING:
                    break
                self.push(repairs(state, result, self.further))
                continue
            tried = Solution(state, result, self.tries)
            if result.backward is not None and is_bound_nowhere(result.backward):
                return tried  # no other inputs make backward right, only go round it
            cuts = uneven_cuts(self.caller, state)
            self.push(evened(state, cuts))
            if not result.is_whole:
                self._accepted_in_part(tried, uneven=bool(cuts))
            elif self._is_telling(tried, uneven=bool(cuts)):
                elsewhere = (attempt(self.caller, state, seed) for seed in OTHER_SEEDS)
                refused = next((one for one in elsewhere if isinstance(one, RaisedError)), None)
                if refused is None:
                    return self._settled(tried)
                self.by_chance = self.by_chance or tried  # these numbers alone were taken
                self.push(repairs(state, refused, self.further))
        if self.by_chance is not None:
            return replace(self._settled(self.by_chance), tries=self.tries)
        best = self.fallback or self.unequal
        return NoSolution(self._furthest(), self.tries) if best is None else replace(best, tries=self.tries)

    def _settled(self, found: Solution) -> Solution:
        settled = self.refusals.settled(found, self.fallback)
        if (
            settled is found
            and self.refused
            and not any(a.dims for a in found.state.arguments if a.is_tensor)
        ):
            settled = self.refused[0]  # numbers alone have no shape that could be wrong
        alike = (one for one in self.refused if _is_of_other_sizes(one.state, settled.state))
        return replace(settled, avoided=tuple(alike)) if settled.ran.is_whole else settled

    def _is_of_numbers_left(self, state: State) -> bool:
        """Whether no tensor has a dimension, and backward has refused some that have."""
        return bool(self.refused) and not any(a.dims for a in state.arguments if a.is_tensor)

    def _furthest(self) -> tuple[tuple[Attempt, State], ...]:
        reached = sorted(self.attempts, reverse=True)[:KEPT_ATTEMPTS]
        return tuple(self.attempts[lines] for lines in reached if lines or len(reached) == 1)

    def _is_telling(self, found: Solution, *, uneven: bool) -> bool:
        """Whether mistakes show at inputs that both accept; those that hide some are kept beside."""
        before = self.by_chance
        is_deep = before is None or deepest(found.state) >= deepest(before.state)
        summed = found.ran.summed
        of_numbers = self._is_of_numbers_left(found.state)
        if not uneven and not summed and not of_numbers and not is_by_chance(found.state):
            return is_deep
        if before is None:
            self.plainest = found.state
            self.most = min(self.most, self.tries + MORE_IF_CHANCE)
            self.push(begun_again(found.state))
            # What has a dimension too many is broadcast, and a gradient summed that was not meant to be.
            self.push(replace(lower, cost=found.state.cost) for lower in lower_ranks(found.state) if summed)
            if of_numbers:
                numbers = one_number(self.refused[0].state)
                self.push(replace(one, cost=found.state.cost) for one in numbers)
        more = not uneven and is_deep and found.ran.jacobian <= MOST_TELLING
        if before is None or (more and _tells_more(found, before) and self._is_nearly_as_plain(found)):
            self.by_chance = found
        return False

    def _is_nearly_as_plain(self, found: Solution) -> bool:
        """Whether no input has more than one dimension, of a batch, beyond those of the first."""
        first = self.plainest.arguments if self.plainest is not None else ()
        return all(len(a.dims) <= len(b.dims) + 1 for a, b in zip(found.state.arguments, first, strict=False))

    def _accepted_in_part(self, tried: Solution, *, uneven: bool) -> None:
        """Take in inputs that did not go all the way, and go on from them."""
        ran = tried.ran
        if ran.fails_in_backward and not self._is_reduced(ran):
            self.refused.append(tried)
        if uneven and self.unequal is None and ran.finite and ran.backward is not None:
            self.unequal = tried
            return
        self.refusals.note(tried, self.parameters)
        if self.fallback is None or _rank(ran) > _rank(self.fallback.ran):
            self.fallback = tried
            self.most = min(self.most, self.tries + MORE_TRIES)
        self.push(_alternatives(tried.state, ran, self.parameters))

    def _is_reduced(self, ran: Ran) -> bool:
        """Whether a gradient was refused for its number of dimensions: its input may have too many."""
        refused = refused_gradient(ran.backward.message, self.parameters) if ran.backward else None
        return refused is not None and len(refused.got) != len(refused.expected)


def on_one_line(error: RaisedError) -> str:
    """An exception on one line."""
    line = next(iter(error.message.strip().splitlines()), "")
    said = f"{error.type}: {line[:LONGEST]}" if line else error.type
    return f"{said} (after {error.after[:LONGEST]})" if error.after else said


def _tells_more(found: Solution, than: Solution) -> bool:
    """Whether no gradient is summed any more; else, of two alike, whether more sizes are free.

    And not because fewer rounds are made: none of them reads anything.
    """
    if bool(found.ran.summed) is not bool(than.ran.summed):
        return not found.ran.summed
    state, other = found.state, than.state
    return len(state.symbols()) > len(other.symbols()) and idle_counts(state) <= idle_counts(other)


def _rank(ran: Ran) -> int:
    """How far a call came."""
    return ran.finite + 2 * ran.connected + (ran.backward is None) + ran.is_whole


def _refused_before(fallback: Solution | None, found: Solution) -> Solution | None:
    """The earlier inputs of the same kinds and ranks, whose backward raised.

    That other sizes get through may mean that backward is wrong for all but these.
    """
    if fallback is None or fallback.ran.backward is None or not fallback.ran.finite:
        return None
    alike = _kinds(fallback.state) == _kinds(found.state)
    return fallback if alike and "invalid gradient" not in fallback.ran.backward.message else None


def _kinds(state: State) -> list[tuple[Kind, int]]:
    return [(a.guess.kind, len(a.dims)) for a in state.arguments]


def _is_of_other_sizes(state: State, found: State) -> bool:
    """Whether it is what was found at other sizes, and not of sizes that only have to agree.

    A bias of one row is another shape than one that is broadcast: its sizes are not what differs.
    """
    if _kinds(state) != _kinds(found):
        return False
    pairs = zip(found.arguments, map(state.shape, state.arguments), strict=True)
    dims = [(dim, n) for a, shape in pairs for dim, n in zip(a.dims, shape, strict=True)]
    sizes = {**found.values, **{dim.symbol: n for dim, n in dims if dim.is_plain}}
    return all(dim.value(sizes) == n for dim, n in dims)


def _in_other_domains(state: State) -> Iterator[State]:
    """The same with all free values in one domain after another, then with one tensor beyond all others."""
    places = [k for k, a in enumerate(state.arguments) if a.is_float and not a.structure]

    def moved(domain: str, span: tuple[float, float] | None, those: Sequence[int]) -> State:
        changed = state
        for place in those:
            argument = replace(changed.arguments[place], domain=domain, span=span)
            changed = changed.with_argument(place, argument)
        return changed

    yield from (moved(domain, None, places) for domain in DOMAINS)
    yield from (moved("real", span, places) for span in (BEYOND_ONE, NEAR_ZERO))
    for place in places if len(places) > 1 else ():
        others = moved("unit", None, [k for k in places if k != place])
        beyond = replace(others.arguments[place], domain="real", span=BEYOND_ONE)
        yield others.with_argument(place, beyond)


def _alternatives(state: State, ran: Ran, parameters: Sequence[str]) -> Iterator[State]:
    """States beside one that forward accepts, and that does not go all the way."""
    if not ran.finite:
        for number, moved in enumerate(_in_other_domains(state)):
            yield moved.dearer(costs.OTHER_DOMAIN + costs.NEXT_DOMAIN * number)
        # Symmetric matrices that are positive definite: roots and logarithms of eigenvalues.
        definite = (replace(a, structure=a.structure.replace("symmetric", "spd")) for a in state.arguments)
        yield replace(state, arguments=tuple(definite)).dearer(costs.OTHER_DOMAIN)
    if ran.backward is None:
        return
    message, everything = ran.backward.message, range(len(state.arguments))
    narrower = unbroadcast(state, message, parameters)
    if narrower is not None:
        yield narrower.dearer(costs.FEWER)
    suspects = suspects_of(state, ran.backward)
    yield from (s.dearer(costs.RETYPE) for s in by_call(state, message, suspects))
    # What is an index there may be an entry of what is, or have another name.
    places = dict.fromkeys((*suspects, *everything))
    yield from (s.dearer(costs.RETYPE) for s in by_type(state, message, [*places]))
    if names_rank(message):
        # What has too many dimensions may be an index made of an input that the line does not name.
        yield from (
            replace(s, cost=costs.SAID * (1 + k)) for k, s in enumerate(by_rank(state, message, everything))
        )
