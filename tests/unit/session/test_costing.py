"""What `list` tells of the cost is what verifying then takes, where probes prove the gradient."""

from pathlib import Path

import pytest

from gradverify.events import CaseVerified, Verify
from gradverify.model import Case, Effort, Evaluations, InputSource, Settings, TargetPlan, TensorInput
from gradverify.rules import RULES
from gradverify.session.costing import check_names, cost_of, enough_time
from gradverify.spec.find import SpecLookup
from gradverify.spec.plan import plan_function
from gradverify.verifier.building import Live
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.collect.importing import import_file
from gradverify.verifier.run import verify

MODULE = Path(__file__).parents[2] / "zoo" / "general" / "right.py"

PROVEN = ("Square", "GELU", "Huber", "SwiGLU", "LayerNorm", "Pool", "BatchedMatMul", "Conv1d")
"""Of one input and of three, of one case and of four, with a declared range and without: all by probes."""

SPREAD = {Effort.QUICK: 2.0, Effort.NORMAL: 2.0, Effort.THOROUGH: 8.0}
"""By how much the calls that are reported may exceed those that are made. At thorough effort the Jacobian is
measured at every point: how many of its columns meet in an output is not known before."""


@pytest.fixture(scope="module")
def planned():
    """(live class, plan at an effort) by name."""
    module = import_file(MODULE)
    spec = SpecLookup([], Path("specs"), [r.code for r in RULES]).find(MODULE)
    return lambda name, effort: (getattr(module, name), plan_function(spec, name, effort=effort))


def counted(value, plan, settings):
    target = describe_target(value, plan.name, plan.attribute, MODULE.name)
    events = list(verify(Verify(target, plan, settings), Live(value)))
    return sum((e.evaluations for e in events if isinstance(e, CaseVerified)), Evaluations())


@pytest.mark.parametrize("effort", Effort)
@pytest.mark.parametrize("name", PROVEN)
def test_what_is_reported_is_what_it_takes(planned, name, effort):
    value, plan = planned(name, effort)
    settings = Settings(effort=effort)
    reported, made = cost_of(plan, settings).usual, counted(value, plan, settings)
    assert made.forward <= reported.forward <= SPREAD[effort] * made.forward
    assert made.backward <= reported.backward <= SPREAD[effort] * made.backward


def test_a_point_that_probes_do_not_settle(planned):
    """Its sine is too steep for probes: every point of it is measured."""
    value, plan = planned("SteepSine", Effort.NORMAL)
    reported, made = cost_of(plan, Settings()), counted(value, plan, Settings())
    assert reported.usual.forward < made.forward
    points = 5
    # Both orders at a typical draw.
    assert made.forward <= reported.usual.forward + 2 * points * reported.a_point


def plan_of(*cases, **fields):
    return TargetPlan("f", "f", InputSource.SPEC, cases, **fields)


def test_more_inputs_points_and_cases_cost_more():
    small = Case("n=3", 1, inputs=(TensorInput("x", (3,)),))
    large = Case("n=9", 1, inputs=(TensorInput("x", (9,)), TensorInput("y", (9,), range=(0, 1))))
    settings = Settings()
    costs = [cost_of(plan_of(*cases), settings) for cases in [(small,), (large,), (small, large)]]
    assert costs[0].usual.forward < costs[1].usual.forward < costs[2].usual.forward
    assert [c.a_point for c in costs] == [42 * 3, 42 * 18, 42 * 18]
    assert [c.input_bytes for c in costs] == [24, 144, 144]


def test_a_hook_tells_nothing_of_its_sizes():
    cost = cost_of(plan_of(Case("base", 1, hook="m:make")), Settings())
    assert cost.usual.forward
    assert (cost.a_point, cost.input_bytes) == (0, 0)


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
    assert check_names(plan_of(Case("base", 1), **fields), settings) == names


@pytest.mark.parametrize(
    ("calls", "seconds", "limit", "needed", "said"),
    [
        (
            32,
            40.0,
            60.0,
            (71, 64),
            "32 calls of forward and backward took 40 s, 1.2 s each. About 135 are needed",
        ),
        (32, 40.0, 60.0, (71, 64), "`--timeout 400` is enough"),
        (128, 3.9, 6.0, (71, 64), "`--timeout 9` is enough"),
        (4096, 45.8, 60.0, (71, 64), "0.011 s each. Use smaller sizes, or a longer --timeout."),
        (32, 40.0, 60.0, (0, 0), "Use smaller sizes, or a longer --timeout."),
        (0, 0.0, 60.0, (71, 64), "A call did not return for about 60 s: is there an endless loop?"),
        (2, 0.01, 60.0, (71, 64), "A call did not return for about 60 s: is there an endless loop?"),
        (64, 10.0, 60.0, (71, 64), "A call did not return for about 50 s: is there an endless loop?"),
    ],
)
def test_what_is_said_of_a_timeout(calls, seconds, limit, needed, said):
    assert said in enough_time(calls, seconds, limit, Evaluations(*needed))
