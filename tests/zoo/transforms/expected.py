"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "Product", "SinCos", "MatMul", "Weighted", "Threshold", "Rotate", "Whitened", "Dropout", "Gather",
    "swish", "Affine",
]  # fmt: skip

WRONG = {
    "ForgottenTerm": ("GV501", "`w`"),
    "Doubled": ("GV501", "where the verified backward gives"),
    "Misspelt": ("GV501", "NameError"),
    "SavedForBackwardAlone": ("GV501", "not enough values"),
    "SecondOutput": ("GV501", "`x`"),
    "Conjugated": ("GV501", "`z`"),
    "DropsTangents": ("GV501", "jvp raises"),
    "IgnoresInDims": ("GV502", "in_dims=(-1,)"),
    "SumsTheBatch": ("GV502", "in_dims=(0,"),
    "DetachesUnderVmap": ("GV502", "gradient of `x`"),
    "NoneInDims": ("GV502", "in_dims=(None, "),
    "PowerOfTwo": ("GV501", "`x`"),
    "AlongLast": ("GV502", "under torch.vmap"),
    "OneDimForBoth": ("GV502", "in_dims=(0, -1)"),
    "UnbatchedIsFirst": ("GV502", "None)"),
    "TwoOfThree": ("GV501", "`x` and `w` is"),
}
"""Codes, then words that the findings must contain."""

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT} | {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {code}, "names": [words]}
    for name, (code, words) in WRONG.items()
}
EXPECTED |= {
    ("right", "OnlyFirst", "with spec"): {"status": "passed", "notes": {"GV502"}},
    ("right", "JvpRefuses", "with spec"): {"status": "passed", "notes": {"GV501"}},
    # Of a rule that torch generates nothing is asked.
    ("right", "Gate", "with spec"): {"status": "passed"},
    ("right", "GeneratedForData", "with spec"): {"status": "passed"},
    ("right", "OneDimension", "with spec"): {"status": "passed", "notes": {"GV502"}},
    ("right", "Counting", "with spec"): {"status": "passed"},
    # Wrong under torch.compile alone, which is asked for by name.
    ("wrong", "Traced", "with spec"): {"status": "passed"},
}


def table(jvp, vmap):
    return {"double_backward": "yes", "jvp": jvp, "vmap": vmap, "compile": "not-run"}


CAPABILITIES = {
    "right": {
        "Product": table("yes", "not-run"),
        "SinCos": table("yes", "no"),
        "Weighted": table("no", "yes"),
        "OnlyFirst": table("no", "yes"),
        "JvpRefuses": table("no", "no"),
        "Counting": table("no", "not-run"),
        "Gate": table("no", "not-run"),
        "OneDimension": table("no", "yes"),
        "Affine": table("yes", "yes"),
        "Gather": table("yes", "not-run"),
        "swish": table("yes", "not-run"),
    },
    "wrong": {
        "Doubled": table("wrong", "no"),
        "SumsTheBatch": table("no", "wrong"),
    },
}
"""The table of capabilities, by module and name."""
