"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "WrittenAfterwards",
    "WrittenByIndex",
    "UnreadPadding",
    "ByBlocks",
    "UpToABlock",
    "Halves",
    "ByAddress",
]

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in RIGHT}
EXPECTED["right", "Halves", "with spec"]["warnings"] = {"GV412"}  # at the odd size after the even ones
EXPECTED |= {
    ("wrong", "FirstNotWritten", "with spec"): {
        "status": "failed", "errors": {"GV410"}, "any_of": {"GV101", "GV106", "GV108"},
        "may": {"GV101", "GV106", "GV107", "GV108", "GV110", "GV407"}, "names": ["uninitialised memory"],
    },
    ("wrong", "MaskedNotWritten", "with spec"): {
        "status": "failed", "errors": {"GV410"},
        "may": {"GV101", "GV106", "GV107", "GV108", "GV110", "GV407"},
        "names": ["uninitialised memory"],
    },
    ("wrong", "LastOutputNotWritten", "with spec"): {
        "status": "failed", "errors": {"GV410"}, "may": {"GV101", "GV106", "GV407"},
        "names": ["uninitialised memory"],
    },
    ("wrong", "RestOfTheBlock", "with spec"): {
        "status": "failed", "errors": {"GV101"}, "names": ["past BLOCK = 64"],
    },
    ("wrong", "RestOfTheBlock@listed", "with spec"): {
        "status": "inconclusive", "warnings": {"GV109"}, "names": ["past BLOCK = 64"],
    },
    ("wrong", "RestOfTheBlock@forbidden", "with spec"): {"status": "passed"},
    ("wrong", "NothingCarried", "with spec"): {
        "status": "failed", "errors": {"GV101"}, "names": ["past chunk = 32"],
    },
    ("wrong", "OtherAlgorithm", "with spec"): {
        "status": "failed", "errors": {"GV101"}, "names": ["past 100"],
    },
    ("wrong", "RoundedUp@listed", "with spec"): {
        "status": "inconclusive", "warnings": {"GV109"}, "names": ["past a power of 2"],
    },
    ("wrong", "RoundedUp", "with spec"): {
        "status": "failed", "any_of": {"GV101", "GV106"},
    },
}  # fmt: skip
