"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

FOUND = {
    "MutatesGradOutput": "GV401",
    "ContiguousGradOutput": "GV404",
    "ContiguousInput": "GV405",
    "RawMemory": "GV402",
    "AddsOneInSilence": "GV402",
    "FrozenInput": "GV406",
    "ByTheOtherDimension": "GV101",
    "TailPast64": "GV101",
    "LastOfThousand": "GV101",
    "NineHundredths": "GV101",
    "SmallSlope": "GV101",
    "NoneForSmall": "GV107",
    "OffDiagonal": "GV101",
    "ClampedGradOutput": "GV106",
    "SignOfGradOutput": "GV106",
    "Float32Gradient": "GV104",
    "MoreDimensions": "GV103",
    "NotANumberAtZero": "GV108",
    "NegativeSide": "GV101",
    "EmptyCrashes": "GV412",
    "KeptOnCtx": "GV411",
    "IntermediateSaved": "GV202",
    "UndefinedGradOutput": "GV407",
    "Stochastic": "GV109",
    "BroadcastBias": "GV101",
    "FusedLinearLoss": "GV106",
    "GroupNorm": "GV101",
    "SoftplusScan": "GV101",
    "ComplexScan": "GV101",
    "GatedAttention": "GV101",
    "GatedNorm": "GV101",
    "NormalizedLinearAttention": "GV101",
    "SparseMatmul": "GV101",
    "LogScale": "GV101",
    "FieldOfView": "GV101",
    "ChunkedConvolution": "GV101",
    "SegmentSum": "GV202",
    "TutorialAttention": "GV101",
    "Renorm": "GV101",
    "SpecifyGradient": "GV106",
    "FourierMagnitude": "GV101",
}
"""The code of each wrong one."""

WARNINGS = {"GV103", "GV411"}
"""What harms nobody's gradient: the engine sums the one, and memory is freed later for the other."""

UNKNOWN = {"GV109"}
"""Forward gives other values at each call: its gradient may be right, and nobody can tell."""


def wrong(name):
    """What is to be said of a wrong one."""
    if FOUND[name] in UNKNOWN:
        return {"status": "inconclusive", "twin": f"right:{name}", "warnings": {FOUND[name]}}
    said = {"warnings": {FOUND[name]}} if FOUND[name] in WARNINGS else {"errors": {FOUND[name]}}
    return {"status": "failed" if "errors" in said else "passed", "twin": f"right:{name}", **said}


EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed", "twin": f"wrong:{name}"} for name in FOUND},
    **{("wrong", name, "with spec"): wrong(name) for name in FOUND},
}
