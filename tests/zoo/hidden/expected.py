"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

WRONG = {
    "SkipsSmall": "GV106",
    "SkipsRows": "GV106",
    "Normalised": "GV106",
    "ComplexSquare": "GV404",
    "ThreeOptions": "GV101",
    "BlocksByShift": "GV101",
    "BlocksByTable": "GV101",
    "SoftplusFar": "GV201",
    "EmptyBatch": "GV412",
    "CubedDistance": "GV108",
    "VectorPath": "GV601",
    "LogProbabilities": "GV101",
    "KeptForAShape": "GV101",
    "PowerFromZero": "GV108",
    "SymmetricExp": "GV108",
    "GateAtASize": "GV101",
    "GatePastABlock": "GV101",
    "MicroBatches": "GV101",
    "LastWindow": "GV101",
    "Triangle": "GV302",
    "EveryLabel": "GV108",
    "PageBuffer": "GV408",
    "NegatedLoss": "GV106",
    "SincInSingle": "GV108",
    "SinhInSingle": "GV101",
    "VmapOfOne": "GV502",
}

RIGHT = (*WRONG, "ThinQR", "TransportPlan", "Torsion", "SkewTail")

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT} | {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {code}} for name, code in WRONG.items()
}
EXPECTED["wrong", "SymmetricExp", "with spec"] = {  # undeclared, and derived has a pole
    "status": "passed",
    "warnings": {"GV108"},
}
EXPECTED["right", "Torsion", "with spec"]["may"] = {"GV108"}  # where the angle has no value: a warning
for name in ("KeptForAShape", "PageBuffer"):
    EXPECTED["right", name, "with spec"]["notes"] = {"GV816"}
EXPECTED["right", "ReturnsHalf", "with spec"] = {"status": "passed", "or_else": {"inconclusive"}}
