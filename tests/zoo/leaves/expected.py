"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

KEPT = {"warnings": {"GV411"}}
"""An input on ctx is no error."""

RIGHT = {
    "Fused": {**KEPT, "notes": {"GV203"}},
    "FusedKernel": {**KEPT, "notes": {"GV203"}},
    "ByHand": {**KEPT, "notes": {"GV203"}},
    "CachedByVersion": {"notes": {"GV203"}},
    "CountsOnATensor": {"notes": {"GV816"}, "names": {"`TABLE`"}},
    "Tiny": {},
    "InPlace": {},
    "RefusesLeaves": {"notes": {"GV414"}},
    "Lookup": {"notes": {"GV203"}},
    "Dropped": {},
    "Hooked": {},
    "Layer": {**KEPT, "notes": {"GV203"}},
}

WRONG = {
    "AddsTwice": KEPT,
    "Overwrites": KEPT,
    "ForParameters": {},
    "CachedOnWeight": {"names": {"second step"}},
    "LeafInput": {},
    "tripled": {},
    "Layer": {},
}

EXPECTED = {("right", name, "with spec"): {"status": "passed", **row} for name, row in RIGHT.items()} | {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV414"}, **row}
    for name, row in WRONG.items()
}
