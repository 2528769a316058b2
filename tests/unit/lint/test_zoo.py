"""The zoo, read: right Functions give no error, wrong ones what their source gives away."""

from pathlib import Path

import pytest

from gradverify.lint import NOTES, RULES, lint_file
from gradverify.model import Severity

ZOO = Path(__file__).parents[2] / "zoo"

TRUE_OF_RIGHT = {
    ("contract", "Apply", "GV817"),
    ("sweep", "Cached", "GV816"),
    ("sweep", "OtherOrder", "GV816"),
}
ON_A_CLASS_OR_GLOBAL = (
    *("OnTheClass", "FirstInFirstOut", "ReturnsItsBuffer", "FirstAtASize", "Leaks", "Mean", "Power"),
    *("Reshaped", "Clipped"),
)
SEEN_IN_WRONG = {
    ("tutorial", "ReLU", "GV813"),
    ("general", "Lerp", "GV803"),
    ("sweep", "Flattens", "GV809"),
    ("sweep", "CrossEntropy", "GV811"),
    ("sweep", "OnlyWhatIsNeeded", "GV803"),
    *(("sweep", name, "GV816") for name in ON_A_CLASS_OR_GLOBAL),
}


def said(module):
    found = set()
    for file in sorted(ZOO.glob(f"*/{module}.py")):
        linted = lint_file(file, file.name, {**RULES, **NOTES})
        assert linted.error is None
        assert linted.functions
        found |= {(file.parent.name, f.function, f.code) for f in linted.findings}
    return found


@pytest.mark.parametrize(("module", "expected"), [("right", TRUE_OF_RIGHT), ("wrong", SEEN_IN_WRONG)])
def test_zoo(module, expected):
    folders = {"contract", "general", "sweep", "tutorial"}
    assert {row for row in said(module) if row[0] in folders} == expected


def test_no_right_function_gives_an_error():
    for file in ZOO.glob("*/right.py"):
        errors = [f for f in lint_file(file, file.name).findings if f.severity is Severity.ERROR]
        assert errors == [], file
