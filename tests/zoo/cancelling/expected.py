"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

RIGHT = (
    "Bernoulli",
    "BernoulliQuotient",
    "LogRatio",
    "CosineRatio",
    "LogarithmicMean",
    "EntropyGap",
    "Langevin",
    "Log1mExp",
    "SincNumpy",
    "BernoulliTwiceNumpy",
)

WRONG = (
    "BernoulliDetached",
    "BernoulliSlight",
    "BernoulliQuotientFactor",
    "CosineRatioSign",
    "LogarithmicMeanFactor",
    "EntropyGapSlight",
    "LangevinDetached",
)

HELPERS = {
    ("right", "_Slope", "bare"): {"status": "passed", "may": {"GV109", "GV602"}},
    ("wrong", "_Scale", "bare"): {"status": "inconclusive", "warnings": {"GV109"}},
}
"""Functions that a backward calls, without a spec of their own."""

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed", "may": {"GV110"}} for name in RIGHT},
    **{("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV201", "GV202"}} for name in WRONG},
    ("wrong", "BernoulliSlight", "with spec"): {
        "status": "failed",
        "errors": {"GV201"},
        "may": {"GV110"},  # the right one has it as well
    },
    **HELPERS,
}
