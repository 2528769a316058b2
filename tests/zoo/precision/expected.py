"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

PASSES = (
    "Softmax",
    "NativeSoftmax",
    "RMSNorm",
    "LayerNorm",
    "SwiGLU",
    "OnlineSoftmax",
    "RoundsWeights",
    "LlamaRMSNorm",
    "Rotary",
    "SmoothedCrossEntropy",
    "ScatterSum",
    "Embedding",
    "OnlyFloat32",
    "InsideFloat32",
    "KernelWithReference",
    "Kernel",
    "ComplexSquare",
    "FilteredRows",
)

LOSES = {
    "FactorInBfloat16": ["bfloat16"],
    "SlightFactor": ["internals"],
    "ShortSum": ["weight", "internals"],
    "ThroughFloat8": ["bfloat16"],
    "VarianceByDifference": ["float32"],
    "LastRowInBfloat16": ["bfloat16"],
    "ShortStatistics": ["internals"],
    "KernelFromAnotherDtype": ["float32"],
}

NOT_FINITE = {
    "ExpWithoutMaximum": ["float16"],
    "OverflowsInBackward": ["`x`"],
    "ScaledBeforeTheCast": ["float16"],
}

ALONE = ("OnlyFloat32", "InsideFloat32", "KernelInFloat32", "KernelWithReference")
"""Right ones without a float64 path."""

EXPECTED = {
    # Without a composite a slope is all there is: it may fail a kernel, and passes none.
    ("right", "KernelInFloat32", "with spec"): {"status": "inconclusive", "or_else": {"inconclusive"}},
    ("right", "StatisticsInFloat32", "with spec"): {"status": "inconclusive", "warnings": {"GV109"}},
    **{("right", name, "with spec"): {"status": "passed"} for name in PASSES},
    **{
        ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV601"}, "names": names}
        for name, names in LOSES.items()
    },
    **{
        ("wrong", name, "with spec"): {
            "status": "failed",
            "errors": {"GV602"},
            "may": {"GV601"},
            "names": names,
        }
        for name, names in NOT_FINITE.items()
    },
    ("wrong", "KernelInFloat32", "with spec"): {
        "status": "failed",
        "errors": {"GV101"},
        "notes": {"GV104"},
        "names": ["expected"],
    },
    ("wrong", "OnlyFloat32", "with spec"): {
        "status": "failed",
        "errors": {"GV101"},
        "notes": {"GV104"},
        "names": ["no float64 path"],
    },
    ("wrong", "StaleStatistics", "with spec"): {
        "status": "failed",
        "errors": {"GV101"},
        "names": ["`x`"],
        "twin": "right:StatisticsInFloat32",
    },
    ("wrong", "ThroughFloat16", "with spec"): {  # by less than a hundredth, in a dtype that nobody listed
        "status": "passed",
        "warnings": {"GV601"},
        "names": ["float32"],
    },
    ("wrong", "FilteredRows", "with spec"): {
        "status": "inconclusive",  # off by half a rounding of float32 alone, and nothing but values can tell
        "warnings": {"GV109"},
        "twin": "right:FilteredRows",
    },
    ("wrong", "Halved", "with spec"): {  # what backward alone keeps in bfloat16
        "status": "inconclusive",
        "warnings": {"GV109"},
        "names": ["16 bits"],
    },
    ("wrong", "KernelClips", "with spec"): {
        "status": "failed",
        "errors": {"GV106"},
        "names": ["grad_output"],
    },
}
EXPECTED["right", "Bisected", "with spec"] = {"status": "inconclusive", "warnings": {"GV109"}}
EXPECTED["wrong", "Bisected", "with spec"] = {"status": "failed", "errors": {"GV101"}, "may": {"GV109"}}
