"""What a verifier must answer for the Functions of this folder; rows as in `../general/expected.py`."""

RIGHT = ("Twice", "LayerNorm", "Softmax", "Norm", "Sqrt")

WRONG = {
    "Threshold": "GV106",
    "HalfGrad": "GV601",
    "Normed": "GV106",
    "Detached": "GV202",
    "SecondSign": "GV201",
    "NormNaN": "GV108",
    "SoftNaN": "GV602",
    "SoftmaxNoMax32": "GV602",
    "BackwardNoMax32": "GV602",
    "NumpyClamp": "GV106",
    "Clamped": "GV106",
    "FirstColumn": "GV106",
    "ZeroInput": "GV108",
    "SecondWrong": "GV201",
}

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in RIGHT},
    **{
        ("wrong", name, "with spec"): {"status": "failed", "any_of": {code}, "may": {"GV108", "GV601"}}
        for name, code in WRONG.items()
    },
}
EXPECTED["wrong", "ZeroInput", "with spec"]["may"] = {"GV202"}  # what it saves is neither input nor output
EXPECTED["wrong", "BackwardNoMax32", "with spec"]["may"] |= {"GV101"}  # NaN, where it says what is expected
