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
    "GeluCut",
    "TanhCut",
    "SoftmaxNoSum",
)

EXPECTED = {
    **{
        ("right", f"{name}@{span}", "with spec"): {"status": "passed"}
        for name in RIGHT
        for span in (("decades",) if name in POSITIVE else ("30", "100", "decades"))
    },
    **{("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV101", "GV107"}} for name in WRONG},
}
