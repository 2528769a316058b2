"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed"}
    for name in ("QuickGELU", "RowSoftmax", "RMSNorm")
} | {
    ("right", "Unmarked", "with spec"): {"status": "passed", "warnings": {"GV202"}},
    ("wrong", "NoTail", "with spec"): {
        "status": "failed", "errors": {"GV101"}, "names": ["past BLOCK = 32"],
    },
    ("wrong", "UnmaskedSum", "with spec"): {
        "status": "failed", "any_of": {"GV101", "GV106"},
    },
    ("wrong", "LastChunk", "with spec"): {
        "status": "failed", "errors": {"GV101"},
    },
}  # fmt: skip
