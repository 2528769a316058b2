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
)

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in RIGHT},
    **{
        ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}, "names": {"which are equal"}}
        for name in WRONG
    },
}
