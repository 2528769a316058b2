"""The zoo, read: right Functions give no error, wrong ones what their source gives away."""

from pathlib import Path

import pytest

from gradverify.lint import lint_file
from gradverify.model import Severity

ZOO = Path(__file__).parents[2] / "zoo"

TRUE_OF_RIGHT = {
    ("tutorial", "OldStyleProduct", "GV810"),  # runs through .apply, and is of the old style
    ("tutorial", "NumPyExp", "GV801"),  # its spec ignores the second derivative, with a reason
    ("contract", "Apply", "GV817"),
    ("sweep", "Cached", "GV816"),
    ("sweep", "OtherOrder", "GV816"),
}
ON_A_CLASS_OR_GLOBAL = (
    *("OnTheClass", "FirstInFirstOut", "ReturnsItsBuffer", "FirstAtASize", "Leaks", "Mean", "Power"),
    *("Reshaped", "Clipped"),
)
SEEN_IN_WRONG = {
    ("tutorial", "OldStyleProductSwapped", "GV810"),
    ("tutorial", "NumPyExp", "GV801"),
    ("tutorial", "ReLU", "GV813"),
    ("general", "Lerp", "GV803"),
    ("general", "ExpIgnoresGradient", "GV815"),
    ("general", "SumOfSquares", "GV815"),
    ("sweep", "Flattens", "GV809"),
    ("sweep", "DoublesInPlace", "GV804"),
    ("sweep", "CrossEntropy", "GV811"),
    ("sweep", "OnlyWhatIsNeeded", "GV803"),
    ("sweep", "KeepsInput", "GV802"),
    *(("sweep", name, "GV816") for name in ON_A_CLASS_OR_GLOBAL),
}


def said(module):
    found = set()
    for file in sorted(ZOO.glob(f"*/{module}.py")):
        linted = lint_file(file, file.name)
        assert linted.error is None
        assert linted.functions
        found |= {(file.parent.name, f.function, f.code) for f in linted.findings if f.code != "GV806"}
    return found


@pytest.mark.parametrize(("module", "expected"), [("right", TRUE_OF_RIGHT), ("wrong", SEEN_IN_WRONG)])
def test_zoo(module, expected):
    folders = {"contract", "general", "sweep", "tutorial"}
    assert {row for row in said(module) if row[0] in folders} == expected


def test_no_right_function_gives_an_error():
    for file in ZOO.glob("*/right.py"):
        errors = [f for f in lint_file(file, file.name).findings if f.severity is Severity.ERROR]
        assert errors == [], file
