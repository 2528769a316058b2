"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`.

`inconclusive` is honest for what has no value at half of the moderate inputs: its spec declares no domain.
"""

PASSES = (
    "MarkedLabels",
    "ReLU",
    "ReLUAtZeroOne",
    "Abs",
    "Abs@declared",
    "SquareRootOfAbs@declared",
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
    "Normalize",
    "RMSNorm",
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
    "SmallAngle@declared",
    "MiddleDecade",
    "SmallStretch",
    "LateDecade",
    "WrongAtZero",
    "ReLUAtZero",
    "MaxOfEqual",
    "ScatterAdd",
    "MaskedMean",
    "MarkedLabels",
    "ClampedRange",
    "GELU",
)

NAN_AT_ZERO = ("Norm", "Hypot", "PoincareDistance")
"""0 / 0 at a zero that no spec declares: a warning."""

NOT_FINITE = (
    "SignByDivision",
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
        ("right", name, "with spec"): {"status": "passed", "warnings": {"GV108"}, "may": {"GV108"}}
        for name in NAN_AT_ZERO
    },
    # Small distances, which its range holds, round in float32 about as much as still passes.
    ("right", "PoincareDistance", "with spec"): {
        "status": "passed",
        "or_else": {"failed"},
        "warnings": {"GV108"},
        "may": {"GV601"},
    },
    **{
        ("right", name, "with spec"): {"status": "passed", "or_else": {"inconclusive"}}
        for name in OUTSIDE_OF_THEIR_DOMAIN
    },
    **{("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}} for name in MISMATCHES},
    **{("wrong", name, "with spec"): {"status": "failed", "errors": {"GV108"}} for name in NOT_FINITE},
    **{("wrong", name, "with spec"): {"status": "failed", "errors": {"GV412"}} for name in REFUSE_NOTHING},
}
EXPECTED["wrong", "LogSumExp", "with spec"]["may"] = {"GV602"}
