"""The zoo without its specs, and the sets of the benchmarks: no right Function fails, no wrong one passes."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest
import zoo
from extent import ALL_SEEDS, long

pytestmark = long

BENCHMARKS = zoo.ZOO.parents[1] / "benchmarks"

STEMS = {"right", "wrong"}

AT_DECLARED = {("unstable", "wrong"), ("precision", "wrong"), ("natively", "wrong")}
"""Wrong in float32 or 16 bits at values that a spec declares: without one, ordinary values are judged."""

MODULES = [one for one in zoo.modules() if one[1] in STEMS and one not in AT_DECLARED]

SECOND = {"GV201", "GV202"}
"""What is wrong in second order alone."""

RIGHT = ("right/", "wrong_sets_right/", "bare/right/")
"""Beginnings of names of sets."""

MIXED = ("modules/", "attacks/", "unseen/questions", "unseen/samples")
"""The same of sets that hold both right and wrong ones, which tests of their own tell apart."""

KNOWN = {
    "calls/right": {"ByMode"},  # a write that an option asks for, at the one value that is inferred of it
    # For three taps, which backward alone counts; a staircase of 26 steps, below which forward is constant.
    "precision/right": {"FilteredRows", "Bisected"},
    "unstable/right": {"OneMinusCos", "OneMinusCosInNumPy"},  # series, for small values that a spec declares
    "hidden/right": {"SinhInSingle"},  # it overflows in float32 beyond the range that its spec declares
    "wrong/first": {"FakeQuantClamp_bound"},
    "bare/wrong/first": {"FakeQuantClamp_bound"},
    "bare/wrong/second": {"LRUCell_h_no_conj"},
    "bare/wrong/fifteenth": {"SlidingWindowAttention_window_one_wider", "MaskedMeanPool_one_step_too_many"},
    "wrong_sets_right/fourth": {"HyperbolaTwice.Slope"},  # a helper, whose own second derivative is cut
    # Another one; and NaN for a mean wherever the values beside it are equal, which a deviation makes.
    "wrong_sets_right/fifth": {"LogCosh_Slope", "MeanStd"},
    "right/practice_again": {"MarginRanking"},  # NaN where a distance is 0, and forward has a derivative
    "right/steep": {"BesselJ0"},  # torch's own jumps by 4e-7 at 5, and no function is its derivative up to 8
    "unseen/practised_wrong": {"_PReLUFn"},  # wrong for one slope, which its module gives it, and it fails
    "general/wrong": {"ScaleBy", "TanhGELU", "ComplexMultiply", "LogMeanExp"},
    # What a warning or nothing is said of under a spec, too, or is no Function of its own.
    "sweep/wrong": {"KeepsInput", "KeepsOutput", "Workspace", "Power", "FirstAtASize"},
    "reported/wrong": {
        "KeptOnCtx", "NoneForSmall", "MoreDimensions", "ComplexScan", "SegmentSum", "EmptyCrashes",
    },
    "grad_outputs/wrong": {"Product", "FaintBesideOthers"},
    "ops/wrong": {"Cube"},
    "transforms/wrong": {"UnbatchedIsFirst", "OneDimForBoth", "Traced"},
    # A gradient that is None everywhere is taken for a constant's, a label to pad for any other.
    "contract/wrong": {"Embedding", "AddInPlace", "SinglePrecisionSine"},
    # A second derivative that raises an error, as it does with NumPy.
    "tutorial/wrong": {"NumPyExp"},
    # At values, ties, options or sizes that a spec declares.
    "regimes/wrong": {"Center", "LargestFirst", "MarkedLabels", "SignByDivision"},
    "tied/wrong": {
        "MaximumTwiceKernel", "MaximumTwiceInNumpy", "DistanceBeyondInSingle", "SegmentMaximumTwice",
    },
    "drawn/wrong": {"AroundOne", "RowMaximum", "ColumnMinimum"},
    "special/wrong": {"CubeOfRoot", "SecondCutAtOne", "FourthByLogarithm", "ClampBeyond"},
    "hidden/wrong": {
        "EmptyBatch", "PowerFromZero", "ComplexSquare", "KeptForAShape", "SoftplusFar", "EveryLabel",
        "SincInSingle", "SymmetricExp",  # backward is NaN at zeros or ties, which is a warning
    },
    "calls/wrong": {"CopiesWhereAsked"},
}  # fmt: skip
"""Wrong ones that pass, right under the inputs that are inferred, and right ones that fail."""


def sets():
    """The sets of the benchmarks, less the mixed ones, the zoo and published packages.

    And less the mistakes that are planted in right ones: some change nothing, and `benchmarks/seeded_bugs.py`
    asks plain autograd which.
    """
    sys.path.insert(0, str(BENCHMARKS))
    try:
        found = importlib.import_module("cases").sets()
    finally:
        sys.path.remove(str(BENCHMARKS))
    left_out = ("zoo/", "bare/zoo/", "published/", "seeded/", *MIXED)
    return [one for one in found if not one.name.startswith(left_out)]


def statuses(report: dict) -> dict[str, str]:
    """Verdicts; a failure in second order alone is true of what a spec declares to be of first order."""
    only_second = {t["name"] for t in report["targets"] if errors_of(t) and errors_of(t) <= SECOND}
    return {t["name"]: "" if t["name"] in only_second else t["status"] for t in report["targets"]}


def errors_of(target: dict) -> set[str]:
    return {found["code"] for found in target["findings"] if found["severity"] == "error"}


@pytest.mark.parametrize(("folder", "module"), MODULES)
def test_the_zoo_without_its_specs(folder: str, module: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.yaml", "__pycache__")
    copied = Path(shutil.copytree(zoo.ZOO / folder, tmp_path / folder, ignore=ignored))
    _, report = zoo.checked([f"{module}.py"], copied)
    due = "failed" if module == "right" else "passed"
    found = statuses(report)
    wrong = {name for name, status in found.items() if status == due}
    assert wrong <= KNOWN.get(f"{folder}/{module}", set())


@pytest.mark.parametrize("one", sets() if ALL_SEEDS else [], ids=lambda one: one.name)
def test_sets_of_the_benchmarks(one, tmp_path: Path) -> None:
    code, report = zoo.checked([one.write(tmp_path)], tmp_path)
    assert code in {0, 1}
    is_right = one.name.startswith(RIGHT) or one.name.endswith("_right")
    due = "failed" if is_right else "passed"
    wrong = {name for name, status in statuses(report).items() if status == due}
    assert wrong <= KNOWN.get(one.name, set())
