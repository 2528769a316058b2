"""What leaves no graph for a second derivative: what forward keeps, and calls in the source that cut it.

Autograd gives a saved input or output back with its graph. Everything else that forward keeps is a constant
in backward, silently.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.source import Method, called_name, definition, definitions_behind
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.collect.forward_itself import run_watched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import copies, returned_tensors, substitute
from gradverify.verifier.numerics.problem import VjpProblem

CALLS = frozenset({"detach", "detach_", "item", "numpy", "tolist"})
"""Methods that give a tensor back without its graph, or its numbers."""

MODES = frozenset({"no_grad", "inference_mode"})
"""What records no graph while it lasts."""

MOST_NAMED = 3
"""Calls that one sentence names."""


@dataclass(frozen=True)
class Cuts:
    """What may keep the second derivative from being right."""

    kept: tuple[str, ...] = ()
    """Values that forward keeps and that lose their graph by it, in forward's names."""
    calls: tuple[str, ...] = ()
    """Calls in backward and forward that cut the graph, quoted with their places."""


def graph_cuts(sample: Sample, second: VjpProblem) -> Cuts:
    """What forward keeps without its graph; where that is nothing, the calls in the source that cut it."""
    function = sample.subject.function_class
    if function is None or any(a.in_list for a in sample.arguments):
        return Cuts()
    found = guard.call(lambda: tuple(_kept(function, sample, second)))
    kept = () if isinstance(found, Raised) else found.value
    return Cuts(kept) if kept else Cuts(calls=tuple(dict.fromkeys(_calls(function)))[:MOST_NAMED])


def _kept(function: type[Function], sample: Sample, second: VjpProblem) -> Iterator[str]:
    """Names of what forward keeps that depends on the inputs and is neither one of them nor an output."""
    leaves = [p.requires_grad_() for p in copies(second.primals)][: len(sample.problem.primals)]
    sample.problem.random_states.replay()
    with torch.enable_grad():
        arguments = substitute(sample.arguments, [leaf.clone() for leaf in leaves])
        result, context, names = run_watched(function, arguments)
    known = [*arguments, *returned_tensors(result)]
    unpacked = _unpacked(function)
    named = {id(value): name for name, value in names.items() if name != "ctx"}
    values: list[tuple[str, Any]] = [(f"ctx.{name}", value) for name, value in context.attributes.items()]
    for position, value in enumerate(context.saved_tensors):
        own = unpacked[position] if len(unpacked) == len(context.saved_tensors) else ""
        values.append((named.get(id(value)) or own or f"ctx.saved_tensors[{position}]", value))
    for name, value in values:
        if isinstance(value, Tensor) and value.requires_grad and not any(value is k for k in known):
            yield name


def _unpacked(function: type[Function]) -> Sequence[str]:
    """What backward calls the saved tensors where it unpacks them all."""
    method = Method.of(own_backward(function))
    for node in method.nodes if method is not None else ():
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Attribute(attr="saved_tensors")):
                return [name.id if isinstance(name, ast.Name) else "" for name in names]
            case _:
                pass
    return ()


def _calls(function: type[Function]) -> Iterator[str]:
    """Each call that cuts the graph, quoted with file and line: those of backward first."""
    for method in (own_backward(function), function.forward):
        for tree, known in definitions_behind(method):
            live = inspect.unwrap(method if tree is definition(method) else known[tree.name])
            code = live.__code__
            for node in ast.walk(tree):
                if _cuts(node):
                    shown = node.context_expr if isinstance(node, ast.withitem) else node
                    # Lines count from 1 at the first decorator, as the code's first line does.
                    line = code.co_firstlineno + getattr(shown, "lineno", 1) - 1
                    yield f"`{ast.unparse(shown)}` ({Path(code.co_filename).name}:{line})"


def _cuts(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in CALLS:
            return True
        case ast.Attribute(attr="data", ctx=ast.Load()):
            return True
        case ast.withitem(context_expr=expression):
            return called_name(expression) in MODES
        case _:
            return False
