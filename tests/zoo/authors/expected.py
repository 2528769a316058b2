"""What a verifier must answer here, as in `general/expected.py`; `cause` holds those that must be named."""

CAUSES = {
    "LayerNorm": "missing-term",
    "BatchNormTrain": "constant-factor",
    "L2Normalize": "chain-factor",
    "WeightNorm": "chain-factor",
    "Attention": "constant-factor",
    "CausalSoftmax": "region",
    "Conv1d": "permuted",
    "AvgPool": "region",
    "EmbeddingSum": "duplicates",
    "LabelSmoothing": "constant-factor",
    "DiceLoss": "missing-term",
    "Huber": "branch",
    "CosineSim": "swapped-inputs",
    "LSTMCell": "ignored-output",
    "SegmentedScan": "chain-factor",
    "Cumsum": "permuted",
    "LogCumsumExp": "chain-factor",
    "GeneralSolve": "transposed",
    "ComplexMul": "conjugate",
    "MoERouter": "zero",
    "GeluErf": "operand",
}
"""Of the mistake in each wrong Function, several where inputs differ; empty where none may be named."""

ZEROS = {"LSTMCell", "MoERouter"}
"""Wrong Functions whose gradient is zero everywhere for some input."""

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed", "twin": f"wrong:{name}"} for name in CAUSES
} | {
    ("wrong", name, "with spec"): {
        "status": "failed",
        "errors": {"GV107" if name in ZEROS else "GV101"},
        "twin": f"right:{name}",
        "cause": {cause} if isinstance(cause, str) else cause,
    }
    for name, cause in CAUSES.items()
}
EXPECTED["bare", "OneWay", "without spec"] = {"status": "passed"}
EXPECTED["bare", "OneWayAlone", "without spec"] = {
    "status": "failed", "errors": {"GV101"}, "may": {"GV109"}, "cause": {"transposed"},
    "names": ["reverse=True"],
}  # fmt: skip
EXPECTED["bare", "Windows", "without spec"] = {
    "status": "inconclusive", "warnings": {"GV109"}, "names": ["`stride`"],
}  # fmt: skip
EXPECTED["bare", "InstanceNormScale", "without spec"] = {"status": "passed"}
EXPECTED |= {
    ("bare", name, "without spec"): {
        "status": "inconclusive", "warnings": {"GV109"}, "names": ["forward is a step in"],
    }
    for name in ("RoundedByTheLargest", "RoundedBetweenBounds", "RoundedByRows")
}  # fmt: skip
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "failed", "errors": {"GV101"}, "may": {"GV109"}}
    for name in ("MedianTwice", "ClampTwice", "ReluOnAMean", "DrawnInVain", "WeightedFloor")
}
EXPECTED["bare", "KeptInEightBits", "without spec"] = {
    "status": "inconclusive", "warnings": {"GV109"}, "names": ["16 bits or fewer"],
}  # fmt: skip
EXPECTED["bare", "SolvedByRounds", "without spec"] = {
    "status": "inconclusive", "warnings": {"GV109"}, "names": ["range: [-0.3, 0.3]"],
}  # fmt: skip
EXPECTED["bare", "SampledAtPoints", "without spec"] = {  # whose third column means nothing
    "status": "inconclusive", "warnings": {"GV109"}, "names": ["the shape of `points`"],
}  # fmt: skip
EXPECTED |= {
    ("bare", name, "without spec"): {
        "status": "inconclusive", "warnings": {"GV109"}, "names": ["backward should be the derivative"],
    }
    for name in ("LearnedStep", "LearnedStepAndOffset")
}  # fmt: skip
EXPECTED |= {("bare", name, "without spec"): {"status": "passed"} for name in ("Joined", "BendsAtFive")}
EXPECTED["bare", "JoinedOfOneSize", "without spec"] = {
    "status": "inconclusive", "warnings": {"GV109"}, "names": ["`parts` may differ in dimension 1"],
}  # fmt: skip
EXPECTED["bare", "SigmoidOfAScale", "without spec"] = {
    "status": "failed", "errors": {"GV101"}, "names": ["`beta`"],
}  # fmt: skip
EXPECTED["bare", "BendsTooLate", "without spec"] = {"status": "failed", "errors": {"GV101"}}
EXPECTED["bare", "TanhOfSoftplus", "without spec"] = {"status": "passed"}
EXPECTED["right", "LogCumsumExp", "with spec"]["may"] = {
    "GV602"
}  # exp overflows beyond 88.7 in float32, and its spec gives no range
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "failed", "errors": {code}}
    for name, code in (
        ("Clamped", "GV101"),
        ("Sorted", "GV101"),
        ("Lengths", "GV101"),
        ("WithoutABias", "GV105"),
    )
}
EXPECTED["bare", "ScaledRows", "without spec"] = {"status": "passed"}
EXPECTED["bare", "Quarters", "without spec"] = {"status": "passed"}
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "inconclusive", "warnings": {"GV109"}, "names": [said]}
    for name, said in (
        ("TriangularProduct", "that leaves zeros where forward gives them"),
        ("PaddedConvolution", "that leaves zeros where forward gives them"),
        ("LastButOne", "with -2, forward raises ValueError"),
        ("PickedOnce", "forward itself is not finite"),
    )
}
# Given up (`design.md`): a gradient that is no derivative, and neither source nor forward says so.
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "failed", "errors": {"GV101"}}
    for name in ("SignsOnAMean", "Feedback")
}
