"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

NAMES = (
    "Hinge",
    "LogSumExp",
    "CubeRoot",
    "Quotient",
    "Normalise",
    "Reciprocal",
    "LargestSquared",
    "LogSoftmaxOfAnything",
)

EXPECTED = {
    # Without a composite a slope is all there is: it may fail a kernel, and passes none.
    **{
        ("right", name, "with spec"): {"status": "inconclusive", "or_else": {"inconclusive"}}
        for name in NAMES
    },
    # It takes float64: the test of values closes in the digits that it computes in.
    ("right", "LogSoftmaxOfAnything", "with spec"): {"status": "passed"},
    **{("right", f"{name}@composite", "with spec"): {"status": "passed"} for name in NAMES},
    **{
        ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}, "names": ["expected"]}
        for name in NAMES
    },
    **{
        ("wrong", f"{name}@composite", "with spec"): {
            "status": "failed",
            "any_of": {"GV101", "GV302"},
        }
        for name in NAMES
    },
}
