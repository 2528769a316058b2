"""What a verifier must answer for every Function of this folder: data, and nothing else.

The key is (module, name in the spec, with or without a spec). In each row

- `status`: the verdict; `or_else`: verdicts that are honest as well, where float64 itself is the limit;
- `errors`, `warnings`, `notes`: codes that must be found, with that severity;
- `any_of`: at least one of these must be found, as an error;
- `may`: codes that are true as well, at any severity: neither asked for nor a mistake;
- every other error or warning is a false alarm; every other note is welcome;
- `names`: what the words of the findings must contain, such as the input's name;
- `cause`: the causes that must be named, and no others;
- `explained`: what is named stands in a change of backward, which is not looked for in every row;
- `source`: what the line of code that a finding points to must contain;
- `twin`: its counterpart in the other module, as `module:name`.

What is missing from a row is empty.
"""

EXPECTED = {
    # Right: ways of writing a Function
    ("right", "Square", "with spec"): {"status": "passed", "twin": "wrong:Square"},
    ("right", "Sine", "with spec"): {"status": "passed", "twin": "wrong:Sine", "notes": {"GV203"}},
    ("right", "SineAgain", "with spec"): {"status": "passed", "twin": "wrong:SineAgain", "notes": {"GV203"}},
    ("right", "CubeBackward", "with spec"): {"status": "passed", "twin": "wrong:CubeBackward"},
    ("right", "Cube", "with spec"): {"status": "passed", "twin": "wrong:Cube"},
    ("right", "Lerp", "with spec"): {"status": "passed", "twin": "wrong:Lerp"},
    ("right", "ScaleBy", "with spec"): {"status": "passed", "twin": "wrong:ScaleBy"},
    ("right", "LeakyReLUInPlace", "with spec"): {"status": "passed", "twin": "wrong:LeakyReLUInPlace"},
    # Right: elementwise
    ("right", "GELU", "with spec"): {"status": "passed", "twin": "wrong:GELU"},
    ("right", "TanhGELU", "with spec"): {"status": "passed", "twin": "wrong:TanhGELU"},
    ("right", "Exp", "with spec"): {"status": "passed", "twin": "wrong:ExpClampsGradient"},
    ("right", "Logistic", "with spec"): {"status": "passed", "twin": "wrong:Logistic"},
    ("right", "SquareRoot", "with spec"): {"status": "passed", "twin": "wrong:SquareRoot"},
    ("right", "Log", "with spec"): {"status": "passed", "twin": "wrong:Log"},
    ("right", "FourthPower", "with spec"): {"status": "passed", "twin": "wrong:FourthPower"},
    ("right", "SteepSine", "with spec"): {"status": "passed", "twin": "wrong:SteepSine"},
    ("right", "LargeOffset", "with spec"): {
        "status": "passed",
        "twin": "wrong:LargeOffset",
        "or_else": {"inconclusive"},
    },
    ("right", "HardShrink", "with spec"): {"status": "passed", "twin": "wrong:HardShrink"},
    ("right", "SoftShrink", "with spec"): {"status": "passed", "twin": "wrong:SoftShrink"},
    ("right", "Floor", "with spec"): {"status": "passed", "twin": "wrong:Floor"},
    ("right", "OnesLike", "with spec"): {"status": "passed", "twin": "wrong:OnesLike"},
    ("right", "Dropout", "with spec"): {"status": "passed", "twin": "wrong:Dropout"},
    ("right", "MaskedSquare", "with spec"): {"status": "passed", "twin": "wrong:MaskedSquare"},
    ("right", "ComplexMultiply", "with spec"): {"status": "passed", "twin": "wrong:ComplexMultiply"},
    ("right", "SwiGLU", "with spec"): {"status": "passed", "twin": "wrong:SwiGLU"},
    # Right: along a dimension
    ("right", "Softmax", "with spec"): {"status": "passed", "twin": "wrong:Softmax"},
    ("right", "Softmax@saturated", "with spec"): {"status": "passed", "twin": "wrong:Softmax"},
    ("right", "LogSumExp", "with spec"): {"status": "passed", "twin": "wrong:LogSumExp"},
    ("right", "LayerNorm", "with spec"): {"status": "passed", "twin": "wrong:LayerNorm", "notes": {"GV203"}},
    ("right", "RMSNorm", "with spec"): {"status": "passed", "twin": "wrong:RMSNorm"},
    ("right", "CumSum", "with spec"): {"status": "passed", "twin": "wrong:CumSum"},
    ("right", "RowMax", "with spec"): {"status": "passed", "twin": "wrong:RowMax"},
    ("right", "Pool", "with spec"): {"status": "passed", "twin": "wrong:Pool"},
    # Right: several outputs, or none but a number
    ("right", "NormDirection", "with spec"): {"status": "passed", "twin": "wrong:NormDirection"},
    ("right", "SumProductSign", "with spec"): {"status": "passed", "twin": "wrong:SumProductSign"},
    ("right", "SumOfSquares", "with spec"): {"status": "passed", "twin": "wrong:SumOfSquares"},
    ("right", "CrossEntropy", "with spec"): {"status": "passed", "twin": "wrong:CrossEntropy"},
    ("right", "Huber", "with spec"): {"status": "passed", "twin": "wrong:Huber"},
    # Right: indices
    ("right", "TakeAlong", "with spec"): {"status": "passed", "twin": "wrong:TakeAlong"},
    ("right", "Lookup", "with spec"): {"status": "passed", "twin": "wrong:Lookup"},
    ("right", "ScatterAdd", "with spec"): {"status": "passed", "twin": "wrong:ScatterAdd"},
    # Right: linear algebra
    ("right", "BatchedMatMul", "with spec"): {"status": "passed", "twin": "wrong:BatchedMatMul"},
    ("right", "ShiftedSolve", "with spec"): {"status": "passed", "twin": "wrong:ShiftedSolve"},
    ("right", "Conv1d", "with spec"): {"status": "passed", "twin": "wrong:Conv1d"},
    ("right", "Attention", "with spec"): {"status": "passed", "twin": "wrong:Attention"},
    # Wrong: ways of writing a Function
    ("wrong", "Square", "with spec"): {
        "status": "failed",
        "twin": "right:Square",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Sine", "with spec"): {
        "status": "failed",
        "twin": "right:Sine",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "SineAgain", "with spec"): {
        "status": "failed",
        "twin": "right:SineAgain",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "CubeBackward", "with spec"): {
        "status": "failed",
        "twin": "right:CubeBackward",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Cube", "with spec"): {
        "status": "failed",
        "twin": "right:Cube",
        "errors": {"GV201"},
        "names": ("`x`",),
    },
    ("wrong", "Lerp", "with spec"): {
        "status": "failed",
        "twin": "right:Lerp",
        "errors": {"GV105"},
        "names": ("2", "3"),
    },
    ("wrong", "ScaleBy", "with spec"): {
        "status": "failed",
        "twin": "right:ScaleBy",
        "errors": {"GV107"},
        "may": {"GV101"},
        "names": ("`scale`",),
    },
    ("wrong", "ScaleByZeros", "with spec"): {
        "status": "failed",
        "twin": "right:ScaleBy",
        "errors": {"GV107"},
        "may": {"GV101"},
        "names": ("`scale`",),
    },
    ("wrong", "LeakyReLUInPlace", "with spec"): {
        "status": "failed",
        "twin": "right:LeakyReLUInPlace",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    # Wrong: elementwise
    ("wrong", "GELU", "with spec"): {
        "status": "failed",
        "twin": "right:GELU",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "TanhGELU", "with spec"): {
        "status": "passed",
        "twin": "right:TanhGELU",
        "warnings": {"GV110"},
        "names": ("`x`",),
    },
    ("wrong", "ExpClampsGradient", "with spec"): {
        "status": "failed",
        "twin": "right:Exp",
        "errors": {"GV106"},
        "may": {"GV101", "GV201"},
    },
    ("wrong", "ExpIgnoresGradient", "with spec"): {
        "status": "failed",
        "twin": "right:Exp",
        "errors": {"GV106"},
        "may": {"GV101", "GV201"},
    },
    ("wrong", "ExpSavesFloat32", "with spec"): {
        "status": "failed",
        "twin": "right:Exp",
        "errors": {"GV110"},
        "names": ("`x`",),
    },
    ("wrong", "ExpReturnsFloat32", "with spec"): {
        "status": "failed",
        "twin": "right:Exp",
        "errors": {"GV104"},
        "may": {"GV101", "GV106", "GV110"},
        "names": ("`x`",),
    },
    ("wrong", "Logistic", "with spec"): {
        "status": "failed",
        "twin": "right:Logistic",
        "errors": {"GV202"},
        "may": {"GV411"},
        "names": ("`x`",),
    },
    ("wrong", "SquareRoot", "with spec"): {
        "status": "failed",
        "twin": "right:SquareRoot",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Log", "with spec"): {
        "status": "failed",
        "twin": "right:Log",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "FourthPower", "with spec"): {
        "status": "failed",
        "twin": "right:FourthPower",
        "errors": {"GV108"},
        "may": {"GV201"},
        "names": ("`x`",),
    },
    ("wrong", "SteepSine", "with spec"): {
        "status": "failed",
        "twin": "right:SteepSine",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "LargeOffset", "with spec"): {
        "status": "failed",
        "twin": "right:LargeOffset",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "HardShrink", "with spec"): {
        "status": "failed",
        "twin": "right:HardShrink",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "SoftShrink", "with spec"): {
        "status": "failed",
        "twin": "right:SoftShrink",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Floor", "with spec"): {
        "status": "failed",
        "twin": "right:Floor",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "OnesLike", "with spec"): {
        "status": "failed",
        "twin": "right:OnesLike",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Dropout", "with spec"): {
        "status": "failed",
        "twin": "right:Dropout",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "MaskedSquare", "with spec"): {
        "status": "failed",
        "twin": "right:MaskedSquare",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "ComplexMultiply", "with spec"): {
        "status": "failed",
        "twin": "right:ComplexMultiply",
        "errors": {"GV101"},
        "names": ("`a`", "`b`"),
    },
    ("wrong", "SwiGLU", "with spec"): {
        "status": "failed",
        "twin": "right:SwiGLU",
        "errors": {"GV101"},
        "names": ("`gate`", "`up`"),
    },
    # Wrong: along a dimension
    ("wrong", "Softmax", "with spec"): {
        "status": "failed",
        "twin": "right:Softmax",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "LogSumExp", "with spec"): {
        "status": "failed",
        "twin": "right:LogSumExp",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "LogMeanExp", "with spec"): {
        "status": "failed",
        "twin": "right:LogSumExp",
        "errors": {"GV301"},
    },
    ("wrong", "LayerNorm", "with spec"): {
        "status": "failed",
        "twin": "right:LayerNorm",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "RMSNorm", "with spec"): {
        "status": "failed",
        "twin": "right:RMSNorm",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "CumSum", "with spec"): {
        "status": "failed",
        "twin": "right:CumSum",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "RowMax", "with spec"): {
        "status": "failed",
        "twin": "right:RowMax",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Pool", "with spec"): {
        "status": "failed",
        "twin": "right:Pool",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    # Wrong: several outputs, or none but a number
    ("wrong", "NormDirection", "with spec"): {
        "status": "failed",
        "twin": "right:NormDirection",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "SumProductSign", "with spec"): {
        "status": "failed",
        "twin": "right:SumProductSign",
        "any_of": {"GV101", "GV107"},
        "names": ("`a`", "`b`"),
    },
    ("wrong", "SumOfSquares", "with spec"): {
        "status": "failed",
        "twin": "right:SumOfSquares",
        "errors": {"GV106"},
        "may": {"GV101", "GV201"},
    },
    ("wrong", "CrossEntropy", "with spec"): {
        "status": "failed",
        "twin": "right:CrossEntropy",
        "errors": {"GV101"},
        "names": ("`logits`",),
    },
    ("wrong", "Huber", "with spec"): {
        "status": "failed",
        "twin": "right:Huber",
        "errors": {"GV101"},
        "names": ("`prediction`", "`target`"),
    },
    # Wrong: indices
    ("wrong", "TakeAlong", "with spec"): {
        "status": "failed",
        "twin": "right:TakeAlong",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Lookup", "with spec"): {
        "status": "failed",
        "twin": "right:Lookup",
        "errors": {"GV101"},
        "names": ("`weight`",),
    },
    ("wrong", "ScatterAdd", "with spec"): {
        "status": "failed",
        "twin": "right:ScatterAdd",
        "errors": {"GV101"},
        "names": ("`source`",),
    },
    # Wrong: linear algebra
    ("wrong", "BatchedMatMul", "with spec"): {
        "status": "failed",
        "twin": "right:BatchedMatMul",
        "errors": {"GV101"},
        "names": ("`a`",),
    },
    ("wrong", "ShiftedSolve", "with spec"): {
        "status": "failed",
        "twin": "right:ShiftedSolve",
        "errors": {"GV101"},
        "names": ("`a`", "`b`"),
    },
    ("wrong", "Conv1d", "with spec"): {
        "status": "failed",
        "twin": "right:Conv1d",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Attention", "with spec"): {
        "status": "failed",
        "twin": "right:Attention",
        "errors": {"GV101"},
        "names": ("`k`",),
    },
    # Right for what forward goes to, and off by what its tolerance leaves out: its spec may declare one.
    ("right", "NewtonToATolerance", "with spec"): {
        "status": "passed",
        "twin": "wrong:NewtonToATolerance",
        "or_else": {"inconclusive"},
        "warnings": {"GV109"},
        "names": ("`tolerance: {rtol: ...}`",),
    },
    ("wrong", "NewtonToATolerance", "with spec"): {
        "status": "failed",
        "twin": "right:NewtonToATolerance",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
}
