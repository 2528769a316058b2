"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

RIGHT = ("Product", "Silu", "Quarter", "KeptHalfDeclared")
"""They pass, and the report says in which format they were rounded."""

AGREED = ("Norm",)
"""They have the gradient that torch derives with every operation in float64."""

UNDECIDED = ("HalfProduct", "Loss")
"""Right in float16, and taken for float32 inside, where differences along the gradient alone say nothing."""

UNTOLD = ("KeptHalf", "Kept8", "FakeQuantised", "QuantisedBothWays", "ByBits")
"""Numbers kept in few bits for backward alone, or as their bits: nothing tells that from a mistake."""

WRONG = (
    "ProductFactor",
    "ProductSign",
    "ProductClamped",
    "HalfProductMissing",
    "HalfProductSlight",
    "SiluMissing",
    "SiluFactor",
    "QuarterFactor",
    "QuarterSign",
    "NormMissing",
    "LossFactor",
    "LossSlight",
    "LossSign",
    "OnlyAsItIs",
    "Overflows",
)

OF_BACKWARD = ("RoundsGradOutput",)
"""What backward alone keeps in bfloat16 may be rounding."""

SLIGHT = {
    "status": "failed",
    "or_else": ("inconclusive",),
    "may": {"GV101", "GV106", "GV601", "GV602"},
}
"""A hundredth of a product in bfloat16 or float16, which is below what such differences may see."""

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed", "notes": {"GV104"}} for name in RIGHT},
    **{("right", name, "with spec"): {"status": "passed"} for name in AGREED},
    **{
        ("right", name, "with spec"): {"status": "passed", "or_else": ("inconclusive",), "notes": {"GV104"}}
        for name in UNDECIDED
    },
    **{
        ("right", name, "with spec"): {"status": "inconclusive", "or_else": ("inconclusive",)}
        for name in UNTOLD
    },
    **{
        ("wrong", name, "with spec"): {"status": "inconclusive", "warnings": {"GV109"}}
        for name in OF_BACKWARD
    },
    **{
        ("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV101", "GV106", "GV601", "GV602"}}
        for name in WRONG
    },
    ("right", "Product", "with spec"): {  # at some values it is taken for float32 inside, as well
        "status": "passed",
        "or_else": ("inconclusive",),
        "notes": {"GV104"},
    },
    ("wrong", "ProductSlight", "with spec"): SLIGHT,
    ("wrong", "HalfProductSlight", "with spec"): SLIGHT,
    ("wrong", "OnlyAsItIs", "with spec"): SLIGHT,  # or steps of forward look like kinks
}
