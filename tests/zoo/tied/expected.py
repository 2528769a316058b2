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
)

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in RIGHT},
    **{
        ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}, "names": {"which are equal"}}
        for name in WRONG
    },
    ("wrong", "DistanceBeyond", "with spec"): {"status": "failed", "errors": {"GV101"}},
    ("bare", "Larger", "without spec"): {"status": "passed"},
    ("bare", "LargerTwice", "without spec"): {"status": "inconclusive", "warnings": {"GV109"}},
}
