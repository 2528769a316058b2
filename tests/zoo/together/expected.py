"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = {
    "Contiguous": set(),
    "RefusesFrozen": {"GV203", "GV405"},
    "ChannelsLast": set(),
    "Undefined": set(),
    "InPlace": set(),
    "BothOrNone": set(),
    "Rounding": set(),
    "Noisy": set(),
    "Layer": set(),
    "PenaltyInPlace": set(),
}

WRONG = {
    "LayoutAndSubset": "GV404",
    "ExpandedRows": "GV404",
    "InputAndSubset": "GV405",
    "BothTransposed": "GV404",
    "ChannelsLastBoth": "GV404",
    "SubsetAndUndefined": "GV406",
    "LayoutAndUndefined": "GV404",
    "OneStorage": "GV405",
    "scaled": "GV404",
    "Layer": "GV404",
    "PenaltyOfDetached": "GV202",
    "SecondOfOneInput": "GV201",
    "SecondOfOneOutput": "GV202",
}

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed", "notes": notes} for name, notes in RIGHT.items()
} | {("wrong", name, "with spec"): {"status": "failed", "errors": {code}} for name, code in WRONG.items()}
