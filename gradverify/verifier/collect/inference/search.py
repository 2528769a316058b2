"""The search: the cheapest state first, further ones from what its error says, a bounded number of calls."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gradverify.deduced import Attempt
from gradverify.model import Nested, RaisedError
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.describing import answer_of, described
from gradverify.verifier.collect.inference.held import held_at
from gradverify.verifier.collect.inference.kinds import by_call
from gradverify.verifier.collect.inference.literals import by_literal
from gradverify.verifier.collect.inference.ranks import by_rank, lower_ranks, names_rank
from gradverify.verifier.collect.inference.refused_gradients import (
    given_gradients,
    refused_gradient,
    unbroadcast,
)
from gradverify.verifier.collect.inference.relaxed import (
    begun_again,
    deepest,
    evened,
    idle_counts,
    is_by_chance,
    uneven_cuts,
)
from gradverify.verifier.collect.inference.repairs import repairs, suspects_of
from gradverify.verifier.collect.inference.shapes import State, Waiting
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt
from gradverify.verifier.lacking import lacking

MOST_TRIES = 400
"""Calls of forward that a search may make."""

MORE_TRIES = 60
"""Calls after one that forward accepts and backward refuses, for inputs that both accept."""

MORE_IF_CHANCE = 100
"""Calls after one that hides mistakes: with square tensors, unequal parts, a count of one."""

MORE_IF_OUTER = 12
"""Calls after one whose output has more dimensions than any input: one with too many may be broadcast."""

MOST_TELLING = 20_000
"""Entries of the Jacobian of inputs with more sizes of their own: they are verified at several of each."""

KEPT_ATTEMPTS = 5
"""Attempts that are told where no inputs are found."""

DOMAINS = ("positive", "unit")
"""Tried where forward gives NaN or infinity: logarithms and roots, then inverse sines and cross entropies."""

DOMAIN_COST = 0.2


SAID = 0.01
"""What it costs that inputs have the dimensions which backward names: little beside what waits."""


@dataclass(frozen=True)
class Solution:
    """Inputs that forward accepts."""

    state: State
    ran: Ran
    tries: int
    reshaped: str = ""
    """An input of another shape got through as well, but then hardly anything was left to be wrong."""


@dataclass(frozen=True)
class NoSolution:
    """Every attempt failed; the first ones, and the cheapest state for a skeleton."""

    attempts: tuple[Attempt, ...]
    tries: int
    likeliest: State | None = None


@dataclass
class _Queue:
    """States to try, cheapest first, none twice."""

    heap: list[tuple[float, int, State | Waiting]] = field(default_factory=list)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    pushed: int = 0

    def push(self, state: State | Waiting) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (state.cost, self.pushed, state))

    def push_all(self, states: Iterable[State | Waiting]) -> None:
        for state in states:
            self.push(state)

    def pop(self) -> State | None:
        while self.heap:
            found = heapq.heappop(self.heap)[2]
            state = found.state if isinstance(found, Waiting) else found
            key = state.key()
            if key not in self.seen:
                self.seen.add(key)
                return state
        return None


def search(
    caller: Caller,
    started: Iterable[State | Waiting],
    parameters: Sequence[str],
    most: int = MOST_TRIES,
    *,
    broadcast: bool = False,
) -> Solution | NoSolution:
    """Look for inputs that forward and backward accept; those that forward alone accepts, failing that.

    With `broadcast`, shapes that do not go together may be a tensor's and a number's. Among all else that
    they may be this finds what hides mistakes, so it is for the second search, when the first found nothing.
    """
    running = _Search(caller, parameters, most, broadcast)
    running.queue.push_all(started)
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
        """The inputs found, or those that an earlier refusal speaks for."""
        return self.doubting(found) or _refused_before(fallback, found) or found

    def doubting(self, found: Solution) -> Solution | None:
        """The inputs first refused, where those found may be the only ones that hide it; else None."""
        tensors = [a for a in found.state.arguments if a.is_tensor]
        nothing_left = bool(self.claimed) and not any(a.dims for a in tensors)
        return self.first if self.contradicted or nothing_left else None


@dataclass
class _Search:
    """One search, and the best that it has come across."""

    caller: Caller
    parameters: Sequence[str]
    most: int
    broadcast: bool = False
    tries: int = 0
    queue: _Queue = field(default_factory=_Queue)
    refusals: _Refusals = field(default_factory=_Refusals)
    attempts: list[Attempt] = field(default_factory=list)
    likeliest: State | None = None
    fallback: Solution | None = None
    """Forward accepts it."""
    unequal: Solution | None = None
    """Forward accepts it and backward does not, but it cuts a tensor into unequal parts."""
    by_chance: Solution | None = None
    """Both accept it, and it hides mistakes."""

    def run(self) -> Solution | NoSolution:
        while self.tries < self.most and (state := self.queue.pop()) is not None:
            self.tries += 1
            self.likeliest = self.likeliest or state
            result = attempt(self.caller, state)
            if isinstance(result, RaisedError):
                if len(self.attempts) < KEPT_ATTEMPTS:
                    self.attempts.append(Attempt(described(state), answer_of(result), lacking(result)))
                self.queue.push_all(repairs(state, result, broadcast=self.broadcast))
                continue
            tried, cuts = Solution(state, result, self.tries), uneven_cuts(self.caller, state)
            self.queue.push_all(evened(state, cuts))
            if not is_whole(result) or _is_outer(state, result):
                self._accepted_in_part(tried, uneven=bool(cuts))
            elif self._is_telling(tried, uneven=bool(cuts)):
                return self.refusals.settled(tried, self.fallback)
        if self.by_chance is not None:
            return replace(self.refusals.settled(self.by_chance, self.fallback), tries=self.tries)
        best = self.fallback or self.unequal
        if best is not None:
            return replace(best, tries=self.tries)
        return NoSolution(tuple(self.attempts), self.tries, self.likeliest)

    def _is_telling(self, found: Solution, *, uneven: bool) -> bool:
        """Whether mistakes show at inputs that both accept; those that hide some are kept beside."""
        before = self.by_chance
        is_deep = before is None or deepest(found.state) >= deepest(before.state)
        if not uneven and not is_by_chance(found.state):
            return is_deep
        if before is None:
            self.most = min(self.most, self.tries + MORE_IF_CHANCE)
            self.queue.push_all(begun_again(found.state))
        more = not uneven and is_deep and found.ran.jacobian <= MOST_TELLING
        if before is None or (more and _tells_more(found.state, before.state)):
            self.by_chance = found
        return False

    def _accepted_in_part(self, tried: Solution, *, uneven: bool) -> None:
        """Take in inputs that did not go all the way, and go on from them."""
        if uneven and self.unequal is None and _is_refused(tried.ran):
            self.unequal = tried
            return
        self.refusals.note(tried, self.parameters)
        if self.fallback is None or _rank(tried.ran) > _rank(self.fallback.ran):
            self.fallback = tried
            more = MORE_IF_OUTER if is_whole(tried.ran) else MORE_TRIES
            self.most = min(self.most, self.tries + more)
        self.queue.push_all(_alternatives(tried.state, tried.ran, self.parameters))


def _tells_more(state: State, than: State) -> bool:
    """Whether more sizes are free, and not because fewer rounds are made: none of them reads anything."""
    return len(state.symbols()) > len(than.symbols()) and idle_counts(state) <= idle_counts(than)


def is_whole(ran: Ran) -> bool:
    """Whether forward and backward accepted the inputs, and something flowed back."""
    gradients = ran.gradients or {}
    return (
        ran.finite
        and ran.connected
        and ran.backward is None
        and any(g is not None for g in gradients.values())
    )


def _is_outer(state: State, ran: Ran) -> bool:
    """Whether an output has more dimensions than any of several inputs."""
    given = [len(a.dims) for a in state.arguments if a.is_tensor]
    ranks = [o.dim() for o in ran.outputs]
    return len(given) > 1 and max(given) > 1 and max(ranks, default=0) > max(given)


def _is_refused(ran: Ran) -> bool:
    """Whether backward raised where forward gave numbers."""
    return ran.finite and ran.backward is not None


def _rank(ran: Ran) -> int:
    """How far a call came."""
    return ran.finite + 2 * ran.connected + (ran.backward is None) + is_whole(ran)


def _refused_before(fallback: Solution | None, found: Solution) -> Solution | None:
    """The earlier inputs of the same kinds and ranks, whose backward raised.

    That other sizes get through may mean that backward is wrong for all but these.
    """
    if fallback is None or fallback.ran.backward is None or not fallback.ran.finite:
        return None
    if found.state.by_backward:  # the size is written down in backward: it is the one that is meant
        return None
    kinds = [(a.guess.kind, len(a.dims)) for a in fallback.state.arguments]
    same = kinds == [(a.guess.kind, len(a.dims)) for a in found.state.arguments]
    message = fallback.ran.backward.message
    return fallback if same and "invalid gradient" not in message else None


def _alternatives(state: State, ran: Ran, parameters: Sequence[str]) -> Iterator[State]:
    if not ran.finite:
        for number, domain in enumerate(DOMAINS):
            changed = tuple(
                replace(a, domain=domain) if a.guess.kind is Kind.FLOAT and not a.structure else a
                for a in state.arguments
            )
            cost = state.cost + DOMAIN_COST * (1 + number)
            yield replace(state, arguments=changed, cost=cost)
        yield from _definite(state)
        yield from _keeping_all(state)
    if is_whole(ran) or _is_outer(state, ran):
        yield from lower_ranks(state)
    if not is_whole(ran) and ran.backward is not None:
        narrower = unbroadcast(state, ran.backward.message, parameters)
        if narrower is not None:
            yield narrower
        yield from given_gradients(state, ran.backward.message)
        yield from by_literal(state, ran.backward)
        suspects = suspects_of(state, ran.backward)
        yield from by_call(state, ran.backward, suspects)
        if names_rank(ran.backward.message):
            # What has too many dimensions may be an index made of an input that the line does not name.
            reranked = by_rank(state, ran.backward, range(len(state.arguments)))
            yield from (replace(s, cost=SAID * (1 + k)) for k, s in enumerate(reranked))


def definite(caller: Caller, found: Solution) -> Solution:
    """The inputs with symmetric matrices that are positive definite, where both accept these as well."""
    for state in _definite(found.state):
        ran = attempt(caller, state)
        if isinstance(ran, Ran) and is_whole(ran):
            return replace(found, state=state, ran=ran)
    return found


def _definite(state: State) -> Iterator[State]:
    """Symmetric matrices that are positive definite: roots and logarithms of eigenvalues."""
    changed = tuple(replace(a, structure="spd") if a.structure == "symmetric" else a for a in state.arguments)
    if changed != state.arguments:
        yield replace(state, arguments=changed, cost=state.cost + DOMAIN_COST)


def _keeping_all(state: State) -> Iterator[State]:
    """Masks that leave nothing out: what is left out may be what is not finite."""
    held: State | None = state
    for place, argument in enumerate(state.arguments):
        if held is not None and argument.guess.kind is Kind.BOOL and argument.value is None:
            held = held_at(held, place, _all_true(state.shape(argument)))
    if held is not None and held is not state:
        yield replace(held, cost=state.cost + DOMAIN_COST)


def _all_true(shape: Sequence[int]) -> Nested:
    return (_all_true(shape[1:]),) * shape[0] if shape else True
