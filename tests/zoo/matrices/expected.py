"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "RootOfSpectrum",
    "LowerSolve",
    "LowerProduct",
    "SolvedByProducts",
    "LogDetOfFactor",
    "RotatedBack",
    "ConvergedRoot",
    "Heading",
    "Equilibrium",
]

WRONG = ["Lower", "Trace", "SquaredTrace", "ProductOfDiagonal"]

EXPECTED = {
    ("bare", name, "without spec"): {
        "status": "inconclusive",
        "warnings": {"GV109"},
        "may": {"GV410", "GV602"},
    }
    for name in RIGHT
}
EXPECTED |= {
    ("bare", name, "without spec"): {
        "status": "failed",
        "any_of": {"GV101", "GV107"},
        "may": {"GV103", "GV109"},
    }
    for name in WRONG
}
# Given up (`design.md`): right for a diagonal, square or symmetric argument alone, which nobody guessed.
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "failed", "errors": {"GV101"}, "may": {"GV109"}}
    for name in ("RootOfSpectrum", "LowerProduct", "Heading")
}
EXPECTED["bare", "Equilibrium", "without spec"] = {"status": "passed"}
