"""Inferred inputs with three dimensions, one of size 1: what a `squeeze` or a branch on ranks does.

What forward gives there must be what it gives at the inputs found, entry by entry: then it takes any rank,
and so must backward. A forward that means something else there was not meant for it, as far as anybody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import torch

from gradverify.model import Case, Finding, Severity, Swept, TensorInput
from gradverify.verifier.case_state import CaseState
from gradverify.verifier.checks.inconclusive import invented
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import NoSample, Sample
from gradverify.verifier.checks.undeclared import at_undeclared
from gradverify.verifier.guard import Raised

RANK = 3
"""Dimensions of a sequence of vectors, a batch of matrices: the next ones after those of a matrix."""

Shapes = Mapping[str, tuple[int, ...]]


def with_three_dimensions(case: Case) -> Case | None:
    """The case whose deepest tensors have three dimensions, the middle one of size 1, and as many entries.

    None where they have three already, or none has a dimension.
    """
    tensors = [i for i in case.inputs if isinstance(i, TensorInput)]
    deepest = max((len(t.shape) for t in tensors if _is_free(t)), default=0)
    if case.hook or not 0 < deepest < RANK:
        return None
    changed = {t.name: _shape(t.shape) for t in tensors if len(t.shape) == deepest}
    if not all(_is_free(t) or t.value is None for t in tensors if t.name in changed):
        return None
    inputs = (
        replace(i, shape=changed[i.name]) if isinstance(i, TensorInput) and i.name in changed else i
        for i in case.inputs
    )
    return replace(case, inputs=tuple(inputs))


def _is_free(tensor: TensorInput) -> bool:
    """Whether it is a differentiable tensor of any shape."""
    plain = not tensor.structure and not tensor.layout and tensor.value is None
    return plain and tensor.dtype.startswith(("float", "complex"))


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 1, shape[1]) if len(shape) == 2 else (1, 1, *shape)


def judged_at_three_dimensions(
    usual: Sample, sample: Sample | NoSample, state: CaseState
) -> Iterator[Finding]:
    """What is wrong there, which leaves the target open; `usual` is the sample of the inputs found."""
    if isinstance(sample, NoSample) or not _is_the_same(usual, sample):
        return
    found = at_undeclared(sample)
    shapes = [
        f"that `{a.name}` may have the shape {list(a.value.shape)}"
        for a, b in zip(sample.arguments, usual.arguments, strict=True)
        if a.differentiable and a.value.shape != b.value.shape
    ]
    findings = tuple(invented(f, shapes) for f in found.result.findings if f.severity is Severity.ERROR)
    if found.judged or findings:
        state.add(sample.family, CheckResult(findings, outcome_of(findings)))
        state.swept = Swept(sizes=(sample.case.id,))
    yield from findings


def _is_the_same(usual: Sample, sample: Sample) -> bool:
    """Whether forward gives the same numbers for the same numbers, in whatever shape."""
    pair = []
    for one in (usual, sample):
        values = one.problem.evaluate(one.problem.primals)
        if isinstance(values, Raised):
            return False
        pair.append([v.reshape(-1) for v in values.value])
    a, b = pair
    entries = [prod(p.shape) for p in usual.problem.primals] == [
        prod(p.shape) for p in sample.problem.primals
    ]
    return (
        entries
        and len(a) == len(b)
        and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
    )
