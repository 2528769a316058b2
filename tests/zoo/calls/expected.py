"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = ["ScaledInPlace", "ByMode"]

WRONG = {
    "ScaledInPlace": {"errors": {"GV101"}},
    "ByMode": {"errors": {"GV101"}},
    "WritesAlways": {"errors": {"GV401"}},
    "WritesAndSign": {"errors": {"GV101"}, "may": {"GV302", "GV401"}},
    "SpoilsSaved": {"errors": {"GV403"}},
    "SpoilsAndScales": {"errors": {"GV101"}, "may": {"GV403"}},
    "Returned": {"errors": {"GV408"}},
    "UnwrittenRows": {"any_of": {"GV410", "GV101"}, "may": {"GV601"}},
    "SameResult": {"errors": {"GV408"}},
    "CopiesWhereAsked": {"errors": {"GV401"}, "may": {"GV804"}},
    "ScalesWhereAsked": {"errors": {"GV401"}, "may": {"GV804"}},
}

LINT = {"GV804"}
"""What is said of a write from the source alone."""

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed", "notes": {"GV401"}, "may": LINT} for name in RIGHT
} | {
    ("wrong", name, "with spec"): {"status": "failed", **row, "may": LINT | row.get("may", set())}
    for name, row in WRONG.items()
}
