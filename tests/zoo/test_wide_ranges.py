"""Every right Function of the zoo at wide declared ranges, which its spec is made to declare: none fails.

Sets of Functions declare few ranges, so that what is judged only there would go unseen.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import wide
import yaml
import zoo
from extent import ALL_SEEDS

REFUSED = "GV002"
"""Forward raises: the range is no valid one."""

MISUSE = 2
"""What the command ends with where a special value that the author declares is not in the range."""

UNSUITED = {
    ("regimes", "Acos"): "inputs between -1 and 1",
    ("regimes", "Atanh"): "inputs between -1 and 1",
    ("regimes", "MaskedSoftmax"): "no value where all of a row is masked",
    ("regimes", "LargeOffset"): "beside its offset of 1e8 float32 has no digit of the square of ten",
}
"""Functions that no wide range suits, and why."""

WRONG_THERE = {
    ("authors", "LogCumsumExp"): {"GV108", "GV602"},  # its backward multiplies exp(1000) and exp(-1000)
    ("hidden", "SkewTail"): {"GV108"},  # its backward overflows where forward, a sum of squares, does not
    ("sizes", "FixedPointToATolerance"): {"GV101"},  # its rounds do not converge with weights above one
    ("regimes", "LowRankGaussian"): {"GV108", "GV601", "GV602"},  # it divides by exp(1000), and cancels
    ("regimes", "LargeOffset"): {"GV601"},  # (x * x + 1e8) - 1e8 rounds x * x to a multiple of 8 in float32
    ("regimes", "CosineSeries"): {"GV601"},  # 1 - cos(0.001) has one digit in float32
    ("regimes", "NaiveSoftplus"): {"GV602"},  # log(1 + exp(100)) overflows in float32
    ("regimes", "Snake"): {"GV602"},  # exp(100) overflows in float32
    ("tied", "DividedDifference"): {"GV601"},  # exp(x) - exp(y) loses all digits of float32 beside each other
    ("tied", "DividedDifferenceWithLimit"): {"GV602", "GV201", "GV101"},  # exp(1000), and second differences
    ("hidden", "Torsion"): {"GV601"},  # vectors that are nearly parallel have no normal in float32
    ("special", "Elu"): {"GV201"},  # its second derivative overflows
}
"""Codes of Functions that are right at moderate values alone."""

NOT_JUDGED_THERE = {
    # y * (g - sum(y * g)) cancels where y is nearly one; sums of y * (g - g) would not
    ("precision", "Softmax"): {"float32"},
}
"""Declared dtypes that a pass leaves out, and says so: the formula loses more than a stable one would."""

FOLDERS = [one for one, module in zoo.modules() if module == "right" and (ALL_SEEDS or one != "ranks")]


def dtypes_of(spec: dict, name: str) -> set[str]:
    """Those that a spec declares, in each of which the pass must be judged."""
    return {*spec["functions"][name].get("dtypes", spec.get("defaults", {}).get("dtypes", ()))}


@pytest.mark.parametrize("folder", FOLDERS)
def test_right_functions_do_not_fail_at_wide_ranges(folder: str, tmp_path: Path) -> None:
    rows = zoo.rows_of(folder, "right")
    spec = yaml.safe_load((zoo.ZOO / folder / "right.gradverify.yaml").read_text("utf-8"))
    copied = Path(shutil.copytree(zoo.ZOO / folder, tmp_path / folder))
    left = {name for name, row in rows.items() if row["status"] == "passed"}
    unsuited = {name for where, name in UNSUITED if where == folder}
    failed: dict[str, set[str]] = {}
    for declared in wide.RANGES:
        made = wide.widened(spec, declared, left)
        if not (left := {*made["functions"]}):
            break
        (copied / "right.gradverify.yaml").write_text(yaml.safe_dump(made))
        exit_code, report = zoo.checked(["right.gradverify.yaml"], copied)
        if exit_code == MISUSE:
            continue
        found = {target["name"]: target for target in report["targets"]}
        assert found.keys() == left
        for name, target in found.items():
            known = {REFUSED, *rows[name].get("may", ()), *WRONG_THERE.get((folder, name), set())}
            if errors := zoo.codes(target, "error") - known:
                failed[f"{name} at {list(declared)}"] = errors
        passed = {name for name, target in found.items() if target["status"] == "passed"}
        assert not passed & unsuited
        for name in passed:
            unjudged = dtypes_of(made, name) - {*found[name]["swept"]["dtypes"]}
            assert unjudged <= NOT_JUDGED_THERE.get((folder, name), set()), name
        left -= passed | unsuited
    assert failed == {}
    assert {name for name in left if "inconclusive" not in rows[name].get("or_else", ())} == set()
