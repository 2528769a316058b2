"""What a verifier must answer here; the form of a row is that of ../general/expected.py.

Behind each hostile Function stand a right and a wrong one, which must get their verdicts.
"""

ENDED = {"status": "failed", "errors": {"GV901"}, "names": ["lost its connection"]}

CHANNEL = {
    "SaysDone": ENDED,
    "SaysDoneOfTheFirstRequest": ENDED,
    "SaysHalfALine": ENDED,
    "WritesLater": {"status": "failed", "or_else": ["passed"], "may": {"GV901"}},
}

AFTER = ("Done", "Numbers", "HalfALine", "AThread")


def verdicts(module, hostile, after):
    right = {(module, f"Right{name}", "with spec"): {"status": "passed"} for name in after}
    wrong = {
        (module, f"Wrong{name}", "with spec"): {"status": "failed", "errors": {"GV101"}} for name in after
    }
    return right | wrong | {(module, name, "with spec"): row for name, row in hostile.items()}


EXPECTED = verdicts("channel", CHANNEL, ("", *(f"After{name}" for name in AFTER)))
