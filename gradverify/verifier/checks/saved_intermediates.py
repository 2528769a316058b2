"""Why a second derivative is cut: backward uses what forward kept, neither an input nor an output of it.

Autograd gives a saved input or output back with its graph. Everything else that forward keeps is a constant
in backward, silently. Whether that is what went wrong can be tried: forward's own code runs on tensors that
have a graph, backward's own code runs on what it kept, and torch differentiates both. If the second
derivative is the measured one then, what was kept is the cause; and of the values kept, each one counts
without which it is not. Where it is still not the measured one, the same is tried with every call that cuts
the graph (`detach`, `.data`, `no_grad`) made to leave it as it is.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.verifier import guard
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.undetached import Site, Undetached, in_words
from gradverify.verifier.collect.discover import backward_name
from gradverify.verifier.collect.forward_itself import StandInContext, run_watched
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Tensors, copies, returned_tensors, substitute, with_zeros
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.verdict import Judged

PROBES = 2
"""Random combinations of the gradients that are differentiated: no chance makes two of them agree."""


@dataclass(frozen=True)
class Cut:
    """What alone keeps the second derivative from being right."""

    kept: tuple[str, ...] = ()
    """Values that forward keeps and that lose their graph by it, in forward's names."""
    calls: tuple[str, ...] = ()
    """Calls in the source that cut the graph, quoted with their places."""


def what_cuts(sample: Sample, second: VjpProblem, judged: Judged) -> Cut | None:
    """What forward keeps without its graph, or calls that cut it, where that alone is what is wrong.

    None where backward would be wrong without them, too, and for everything but Functions.
    """
    function = sample.subject.function_class
    if function is None or any(a.in_list for a in sample.arguments):
        return None
    looked = partial(_cut_of, function, _Expected.of(judged), sample, second)
    found = guard.call(looked)
    if isinstance(found, Raised):
        # Without a graph, backward may overwrite what it likes. Where it does, torch keeps what was saved by
        # a dispatch mode, for which it loads its compiler first: that takes as long as all else here.
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            found = guard.call(looked)
    return None if isinstance(found, Raised) else found.value


def _cut_of(function: type[Function], expected: _Expected, sample: Sample, second: VjpProblem) -> Cut | None:
    ran = _Forward.of(function, sample, second)
    kept = dict(ran.kept())
    if not expected.is_met(ran.gradients({})):
        return _calls_that_cut(function, expected, sample, second)
    if not kept:
        return None
    alone = (name for name, value in kept.items() if not expected.is_met(ran.gradients({name: value})))
    return Cut(kept=tuple(alone) or tuple(kept))


def _calls_that_cut(
    function: type[Function], expected: _Expected, sample: Sample, second: VjpProblem
) -> Cut | None:
    """Calls without which the second derivative is right, each of them needed for that, at most a few."""

    def is_right(kept: frozenset[Site]) -> dict[Site, str] | None:
        with Undetached(kept) as mode:
            ran = _Forward.of(function, sample, second)
            gradients = ran.gradients({})
        return mode.found if expected.is_met(gradients) else None

    found = is_right(frozenset())
    if not found or len(found) > MOST_CUTS:
        return None
    alone = [site for site in found if is_right(frozenset({site})) is None]
    return Cut(calls=tuple(in_words(site, found[site]) for site in _outermost(alone or list(found))))


def _outermost(sites: Sequence[Site]) -> list[Site]:
    """Those that are no part of the expression of another one."""

    def is_within(site: Site, other: Site) -> bool:
        if (site.start, site.end) == (other.start, other.end):
            return False
        same_line = (site.file, site.line) == (other.file, other.line) and other.end >= 0
        return same_line and other.start <= site.start <= site.end <= other.end

    return [site for site in sites if not any(is_within(site, other) for other in sites)]


MOST_CUTS = 12
"""Calls that cut the graph, up to which it is tried which of them are to blame."""


@dataclass(frozen=True)
class _Expected:
    """What random combinations of the gradients must have as derivative."""

    weights: list[Tensor]
    derivatives: list[Tensor]
    allowed: list[Tensor]
    rows: Layout
    columns: Layout

    @classmethod
    def of(cls, judged: Judged) -> _Expected:
        comparison = judged.comparison
        known = comparison.bound.isfinite().all(dim=1)
        weights = [
            random_signs(judged.outputs.size, seed).to(comparison.numerical) * known for seed in range(PROBES)
        ]
        bound = comparison.bound.nan_to_num(0.0, 0.0, 0.0)
        values = comparison.numerical.nan_to_num(0.0, 0.0, 0.0)
        # The measured error of each entry, and the tolerance that it has in the verdict.
        share = 1e-7 * values.abs()
        return cls(
            weights,
            [w @ values for w in weights],
            [w.abs() @ (bound + share) for w in weights],
            judged.outputs,
            judged.inputs,
        )

    def is_met(self, found: tuple[Tensors, Tensors]) -> bool:
        """Whether these (leaves, gradients) have the derivatives."""
        leaves, gradients = found
        for w, derivative, allowed in zip(self.weights, self.derivatives, self.allowed, strict=True):
            pairs = [
                (g, c) for g, c in zip(gradients, self.rows.unflatten(w), strict=True) if g.requires_grad
            ]
            if not w.any() or not pairs:
                return False
            outputs, cotangents = zip(*pairs, strict=True)
            row = vjp(outputs, leaves, cotangents, keep=True)
            difference = self.columns.flatten(with_zeros(row, leaves)) - derivative
            if not (difference.abs() <= allowed).all():
                return False
        return True


@dataclass(frozen=True)
class _Forward:
    """One run of forward's own code on tensors with a graph."""

    function: type[Function]
    sample: Sample
    leaves: Tensors
    """The inputs, then the grad_outputs."""
    arguments: Sequence[Any]
    returned: Sequence[Any]
    context: StandInContext
    names: Mapping[str, Any]

    @classmethod
    def of(cls, function: type[Function], sample: Sample, second: VjpProblem) -> _Forward:
        leaves = tuple(p.requires_grad_() for p in copies(second.primals))
        sample.problem.random_states.replay()
        with torch.enable_grad():
            inputs = [leaf.clone() for leaf in leaves[: len(sample.problem.primals)]]
            arguments = substitute(sample.arguments, inputs)
            result, context, names = run_watched(function, arguments)
        return cls(function, sample, leaves, arguments, returned_tensors(result), context, names)

    def kept(self) -> Iterator[tuple[str, Tensor]]:
        """What forward keeps that has a graph here and none in backward, by its name."""
        known = [*self.arguments, *self.returned]
        values = {f"ctx.{name}": value for name, value in self.context.attributes.items()}
        values |= {self._name(k): value for k, value in enumerate(self.context.saved_tensors)}
        for name, value in values.items():
            if isinstance(value, Tensor) and value.requires_grad and not any(value is k for k in known):
                yield name, value

    def _name(self, position: int) -> str:
        value = self.context.saved_tensors[position]
        own = (n for n, v in self.names.items() if v is value and n != "ctx")
        return next(own, None) or _unpacked_as(self.function, position) or f"ctx.saved_tensors[{position}]"

    def gradients(self, constant: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
        """The leaves, and what backward's own code makes of them where these values have no graph."""
        cut = {id(value) for value in constant.values()}
        context = StandInContext(self.context.needs_input_grad)
        vars(context).update(vars(self.context))
        context.saved_tensors = context.to_save = tuple(_cut(v, cut) for v in self.context.saved_tensors)
        for name, value in self.context.attributes.items():
            setattr(context, name, _cut(value, cut))
        backward = getattr(self.function, backward_name(self.function))
        self.sample.problem.random_states.replay_for_backward()
        with torch.enable_grad():
            result = backward(context, *self._grad_outputs())
        results = result if isinstance(result, tuple | list) else (result,)
        inputs = self.leaves[: len(self.sample.problem.primals)]
        wanted = [k for k, a in enumerate(self.sample.arguments) if a.differentiable]
        gradients = with_zeros(tuple(results[k] for k in wanted), inputs)
        if any(g.shape != x.shape for g, x in zip(gradients, inputs, strict=True)):
            raise ValueError("a gradient has the wrong shape")
        return self.leaves, gradients

    def _grad_outputs(self) -> Iterator[Tensor | None]:
        given = dict(
            zip(
                self.sample.problem.output_positions,
                self.leaves[len(self.sample.problem.primals) :],
                strict=True,
            )
        )
        for position, output in enumerate(self.returned):
            if position in given:
                yield given[position].clone()
            elif isinstance(output, Tensor) and self.context.materialize_grads:
                yield torch.zeros_like(output)
            else:
                yield None


def _unpacked_as(function: type[Function], position: int) -> str:
    """What backward calls a saved tensor where it unpacks them all; empty where that is not known."""
    backward = inspect.unwrap(own_backward(function))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(backward)))
    except (OSError, TypeError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Attribute(attr="saved_tensors")):
                plain = [name.id for name in names if isinstance(name, ast.Name)]
                return plain[position] if len(plain) == len(names) and position < len(plain) else ""
            case _:
                pass
    return ""


def _cut(value: Any, cut: set[int]) -> Any:  # noqa: ANN401 - whatever forward keeps
    return value.detach() if isinstance(value, Tensor) and id(value) in cut else value
