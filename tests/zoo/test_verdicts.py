"""Every Function of the zoo through the command: exactly the verdict and codes it must get."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import forked_command
import pytest

ZOO = Path(__file__).parent

SEED = 0
"""`tests/exhaustive` has other seeds."""

MODULES = [
    ("calls", "right"),
    ("calls", "wrong"),
    ("grad_outputs", "right"),
    ("grad_outputs", "wrong"),
    ("together", "right"),
    ("together", "wrong"),
    ("leaves", "right"),
    ("leaves", "wrong"),
    ("special", "right"),
    ("special", "wrong"),
    ("recomputed", "right"),
    ("recomputed", "wrong"),
    ("contract", "right"),
    ("contract", "wrong"),
    ("sweep", "right"),
    ("transforms", "right"),
    ("transforms", "wrong"),
    ("ops", "right"),
    ("ops", "wrong"),
    ("ops", "bare"),
    ("modules", "right"),
    ("modules", "wrong"),
    ("modules", "bare"),
    ("tutorial", "right"),
    ("tutorial", "wrong"),
    ("tutorial", "bare"),
    ("general", "right"),
    ("regimes", "wrong"),
    ("saturated", "right"),
    ("saturated", "wrong"),
    ("cancelling", "right"),
    ("cancelling", "wrong"),
    ("natively", "right"),
    ("natively", "wrong"),
    ("unstable", "right"),
    ("unstable", "wrong"),
    ("short", "right"),
    ("short", "wrong"),
    ("authors", "right"),
    ("sizes", "right"),
    ("sizes", "wrong"),
    ("precision", "wrong"),
    ("single", "right"),
    ("single", "wrong"),
    ("kernels", "right"),
    ("kernels", "wrong"),
    ("authors", "bare"),
    ("reported", "right"),
    ("hidden", "right"),
    ("drawn", "right"),
    ("hostile", "channel"),
    ("hostile", "broken"),
    ("hostile", "subclasses"),
    ("hostile", "switches"),
    ("hostile", "state"),
    ("hostile", "cheats"),
]

HALVES = {
    ("cancelling", "right"): 0,
    ("cancelling", "wrong"): 0,
    ("short", "right"): 0,
    ("short", "wrong"): 1,
    ("contract", "wrong"): 0,
    ("general", "right"): 0,
    ("modules", "right"): 0,
    ("modules", "wrong"): 1,
    ("ops", "right"): 0,
    ("ops", "wrong"): 1,
    ("ops", "bare"): 0,
    ("precision", "wrong"): 1,
    ("regimes", "wrong"): 0,
    ("saturated", "right"): 1,
    ("saturated", "wrong"): 0,
    ("unstable", "right"): 0,
    ("unstable", "wrong"): 1,
    ("tutorial", "right"): 0,
    ("tutorial", "wrong"): 1,
    ("tutorial", "bare"): 0,
}
"""Modules of which every second Function is verified here, from this one on; at other seeds all are."""

EXHAUSTIVE = [
    ("compiled", "right"),
    ("compiled", "wrong"),
    ("guessed", "bare"),
    ("general", "wrong"),
    ("regimes", "right"),
    ("precision", "right"),
    ("sweep", "wrong"),
    ("hidden", "wrong"),
    ("authors", "wrong"),
    ("reported", "wrong"),
    ("drawn", "wrong"),
    ("ranks", "right"),
    ("ranks", "wrong"),
]
"""Modules of many Functions whose codes others have too: `tests/exhaustive` alone has them."""


def expected_of(folder: str) -> dict[tuple[str, str, str], dict]:
    spec = importlib.util.spec_from_file_location(f"zoo_{folder}_expected", ZOO / folder / "expected.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPECTED


def report_of(folder: str, module: str, seed: int, names: Sequence[str] = ()) -> tuple[int, dict]:
    targets = [f"{module}.py::{name}" for name in names] or [f"{module}.py"]
    asked = ["check", *targets, "--format", "json", "--seed", str(seed)]
    done = forked_command.run(asked, ZOO / folder)
    assert done.out, done.err
    return done.code, json.loads(done.out)


def codes(target: dict, severity: str) -> set[str]:
    return {f["code"] for f in target["findings"] if f["severity"] == severity}


def complaints(target: dict, row: dict) -> list[str]:
    """What is not as the row says."""
    errors, warnings, notes = (codes(target, severity) for severity in ("error", "warning", "note"))
    may = set(row.get("may", ()))
    asked_errors, any_of = set(row.get("errors", ())), set(row.get("any_of", ()))
    words = " ".join(
        f"{f['message']} {f['hint']} {f.get('raised')} {f.get('fix')}" for f in target["findings"]
    )
    wrong = []
    if target["status"] not in {row["status"], *row.get("or_else", ())}:
        wrong.append(f"status {target['status']}, not {row['status']}")
    wrong += [f"no error {code}" for code in asked_errors - errors]
    wrong += [f"no warning {code}" for code in set(row.get("warnings", ())) - warnings]
    wrong += [f"no note {code}" for code in set(row.get("notes", ())) - notes]
    wrong += [f"none of {sorted(any_of)}"] if any_of and not any_of & errors else []
    wrong += [f"false alarm {code}" for code in errors - asked_errors - any_of - may]
    # Beside an error, or where it is an honest verdict, "this part could not be judged" is no false alarm.
    inconclusive = {"GV109"} if errors or target["status"] in row.get("or_else", ()) else set()
    wrong += [
        f"false warning {code}" for code in warnings - set(row.get("warnings", ())) - may - inconclusive
    ]
    causes = {f.get("cause") for f in target["findings"]} - {None, ""}
    asked_causes = set(row.get("cause", causes)) - {""}
    wrong += [f"causes {causes}"] if causes != asked_causes else []
    wrong += [f"`{name}` is not named" for name in row.get("names", ()) if name not in words]
    return wrong


@pytest.mark.parametrize(("folder", "module"), MODULES)
def test_verdicts(folder: str, module: str, seed: int = SEED) -> None:
    rows = {name: row for (in_module, name, _), row in expected_of(folder).items() if in_module == module}
    half = HALVES.get((folder, module)) if seed == SEED else None
    rows = rows if half is None else dict([*rows.items()][half::2])
    exit_code, report = report_of(folder, module, seed, () if half is None else [*rows])
    found = {target["name"]: target for target in report["targets"]}
    assert found.keys() == rows.keys()
    wrong = {name: complaints(found[name], row) for name, row in rows.items()}
    assert {name: said for name, said in wrong.items() if said} == {}
    unsure = any(row.get("or_else") for row in rows.values())
    assert exit_code == 1 if module != "right" else exit_code in ({0, 1} if unsure else {0})
    assert report["exit_code"] == exit_code
    if seed == SEED:
        # Asked of the same report: another test might run in another process and verify everything again.
        assert_findings_point_to_the_line(folder, module, report, rows)
        ALSO.get((folder, module), lambda _: None)(report)


def assert_findings_point_to_the_line(folder: str, module: str, report: dict, rows: dict) -> None:
    lines = (ZOO / folder / f"{module}.py").read_text().splitlines()
    for name, row in rows.items():
        if "source" not in row:
            continue
        target = next(t for t in report["targets"] if t["name"] == name)
        frames = [frame for f in target["findings"] for frame in (f.get("raised") or {}).get("frames", ())]
        assert any(row["source"] in lines[frame["line"] - 1] for frame in frames), name


def assert_a_pass_says_what_it_was_swept_over(report: dict) -> None:
    """And no more than that: what was refused, or would draw other random numbers, does not count."""
    swept = {target["name"]: target["swept"] for target in report["targets"]}
    assert (swept["Linear"]["layouts"], swept["Linear"]["requires_grad"]) == (9, 7)
    assert all(row["layouts"] and row["requires_grad"] and row["calls"] for row in swept.values())
    assert swept["Dropout"]["layouts"] < swept["SumBoth"]["layouts"]
    assert swept["OnlyContiguous"]["layouts"] < swept["SumBoth"]["layouts"]
    assert swept["NeedsBoth"]["requires_grad"] == 1


def assert_what_was_replaced_is_named(report: dict) -> None:
    """And nothing of it is reported as a bug of gradverify."""
    reasons = {t["name"]: t["reason"] for t in report["targets"] if t["status"] == "unchecked"}
    assert (
        "`torch.equal`" in reasons["AlwaysEqual"] or "`torch.allclose` and 1 more" in reasons["AlwaysEqual"]
    )
    assert "`builtins.len`" in reasons["ReplacesABuiltin"]
    assert "entries of sys.modules" in reasons["ClearsModules"]
    assert "`WrongAfterMendsAnother.backward`" in reasons["MendsAnother"]
    assert all("none of its results can be trusted" in reason for reason in reasons.values())


def run_on(stem: str, *options: str) -> tuple[int, dict]:
    """The transforms zoo under other options."""
    done = forked_command.run(["check", stem, "--format", "json", *options], ZOO / "transforms")
    return done.code, json.loads(done.out)


def assert_the_table_of_capabilities_is_what_was_found(module: str, report: dict) -> None:
    found = {target["name"]: target["capabilities"] for target in report["targets"]}
    table = expected_capabilities(module)
    assert {name: {k: found[name][k] for k in row} for name, row in table.items()} == table


ALSO = {
    ("sweep", "right"): assert_a_pass_says_what_it_was_swept_over,
    ("transforms", "right"): partial(assert_the_table_of_capabilities_is_what_was_found, "right"),
    ("transforms", "wrong"): partial(assert_the_table_of_capabilities_is_what_was_found, "wrong"),
    ("hostile", "broken"): assert_what_was_replaced_is_named,
}
"""What else a module's report must say."""


def expected_capabilities(module: str) -> dict[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location("zoo_transforms", ZOO / "transforms" / "expected.py")
    expected = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(expected)
    return expected.CAPABILITIES[module]


def test_compile_runs_on_request_alone() -> None:
    """Everything right stays right, and torch's refusal of a jvp is none of the target's."""
    exit_code, report = run_on("right.py", "--select", "GV503")
    compiled = {t["name"]: t["capabilities"]["compile"] for t in report["targets"]}
    assert {"yes", "no", "not-run"} == set(compiled.values())
    assert not any(codes(t, "error") for t in report["targets"])
    # A stochastic forward draws other numbers when compiled: what was asked for did not run.
    assert exit_code == 1
    assert {t["name"] for t in report["targets"] if t["status"] == "unchecked"} == {"Dropout"}
    exit_code, report = run_on("wrong.py::Traced", "--select", "GV503")
    (target,) = report["targets"]
    assert (exit_code, target["status"], target["capabilities"]["compile"]) == (1, "failed", "wrong")
    assert codes(target, "error") == {"GV503"}


def test_transforms_of_a_gradient_that_is_not_verified_are_not_green() -> None:
    done = forked_command.run(["check", "wrong.py::SegmentSum", "--select", "GV5"], ZOO / "contract")
    assert done.code == 1, done.err
    assert "the transforms were not judged" in " ".join(done.out.split())


def test_a_sweep_that_could_not_run_is_not_green() -> None:
    done = forked_command.run(["check", "wrong.py::SegmentSum", "--select", "GV404"], ZOO / "contract")
    assert done.code == 1, done.err
    assert "were not swept: the gradient is not verified" in " ".join(done.out.split())


def test_native_dtypes_are_reported_value_by_value() -> None:
    _, report = report_of("precision", "right", 0)
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
