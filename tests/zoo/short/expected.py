"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

RIGHT = (
    "Product",
    "HalfProduct",
    "Silu",
    "Quarter",
    "Norm",
    "Loss",
    "KeptHalf",
)
"""They pass, and the report says in which format they were rounded."""

UNTOLD = ("Kept8", "FakeQuantised", "QuantisedBothWays", "ByBits")
"""Numbers kept as integers of 8 bits, or their bits: nothing tells a step of them from a mistake."""

WRONG = (
    "ProductFactor",
    "ProductSign",
    "ProductSlight",
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
    "RoundsGradOutput",
)

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed", "notes": {"GV104"}} for name in RIGHT},
    **{
        ("right", name, "with spec"): {"status": "inconclusive", "or_else": ("inconclusive",)}
        for name in UNTOLD
    },
    **{
        ("wrong", name, "with spec"): {"status": "failed", "any_of": {"GV101", "GV106", "GV601", "GV602"}}
        for name in WRONG
    },
}
