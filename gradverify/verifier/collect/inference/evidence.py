"""What the source tells about each parameter of a Function: no torch, no user code is run."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gradverify.verifier.collect.inference.complexes import provided_for
from gradverify.verifier.collect.inference.cuts import NO_CUTS, Cuts, cuts_of
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.gradient_slots import note_gradients
from gradverify.verifier.collect.inference.likely_ranks import likely_ranks, rank_of_outputs
from gradverify.verifier.collect.inference.options import note_numbers, note_options
from gradverify.verifier.collect.inference.saved import Saved
from gradverify.verifier.collect.inference.through_helpers import Helpers
from gradverify.verifier.collect.inference.uses import UseReader, called_name

TRUSTING = re.compile(
    r"chol|triang|(?<![a-z])eig(?!val)|eigvalsh|symeig|potr|trtr|inv_matmul|sqrtm|logm|lobpcg|svd|lstsq|pinv"
)
"""Routines that read only part of a matrix, or trust its rank: right only for the kind they are meant for.
Eigenvectors have no scale of their own besides, and nothing but what does not hang on it has a derivative."""


CLAMPS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "clip_"})
"""Calls that hold a tensor within bounds."""


ROOTS = frozenset({"sqrt", "rsqrt", "log", "sqrt_", "log_"})
"""Functions of eigenvalues that none below zero is meant for."""


Rewriting = Callable[[ast.FunctionDef, Mapping[str, str]], ast.FunctionDef]
"""A body with other names, given the parameters by its own."""


@dataclass(frozen=True)
class Evidence:
    """The facts of every parameter, by name in call order, and the conditions that forward demands."""

    facts: Mapping[str, Facts]
    cuts: Cuts = NO_CUTS
    """How forward and backward cut tensors up and join them."""
    complexes: frozenset[str] = frozenset()
    """Names whose conjugate, or the like, forward or backward takes."""
    factorization: str = ""
    """A call, in forward or backward, of a routine that takes a matrix on trust: symmetric, triangular."""
    clamps: bool = False
    """Backward holds something within bounds, and forward does not."""
    roots: bool = False
    """Forward takes a root or a logarithm of eigenvalues, or of something else beside them."""
    tables: tuple[tuple[str, str], ...] = ()
    """(parameter, index) pairs of `table[index]` in forward."""
    likely: Mapping[str, int] = field(default_factory=dict)
    """Dimensions of parameters as the author writes of them, where nothing enforces them."""


def parsed(function: Callable[..., Any] | None) -> ast.FunctionDef | None:
    """The definition of a function; None where its source cannot be had."""
    if function is None:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)


def gather(
    names: Sequence[str],
    forward: Callable[..., Any] | None,
    setup_context: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    extra_parameters: int = 1,
    beside: Sequence[str] = (),
    rewriting: Rewriting | None = None,
) -> Evidence:
    """Read what forward does with its parameters, and what backward returns for them.

    `extra_parameters` is how many stand before the first one: the `ctx`, or none. `beside` are names that
    `rewriting` has put into the bodies for what they read of a parameter.
    """
    facts = {name: Facts() for name in (*names, *beside)}
    kept: dict[str, str] = {}
    helpers, saved = Helpers(facts, _package_of(forward)), Saved()
    definition = parsed(forward)
    if definition is not None:
        own = [a.arg for a in (*definition.args.args, *definition.args.kwonlyargs)][extra_parameters:]
        entered = saved.noting(helpers.entering(forward))
        called = dict(zip(own, names, strict=False))
        definition = rewriting(definition, called) if rewriting is not None else definition
        reader = UseReader(facts, called | {n: n for n in beside}, entered=entered)
        reader.visit(definition)
        note_options(definition, reader.strings_of, _globals_of(forward))
        note_numbers(definition, reader.numbers_of)
        kept |= reader.kept
    context = parsed(setup_context)
    if context is not None and len(context.args.args) >= 2:
        reader = UseReader(facts, {}, context.args.args[1].arg, names, saved.noting())
        reader.visit(context)
        kept |= reader.kept
    undone = parsed(backward)
    likely: dict[str, int] = {}
    if definition is not None:
        in_backward = saved.in_backward(undone) if undone is not None else {}
        likely = likely_ranks(definition, called, undone, in_backward)
    if undone is not None:
        note_gradients(facts, list(names), undone)
        undone = rewriting(undone, {}) if rewriting is not None else undone
        own_names = saved.in_backward(undone) | {n: n for n in beside}
        more = {name: Facts() for name in own_names.values()}
        UseReader(more, own_names).visit(undone)
        for name, of_backward in more.items():
            facts[name].add(of_backward)
        _note_called(facts, kept, undone)
        note_options(undone, partial(_strings_kept, kept, facts), _globals_of(backward))
        note_numbers(undone, partial(_numbers_kept, kept, facts))
    found = [d for d in (definition, context, undone) if d is not None]
    cuts = NO_CUTS
    for one in (*found, *helpers.entered):
        cuts = cuts.with_more(cuts_of(one))
    complexes = frozenset[str]().union(*(provided_for(d) for d in found))
    of_forward = [*(d for d in found if d is not undone), *helpers.entered]
    clamps = undone is not None and _clamps([undone]) and not _clamps(of_forward)
    trusted = next((name for d in (*found, *helpers.entered) for name in _trusting(d)), "")
    if undone is not None:
        _note_of_outputs(likely, facts, names, rank_of_outputs(undone))
    _note_vectors(likely, facts)
    roots = any(_takes_roots(d) for d in of_forward)
    tables = () if definition is None else tuple(dict.fromkeys(_tables(definition, called)))
    return Evidence(facts, cuts, complexes, trusted, clamps, roots, tables, likely)


def _tables(forward: ast.FunctionDef, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(forward):
        match node:
            case ast.Subscript(value=ast.Name(id=table), slice=ast.Name(id=index)):
                if table in names and index in names:
                    yield names[table], names[index]
            case _:
                pass


def _takes_roots(definition: ast.FunctionDef) -> bool:
    calls = {called_name(n) for n in ast.walk(definition) if isinstance(n, ast.Call)}
    return bool(calls & ROOTS) and any(TRUSTING.search(name) for name in calls)


def _note_of_outputs(
    likely: dict[str, int], facts: Mapping[str, Facts], names: Sequence[str], rank: int
) -> None:
    """The first input with a gradient has the dimensions of what forward returns, if nothing else is said."""
    first = next((n for n in names if facts[n].gradient is not False and n not in likely), None)
    if first is not None and rank > max(facts[first].least_rank, 2) and facts[first].rank is None:
        likely[first] = rank


def _note_vectors(likely: dict[str, int], facts: Mapping[str, Facts]) -> None:
    """Where one index has one dimension all have: both ends of edges, the rows and the columns of entries."""
    indices = [n for n in facts if "index" in facts[n].kinds]
    if any(facts[n].rank == 1 for n in indices):
        likely.update({n: 1 for n in indices if facts[n].rank is None and n not in likely})


def _clamps(definitions: Sequence[ast.FunctionDef]) -> bool:
    """Whether anything is held within bounds there."""
    nodes = (n for d in definitions for n in ast.walk(d))
    return any(isinstance(n, ast.Call) and called_name(n) in CLAMPS for n in nodes)


def _globals_of(function: Callable[..., Any] | None) -> Mapping[str, Any]:
    return getattr(inspect.unwrap(function), "__globals__", {}) if function is not None else {}


def _package_of(function: Callable[..., Any] | None) -> str:
    return str(getattr(function, "__module__", None) or "").partition(".")[0]


def _note_called(facts: Mapping[str, Facts], kept: Mapping[str, str], backward: ast.FunctionDef) -> None:
    """What backward calls that was kept on the ctx, and with how many arguments."""
    for node in ast.walk(backward):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, kept.get(node.func.attr)
        of_ctx = (
            isinstance(owner, ast.Name) and bool(backward.args.args) and owner.id == backward.args.args[0].arg
        )
        if of_ctx and name is not None and not any(isinstance(a, ast.Starred) for a in node.args):
            facts[name].kinds.add("callable")
            facts[name].arity = max(facts[name].arity, len(node.args))


def _strings_kept(kept: Mapping[str, str], facts: Mapping[str, Facts], node: ast.expr) -> list[str] | None:
    """Where the strings of a parameter are noted that backward reads off the ctx."""
    name = kept.get(node.attr) if isinstance(node, ast.Attribute) else None
    return None if name is None else facts[name].strings


def _numbers_kept(kept: Mapping[str, str], facts: Mapping[str, Facts], node: ast.expr) -> list[float] | None:
    name = kept.get(node.attr) if isinstance(node, ast.Attribute) else None
    return None if name is None else facts[name].numbers


def _trusting(definition: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and TRUSTING.search(called_name(node)):
            yield called_name(node)
