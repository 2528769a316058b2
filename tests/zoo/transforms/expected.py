"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "Product", "SinCos", "MatMul", "Weighted", "Threshold", "Rotate", "Whitened", "Dropout", "Gather",
    "swish", "Affine",
]  # fmt: skip

WRONG = {
    "ForgottenTerm": ("GV501", "`w`"),
    "Doubled": ("GV501", "2 times"),
    "Misspelt": ("GV501", "NameError"),
    "SavedForBackwardAlone": ("GV501", "not enough values"),
    "SecondOutput": ("GV501", "`x`"),
    "Conjugated": ("GV501", "`z`"),
    "DropsTangents": ("GV501", "jvp raises"),
    "IgnoresInDims": ("GV502", "last dimension"),
    "SumsTheBatch": ("GV502", "first dimension"),
    "DetachesUnderVmap": ("GV502", "gradient of `x`"),
    "NoneInDims": ("GV502", "`x` not batched"),
    "OneDimForBoth": ("GV502", "first dimension of `x` and over the last dimension of `w`"),
    "UnbatchedIsFirst": ("GV502", "`w` not batched"),
    "TwoOfThree": ("GV501", "`x` and `w` alone"),
    "Fallback": ("GV505", "`x`"),
}
"""Codes, then words that the findings must contain."""

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT} | {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {code}, "names": [words]}
    for name, (code, words) in WRONG.items()
}
EXPECTED |= {
    ("right", "OnlyFirst", "with spec"): {"status": "passed", "notes": {"GV502"}},
    ("right", "JvpRefuses", "with spec"): {"status": "passed", "notes": {"GV501"}},
    # What torch's own rule gives or refuses fails nothing.
    ("right", "Gate", "with spec"): {"status": "passed", "notes": {"GV502"}},
    ("right", "GeneratedForData", "with spec"): {"status": "passed", "notes": {"GV502"}},
    ("right", "OneDimension", "with spec"): {"status": "passed", "notes": {"GV502"}},
    ("right", "Counting", "with spec"): {"status": "passed", "notes": {"GV502"}},
    # Wrong under torch.compile alone, which is asked for by name.
    ("wrong", "Traced", "with spec"): {"status": "passed"},
}


def table(jvp, vmap, func):
    return {"double_backward": "yes", "jvp": jvp, "vmap": vmap, "func": func, "compile": "not-run"}


CAPABILITIES = {
    "right": {
        "Product": table("yes", "yes", "yes"),
        "SinCos": table("yes", "no", "no"),
        "Weighted": table("no", "yes", "yes"),
        "OnlyFirst": table("no", "yes", "yes"),
        "JvpRefuses": table("no", "no", "no"),
        "Counting": table("no", "no", "yes"),
        "Gate": table("no", "yes", "yes"),
        "OneDimension": table("no", "yes", "yes"),
        "Affine": table("yes", "yes", "yes"),
        "Gather": table("yes", "yes", "yes"),
        "swish": table("yes", "not-run", "not-run"),
    },
    "wrong": {
        "Doubled": table("wrong", "no", "yes"),
        "SumsTheBatch": table("no", "wrong", "yes"),
        "Fallback": table("no", "no", "wrong"),
    },
}
"""The table of capabilities, by module and name."""
