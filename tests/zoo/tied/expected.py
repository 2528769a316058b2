"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

RIGHT = (
    "MaximumShared",
    "MaximumFirst",
    "MaximumOfUnlike",
    "MinimumUnequally",
    "Distance",
    "HingeOfDifference",
    "WeighedMaximum",
    "Jump",
    "JumpShared",
    "Clamp",
    "LargestOfBoth",
    "Middle",
    "MaximumInPlace",
    "AboveOther",
    "SumOfMaxima",
    "InOrder",
    "ScaledMaximum",
    "DividedDifference",
    "DividedDifferenceWithLimit",
    "RootOfDistance",
    "LargerRealPart",
    "LargerModulus",
    "LargerOfRealAndComplex",
    "SegmentMaximumShared",
    "MedianOfRow",
    "MiddleInNumpy",
    "RectifiedFromZero",
    "DistanceFromZero",
    "LeakyFromZero",
    "WidthOfRowFromZero",
)

RIGHT_IN_SINGLE = (
    "MaximumInSingle",
    "MinimumInSingle",
    "DistanceInSingle",
    "HingesInSingle",
    "ScaledMaximumInSingle",
    "LargestInSingle",
    "ClampInSingle",
    "MaximumKernel",
)

WRONG = (
    "MaximumTwice",
    "MaximumLost",
    "MaximumOfUnlikeTwice",
    "MinimumTwice",
    "HingeOfDifferenceHalf",
    "WeighedMaximumTwice",
    "ClampTwice",
    "LargestOfBothTwice",
    "InOrderTwice",
    "MaximumTwiceInSingle",
    "MaximumTwiceInSingleAtOne",
    "MinimumLostInSingle",
    "ScaledMaximumTwiceInSingle",
    "MaximumTwiceKernel",
    "LargerRealPartTwice",
    "LargerModulusTwice",
    "LargerOfRealAndComplexTwice",
    "LargerOfComplexAndRealLost",
)

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in RIGHT},
    **{
        ("wrong", name, "with spec"): {
            "status": "failed",
            "errors": {"GV101"},
            "names": {"zeros, ties or duplicates"},
        }
        for name in WRONG
    },
    **{("right", name, "with spec"): {"status": "passed"} for name in RIGHT_IN_SINGLE},
    ("wrong", "DistanceBeyondInSingle", "with spec"): {
        "status": "failed",
        "errors": {"GV101"},
        "may": {"GV601"},
    },
    ("wrong", "DistanceBeyond", "with spec"): {"status": "failed", "errors": {"GV101"}},
    ("bare", "Larger", "without spec"): {"status": "passed"},
    ("bare", "LargerTwice", "without spec"): {"status": "failed", "errors": {"GV101"}},
}
EXPECTED["wrong", "SegmentMaximumTwice", "with spec"] = {
    "status": "failed", "errors": {"GV101"},
}  # fmt: skip
EXPECTED["wrong", "MaximumTwiceInNumpy", "with spec"] = {"status": "inconclusive", "warnings": {"GV109"}}
for name in ("SortedInNumpy", "RectifiedInNumpy"):
    EXPECTED["right", name, "with spec"] = {"status": "inconclusive", "warnings": {"GV109"}}
EXPECTED["wrong", "ExponentialFromZero", "with spec"] = {"status": "failed", "errors": {"GV101"}}
for name in ("MaximumLost", "LargerOfComplexAndRealLost"):
    EXPECTED["wrong", name, "with spec"] = {"status": "failed", "any_of": {"GV101", "GV107"}}
SHOWN_BY_ANY = ("LargerRealPartTwice", "MaximumTwiceKernel", "MinimumLostInSingle")
for name in (
    "MaximumTwiceInSingle",
    "MaximumTwiceInSingleAtOne",
    *SHOWN_BY_ANY,
):  # which draw shows it first, the seed decides
    EXPECTED["wrong", name, "with spec"] = {"status": "failed", "errors": {"GV101"}}
