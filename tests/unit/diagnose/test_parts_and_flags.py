"""Flags, triangles, scans that are cut, and parts of complex numbers."""

from __future__ import annotations

import torch

from gradverify.model import Finding

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _found(forward, backward, *, dtype="float64", **shapes: str) -> dict[str, Finding]:
    right = Right("f", forward, backward, shapes, dtype=dtype)
    found = findings_on(function_of(right, backward), shapes, dtype=dtype, select=("GV101",))
    return {f.input: f for f in found}


def test_the_parts_of_a_complex_number_are_no_uses():
    found = _found(lambda z: z * z, lambda a, y, g: (2 * a[0].conj() * g.real,), dtype="complex128", z="bn")
    assert found["z"].cause != "duplicates"


def test_a_triangle_is_no_reduction():
    found = _found(
        lambda a, x: torch.tril(a) @ x,
        lambda a, y, g: (torch.triu(torch.outer(g, a[1])), torch.tril(a[0]).mT @ g),
        a="nn",
        x="n",
    )
    assert found["a"].cause != "wrong-reduction-dim"


def test_a_scan_that_is_cut():
    found = _found(lambda x: x.cumsum(0).sin(), lambda a, y, g: (g * a[0].cumsum(0).cos(),), x="bn")
    assert found["x"].cause == "diagonal-only"
    assert "the other steps of a scan" in found["x"].hint
