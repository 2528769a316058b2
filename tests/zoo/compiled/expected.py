"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

NAMES = ["CompiledBackward", "Choice"]

EXPECTED = {("right", name, "with spec"): {"status": "passed"} for name in NAMES}
EXPECTED |= {("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}} for name in NAMES}
