"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "LayerNorm", "Embedding", "BoxMean", "SegmentSum", "Conv2d", "TopK", "TopK@outputs", "AddInPlace",
    "Normalize", "LearnedStep", "SortedTies", "FirstOrderOnly",
    "ScaledPower", "ScaledPower@scale",
    "SumOf", "RoundSTE", "Reversal", "LogDet", "SphereHeight", "Apply", "CubeLayer", "RunningMean", "RowMax",
    "ScaledFirstRow",
    "MarkedTable",
]  # fmt: skip

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT} | {
    ("right", "CubeFunction", "without spec"): {"status": "passed"},
    ("wrong", "LayerNorm", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`x`"]},
    ("wrong", "Embedding", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`weight`"]},
    ("wrong", "BoxMean", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`features`"]},
    ("wrong", "SegmentSum", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`x`"]},
    ("wrong", "Conv2d", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`weight`"]},
    ("wrong", "TopK", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`x`"]},
    ("wrong", "SumOf", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`xs[1]`"]},
    ("wrong", "RoundSTE", "with spec"): {"status": "failed", "errors": {"GV302"}, "names": ["surrogate"]},
    ("wrong", "LogDet", "with spec"): {"status": "failed", "errors": {"GV101"}},
    ("wrong", "SphereHeight", "with spec"): {"status": "failed", "errors": {"GV101"}},
    ("wrong", "CubeFunction", "with spec"): {"status": "xfailed", "errors": {"GV101"}},
    ("wrong", "CubeFunction@over", "with spec"): {
        "status": "failed",
        "errors": {"GV101", "GV004"},
        "names": ["past"],
    },
    ("wrong", "CubeFunction@unneeded", "with spec"): {
        "status": "failed",
        "errors": {"GV101", "GV004"},
        "names": ["GV301"],
    },
    ("wrong", "CubeLayer", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`x`"]},
    ("wrong", "Normalize", "with spec"): {
        "status": "failed",
        "any_of": {"GV101", "GV107"},
        "names": ["output 1"],
    },
    ("wrong", "LearnedStep", "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`scale`"]},
    ("wrong", "AddInPlace", "with spec"): {"status": "failed", "errors": {"GV107"}, "names": ["`y`"]},
    ("wrong", "WrongSinglePrecisionSine", "with spec"): {
        "status": "failed",
        "errors": {"GV101"},
        "notes": {"GV104"},
        "names": ["float32"],
    },
    ("wrong", "SinglePrecisionSine", "with spec"): {
        "status": "passed",
        "notes": {"GV104"},
        "names": ["float32"],
    },
    ("wrong", "RunningMean", "with spec"): {"status": "failed", "errors": {"GV101"}},
    ("wrong", "NeverAsked", "with spec"): {
        "status": "unchecked",
        "warnings": {"GV001"},
        "names": ["none of the inputs requires grad"],
    },
    ("wrong", "MarkedTable", "with spec"): {"status": "failed", "errors": {"GV403"}},
    ("wrong", "Later", "with spec"): {"status": "skipped"},
}
