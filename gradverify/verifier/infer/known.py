"""What is known of a target before anything is tried, and the states that the search starts from."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from gradverify.model import Parameter, Target, TargetKind, with_parts
from gradverify.source import definition, every_parameter
from gradverify.verifier.infer import costs
from gradverify.verifier.infer.call_sites import Passed, call_sites
from gradverify.verifier.infer.evidence import gather, shapes_told
from gradverify.verifier.infer.facts import Evidence, Facts
from gradverify.verifier.infer.guesses import Habit, guesses, habits_of
from gradverify.verifier.infer.starting import started
from gradverify.verifier.infer.state import Guess, Kind, Waiting
from gradverify.verifier.infer.trial import Caller
from gradverify.verifier.inputs.arguments import BLOCK, STAND_IN, Block, StandIn
from gradverify.verifier.targets.discover import backward_name, defaults_of, uses_setup_context
from gradverify.verifier.targets.operators import operator_of, with_keywords

FUNCTIONS = {"torch.tanh": torch.tanh, "torch.sin": torch.sin}
"""What stands for a function of one tensor."""

OTHERS = {
    STAND_IN: StandIn,
    BLOCK: Block,
    "torch.nn.Tanh": torch.nn.Tanh,
    "torch.float64": torch.float64,
}
"""What stands for functions of any arguments, for a module that keeps shapes, for a dtype."""

MOST_FUNCTIONS = 4
"""Functions that are tried for one parameter: torch's own first, since they do what they are named after."""


@dataclass(frozen=True)
class Known:
    """What the source, the schema and the call sites say of a target, and how it is called."""

    parameters: tuple[Parameter, ...]
    """Those that arguments are to be found for."""
    evidence: Evidence
    passed: Mapping[str, Passed]
    caller: Caller

    def default(self, name: str) -> Any:  # noqa: ANN401
        """The default of a parameter, or the one that its wrapper has for it; `...` for none."""
        own = self.caller.defaults.get(name, ...)
        return self.passed[name].default if own is ... else own

    def facts(self, name: str) -> Facts:
        """What the source says of a parameter."""
        return self.evidence.facts[name]

    def is_annotated(self, name: str) -> bool:
        """Whether its author wrote what it is."""
        return any(p.annotation for p in self.parameters if p.name == name)

    def is_constant(self, name: str) -> bool:
        """Whether a default, a call or the name show a label, a mask, a buffer or a setting."""
        passed, constant = self.passed[name], {*Habit} - {Habit.FLOAT, Habit.LIST, Habit.CALLABLE}
        written = (self.default(name), *passed.literals)
        is_written = any(value is not ... and value is not None for value in written)
        return is_written or passed.is_buffer or passed.is_detached or bool(habits_of(name) & constant)


def known_of(value: Any, target: Target, module: ModuleType | None, device: str) -> Known:  # noqa: ANN401
    """Everything that is known of a live target without calling it."""
    # What is passed by name alone and has a default is left to it.
    every = with_parts(target.parameters)
    parameters = tuple(p for p in every if not (p.keyword_only and p.has_default))
    names = [p.name for p in parameters]
    evidence = _evidence(value, target, names)
    for name, sizes in shapes_told(_documented(value, module, names), names).items():
        evidence.facts[name].is_told(sizes)
    passed = _passed(value, target, module, names)
    for name, of_calls in passed.items():
        evidence.facts[name].kinds |= of_calls.kinds
    unchecked = device != "cpu" or bool(target.compiled)
    function = value if target.kind is TargetKind.FUNCTION else None
    caller = _caller(value, target, module, names)
    caller = replace(caller, function=function, device=device, unchecked=unchecked)
    return Known(parameters, evidence, passed, caller)


def begun(known: Known) -> Iterator[Waiting]:
    """The states to begin with, of the likeliest guesses first."""
    answered = any(f.gradient is not None for f in known.evidence.facts.values())
    each: list[list[Guess]] = []
    for p in known.parameters:
        facts, passed = known.facts(p.name), known.passed[p.name]
        # A default stays one where no call passes it, and backward answers for fewer arguments.
        if p.has_default and answered and facts.gradient is None and not passed.is_given:
            each.append([Guess(Kind.OMITTED)])
            continue
        found = [*_of_module(p, known), *guesses(p, facts, passed, known.default(p.name))]
        each.append(list(_with_paths(found, known.caller, facts)))
    names = [p.name for p in known.parameters]
    yield from started(names, each, known.evidence)


def short_name(module: ModuleType | None) -> str:
    """How a spec beside the module calls it."""
    return getattr(module, "__name__", "").rpartition(".")[2].removeprefix("_gradverify_target_")


def _documented(value: Any, module: ModuleType | None, names: Sequence[str]) -> Iterator[ast.AST]:  # noqa: ANN401
    """Forward, and the functions of the module, those that share most names of parameters with it first."""
    own = definition(getattr(value, "forward", value))
    yield from [own] if own is not None else ()
    several = vars(module).values() if module is not None else ()
    functions = [
        f for f in several if inspect.isfunction(f) and f.__module__ == getattr(module, "__name__", "")
    ]
    bodies = [b for b in map(definition, functions) if b is not None]
    yield from sorted(bodies, key=lambda body: -len({*every_parameter(body)} & {*names}))


def _evidence(value: Any, target: Target, names: Sequence[str]) -> Evidence:  # noqa: ANN401
    operator = operator_of(value)
    if operator is not None:
        return gather(names, operator.implementation, operator.setup_context, operator.backward, 0)
    if target.kind is not TargetKind.FUNCTION:
        return gather(names, value, extra_parameters=0)
    context = value.setup_context if uses_setup_context(value) else None
    return gather(names, value.forward, context, getattr(value, backward_name(value)), int(context is None))


def _passed(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    names: Sequence[str],
) -> Mapping[str, Passed]:
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        source = ""
    operator = operator_of(value)
    if operator is None:
        found = call_sites(source, getattr(value, "__qualname__", ""), names)
    else:
        dotted = f"torch.ops.{operator.name.replace('::', '.')}"
        found = call_sites(source, "", names, frozenset({target.attribute, dotted, f"{dotted}.default"}))
    return {name: found.get(name, Passed()) for name in names}


def _caller(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    names: Sequence[str],
) -> Caller:
    own = {
        f"{short_name(module)}:{name}": f
        for name, f in (vars(module) if module is not None else {}).items()
        if inspect.isfunction(f)
        and f.__module__ == getattr(module, "__name__", "")
        and len(inspect.signature(f).parameters) == 1
    }
    call = value.apply if target.kind is TargetKind.FUNCTION else value
    if target.kind is not TargetKind.FUNCTION:
        call = with_keywords(call, [p for p in target.parameters if p.name in names], names)
    variadic = frozenset(p.name for p in with_parts(target.parameters) if p.variadic)
    return Caller(call, defaults_of(value), {**FUNCTIONS, **own, **OTHERS}, variadic)


def _of_module(parameter: Parameter, known: Known) -> Iterator[Guess]:
    """The parameters of the one argument that is called or is a module, for what `*args` gets beside it."""
    called = [n for n, f in known.evidence.facts.items() if f.kinds & {"callable", "module"}]
    others = known.facts(parameter.name).kinds & {"operands", "cut"}  # what is called gets them, or some
    if parameter.variadic and len(called) == 1 and not others:
        yield Guess(Kind.PARAMETERS, costs.OF_MODULE, path=called[0])


def _with_paths(found: Sequence[Guess], caller: Caller, facts: Facts) -> Iterator[Guess]:
    """Guesses with each callable spelt out."""
    for guess in found:
        if guess.kind is not Kind.CALLABLE:
            yield guess
        elif "module" in facts.kinds:
            yield replace(guess, path="torch.nn.Tanh", made=True)
        elif facts.arity > 1:
            yield replace(guess, path=STAND_IN, made=True)
        else:
            paths = [p for p, f in caller.live.items() if p not in OTHERS and inspect.isroutine(f)]
            for number, path in enumerate(paths[:MOST_FUNCTIONS]):
                yield replace(guess, path=path, cost=guess.cost + 0.1 * number)
