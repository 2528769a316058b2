"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

RIGHT = (
    "Softmax",
    "SoftmaxByHand",
    "LogSoftmax",
    "Gelu",
    "GeluTanh",
    "Sigmoid",
    "Tanh",
    "Softplus",
    "LogOneExpMinus",
    "Swish",
    "Attention",
    "CrossEntropy",
    "LayerNorm",
    "Cube",
    "Exp",
    "Erfc",
    "Tiny",
    "LogSumExp",
    "Rsqrt",
    "Log",
)

POSITIVE = ("Rsqrt", "Log")
"""Defined for positive values alone."""

DENORMAL = ("Potential", "PotentialOfRows", "ManyPotentials")
"""Of numbers around 1e-315, which have a few digits."""

SPANS = [
    *((name, "30") for name in RIGHT if name not in POSITIVE),
    *((name, "100") for name in ("Softmax", "SoftmaxByHand", "LogSoftmax", "Attention")),
    *((name, "denormal") for name in DENORMAL),
    *((name, "decades") for name in (*POSITIVE, "Cube")),
]
"""Each at the range of its spec: ±30, ±100, 1e-6 to 1e6, or where results are denormal."""

WRONG = (
    "ExpLow",
    "ExpHigh",
    "SigLow",
    "SigHigh",
    "ErfcHigh",
    "ErfcLow",
    "CubeSmall",
    "CubeLarge",
    "SoftplusLow",
    "SoftplusHigh",
    "TanhTail",
    "TinyWrong",
    "PotentialWrong",
    "GeluCut",
    "TanhCut",
    "SoftmaxNoSum",
)

EXPECTED = {
    **{("right", f"{name}@{span}", "with spec"): {"status": "passed"} for name, span in SPANS},
    **{("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV101", "GV107"}} for name in WRONG},
}
