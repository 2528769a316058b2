"""The JSON report through the command."""

import json
import math
import shlex

import pytest

REPORT = {"schema", "gradverify", "torch", "seed", "exit_code", "settings", "summary", "targets", "errors"}
TARGET = {
    "target", "name", "kind", "file", "line", "status", "inputs", "cases", "infeasible", "evaluations",
    "smallest_visible_error", "not_judged", "swept", "checks", "capabilities", "findings",
}  # fmt: skip
FINDING = {
    "code", "name", "severity", "expected", "message", "hint", "cause", "factor", "case", "output", "input",
    "cases_affected", "entries", "reproduce",
}  # fmt: skip


@pytest.fixture(scope="module")
def here(place):
    return place("screens")


@pytest.fixture(scope="module")
def ran(here):
    return here("check", "right.py", "wrong.py", "wrong_syntax.py", "--format", "json")


@pytest.fixture(scope="module")
def report(ran):
    return json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def values(node, key=""):
    """Every (key, value) of a document that is no container."""
    if isinstance(node, dict):
        for name, below in node.items():
            yield from values(below, name)
    elif isinstance(node, list):
        for below in node:
            yield from values(below, key)
    else:
        yield key, node


def test_keys(report):
    assert report.keys() == REPORT
    assert report["settings"].keys() >= {"rtol", "effort", "ignore"}
    assert len(report["targets"]) == 7
    for target in report["targets"]:
        assert target.keys() >= TARGET
        assert target["checks"].keys() == {"gradcheck", "gradgradcheck", "reference", "contract", "precision"}
        for finding in target["findings"]:
            assert finding.keys() >= FINDING


def test_summary_and_exit_code(report, ran):
    assert (report["exit_code"], ran.code, ran.err) == (2, 2, "")
    assert report["summary"] == {
        "targets": 7, "passed": 2, "failed": 2, "inconclusive": 1, "unchecked": 0, "skipped": 2, "xfailed": 0,
        "first_order_only": 0,
    }  # fmt: skip
    (error,) = report["errors"]
    assert (error["kind"], error["file"], error["line"]) == ("import", "wrong_syntax.py", 2)


def test_numbers_are_finite(report):
    assert all(math.isfinite(value) for _, value in values(report) if isinstance(value, float))


def test_paths_are_relative(report, here):
    files = {value for key, value in values(report) if key == "file"}
    assert files == {"right.py", "wrong.py", "wrong_syntax.py"}
    assert str(here.folder) not in json.dumps(report)


def test_two_runs_are_the_same(here, ran):
    again = here("check", "right.py", "wrong.py", "wrong_syntax.py", "--format", "json")
    assert again.out == ran.out


def test_reproduces(report, here):
    (finding,) = next(t for t in report["targets"] if t["target"] == "wrong.py::Product")["findings"]
    program, *arguments = shlex.split(finding["reproduce"])
    assert program == "gradverify"
    again = here(*arguments, "--format", "json")
    (same,) = json.loads(again.out)["targets"][0]["findings"]
    assert same == finding


def test_spec_errors(here):
    ran = here("check", "right.py", "--spec", "mistaken.yaml", "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["exit_code"], ran.err) == (2, 2, "")
    assert [(e["kind"], e["file"], e["line"], e["column"]) for e in report["errors"]] == [
        ("spec", "mistaken.yaml", 4, 3),
        ("spec", "mistaken.yaml", 5, 26),
    ]
