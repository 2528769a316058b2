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

COLD = ("Cold300", "Cold400", "Cold500")
"""Of slopes that are tiny beside each other."""

SPANS = [
    *((name, "30") for name in RIGHT if name not in POSITIVE),
    *((name, "100") for name in ("Softmax", "SoftmaxByHand", "LogSoftmax", "Attention")),
    *((name, "decades") for name in (*POSITIVE, "Cube")),
]
"""Each at the range of its spec: ±30, ±100, or 1e-6 to 1e6."""

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
    "TiniestWrong",
    "GeluCut",
    "TanhCut",
    "SoftmaxNoSum",
)

EXPECTED = {
    **{("right", f"{name}@{span}", "with spec"): {"status": "passed"} for name, span in SPANS},
    **{("right", name, "with spec"): {"status": "passed"} for name in COLD},
    **{
        ("right", f"{name}@denormal", "with spec"): {"status": "passed", "or_else": {"inconclusive"}}
        for name in DENORMAL
    },
    **{("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV101", "GV107"}} for name in WRONG},
}
