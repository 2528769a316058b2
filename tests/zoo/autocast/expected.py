"""What `--autocast` must answer here; the form of a row is that of ../general/expected.py."""

PASSES = (
    "Linear",
    "LinearInFloat32",
    "LinearPromoted",
    "LinearCastsByHand",
    "SavesShort",
    "Gelu",
    "Attention",
    "Recomputes",
    "LayerNorm",
    "Kernel",
    "OnlyFloat32",
)

RAISES = ("Linear", "ForgetsBackward", "ForAnotherDevice", "SavedShort")

WRONG = {
    "ScalesTwice": ["`x`"],
    "AllocatesShort": ["`weight`", "custom_fwd"],
    "ForgetsTheInput": ["`x`"],
}

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in PASSES},
    ("right", "Refuses", "with spec"): {"status": "passed", "notes": {"GV603"}, "names": ["refuses"]},
    **{
        ("wrong", name, "with spec"): {
            "status": "failed",
            "errors": {"GV603"},
            "names": ["torch.autocast('cpu'", "same dtype", "custom_bwd"],
        }
        for name in RAISES
    },
    **{
        ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV603"}, "names": names}
        for name, names in WRONG.items()
    },
    ("wrong", "AlwaysHalf", "with spec"): {
        "status": "passed",
    },
}
