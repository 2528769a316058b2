"""Complex gradients that are conjugated with another sign, times the imaginary unit, or lack a part."""

from __future__ import annotations

import torch

from gradverify.report.finding import short_name

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _found(forward, backward):
    right = Right("f", forward, backward, {"z": "m"}, dtype="complex128")
    return [
        (f.cause, f.hint) for f in findings_on(function_of(right, backward), right.shapes, dtype=right.dtype)
    ]


def _slope(z):
    return 1j * z / z.abs() ** 2


def test_a_conjugated_gradient_is_reported():
    """The conjugate of i z turned round: what is conjugated is minus the conjugate."""
    ((named, hint),) = _found(torch.angle, lambda a, y, g: (-torch.conj_physical(g * _slope(a[0])),))
    assert named == "conjugate"
    assert "is conjugated, with the wrong sign" in hint


def test_a_turn_that_is_none_of_these_has_no_such_name():
    ((named, hint),) = _found(torch.angle, lambda a, y, g: (g * _slope(a[0]) * (1 + 2j),))
    assert named not in {"conjugate", "missing-term"}
    assert "dimension 1" not in hint, "the parts of a complex number are no dimension"


def test_entries_are_named_by_their_parts():
    right = Right("f", torch.square, None, {"z": "m"}, dtype="complex128")
    (found,) = findings_on(
        function_of(right, lambda a, y, g: (g * 2 * a[0],)), right.shapes, dtype=right.dtype
    )
    shown = [short_name(entry, found) for entry in found.entries.worst]
    assert set(shown) <= {
        f"y[{k}].{a}/z[{k}].{b}" for k in range(5) for a, b in (("real", "imag"), ("imag", "real"))
    }
    assert found.map.row_labels[:2] == ("y[0].real", "y[0].imag")
