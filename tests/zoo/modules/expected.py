"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "Scale", "Plain", "Skips", "ByName", "Running", "Counts", "TakesModule", "Nested", "Frozen",
    "Named", "Normed", "Averages", "Counted", "Spectral", "Lazy",
    "Standardized", "Standardize", "Pruned", "Decaying",
    "scaled", "by_another_name", "partly", "an_object", "total", "builtin", "torch.ops.aten.mul.Tensor",
]  # fmt: skip

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT}
EXPECTED |= {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}, "names": [words]}
    for name, words in {
        "Doubled": "`w`",
        "by_another_name": "`w`",
        "InParameter": "`self.w`",
        "InDict": "`self.w`",
        "ByName": "`self.w`",
        "Averages": "`self.w`",
        "Evaluating": "in evaluation mode the gradient with respect to `self.w`",
        "Standardized": "`w`",
        "Masked": "`w`",
        "Standardize": "in evaluation mode the gradient with respect to `self.w`",
        "Lazy": "`w`",
    }.items()
}
EXPECTED |= {(module, "_Decaying", "with spec"): {"status": "skipped"} for module in ("right", "wrong")}
EXPECTED["wrong", "Decaying", "with spec"] = {
    "status": "failed", "errors": {"GV408"}, "may": {"GV816"},
    "names": ["after forward was called with other sizes or options"],
}  # fmt: skip
for name in ("Initialised", "HeldToANorm"):
    EXPECTED["right", name, "with spec"] = {
        "status": "unchecked", "or_else": {"unchecked"}, "warnings": {"GV001"},
    }  # fmt: skip
EXPECTED["wrong", "FrozenNorm", "with spec"] = {"status": "skipped"}
EXPECTED["wrong", "FineTuned", "with spec"] = {
    "status": "failed", "errors": {"GV406"}, "names": ["in evaluation mode"],
}  # fmt: skip
EXPECTED |= {("wrong", "Silent", "with spec"): {"status": "unchecked", "warnings": {"GV001"}}}
EXPECTED |= {
    ("bare", "Normed", "without spec"): {"status": "passed", "notes": {"GV203"}},
    ("bare", "Forgetful", "without spec"): {"status": "failed", "errors": {"GV101"}, "names": ["`x`"]},
}
