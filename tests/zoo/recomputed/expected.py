"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

MODULES = ["Closure", "RevBlock", "Ode", "Deq", "Checkpointed", "Reentrant"]

PARTS = ["Again", "Reversible", "Adjoint", "FixedPoint", "Field", "Cell"]
"""What is judged through the modules."""

EXPECTED = {
    ("right", name, "with spec"): {"status": "passed", "may": {"GV406"}} for name in (*MODULES, "Square")
}
EXPECTED |= {
    ("wrong", name, "with spec"): {"status": "failed", "errors": {"GV101"}} for name in (*MODULES, "Square")
}
EXPECTED |= {
    (module, name, "with spec"): {"status": "skipped"} for module in ("right", "wrong") for name in PARTS
}
