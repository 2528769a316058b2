"""A search for inputs in which an object of the author's stands as its parts, and is one in the answer."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from torch import Tensor

from gradverify.model import Parameter, Target, TargetKind
from gradverify.verifier.collect.discover import backward_name, uses_setup_context
from gradverify.verifier.collect.inference.builders import builders, is_own, recipe_of
from gradverify.verifier.collect.inference.call_sites import Passed
from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.composites import (
    KNOWN,
    OF_MODULES,
    Part,
    Route,
    Taken,
    kept_on_context,
    rewritten,
)
from gradverify.verifier.collect.inference.evidence import Evidence, gather, parsed
from gradverify.verifier.collect.inference.folding import (
    LISTED,
    Noting,
    composed,
    recipe_of_part,
    recipe_of_parts,
)
from gradverify.verifier.collect.inference.objects import Found
from gradverify.verifier.collect.inference.search import Solution, is_whole, search
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State, Waiting
from gradverify.verifier.collect.inference.starting import Known, begun
from gradverify.verifier.collect.inference.trial import Ran, attempt
from gradverify.verifier.inputs.stand_ins import MADE, StandIn, made

MOST_TRIES = 150
"""Calls of one search for parts."""

ROUNDS = 6
"""Searches after which further attributes are known that something else than forward reads."""


def taken_apart(value: Any, target: Target, known: Known) -> Solution | None:  # noqa: ANN401
    """Inputs found with every object of the author's as its parts; None where there are none."""
    if target.kind is not TargetKind.FUNCTION:
        return None
    sources = _sources(value)
    taken = _taken(sources, known)
    parts = _parts(sources, known, taken)
    owners = {p.owner for p in parts}
    hollow = {o: "rows" if r else "entries" for o, r in sorted(taken.splatted) if o not in owners}
    hollow |= dict.fromkeys(sorted(taken.listed - owners), "list")
    given = parts or hollow or any(o.path == MADE for several in known.objects.values() for o in several)
    return _searched(sources, known, parts, hollow) if given else None


def put_together(
    value: Any,  # noqa: ANN401
    target: Target,
    known: Known,
    module: ModuleType | None,
) -> Solution | None:
    """Inputs found with objects of the author's classes, whose constructors get what is made up."""
    if target.kind is not TargetKind.FUNCTION:
        return None
    taken = _taken(_sources(value), known)
    objects = dict(known.objects)
    for owner, start, recipe in _recipes(taken, module):
        several = "modules" if taken.tested.get((owner, ())) == "ModuleList" else "list"
        whole = {several: [recipe] * LISTED} if start else recipe
        one = Found(MADE, made, made=True, annotated=False, init=(_json(whole),))
        objects[owner] = (*objects.get(owner, ()), one)
    if objects == known.objects:
        return None
    return taken_apart(value, target, replace(known, objects=objects))


def _recipes(taken: Taken, module: ModuleType | None) -> Iterator[tuple[str, Route, Any]]:
    """(parameter, steps, recipe): of a class that is tested for, or of those that have what is read."""
    own, read = vars(module) if module is not None else {}, taken.prefixes()
    for key in dict.fromkeys((*taken.tested, *read)):
        if key[1] not in {(), ("*",)}:
            continue
        tested = own.get(taken.tested.get(key, ""))
        if isinstance(tested, type) and is_own(tested, module):
            recipe = recipe_of(tested)
            if recipe is not None:
                yield (*key, recipe)
        elif key in read:
            for _, recipe in builders(read[key], module):
                yield (*key, recipe)


def _json(recipe: Any) -> str:  # noqa: ANN401
    return json.dumps(recipe, separators=(",", ":"))


def hollowed(value: Any, target: Target, known: Known) -> Solution | None:  # noqa: ANN401
    """Inputs found with a parameter that is nothing known as an object that only something else reads."""
    if target.kind is not TargetKind.FUNCTION:
        return None
    sources = _sources(value)
    taken = _taken(sources, known)
    parts = _parts(sources, known, taken)
    before = {p.owner for p in parts}
    for name in (p.name for p in known.parameters if _is_unknown(p, known) and p.name not in before):
        found = _searched(sources, known, parts, {name: "attributes"})
        if found is not None:
            return found
    return None


def _is_unknown(parameter: Parameter, known: Known) -> bool:
    """Whether nothing says that a parameter is a tensor, a number, or anything else that is plain."""
    facts = known.evidence.facts[parameter.name]
    plain = facts.kinds & {"tensor", "index", "bool", "int", "dim", "float", "dtype", "flag"}
    annotated = re.search(r"int|float|bool|str|tensor|tuple|list", parameter.annotation.lower())
    return not (
        plain or annotated or facts.gradient or facts.strings or parameter.has_default or parameter.variadic
        or facts.rank is not None
    )  # fmt: skip


def _searched(
    sources: _Sources, known: Known, parts: tuple[Part, ...], hollow: Mapping[str, str]
) -> Solution | None:
    for _ in range(ROUNDS):
        one = _Apart(sources, known, parts, hollow)
        found = search(one.caller, one.started(), [p.name for p in one.parameters], MOST_TRIES)
        if isinstance(found, Solution) and is_whole(found.ran):
            folded = one.folded(found.state)
            ran = attempt(known.caller, folded)
            return Solution(folded, ran, found.tries) if isinstance(ran, Ran) else None
        further = one.missed(parts)
        if not further:
            return None
        parts = further
    return None


@dataclass(frozen=True)
class _Sources:
    """The bodies of a Function, and those themselves."""

    value: Any
    forward: ast.FunctionDef | None
    context: ast.FunctionDef | None
    backward: ast.FunctionDef | None

    @property
    def before(self) -> int:
        """How many parameters of forward stand before the first argument."""
        return 0 if self.context is not None else 1


def _sources(value: Any) -> _Sources:  # noqa: ANN401
    context = parsed(value.setup_context) if uses_setup_context(value) else None
    return _Sources(value, parsed(value.forward), context, parsed(getattr(value, backward_name(value))))


def _taken(sources: _Sources, known: Known) -> Taken:
    """What is read of every parameter that cannot be a tensor with a gradient."""
    taken = Taken([p.name for p in known.parameters])
    forward, facts = sources.forward, known.evidence.facts
    if forward is None:
        return taken
    own = [a.arg for a in (*forward.args.args, *forward.args.kwonlyargs)][sources.before :]
    free = {p.name for p in known.parameters if not p.variadic and facts[p.name].gradient is not True}
    names = {name: name for name in own if name in free and not known.objects.get(name)}
    taken.read(forward, names)
    for name in names.values():
        # What a helper reads of it; forward itself hands it on.
        further = sorted(facts[name].attributes - KNOWN - OF_MODULES)
        taken.routes |= {(name, (f".{attribute}",)): None for attribute in further}
    if sources.backward is not None:
        taken.read(sources.backward, _kept(sources, names))
    return taken


def _kept(sources: _Sources, names: Mapping[str, str]) -> dict[str, str]:
    """By what backward calls the parameters that are kept for it."""
    bodies = [d for d in (sources.forward, sources.context) if d is not None]
    return {k: v for d in bodies for k, v in kept_on_context(d, names)}


def _parts(sources: _Sources, known: Known, taken: Taken) -> tuple[Part, ...]:
    """The parts of every parameter that cannot be anything else."""
    parts, facts = taken.parts(), known.evidence.facts
    unpacked = {p.owner for p in parts if all(q.route[0][0] == "#" for q in parts if q.owner == p.owner)}
    if not unpacked:
        return parts
    found = _evidence(sources, known, parts).facts
    tensors = {p.owner for p in parts if found[p.name].kinds & {"tensor", "index", "callable"}}
    tensors -= {n for n in unpacked if "tensor" in facts[n].kinds}
    return tuple(p for p in parts if p.owner not in unpacked or p.owner in tensors)


def _evidence(sources: _Sources, known: Known, parts: Sequence[Part]) -> Evidence:
    owners = {p.owner for p in parts}
    kept = _kept(sources, {o: o for o in owners})

    def rewriting(definition: ast.FunctionDef, names: Mapping[str, str]) -> ast.FunctionDef:
        known_names = {n: p for n, p in names.items() if p in owners} or kept
        return rewritten(definition, known_names, parts)

    value = sources.value
    return gather(
        [p.name for p in known.parameters],
        value.forward,
        value.setup_context if sources.context is not None else None,
        getattr(value, backward_name(value)),
        sources.before,
        [p.name for p in parts],
        rewriting,
    )


class _Apart:
    """The target as one function of its parameters' parts."""

    def __init__(
        self, sources: _Sources, known: Known, parts: Sequence[Part], hollow: Mapping[str, str]
    ) -> None:
        """`hollow` are parameters that may hold anything: `attributes`, `entries`, `rows`, a `list`."""
        self._known, self._parts, self._hollow = known, tuple(parts), hollow
        self._evidence = _evidence(sources, known, parts)
        self._misses: dict[tuple[str, Route], None] = {}
        self.parameters = tuple(self._flat())
        self.caller = replace(known.caller, call=self._call)

    def _flat(self) -> Iterator[Parameter]:
        for p in self._known.parameters:
            own = [q for q in self._parts if q.owner == p.name]
            if own or p.name not in self._hollow:
                yield from (Parameter(q.name) for q in own) if own else (p,)

    def started(self) -> Iterable[State | Waiting]:
        """States to begin with: the parts are constants."""
        passed = {p.name: self._known.passed.get(p.name, Passed()) for p in self.parameters}
        objects = {p.name: self._known.objects.get(p.name, ()) for p in self.parameters}
        known = Known(self.parameters, self._evidence, passed, self.caller, objects)
        yield from begun(known)

    def _call(self, *given: Any) -> Any:  # noqa: ANN401
        places = {p.name: k for k, p in enumerate(self.parameters)}
        arguments: list[Any] = []
        for p in self._known.parameters:
            own = [q for q in self._parts if q.owner == p.name]
            if own:
                values = {q.route: _constant(given[places[q.name]]) for q in own}
                arguments.append(composed(values, Noting(p.name, (), self._misses)))
            elif p.name in self._hollow:
                noting = Noting(p.name, (), self._misses)
                kind = self._hollow[p.name]
                arguments.append(
                    StandIn(noting=noting) if kind == "attributes" else made(_json(_hollow_recipe(kind)))
                )
            elif p.variadic:
                arguments += given[places[p.name] :]
            else:
                arguments.append(given[places[p.name]])
        return self._known.caller.call(*arguments)

    def missed(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts with what was asked for in vain besides; empty where that is nothing new."""
        known = {(p.owner, p.route) for p in parts}
        names = {p.name for p in parts} | {p.name for p in self._known.parameters}
        further = list(parts)
        for owner, route in self._misses:
            if (owner, route) in known:
                continue
            name = route[-1].strip(".[]")
            while name in names:
                name += "_"
            names.add(name)
            # A part that has parts is no part by itself any more.
            further = [p for p in further if not (p.owner == owner and p.route == route[:-1])]
            further.append(Part(owner, route, name))
        return tuple(further) if len(further) > len(parts) or set(further) != set(parts) else ()

    def folded(self, state: State) -> State:
        """The state with each object in the place of its parts; their sizes are numbers from then on."""
        by_name = {a.name: a for a in state.arguments}
        own = {p.name for p in self._parts}
        symbols = {s for n in own for d in by_name[n].sizes for s in d.symbols}
        for symbol in symbols:
            state = state.substituted(symbol, Dim(plus=state.values[symbol])) or state
        by_name = {a.name: a for a in state.arguments}
        arguments = []
        for p in self._known.parameters:
            parts = {
                q.route: recipe_of_part(by_name[q.name], state) for q in self._parts if q.owner == p.name
            }
            if not parts and p.name not in self._hollow:
                arguments.append(by_name[p.name])
                continue
            whole = recipe_of_parts(parts) if parts else _hollow_recipe(self._hollow[p.name])
            guess = Guess(Kind.OBJECT, 0.0, found=False, path=MADE, made=True, init=(_json(whole),))
            arguments.append(Argument(p.name, guess))
        return replace(state, arguments=tuple(arguments))


def _hollow_recipe(kind: str) -> Any:  # noqa: ANN401
    return {"list": [{"entries": {}}] * LISTED} if kind == "rows" else {kind: [] if kind == "list" else {}}


def _constant(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.detach()
    return [_constant(v) for v in value] if isinstance(value, list) else value
