"""Each twentieth of a declared range has an entry, whatever the seed and however few entries there are."""

import pytest

from gradverify.model import Case, TensorInput
from gradverify.model.case import STRATA, strata_points
from gradverify.verifier.inputs.values import draw_values


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (8, 8)])
@pytest.mark.parametrize("ends", [(-2.0, 3.0), (0.0, 1e-3), (-95.0, 95.0), (10.0, 1e6)])
@pytest.mark.parametrize("seed", range(5))
def test_every_part_is_met(shape, ends, seed):
    spec = TensorInput("x", shape, range=ends)
    low, high = ends
    met = set()
    for point, draw in strata_points(Case("base", seed, inputs=(spec,))):
        values = draw_values(spec, seed, point, draw)
        assert all(low <= v <= high for v in values)
        met |= {min(STRATA - 1, int((v - low) / (high - low) * STRATA)) for v in values}
    assert met == set(range(STRATA))


def test_what_has_no_range_has_none():
    assert strata_points(Case("base", 0, inputs=(TensorInput("x", (4,)),))) == ()
