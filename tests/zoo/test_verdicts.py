"""Every Function of the zoo through the command: exactly the verdict and codes it must get.

A module of the zoo is one command, and whatever is said of its Functions is asked of that one report.
"""

from __future__ import annotations

from functools import partial

import pytest
import zoo
from extent import ALL_SEEDS, extent

SEEDS = extent(range(1), range(5))

LEFT_TO_ALL_SEEDS = {("ranks", "right"), ("ranks", "wrong"), ("guessed", "bare")}
"""Modules whose cases start processes each, or that have no spec, where guesses of every kind are verified:
`tests/cli/test_ranks.py`, `test_guessed.py` and `test_inference.py` have one of each kind."""

MODULES = [one for one in zoo.modules() if ALL_SEEDS or one not in LEFT_TO_ALL_SEEDS]


PARTS = {("guessed", "bare"): 3}
"""Modules that take minutes, and how many commands verify one: else a runner waits for it at the end."""

REST = [(*one, part) for one, parts in PARTS.items() if one in MODULES for part in range(1, parts)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("folder", "module"), MODULES)
def test_verdicts(folder: str, module: str, seed: int) -> None:
    """Of a module in parts the first."""
    assert_verdicts(folder, module, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("folder", "module", "part"), REST)
def test_verdicts_of_the_rest(folder: str, module: str, part: int, seed: int) -> None:
    assert_verdicts(folder, module, seed, part)


def assert_verdicts(folder: str, module: str, seed: int, part: int = 0) -> None:
    rows = zoo.rows_of(folder, module)
    targets, parts = [f"{module}.py"], PARTS.get((folder, module), 1)
    if parts > 1:
        rows = {name: rows[name] for name in [*rows][part::parts]}
        targets = [f"{module}.py::{name}" for name in rows]
    with_causes = [name for name, row in rows.items() if row.keys() & {"cause", "explained"}]
    exit_code, report = zoo.checked(targets, zoo.ZOO / folder, "--seed", str(seed), with_causes=with_causes)
    assert zoo.all_complaints(report, rows) == {}
    unsure = any(row.get("or_else") or row.get("status") == "inconclusive" for row in rows.values())
    assert exit_code == 1 if module != "right" else exit_code in ({0, 1} if unsure else {0})
    assert report["exit_code"] == exit_code
    if seed == 0:
        # Asked of the same report: another test might run in another process and verify everything again.
        assert_findings_point_to_the_line(folder, module, report, rows)
        ALSO.get((folder, module), lambda _: None)(report)


def assert_findings_point_to_the_line(folder: str, module: str, report: dict, rows: dict) -> None:
    lines = (zoo.ZOO / folder / f"{module}.py").read_text().splitlines()
    for name, row in rows.items():
        if "source" not in row:
            continue
        target = next(t for t in report["targets"] if t["name"] == name)
        frames = [frame for f in target["findings"] for frame in (f.get("raised") or {}).get("frames", ())]
        assert any(row["source"] in lines[frame["line"] - 1] for frame in frames), name


def assert_what_was_replaced_is_named(report: dict) -> None:
    """And nothing of it is reported as a bug of gradverify."""
    reasons = {t["name"]: t["reason"] for t in report["targets"] if t["status"] == "unchecked"}
    assert (
        "`torch.equal`" in reasons["AlwaysEqual"] or "`torch.allclose` and 1 more" in reasons["AlwaysEqual"]
    )
    assert "`builtins.len`" in reasons["ReplacesABuiltin"]
    assert all("none of its results can be trusted" in reason for reason in reasons.values())


def assert_the_table_of_capabilities_is_what_was_found(module: str, report: dict) -> None:
    found = {target["name"]: target["capabilities"] for target in report["targets"]}
    table = zoo.capabilities_of("transforms", module)
    assert {name: {k: found[name][k] for k in row} for name, row in table.items()} == table


def assert_native_dtypes_are_reported_value_by_value(report: dict) -> None:
    found = {target["name"]: target for target in report["targets"]}
    assert found["Softmax"]["swept"]["dtypes"] == ["float64", "float32", "bfloat16", "float16"]
    table = {(p["dtype"], p["value"]): p["closeness"] for p in found["Softmax"]["precision"]}
    assert table["bfloat16", "x"] == table["float16", "output 0"] == "correctly rounded"
    assert table["float32", "x"] == "within rounding"
    rounds = {p["closeness"] for p in found["RoundsWeights"]["precision"] if p["dtype"] == "bfloat16"}
    assert rounds == {"rounded"}
    for name in ("OnlyFloat32", "KernelInFloat32", "KernelWithReference"):
        assert found[name]["swept"]["dtypes"] == ["float32"], name
        assert found[name]["checks"]["gradcheck"] == "not-run"
        assert all(p["hides"] > 0 for p in found[name]["precision"])


def assert_no_error_is_seen_below_a_rounding(report: dict) -> None:
    """Slopes that vanish beside others are known to many more digits than those of anything that counts."""
    visible = [target["smallest_visible_error"] for target in report["targets"]]
    assert all(error is None or error > 2.0**-52 for error in visible)


ALSO = {
    ("saturated", "right"): assert_no_error_is_seen_below_a_rounding,
    ("transforms", "right"): partial(assert_the_table_of_capabilities_is_what_was_found, "right"),
    ("transforms", "wrong"): partial(assert_the_table_of_capabilities_is_what_was_found, "wrong"),
    ("hostile", "broken"): assert_what_was_replaced_is_named,
    ("precision", "right"): assert_native_dtypes_are_reported_value_by_value,
}
"""What else a module's report must say."""


def test_compile_runs_on_request_alone() -> None:
    """Everything right stays right, and torch's refusal of a jvp is none of the target's."""
    folder = zoo.ZOO / "transforms"
    exit_code, report = zoo.checked(["right.py"], folder, "--select", "GV503")
    compiled = {t["name"]: t["capabilities"]["compile"] for t in report["targets"]}
    assert {"yes", "no", "not-run"} == set(compiled.values())
    assert not any(zoo.codes(t, "error") for t in report["targets"])
    # A stochastic forward draws other numbers when compiled: what was asked for did not run.
    assert exit_code == 1
    assert {t["name"] for t in report["targets"] if t["status"] == "unchecked"} == {"Dropout"}
    exit_code, report = zoo.checked(["wrong.py::Traced"], folder, "--select", "GV503")
    (target,) = report["targets"]
    assert (exit_code, target["status"], target["capabilities"]["compile"]) == (1, "failed", "wrong")
    assert zoo.codes(target, "error") == {"GV503"}
