"""The JSON report: its shape is a contract."""

import json
import math
from dataclasses import replace

from gradverify.model import Mistake, Settings, SourceChange, Verdict
from gradverify.report.json_v1 import render_json

TARGET_KEYS = [
    "target", "name", "kind", "file", "line", "status", "inputs", "witnesses", "cases", "infeasible",
    "evaluations", "smallest_visible_error", "not_judged", "domain", "swept", "checks", "capabilities",
    "findings",
]  # fmt: skip
FINDING_KEYS = [
    "code", "name", "severity", "expected", "message", "hint", "cause", "factor", "case", "output", "input",
    "cases_affected", "entries", "reproduce",
]  # fmt: skip


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def parsed(report):
    return json.loads(render_json(report), parse_constant=refuse)


def findings(report, name):
    (target,) = [target for target in parsed(report)["targets"] if target["name"] == name]
    return {finding["code"]: finding for finding in target["findings"]}


def test_snapshot(samples, snapshot):
    assert render_json(samples.EVERYTHING) == snapshot


def test_top_level(samples):
    settings = Settings(seed=3, rtol=1e-6, ignore=("GV3", "GV110"))
    document = parsed(replace(samples.EVERYTHING, settings=settings))
    assert list(document) == [
        "schema", "gradverify", "torch", "seed", "exit_code", "settings", "summary", "targets", "errors",
    ]  # fmt: skip
    assert document["schema"] == "gradverify-report/1"
    assert (document["gradverify"], document["torch"], document["seed"]) == ("0.1.0", "2.13.0", 3)
    assert document["exit_code"] == 1
    assert document["settings"] == {
        "rtol": 1e-6,
        "atol": 0.0,
        "effort": "normal",
        "engine": "witnesses",
        "device": "cpu",
        "select": [],
        "ignore": ["GV110", "GV3"],
    }
    assert list(document["summary"]) == ["targets", *Verdict, "first_order_only"]
    assert document["summary"]["targets"] == 10


def test_it_ends_with_one_newline(samples):
    text = render_json(samples.EVERYTHING)
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")


def test_a_target(samples):
    target = parsed(samples.GREEN)["targets"][0]
    assert list(target) == TARGET_KEYS
    assert target["target"] == "mymodule.py::linear"
    assert target["evaluations"] == {"forward": 480, "backward": 36}
    assert target["smallest_visible_error"] == 3e-10
    assert target["swept"] == {
        "sizes": 4, "points": 18, "layouts": 3, "requires_grad": 2, "calls": 1,
        "past": [], "not_past": [],
        "dtypes": ["float64"], "devices": ["cpu"],
    }  # fmt: skip
    assert target["checks"] == dict.fromkeys(
        ("gradcheck", "gradgradcheck", "reference", "contract"), "passed"
    )
    assert target["capabilities"] == {"double_backward": "yes", "jvp": "no", "vmap": "not-run"}
    assert target["findings"] == []


def test_reason_and_ignored_appear_when_there_are_any(samples):
    targets = {target["name"]: target for target in parsed(samples.EVERYTHING)["targets"]}
    assert targets["legacy"]["reason"] == "replaced by linear in 0.4"
    assert targets["gelu"]["ignored"] == [{"code": "GV2", "reason": "first order only, #12"}]
    assert "reason" not in targets["gelu"]
    assert "ignored" not in targets["linear"]


def test_a_finding(samples):
    finding = findings(samples.EVERYTHING, "softmax")["GV101"]
    assert list(finding) == [*FINDING_KEYS[:-1], "changes", "fix", "reproduce"]
    assert finding["name"] == "jacobian-mismatch"
    assert finding["case"] == {
        "id": "b=2,n=3", "sizes": {"b": 2, "n": 3}, "options": {}, "point": "typical", "draw": 0,
    }  # fmt: skip
    assert finding["entries"]["wrong"] == 18
    assert finding["entries"]["checked"] == 36
    assert finding["entries"]["worst"][0] == {
        "output": [0, 2], "input": [0, 2], "analytical": 0.7925, "numerical": 0.1645, "error_bound": 1.7e-08,
    }  # fmt: skip


def test_the_change_that_makes_it_right_is_there_where_one_was_found(samples):
    (failed,) = [t for t in samples.EVERYTHING.targets if t.target.name == "gelu"]
    finding, *others = failed.findings
    change = SourceChange("mymodule.py", 12, "2 * grad", "grad")
    targets = (replace(failed, findings=(replace(finding, changes=(change,)), *others)),)
    found = findings(replace(samples.EVERYTHING, targets=targets), "gelu")[finding.code]
    assert found["changes"] == [
        {"file": "mymodule.py", "line": 12, "before": "2 * grad", "after": "grad"},
    ]
    assert all("changes" not in f for f in findings(samples.EVERYTHING, "gelu").values())


def test_absent_values_are_null(samples):
    finding = findings(samples.EVERYTHING, "gelu")["GV203"]
    absent = ("hint", "cause", "factor", "case", "output", "input", "entries", "reproduce")
    assert {finding[key] for key in absent} == {None}


def test_numbers_that_json_cannot_hold(samples):
    first, second = findings(samples.EVERYTHING, "numbers")["GV108"]["entries"]["worst"]
    assert first["analytical"] is None
    assert first["analytical_nonfinite"] == "nan"
    assert second["analytical_nonfinite"] == "inf"
    assert second["numerical_nonfinite"] == "-inf"
    assert second["error_bound_nonfinite"] == "inf"
    assert "numerical_nonfinite" not in first
    report = samples.report(replace(samples.PASSED, smallest_visible_error=math.inf))
    target = parsed(report)["targets"][0]
    assert (target["smallest_visible_error"], target["smallest_visible_error_nonfinite"]) == (None, "inf")
    options = findings(samples.EVERYTHING, "boom")["GV002"]["case"]["options"]
    assert options == {"mode": "sum", "p": None, "p_nonfinite": "inf", "bias": None}


def test_options_are_not_rounded(samples):
    case = replace(samples.POINT, options=(("eps", 0.123456789),))
    target = replace(samples.FAILED, findings=(replace(samples.MISMATCH, case=case),))
    assert findings(samples.report(target), "softmax")["GV101"]["case"]["options"] == {"eps": 0.123456789}


def test_reference_entries_have_their_own_keys(samples):
    (entry,) = findings(samples.EVERYTHING, "numbers")["GV301"]["entries"]["worst"]
    assert entry == {"output": [], "input": None, "value": 0.75, "reference": 1.0, "error_bound": 0.0}


def test_what_was_raised_and_printed(samples):
    finding = findings(samples.EVERYTHING, "boom")["GV002"]
    assert list(finding) == [*FINDING_KEYS[:-1], "raised", "captured", "reproduce"]
    assert finding["raised"]["type"] == "RuntimeError"
    assert finding["raised"]["frames"][1] == {
        "file": "helpers.py", "line": 3, "function": "reshape", "source": "return x.view(4, 4)",
    }  # fmt: skip
    assert finding["captured"].startswith("loading kernel\n")


def test_errors(samples):
    shapeless = Mistake("unknown key", None, kind="config")
    errors = parsed(samples.report(errors=(*reversed(samples.SPEC_ERRORS), shapeless)))["errors"]
    assert [error["line"] for error in errors] == [None, 7, 9]
    assert errors[1] == {
        "kind": "spec",
        "message": "unknown key `shpe` in functions.softmax.inputs.w; did you mean `shape`?",
        "file": "mymodule.gradverify.yaml",
        "line": 7,
        "column": 11,
    }
    (imported,) = parsed(samples.EVERYTHING)["errors"]
    assert imported["raised"]["type"] == "ModuleNotFoundError"
    assert imported["captured"] == "importing"


def test_order_does_not_depend_on_the_order_of_the_run(samples):
    report = samples.EVERYTHING
    shuffled = replace(
        report,
        targets=tuple(replace(target, findings=target.findings[::-1]) for target in reversed(report.targets)),
        errors=report.errors[::-1],
    )
    assert render_json(shuffled) == render_json(report)
