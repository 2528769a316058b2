"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed"}
    for name in (
        "scaled_product", "weighted_sum", "softmax_and_sum", "mean_of", "Double", "Cube",
        "torch.ops.zoo_right_library.cube",
    )
}  # fmt: skip
EXPECTED |= {
    ("right", "numpy_cube", "with spec"): {"status": "passed", "notes": {"GV203"}},
    ("right", "gather_rows", "with spec"): {
        "status": "passed",
        "notes": {"GV504"},
        "names": ["no fake impl"],
    },
    ("right", "looks_at_values", "with spec"): {
        "status": "passed",
        "notes": {"GV504"},
        "names": ["test_aot_dispatch_dynamic"],
    },
}

WRONG = {
    "product": ("GV101", "2 times too large"),
    "row_sums": ("GV103", "for `x`, whose shape is"),
    "scaled": ("GV105", "2 gradients"),
    "mean_of": ("GV101", "`xs[1]`"),
    "forgotten": ("GV102", "no autograd formula was registered"),
    "transposed_fake": ("GV504", "mismatched tensor metadata"),
    "misspelt_fake": ("GV504", "NameError"),
    "hidden_write": ("GV504", "Argument running"),
    "torch.ops.zoo_wrong_library.cube": ("GV504", "Gradients of the operator are different"),
    "torch.ops.zoo_wrong_library.detached": ("GV107", "`x`"),
}
"""Codes, then words that the findings must contain."""

EXPECTED |= {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {code}, "names": [words]}
    for name, (code, words) in WRONG.items()
}
EXPECTED["wrong", "torch.ops.zoo_wrong_library.cube", "with spec"]["warnings"] = {"GV504"}
EXPECTED |= {
    ("wrong", "product", "with spec"): EXPECTED["wrong", "product", "with spec"] | {"explained": True},
    ("wrong", "Cube", "with spec"): {"status": "passed"},
    ("bare", "linear", "without spec"): {"status": "passed"},
    ("bare", "pick", "without spec"): {"status": "passed"},
    ("bare", "halved", "without spec"): {"status": "failed", "errors": {"GV101"}},
}
