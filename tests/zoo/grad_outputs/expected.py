"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "SkipsNothing",
    "Softmax",
    "Haar",
    "Fourier",
    "SolvedByIteration",
    "PicksRight",
    "RunningSum",
    "ByRest",
    "InFloat32",
    "SteepNorm",
    "Complex",
    "Two",
    "Dropped",
    "Clips",
    "Frozen",
    "MatrixExponential",
    "Guarded",
    "ConjugateGradients",
    "ScaledSTE",
    "CancellingSTE",
    "SingleSTE",
]

NOT_LINEAR = [
    "PicksOneOfAll",
    "BalancedRows",
    "BalancedColumns",
    "BalancedOverall",
    "PicksOne",
    "MeanPath",
    "Faint",
    "Saturating",
    "FaintBesideOthers",
    "SmallEntries",
    "scaled_rows",
    "Layer",
    "FivePercentForOne",
    "MoreForAMean",
    "ClampedSTE",
    "SmallDroppedSTE",
    "ShortenedSTE",
    "OnesSTE",
    "SingleClampedSTE",
    "FaintInALoop",
    "ClampedInALoop",
]

NOT_TOLD = ["SingleStep", "SingleReversal", "SingleUnlike"]

NOTES = {
    "SingleSTE": {"GV104"},
    "SteepNorm": {"GV203"},
    "SolvedByIteration": {"GV203"},
}

WARNINGS = {"Guarded": {"GV102"}, "ConjugateGradients": {"GV106"}}

EXPECTED = (
    {
        ("right", name, "with spec"): {
            "status": "passed",
            "notes": NOTES.get(name, set()),
            "warnings": WARNINGS.get(name, set()),
        }
        for name in RIGHT
    }
    | {("wrong", name, "with spec"): {"status": "failed", "errors": {"GV106"}} for name in NOT_LINEAR}
    | {
        ("wrong", name, "with spec"): {"status": "inconclusive", "notes": {"GV104"}, "warnings": {"GV109"}}
        for name in NOT_TOLD
    }
    | {("wrong", "SingleSTE", "with spec"): {"status": "failed", "errors": {"GV302"}, "notes": {"GV104"}}}
    | {("wrong", "FailsForOnes", "with spec"): {"status": "failed", "errors": {"GV102"}}}
    | {("wrong", name, "with spec"): {"status": "skipped"} for name in ("Product", "_Scaled")}
)
