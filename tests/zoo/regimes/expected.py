"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`.

`inconclusive` is honest for what has no value at half of the moderate inputs: its spec declares no domain.
"""

PASSES = (
    "MarkedLabels",
    "ReLU",
    "ReLUAtZeroOne",
    "Abs",
    "LeakyReLU",
    "ReLU6",
    "Clamp",
    "HardSwish",
    "ELU",
    "SignedSquare",
    "SoftplusThreshold",
    "NaiveSoftplus",
    "Tanh",
    "Sigmoid",
    "LogSigmoid",
    "SiLU",
    "Mish",
    "GELU",
    "Exp",
    "ExpSquare",
    "Gaussian",
    "Sinh",
    "Erfc",
    "SquareRootOfAbs",
    "CubeRoot",
    "Power15",
    "LogOfAbs",
    "Reciprocal",
    "Floor",
    "OneMinusCosine",
    "Sinc",
    "LogOnePlus",
    "LargeOffset",
    "Eighth",
    "TinyUnits",
    "Norm",
    "Normalize",
    "RMSNorm",
    "Hypot",
    "Divide",
    "RowMax",
    "SharedMax",
    "SortRows",
    "Product",
    "Softmax",
    "ScatterAdd",
    "Eigenvalues",
    "Center",
    "IsotonicProjection",
    "PoincareDistance",
    "Snake",
    "LowRankGaussian",
)

OUTSIDE_OF_THEIR_DOMAIN = (
    "SquareRoot",
    "Log",
    "XLogX",
    "Acos",
    "Atanh",
    "Tan",
    "CosineSeries",
    "FastSine",
    "Power",
    "MaskedSoftmax",
)

MISMATCHES = (
    "SoftplusThreshold",
    "ReLU6",
    "HardSwish",
    "TanhOfClamped",
    "TruncatedExp",
    "LargeNegative",
    "SmallAngle",
    "WrongAtZero",
    "ReLUAtZero",
    "MaxOfEqual",
    "ScatterAdd",
    "MaskedMean",
    "MarkedLabels",
    "ClampedRange",
    "GELU",
)

NOT_FINITE = (
    "Sinc",
    "SignedSquare",
    "PowerOfTwo",
    "SquaredNorm",
    "Product",
    "LogSumExp",
)

REFUSE_NOTHING = ("Center", "LargestFirst")
"""An empty batch."""

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in PASSES},
    **{
        ("right", name, "with spec"): {"status": "passed", "or_else": {"inconclusive"}}
        for name in OUTSIDE_OF_THEIR_DOMAIN
    },
    **{("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}} for name in MISMATCHES},
    **{("wrong", name, "with spec"): {"status": "failed", "errors": {"GV108"}} for name in NOT_FINITE},
    **{("wrong", name, "with spec"): {"status": "failed", "errors": {"GV412"}} for name in REFUSE_NOTHING},
}
