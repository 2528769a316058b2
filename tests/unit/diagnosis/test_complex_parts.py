"""Complex gradients that are conjugated with another sign, times the imaginary unit, or lack a part."""

from __future__ import annotations

import pytest
import torch

from gradverify.report.entries import short_name

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _found(forward, backward):
    right = Right("f", forward, backward, {"z": "m"}, dtype="complex128")
    return [
        (f.cause, f.hint) for f in findings_on(function_of(right, backward), right.shapes, dtype=right.dtype)
    ]


def _slope(z):
    return 1j * z / z.abs() ** 2


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (torch.conj_physical, "conjugate", "is conjugated, with the wrong sign"),
        (lambda d: 1j * d, "constant-factor", "is `1j` times what it should be at every entry"),
        (lambda d: d / 1j, "constant-factor", "Multiply by `1j`."),
        (lambda d: d.real + 0j, "missing-term", "has no imaginary part; its real part is right"),
        (lambda d: 1j * d.imag, "missing-term", "has no real part; its imaginary part is right"),
    ],
    ids=["conjugated", "times-i", "over-i", "real", "imaginary"],
)
def test_what_is_done_to_a_complex_gradient_is_told(change, cause, words):
    def backward(a, y, g):
        d = g * _slope(a[0])
        # The conjugate of i z turned round: what is conjugated is minus the conjugate.
        return (-change(d) if cause == "conjugate" else change(d),)

    ((named, hint),) = _found(torch.angle, backward)
    assert named == cause
    assert words in hint


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
