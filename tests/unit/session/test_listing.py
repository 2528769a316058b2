"""What `list` tells of a target without running it."""

import pytest

from gradverify.model import Case, Effort, InputSource, Settings, TargetPlan
from gradverify.session.listing import check_names


@pytest.mark.parametrize(
    ("fields", "settings", "names"),
    [
        ({}, Settings(), ("gradcheck", "contract", "gradgradcheck", "precision")),
        (
            {"reference": "torch.sin"},
            Settings(effort=Effort.QUICK),
            ("gradcheck", "contract", "gradgradcheck", "reference"),
        ),
        (
            {"dtypes": ("bfloat16",)},
            Settings(effort=Effort.QUICK),
            ("gradcheck", "contract", "gradgradcheck", "precision"),
        ),
        ({"ignore": (("GV2", "first order"),)}, Settings(), ("gradcheck", "contract", "precision")),
        ({}, Settings(select=("GV201",)), ("gradcheck", "gradgradcheck")),
        ({}, Settings(ignore=("GV6",)), ("gradcheck", "contract", "gradgradcheck")),
    ],
)
def test_the_checks_that_would_run(fields, settings, names):
    plan = TargetPlan("f", "f", InputSource.SPEC, (Case("base", 1),), **fields)
    assert check_names(plan, settings) == names
