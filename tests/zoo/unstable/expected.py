"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

NAMES = (
    "Softmax",
    "LogSumExp",
    "Variance",
    "LogProduct",
    "Sigmoid",
    "SoftplusBackward",
    "LogCoshBackward",
    "UnitVector",
    "OneMinusCos",
    "Hypot",
    "SquareDistance",
    "ConjugateRoot",
    "LogOnePlus",
    "DeviationBackward",
    "GeometricMean",
    "LogOfSoftmax",
    "LogProductBackward",
    "TanhByExponentials",
    "QuadraticRoot",
    "LogSumExpBackward",
)
"""Of pairs: a formula that is stable in float32 at its declared range, and one that is not."""

EXPECTED = {
    ("right", "SeededNoise", "with spec"): {"status": "passed"},
    ("right", "OneMinusCosInNumPy", "with spec"): {"status": "inconclusive", "or_else": {"inconclusive"}},
    **{("right", name, "with spec"): {"status": "passed", "may": {"GV108"}} for name in NAMES},
    **{
        ("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV601", "GV602"}, "may": {"GV108"}}
        for name in NAMES
    },
}
EXPECTED["right", "LogitLoss", "with spec"] = {"status": "passed"}
EXPECTED["wrong", "LogitLoss", "with spec"] = {"status": "failed", "errors": {"GV108"}, "may": {"GV602"}}
EXPECTED["right", "Eigenvectors", "with spec"] = {"status": "passed", "may": {"GV203"}}
# What vanishes beside a number of order one is lost in every formula that adds it.
EXPECTED["wrong", "LogOnePlus", "with spec"] = {"status": "passed"}
