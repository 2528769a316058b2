"""The user's own modules, built and run once: what their forward passes to the target is no guess of ours."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from gradverify.model import Parameter, Target
from gradverify.verifier import guard
from gradverify.verifier.collect.inference.call_sites import Passed
from gradverify.verifier.collect.inference.candidates import Guess, Kind, combinations, guesses
from gradverify.verifier.collect.inference.evidence import gather
from gradverify.verifier.collect.inference.passing import Call, calls_noted
from gradverify.verifier.collect.inference.search import Solution, search
from gradverify.verifier.collect.inference.shapes import State, states
from gradverify.verifier.collect.inference.trial import Caller
from gradverify.verifier.collect.inference.uses import Facts
from gradverify.verifier.inputs.arguments import seeded

MOST_MODULES = 4
"""Module classes that are tried for one target."""

MOST_TRIES = 60
"""Calls of one module: it is a way to better inputs, and not the only one."""

MOST_ARGUMENTS = 8
"""Arguments without a default that a module may ask for, of its constructor and its forward together."""

MOST_COMBINATIONS = 20
"""Combinations of guesses that the search for a module's arguments starts from."""

A_SIZE_FIRST = 0.5
"""What any other argument of a constructor costs beside a size."""


@dataclass(frozen=True)
class Observed:
    """A call of the target by one of the user's modules."""

    call: Call
    defaults: frozenset[Any]
    """Plain values that stand in the source: defaults of the module, real numbers and words of the file."""
    invented: bool
    """A plain argument of the module had to be made up."""


def observed_calls(value: Any, target: Target, module: ModuleType | None) -> Iterator[Observed]:  # noqa: ANN401
    """Calls of a Function or operator that modules beside it make, at sizes that all differ."""
    tree = _parsed(module)
    # Any file holds small integers: one that equals a size is a size sooner than such a constant.
    constants = {
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) in {float, str}
    }
    for owner in _modules_that_reach(target, module, tree):
        parameters = _needed(owner)
        if parameters is None:
            continue
        built = _Built(owner, len(parameters[0]))
        solution = _accepted(owner, built, parameters)
        if solution is None:
            continue
        noted = calls_noted(value, partial(guard.call, built, *solution.ran.arguments))
        literals = [a.guess for a in solution.state.arguments if a.guess.kind is Kind.LITERAL]
        for call in noted:
            yield Observed(call, _defaults(owner) | constants, any(not g.found for g in literals))


class _Built:
    """A module class as one function: the constructor's arguments, then those of forward."""

    def __init__(self, owner: type[nn.Module], of_constructor: int) -> None:
        self._owner, self._count = owner, of_constructor

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        model = seeded(0, self._owner, *arguments[: self._count]).to(torch.float64)
        return model(*arguments[self._count :])


def _parsed(module: ModuleType | None) -> ast.Module:
    """The source of a file; of nothing where it cannot be had."""
    try:
        return ast.parse(inspect.getsource(module) if module is not None else "")
    except (OSError, TypeError, SyntaxError, ValueError):
        return ast.Module([], [])


def _modules_that_reach(target: Target, module: ModuleType | None, tree: ast.Module) -> list[type[nn.Module]]:
    """Module classes of the file whose source uses the target, directly or through its other names."""
    reached = {target.attribute.rpartition(".")[2]}
    users = [(_names(node), _used(node)) for node in tree.body]
    for _ in users:  # as often as a chain of names can be long
        reached |= {name for names, used in users if used & reached for name in names}
    own = [v for n, v in vars(module).items() if n in reached and _is_own_module(v, module)]
    return sorted(dict.fromkeys(own), key=_line)[:MOST_MODULES]


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {t.id for t in targets if isinstance(t, ast.Name)}


def _used(node: ast.stmt) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _is_own_module(value: Any, module: ModuleType | None) -> bool:  # noqa: ANN401
    is_module = isinstance(value, type) and issubclass(value, nn.Module)
    return is_module and value.__module__ == getattr(module, "__name__", "")


def _line(owner: type) -> int:
    try:
        return inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return 0


_Needed = tuple[list[Parameter], list[Parameter]]
"""What has to be given to the constructor, and to forward."""


def _needed(owner: type[nn.Module]) -> _Needed | None:
    """The parameters without a default; None where they cannot be told, or are too many."""
    if owner.forward is nn.Module.forward:
        return None
    try:
        given = [inspect.signature(owner.__init__), inspect.signature(owner.forward)]
    except (TypeError, ValueError):
        return None
    found: _Needed = ([], [])
    for signature, needed in zip(given, found, strict=True):
        for p in list(signature.parameters.values())[1:]:
            if p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} or p.default is not p.empty:
                continue
            if p.kind is p.KEYWORD_ONLY:
                return None
            text = "" if p.annotation is p.empty else inspect.formatannotation(p.annotation)
            needed.append(Parameter(p.name, annotation=text))
    return found if len(found[0]) + len(found[1]) <= MOST_ARGUMENTS else None


def _defaults(owner: type[nn.Module]) -> frozenset[Any]:
    """Plain values among the defaults of constructor and forward."""
    every = [inspect.signature(f).parameters.values() for f in (owner.__init__, owner.forward)]
    values = [p.default for parameters in every for p in parameters]
    return frozenset(v for v in values if isinstance(v, bool | int | float | str))


def _accepted(owner: type[nn.Module], built: _Built, parameters: _Needed) -> Solution | None:
    """Arguments that the module accepts, its forward and its backward."""
    constructor, forward = parameters
    names = [*(f"init.{p.name}" for p in constructor), *(p.name for p in forward)]
    facts = [*_facts(owner.__init__, constructor), *_facts(owner.forward, forward)]
    each = [
        _for_constructor(_guessed(p, f)) if place < len(constructor) else _guessed(p, f)
        for place, (p, f) in enumerate(zip([*constructor, *forward], facts, strict=True))
    ]

    def started() -> Iterator[State]:
        for combination in combinations(each, MOST_COMBINATIONS):
            yield from states(names, combination, [f.rank for f in facts], [f.least_rank for f in facts])

    caller = Caller(built, {}, {})
    found = search(caller, started(), names, MOST_TRIES)
    return found if isinstance(found, Solution) else None


def _facts(method: Callable[..., Any], parameters: Sequence[Parameter]) -> list[Facts]:
    order = list(inspect.signature(method).parameters)[1:]
    evidence = gather(order, method, extra_parameters=1)
    return [evidence.facts[p.name] for p in parameters]


def _guessed(parameter: Parameter, facts: Facts) -> list[Guess]:
    found = guesses(parameter, facts, Passed(), ...)
    return [g for g in found if g.kind is not Kind.CALLABLE]


def _for_constructor(found: Sequence[Guess]) -> list[Guess]:
    """A constructor asks for sizes before anything else, and for no tensors."""
    scalars = [g for g in found if g.kind in {Kind.LITERAL, Kind.SIZE}]
    return sorted(scalars, key=lambda g: (g.kind is not Kind.SIZE) * A_SIZE_FIRST + g.cost)
