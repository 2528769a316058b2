"""Planted mistakes get their cause, or none: a wrong cause is worse than none."""

from __future__ import annotations

import pytest
from extent import extent

from .diagnosing import findings_on
from .hand_bugs import BUGS
from .mutations import ALL, Mutant
from .right_functions import RIGHT, Right, function_of
from .second_set import SECOND
from .second_set import UNNAMED as SECOND_UNNAMED

SAMPLE = 60
"""One generic mutant of so many is run: all of them take minutes."""


UNNAMED = frozenset(
    {
        "logsumexp-ones",
        "logsumexp-dim0",
        "logsumexp-log",
        "sigmoid-of-x",
        "exp-of-x",
        "leaky-threshold",
        "scaled_tanh-of-y",
        "gated-raw-gate",
        "bmm-mean",
        # Terms that couple entries are named by a change of backward, and a lambda is not changed.
        "softmax-y-only",
        "softmax-plus",
        "softmax-coupling",
        "center-identity",
        "center-sum",
        "rownorm-no-projection",
        "linear-reshaped-weight",
        "layernorm-no-mean",
        "layernorm-no-xhat",
        "rms-no-coupling",
        "rms-weight-grad-without-r",
        "var-no-mean",
        # Nor are a part of the entries, another operand and a factor: the hypotheses of these are gone.
        "cube-border",
        "cube-corner",
        "quadratic-twice",
        "rms-sum",
        "silu-derivative-of-sigmoid",
        "softplus-sigmoid-y",
        "tril-full",
    }
)
"""Mistakes for which no hypothesis holds: no name is what they get, never a wrong one."""


@pytest.mark.parametrize("right", RIGHT, ids=lambda r: r.name)
def test_right_functions_have_no_finding(right: Right):
    assert findings_on(function_of(right, right.backward), right.shapes, dtype=right.dtype) == ()


MUTANTS = [*ALL[::SAMPLE], *BUGS[:: extent(2, 1)], *SECOND[:: extent(6, 1)]]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.id)
def test_a_cause_is_true(mutant: Mutant):
    name = list(mutant.right.shapes)[mutant.input]
    found = findings_on(
        function_of(mutant.right, mutant.backward), mutant.right.shapes, dtype=mutant.right.dtype
    )
    causes = {f.cause for f in found if f.input == name}
    if not found and mutant.id.endswith("-float32"):
        return  # sums and copies of short decimals need no more digits
    assert causes <= mutant.true | {""}
    assert causes & mutant.true or mutant.id in UNNAMED | SECOND_UNNAMED
