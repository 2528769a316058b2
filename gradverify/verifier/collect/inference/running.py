"""The user's own modules and helper functions, run once: what they pass to the target is no guess of ours."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from gradverify.model import Parameter, Target
from gradverify.verifier import guard
from gradverify.verifier.collect.inference.bounds import with_bounds
from gradverify.verifier.collect.inference.call_sites import Passed
from gradverify.verifier.collect.inference.candidates import Guess, Kind, combinations, guesses
from gradverify.verifier.collect.inference.evidence import gather
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.parsing import KEPT_TREES
from gradverify.verifier.collect.inference.passing import Call, calls_noted
from gradverify.verifier.collect.inference.search import Solution, search
from gradverify.verifier.collect.inference.shapes import Waiting, states
from gradverify.verifier.collect.inference.trial import Caller, stand_ins
from gradverify.verifier.collect.inference.users import (
    helpers_that_reach,
    modules_that_reach,
    parsed_source,
)
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.inputs.arguments import seeded

MOST_TRIES = 60
"""Calls of one user: it is a way to better inputs, and not the only one."""

MOST_ARGUMENTS = 8
"""Arguments without a default that a user may ask for: of a module, its constructor and forward together."""

MOST_COMBINATIONS = 20
"""Combinations of guesses that the search for a user's arguments starts from."""

A_SIZE_FIRST = 0.5
"""What an invented integer costs a constructor beside a size: those would often be equal."""


@dataclass(frozen=True)
class Observed:
    """A call of the target by one of the user's modules or functions."""

    call: Call
    given: tuple[Tensor, ...]
    """The tensors that were made up for the user: others in the call it has computed, or holds."""
    defaults: frozenset[Any]
    """Plain values that stand in the source: defaults of the user, real numbers and words of the file."""
    invented: bool
    """A plain argument of the user had to be made up."""


@dataclass(frozen=True)
class _User:
    """A module class, or a function, as one function of its arguments without a default."""

    run: Callable[..., Any]
    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    facts: tuple[Facts, ...]
    of_constructor: int
    """How many of them the constructor of a module takes."""
    defaults: frozenset[Any]


def observed_calls(value: Any, target: Target, module: ModuleType | None) -> Iterator[Observed]:  # noqa: ANN401
    """Calls of a Function or operator that modules and functions beside it make, at sizes that all differ."""
    tree = parsed_source(module)
    # Any file holds small integers: one that equals a size is a size sooner than such a constant.
    constants = _constants(tree)
    for user in _users(target, module, tree):
        solution = _accepted(user)
        if solution is None:
            continue
        arguments = solution.ran.arguments
        noted = calls_noted(value, partial(guard.call, user.run, *arguments))
        plain = {Kind.LITERAL, Kind.SIZE}
        literals = [a.guess for a in solution.state.arguments if a.guess.kind in plain]
        for call in noted:
            yield Observed(
                call,
                tuple(_tensors(arguments)),
                user.defaults | constants,
                any(not g.found for g in literals),
            )


@lru_cache(maxsize=KEPT_TREES)
def _constants(tree: ast.Module) -> frozenset[float | str]:
    constants = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    return frozenset(value for value in constants if isinstance(value, float | str))


def _users(target: Target, module: ModuleType | None, tree: ast.Module) -> Iterator[_User]:
    found: list[_User | None] = [_module(owner) for owner in modules_that_reach(target, module, tree)]
    found += [_helper(function) for function in helpers_that_reach(target, module, tree)]
    yield from (user for user in found if user is not None and len(user.parameters) <= MOST_ARGUMENTS)


def _tensors(arguments: Sequence[Any]) -> Iterator[Tensor]:
    for value in arguments:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class _Built:
    """A module class as one function: the constructor's arguments, then those of forward."""

    def __init__(self, owner: type[nn.Module], of_constructor: int) -> None:
        self._owner, self._count = owner, of_constructor

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        model = seeded(0, self._owner, *arguments[: self._count]).to(torch.float64)
        return model(*arguments[self._count :])


def _module(owner: type[nn.Module]) -> _User | None:
    """A module class; None where its parameters cannot be told."""
    if owner.forward is nn.Module.forward:
        return None
    signatures = [_signature(f) for f in (owner.__init__, owner.forward)]
    if any(s is None or any(_is_required_by_name(p) for p in s.values()) for s in signatures):
        return None
    constructor, forward = (_needed(list((s or {}).values())[1:]) for s in signatures)
    facts = [*_facts(owner.__init__, constructor, 1), *_facts(owner.forward, forward, 1)]
    return _User(
        _Built(owner, len(constructor)),
        (*(f"init.{p.name}" for p in constructor), *(p.name for p in forward)),
        (*constructor, *forward),
        tuple(facts),
        len(constructor),
        _plain_defaults(p for s in signatures for p in (s or {}).values()),
    )


def _helper(function: FunctionType) -> _User | None:
    """A function; None where its parameters cannot be told, or all have a default."""
    signature = _signature(function)
    needed = _needed(list((signature or {}).values()))
    if signature is None or not needed:
        return None
    return _User(
        with_keywords(function, needed, [p.name for p in needed]),
        tuple(p.name for p in needed),
        tuple(needed),
        tuple(_facts(function, needed, 0)),
        0,
        _plain_defaults(signature.values()),
    )


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _is_required_by_name(p: inspect.Parameter) -> bool:
    return p.kind is p.KEYWORD_ONLY and p.default is p.empty


def _needed(parameters: Sequence[inspect.Parameter]) -> list[Parameter]:
    """The parameters without a default."""
    needed = []
    for p in parameters:
        if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL} and p.default is p.empty:
            text = "" if p.annotation is p.empty else inspect.formatannotation(p.annotation)
            needed.append(Parameter(p.name, annotation=text, keyword_only=p.kind is p.KEYWORD_ONLY))
    return needed


def _plain_defaults(parameters: Iterator[inspect.Parameter] | Any) -> frozenset[Any]:  # noqa: ANN401
    return frozenset(p.default for p in parameters if isinstance(p.default, bool | int | float | str))


def _facts(function: Callable[..., Any], parameters: Sequence[Parameter], before: int) -> list[Facts]:
    """What the source does with each; so many stand `before` them: `self`, or none."""
    order = list(inspect.signature(function).parameters)[before:]
    evidence = gather(order, function, extra_parameters=before)
    return [evidence.facts[p.name] for p in parameters]


def _accepted(user: _User) -> Solution | None:
    """Arguments that the user accepts, in what it computes and in the gradient of that."""
    facts = user.facts
    each = [
        _for_constructor(_guessed(p, f)) if place < user.of_constructor else _guessed(p, f)
        for place, (p, f) in enumerate(zip(user.parameters, facts, strict=True))
    ]
    each = with_bounds(user.names, each)

    def started() -> Iterator[Waiting]:
        for combination in combinations(each, MOST_COMBINATIONS):
            ranks = [f.rank for f in facts], [f.least_rank for f in facts]
            yield from states(user.names, combination, *ranks)

    found = search(Caller(user.run, {}, stand_ins()), started(), user.names, MOST_TRIES)
    return found if isinstance(found, Solution) else None


def _guessed(parameter: Parameter, facts: Facts) -> list[Guess]:
    found = guesses(parameter, facts, Passed(), ...)
    spelt = (replace(g, path="torch.tanh") if g.kind is Kind.CALLABLE else g for g in found)
    return [g for g in spelt if g.kind is not Kind.OBJECT]


def _for_constructor(found: Sequence[Guess]) -> list[Guess]:
    """A constructor asks for sizes before any invented integer, and for no tensors."""
    scalars = (g for g in found if g.kind in {Kind.LITERAL, Kind.SIZE})
    dear = (replace(g, cost=g.cost + A_SIZE_FIRST) if _is_invented_count(g) else g for g in scalars)
    return sorted(dear, key=lambda g: g.cost)


def _is_invented_count(guess: Guess) -> bool:
    return guess.kind is Kind.LITERAL and not guess.found and type(guess.choices[0]) is int
