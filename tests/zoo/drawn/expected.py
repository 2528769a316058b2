"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

WRONG = {
    "Coupling": "GV101",
    "Logged": "GV411",
    "Pooled": "GV101",
    "RowMaximum": "GV101",
    "ColumnMinimum": "GV101",
    "SegmentMean": "GV101",
    "Shrunk": "GV101",
    "AroundOne": "GV101",
}

RIGHT = (*WRONG, "SegmentMeanRefusing")

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT} | {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {code}} for name, code in WRONG.items()
}
# With frozen parameters `torch.autograd.grad` in its backward raises, as it would in training.
EXPECTED["right", "Coupling", "with spec"]["notes"] = {"GV406"}
# Backward raises at the odd size after the even ones.
EXPECTED["right", "Pooled", "with spec"]["warnings"] = {"GV412"}
