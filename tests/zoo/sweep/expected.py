"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "Scale", "ImageScale", "OnlyContiguous", "Views", "Linear", "NeedsBoth", "ReluInPlace", "BatchMean",
    "SumBoth", "TotalOf", "Windowed", "Cached", "Dropout", "DropoutDrawnAgain", "SoftmaxScores", "RowLargest",
    "SinCos", "ByPointer", "Gather", "Mean", "Power", "scaled_sum", "ToSparse",
]  # fmt: skip

WRONG = {
    "Attention": ("GV404", "transposed"),
    "InputStrides": ("GV404", "GV405", "transposed"),
    "RoIAverage": ("GV404", "`features`"),
    "Flattens": ("GV404", "raises"),
    "LastOfTwo": ("GV404", "output 1"),
    "DoublesInPlace": ("GV401", "into grad_output"),
    "TransducerLoss": ("GV401", "into grad_output"),
    "CrossEntropy": ("GV402", "`logits`"),
    "Rotary": ("GV402", "`q`"),
    "ScratchSaved": ("GV403", "`x`"),
    "ScratchProbabilities": ("GV403", "saved tensor 0"),
    "StructuralSimilarity": ("GV405", "`image`"),
    "SavedAsContiguous": ("GV405", "`x`"),
    "Lengthscale": ("GV405",),
    "ViewsSaved": ("GV405", "raises"),
    "ByIdentity": ("GV405", "same tensor"),
    "OnlyWithInput": ("GV406", "only `w`"),
    "SwappedWhenFrozen": ("GV406", "only `w`"),
    "OnlyWhatIsNeeded": ("GV406", "only `w`"),
    "ArithmeticWithNone": ("GV406", "only `w`"),
    "SavesForInput": ("GV406", "only `w`"),
    "BothUndefined": ("GV407", "every output"),
    "OnTheClass": ("GV408", "second forward"),
    "FirstInFirstOut": ("GV408", "second forward"),
    "ReturnsItsBuffer": ("GV408", "same memory"),
    "Mean": ("GV408", "other sizes or options"),
    "Power": ("GV408", "other sizes or options"),
    "Clipped": ("GV408", "other sizes or options"),
    "Reshaped": ("GV408", "raises RuntimeError"),
    "FirstAtASize": ("GV410", "does not repeat itself"),
    "DrawsAgain": ("GV101",),
    "Accumulates": ("GV409", "retain_graph"),
    "HungOnTheInput": ("GV413", "offloaded"),
    "FreesEarly": ("GV409", "AttributeError"),
    "Leaks": ("GV411", "memory grows"),
    "ToSparse": ("GV101", "`values`"),
}
"""Codes, then words that the findings must contain."""


def row(*said):
    codes = {word for word in said if word.startswith("GV")}
    return {"status": "failed", "errors": codes, "names": [word for word in said if word not in codes]}


EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT} | {
    ("wrong", name, "with spec"): row(*said) for name, said in WRONG.items()
}
EXPECTED |= {
    ("right", "OnlyContiguous", "with spec"): {"status": "passed", "notes": {"GV405"}},
    ("right", "NeedsBoth", "with spec"): {"status": "passed", "notes": {"GV406"}},
    ("right", "OtherOrder", "with spec"): {"status": "passed", "notes": {"GV410"}, "names": ["nondet_tol"]},
    ("wrong", "Mean@listed", "with spec"): {
        "status": "inconclusive",
        "warnings": {"GV109"},
        "names": ["`x`", "no spec lists such sizes"],
    },
    ("wrong", "Drifts", "with spec"): {"status": "failed", "errors": {"GV410"}, "may": {"GV101", "GV106"}},
    ("wrong", "Jitters", "with spec"): {"status": "failed", "errors": {"GV410"}, "may": {"GV101", "GV106"}},
    ("wrong", "Workspace", "with spec"): {"status": "passed", "warnings": {"GV402"}, "names": ["`work`"]},
    ("wrong", "KeepsOutput", "with spec"): {"status": "passed", "warnings": {"GV411"}, "names": ["ctx.y"]},
    ("wrong", "KeepsInput", "with spec"): {"status": "passed", "warnings": {"GV411"}, "names": ["ctx.x"]},
}
