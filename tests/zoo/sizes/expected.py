"""At sizes that a spec leaves open; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "RowScale", "ColumnMean", "Outer", "Linear", "SquareByPairs", "ExpByBlocks", "Bias", "AlternatingSum",
    "Total", "Softmax", "Centered", "Head", "Variance", "Directions",
]  # fmt: skip

WRONG = {
    "RowScale": "GV103",
    "ColumnMean": "GV101",
    "Outer": "GV101",
    "Linear": "GV101",
    "SquareByPairs": "GV101",
    "ExpByBlocks": "GV101",
    "Bias": "GV102",
    "AlternatingSum": "GV103",
    "Total": "GV101",
    "Softmax": "GV101",
    "Centered": "GV101",
    "Head": "GV101",
}
"""None of them is wrong at the sizes of its base case: `--effort quick` passes them all."""

REFUSES = {"AtLeastTwo": "n=1", "Halves": "n=5", "NoGradientForOne": "n=1", "HermiteSpline": "k=1"}
"""Right ones that say where they stop, with the sizes they must be quoted at."""

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT}
EXPECTED |= {
    ("right", "TurnsTheFirst", "with spec"): {"status": "passed"},
    ("right", "FixedPointToATolerance", "with spec"): {
        "status": "passed",
        "or_else": {"inconclusive"},  # at some undeclared values its tolerance shows
        "may": {"GV110"},
        "notes": {"GV203"},
    },
}
EXPECTED |= {
    ("right", name, "with spec"): {"status": "passed", "notes": {"GV412"}, "names": [sizes]}
    for name, sizes in REFUSES.items()
}
EXPECTED |= {("wrong", name, "with spec"): {"status": "failed", "errors": {c}} for name, c in WRONG.items()}
