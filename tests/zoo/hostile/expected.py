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

UNCHECKED = {"status": "unchecked"}
PASSED = {"status": "passed"}

BROKEN = dict.fromkeys(
    [
        *("ReplacesRandom", "ReplacesAMethod", "ReplacesABuiltin", "AlwaysEqual"),
        "ReplacesTheEngine",
    ],
    UNCHECKED,
)

OF_A_SUBCLASS = {"status": "unchecked", "warnings": {"GV001"}, "names": ["forward returns Refusing"]}

SUBCLASSES = {
    "ReturnsASubclass": OF_A_SUBCLASS,
    "ReturnsATupleOfThem": OF_A_SUBCLASS,
    "ChangesTheClass": OF_A_SUBCLASS,
    "ChangesTheClassOfItsInput": PASSED,
    "ReturnsAGradientOfASubclass": PASSED,
    "WrongGradientOfASubclass": {"status": "failed", "errors": {"GV101"}},
}

SWITCHES = dict.fromkeys(
    [
        *("SetsTheDevice", "SetsTheDtype", "SetsThePrecision", "SetsHooks", "SetsTorchsModes"),
        "SetsWarnings",
    ],
    PASSED,
) | {"LeavesAModeEntered": {"status": "failed", "errors": {"GV002"}}}

LEAVES = {"status": "passed", "notes": {"GV816"}, "names": ["`LEFT`"]}

STATE = dict.fromkeys(["LeavesAFlag", "LeavesNoise", "LeavesAFactor"], LEAVES)


def named(*names):
    return {"status": "passed", "notes": {"GV816"}, "names": names}


CHEATS = {
    "Cube": PASSED,
    "OnlyInFloat64": {"status": "failed", "errors": {"GV601"}},
    "OnlyAtSmallSizes": {"status": "failed", "errors": {"GV101"}},
    "OnlyTheFirstCalls": named("`OnlyTheFirstCalls.calls`"),
    "OnlyUnderAChecker": named("is_checked reads `sys._getframe`"),
    "OnlyInThatProcess": named("`os.environ`", "`sys.argv`"),
    "OnlyWhatItHasSeen": named("`KNOWN`"),
    "GivesGradOutputItself": {"status": "failed", "errors": {"GV401"}},
    "CallsEverythingEqual": UNCHECKED,
    "ReplacesAutograd": UNCHECKED,
    "ReplacesItsOwnBackward": UNCHECKED,
    "WritesTheAnswer": {"status": "failed", "errors": {"GV901"}},
    "DifferentiatesForward": {"status": "passed", "notes": {"GV203", "GV817"}},
}

AFTER = ("Done", "Numbers", "HalfALine", "AThread")


def verdicts(module, hostile, after):
    right = {(module, f"Right{name}", "with spec"): {"status": "passed"} for name in after}
    wrong = {
        (module, f"Wrong{name}", "with spec"): {"status": "failed", "errors": {"GV101"}} for name in after
    }
    return right | wrong | {(module, name, "with spec"): row for name, row in hostile.items()}


def after(hostile):
    return ("", *(f"After{name}" for name in hostile if not name.startswith("Wrong")))


EXPECTED = (
    verdicts("channel", CHANNEL, ("", *(f"After{name}" for name in AFTER)))
    | verdicts("broken", BROKEN, after(BROKEN))
    | verdicts("subclasses", SUBCLASSES, after(SUBCLASSES))
    | verdicts("switches", SWITCHES, after(SWITCHES))
    | verdicts("state", STATE, after(STATE))
    | {("cheats", name, "with spec"): row for name, row in CHEATS.items()}
)
