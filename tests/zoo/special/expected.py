"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = {
    "AbsoluteRight": set(),
    "AbsoluteZero": set(),
    "ReluHalf": set(),
    "ClampOpen": set(),
    "Curved": set(),
    "Steep": set(),
    "Sum": set(),
    "Norm": {"GV203"},
    "Largest": {"GV203"},
    "Middle": {"GV203"},
    "SquaredRelu": set(),
    "Cube": set(),
    "RootOfSquare": set(),
    "Elu": set(),
    "RatioHalfAtZero": {"GV203"},
}

WRONG = {
    "AbsoluteBeyond": "GV101",
    "ReluBelow": "GV101",
    "ClampBeyond": "GV101",
    "CurvedBeyond": "GV101",
    "SumBeyond": "GV101",
    "CubeOfRoot": "GV201",
    "FourthByLogarithm": "GV201",
    "SecondCutAtOne": "GV201",
    "RatioFlatAtZero": "GV101",
    "CosineFlatAtOne": "GV101",
    "LogMeanOfOne": "GV101",
}

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed", "notes": notes} for name, notes in RIGHT.items()
} | {("wrong", name, "with spec"): {"status": "failed", "errors": {code}} for name, code in WRONG.items()}
