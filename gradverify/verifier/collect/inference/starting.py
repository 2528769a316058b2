"""What is known of a target before anything is tried, and the states that the search starts from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

from gradverify.model import Parameter, Target, TargetKind
from gradverify.verifier.collect.discover import backward_name, defaults_of, uses_setup_context
from gradverify.verifier.collect.inference.bounds import with_bounds
from gradverify.verifier.collect.inference.call_sites import Passed, call_sites
from gradverify.verifier.collect.inference.candidates import Guess, Kind, combinations, guesses
from gradverify.verifier.collect.inference.compressed import compressed
from gradverify.verifier.collect.inference.elsewhere import trees_elsewhere
from gradverify.verifier.collect.inference.evidence import Evidence, gather
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.objects import Found, Names, objects_of
from gradverify.verifier.collect.inference.running import observed_calls
from gradverify.verifier.collect.inference.shapes import Argument, State, Waiting, states, vectors_apart
from gradverify.verifier.collect.inference.stated import state_of
from gradverify.verifier.collect.inference.trial import Caller, stand_ins
from gradverify.verifier.collect.inference.users import names_that_reach, parsed_source
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.collect.operators import operator_of
from gradverify.verifier.inputs.stand_ins import MADE

MOST_COMBINATIONS = 100
"""Combinations of guesses that a search starts from."""

AS_WRITTEN = 0.6
"""What is taken off the cost of inputs with the dimensions that the author writes of."""

MANY_OPTIONAL, BARE = 4, 0.1
"""From how many arguments that may be None they are tried as None together, and what that costs beside
tensors for all of them."""


@dataclass(frozen=True)
class Known:
    """What the source, the schema and the call sites say of a target, and how it is called."""

    parameters: tuple[Parameter, ...]
    """Those that arguments are to be found for."""
    evidence: Evidence
    passed: Mapping[str, Passed]
    caller: Caller
    objects: Mapping[str, tuple[Found, ...]]
    """Objects of the module that a parameter may be."""


def known_of(value: Any, target: Target, module: ModuleType | None) -> Known:  # noqa: ANN401
    """Everything that is known of a live target without calling it."""
    parameters = _parameters(target)
    names = [p.name for p in parameters]
    evidence = _evidence(value, target, parameters)
    objects = objects_of(parameters, evidence.facts, module, short_name(module))
    passed = _passed(value, target, module, names)
    for name, of_calls in passed.items():
        evidence.facts[name].kinds |= of_calls.kinds
    return Known(
        parameters,
        evidence,
        passed,
        _caller(value, target, module, names, objects),
        objects,
    )


def observed(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    known: Known,
) -> tuple[list[State], Known]:
    """What the user's own code passes to the target, each kind of call once; and what is known with it."""
    names = Names(module, short_name(module))
    found: dict[tuple[object, ...], State] = {}
    for one in observed_calls(value, target, module) if module is not None else ():
        state = state_of(one, known.parameters, names)
        if state is not None:
            stated = tuple(_as_written(a, known.passed[a.name]) for a in state.arguments)
            found.setdefault(
                state.key(), replace(state, arguments=stated, observed=True, cuts=known.evidence.cuts)
            )
    live = {**known.caller.live, **names.live}
    return list(found.values()), replace(known, caller=replace(known.caller, live=live))


def _as_written(argument: Argument, passed: Passed) -> Argument:
    """A literal that the source passes there is none of ours, whatever was made up around it."""
    guess = argument.guess
    written = guess.kind is Kind.LITERAL and guess.choices[0] in passed.literals
    return replace(argument, guess=replace(guess, found=True)) if written else argument


def begun(known: Known) -> Iterator[State | Waiting]:
    """The states to begin with, of the likeliest guesses first."""
    caller, evidence = known.caller, known.evidence
    each = []
    for p in known.parameters:
        passed = known.passed[p.name]
        if _is_left_out(p, evidence, passed):
            each.append([Guess(Kind.OMITTED, 0.0)])
        else:
            found = guesses(p, evidence.facts[p.name], passed, caller.defaults.get(p.name, ...))
            each.append(
                [*_configured(known.objects[p.name]), *_with_paths(found, caller, evidence.facts[p.name])]
            )
    each = with_bounds([p.name for p in known.parameters], each)
    yield from _started(known.parameters, each, evidence)


def _parameters(target: Target) -> tuple[Parameter, ...]:
    """Without those that are passed by name alone and have a default: it is left to them."""
    return tuple(p for p in target.parameters if not (p.keyword_only and p.has_default))


def _is_left_out(parameter: Parameter, evidence: Evidence, passed: Passed) -> bool:
    """Whether a default stays one: nobody passes it, and backward answers for fewer arguments.

    torch asks for one gradient for each argument that is given.
    """
    known = any(f.gradient is not None for f in evidence.facts.values())
    unanswered = evidence.facts[parameter.name].gradient is None
    return parameter.has_default and known and unanswered and not passed.is_given


def _evidence(value: Any, target: Target, parameters: Sequence[Parameter]) -> Evidence:  # noqa: ANN401
    names = [p.name for p in parameters]
    operator = operator_of(value)
    if operator is not None:
        return gather(
            names, operator.implementation, operator.setup_context, operator.backward, extra_parameters=0
        )
    if target.kind is not TargetKind.FUNCTION:
        return gather(names, value, extra_parameters=0)
    context = value.setup_context if uses_setup_context(value) else None
    backward = getattr(value, backward_name(value))
    return gather(names, value.forward, context, backward, extra_parameters=0 if context is not None else 1)


def _passed(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    names: Sequence[str],
) -> Mapping[str, Passed]:
    source = ""
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        source = ""
    operator = operator_of(value)
    if operator is None:
        others = trees_elsewhere(module, names_that_reach(target, parsed_source(module)))
        found = call_sites(source, getattr(value, "__name__", ""), names, others=others)
    else:
        dotted = f"torch.ops.{operator.name.replace('::', '.')}"
        found = call_sites(
            source, "", names, direct=frozenset({target.attribute, dotted, f"{dotted}.default"})
        )
    return {name: found.get(name, Passed()) for name in names}


def _caller(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    names: Sequence[str],
    objects: Mapping[str, tuple[Found, ...]],
) -> Caller:
    own = vars(module) if module is not None else {}
    live: dict[str, Callable[..., Any]] = {
        f"{short_name(module)}:{name}": f
        for name, f in own.items()
        if inspect.isfunction(f) and f.__module__ == getattr(module, "__name__", "") and _has_one_parameter(f)
    }
    live |= stand_ins()
    live |= {o.path: attrgetter(o.path.removeprefix("torch."))(torch) for o in _OBJECTS}
    live |= {one.path: one.value for several in objects.values() for one in several}
    call = value.apply if target.kind is TargetKind.FUNCTION else value
    if target.kind is not TargetKind.FUNCTION:
        call = with_keywords(call, [p for p in target.parameters if p.name in names], names)
    variadic = frozenset(p.name for p in target.parameters if p.variadic)
    return Caller(call, defaults_of(value), live, variadic)


def short_name(module: ModuleType | None) -> str:
    """How a spec beside the module calls it."""
    return getattr(module, "__name__", "").rpartition(".")[2].removeprefix("_gradverify_target_")


def _has_one_parameter(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) == 1


_OBJECTS = (
    Guess(Kind.CALLABLE, 0.0, found=False, path="torch.nn.Tanh", made=True),
    Guess(Kind.CALLABLE, 0.0, found=False, path="torch.mul"),
    Guess(Kind.CALLABLE, 0.0, found=False, path="torch.addcmul"),
    Guess(Kind.OBJECT, 0.0, found=False, path="torch.float64"),
)
"""What stands for a module that keeps the shape of what it gets, for functions of two and of three arguments,
and for a dtype."""


def _configured(objects: Sequence[Found]) -> Iterator[Guess]:
    for number, one in enumerate(objects):
        cost = 0.1 * number + 0.3 * (not one.annotated)
        yield Guess(
            Kind.OBJECT,
            cost,
            found=one.annotated and not one.init,
            path=one.path,
            made=one.made,
            init=one.init,
        )


def _with_paths(found: Sequence[Guess], caller: Caller, facts: Facts) -> list[Guess]:
    """Guesses with each callable spelt out: torch's own first, since they do what they are named after."""
    kept: list[Guess] = []
    for guess in found:
        if guess.kind is Kind.CALLABLE and (facts.arity in {2, 3} or "module" in facts.kinds):
            place = 0 if "module" in facts.kinds else facts.arity - 1
            kept.append(replace(_OBJECTS[place], cost=guess.cost))
        elif guess.kind is Kind.CALLABLE:
            paths = sorted(
                (p for p in caller.live if _is_called(p, caller)), key=lambda p: not p.startswith("torch.")
            )
            kept += [replace(guess, path=p, cost=guess.cost + k / 10) for k, p in enumerate(paths[:4])]
        else:
            kept.append(guess)
    return kept


def _is_called(path: str, caller: Caller) -> bool:
    """Whether a path names a function of one argument."""
    others = {o.path for o in _OBJECTS} | {MADE}
    return path not in others and inspect.isroutine(caller.live[path])


def _bare(each: Sequence[Sequence[Guess]]) -> Iterator[tuple[Guess, ...]]:
    """The likeliest guesses, with nothing for each of many arguments that may be None.

    What code asks for all the same is put in where it refuses: that takes fewer calls than to find out which
    of ten tensors go together, and which of them are none.
    """
    nothing = [next((g for g in several if g.choices == (None,)), None) for several in each]
    left_out = [k for k, g in enumerate(nothing) if g is not None and g != each[k][0]]
    if len(left_out) < MANY_OPTIONAL:
        return
    yield tuple(
        replace(none, cost=several[0].cost + BARE / len(left_out))
        if none is not None and k in left_out
        else several[0]
        for k, (none, several) in enumerate(zip(nothing, each, strict=True))
    )


def _started(
    parameters: Sequence[Parameter], each: Sequence[Sequence[Guess]], evidence: Evidence
) -> Iterator[State | Waiting]:
    names = [p.name for p in parameters]
    facts = [evidence.facts[name] for name in names]
    for combination in (*combinations(each, MOST_COMBINATIONS), *_bare(each)):
        ranks, least = [f.rank for f in facts], [f.least_rank for f in facts]
        yield from compressed(names, combination, evidence.cuts)
        likely = [r if r is not None else evidence.likely.get(n) for n, r in zip(names, ranks, strict=True)]
        if likely != ranks:
            spoken_of = (
                *states(names, combination, likely, least, evidence.cuts),
                *vectors_apart(names, combination, likely, evidence.cuts),
            )
            yield from (replace(s, cost=s.cost - AS_WRITTEN) for s in spoken_of)
        yield from states(names, combination, ranks, least, evidence.cuts)
