"""What a verifier must answer for every Function of this folder: data, and nothing else.

The key is (module, name in the spec, with or without a spec). In each row

- `status`: the verdict; `or_else`: verdicts that are honest as well, where float64 itself is the limit;
- `errors`, `warnings`, `notes`: codes that must be found, with that severity;
- `any_of`: at least one of these must be found, as an error;
- `may`: codes that are true as well, at any severity: neither asked for nor a mistake;
- every other error or warning is a false alarm; every other note is welcome;
- `names`: what the words of the findings must contain, such as the input's name;
- `source`: what the line of code that a finding points to must contain;
- `twin`: its counterpart in the other module, as `module:name`.

What is missing from a row is empty.
"""

EXPECTED = {
    # Right
    ("right", "Linear", "with spec"): {"status": "passed", "twin": "wrong:Linear"},
    ("right", "LinearOnce", "with spec"): {
        "status": "passed",
        "twin": "wrong:LinearOnceAveraged",
        "notes": {"GV203"},
    },
    ("right", "PerSampleLinear", "with spec"): {
        "status": "passed",
        "twin": "wrong:LinearOnceAveraged",
        "warnings": {"GV103"},
        "names": ("`weight`", "`bias`"),
    },
    ("right", "Product", "with spec"): {"status": "passed", "twin": "wrong:ProductSwapped"},
    ("right", "OldStyleProduct", "with spec"): {
        "status": "passed",
        "twin": "wrong:OldStyleProductSwapped",
        "warnings": {"GV810"},
    },
    ("right", "ReLU", "with spec"): {"status": "passed", "twin": "wrong:ReLU"},
    ("right", "RNNCell", "with spec"): {"status": "passed", "twin": "wrong:RNNCell"},
    ("right", "Power", "with spec"): {"status": "passed", "twin": "wrong:PowerForgetsToSave"},
    ("right", "Cube", "with spec"): {"status": "passed", "twin": "wrong:CubeInDoubleBackward"},
    ("right", "DoubleOrHalve", "with spec"): {"status": "passed", "twin": "wrong:DoubleOrHalve"},
    ("right", "DoubleOrHalve@positive", "with spec"): {
        "status": "passed",
        "twin": "wrong:DoubleOrHalve@positive",
    },
    ("right", "DoubleOrHalve@negative", "with spec"): {"status": "passed", "twin": "wrong:DoubleOrHalve"},
    ("right", "ZeroFirstColumns", "with spec"): {"status": "passed", "twin": "wrong:ZeroFirstColumns"},
    ("right", "AbsProduct", "with spec"): {"status": "passed", "twin": "wrong:AbsProduct"},
    ("right", "AbsProduct@zeros", "with spec"): {"status": "passed", "twin": "wrong:AbsProduct"},
    ("right", "MulConstant", "with spec"): {"status": "passed", "twin": "wrong:MulConstant"},
    ("right", "NumPyExp", "with spec"): {"status": "passed", "twin": "wrong:NumPyExp"},
    ("right", "NumPyExpOnce", "with spec"): {
        "status": "passed",
        "twin": "wrong:NumPyExp",
        "notes": {"GV203"},
    },
    ("right", "FFTMagnitude", "with spec"): {
        "status": "passed",
        "warnings": {"GV108"},  # 0 / 0 in a row of zeros, which no spec declares
        "twin": "wrong:FFTMagnitude",
        "notes": {"GV203"},
    },
    ("right", "Sort", "with spec"): {"status": "passed", "twin": "wrong:Sort"},
    ("right", "Transpose", "with spec"): {"status": "passed", "twin": "wrong:Transpose"},
    ("right", "SquareInPlace", "with spec"): {
        "status": "passed",
        "twin": "wrong:SquareInPlace",
        "notes": {"GV203"},
    },
    ("right", "NearestCode", "with spec"): {"status": "skipped", "twin": "wrong:NearestCodeLookup"},
    # Wrong
    ("wrong", "Linear", "with spec"): {
        "status": "failed",
        "twin": "right:Linear",
        "errors": {"GV103", "GV107"},
        "may": {"GV101", "GV406"},
        "names": ("`input`", "`weight`"),
    },
    ("wrong", "LinearOnceAveraged", "with spec"): {
        "status": "failed",
        "twin": "right:LinearOnce",
        "errors": {"GV101"},
        "names": ("`weight`",),
    },
    ("wrong", "ProductSwapped", "with spec"): {
        "status": "failed",
        "twin": "right:Product",
        "errors": {"GV101"},
        "names": ("`a`", "`b`"),
    },
    ("wrong", "OldStyleProductSwapped", "with spec"): {
        "status": "failed",
        "twin": "right:OldStyleProduct",
        "errors": {"GV101"},
        "warnings": {"GV810"},
        "names": ("`a`", "`b`"),
    },
    ("wrong", "ReLU", "with spec"): {
        "status": "failed",
        "twin": "right:ReLU",
        "errors": {"GV102"},
        "names": ("no saved tensors",),
        "source": "(x,) = ctx.saved_tensors",
    },
    ("wrong", "RNNCell", "with spec"): {
        "status": "failed",
        "twin": "right:RNNCell",
        "errors": {"GV101"},
        "names": ("`x`", "`h`", "`wx`", "`wh`", "`b`"),
    },
    ("wrong", "PowerForgetsToSave", "with spec"): {
        "status": "failed",
        "twin": "right:Power",
        "errors": {"GV102"},
        "names": ("NameError",),
        "source": "grad_output * ctx.p * x ** (ctx.p - 1)",
    },
    ("wrong", "CubeInDoubleBackward", "with spec"): {
        "status": "failed",
        "twin": "right:Cube",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "DoubleOrHalve", "with spec"): {
        "status": "failed",
        "twin": "right:DoubleOrHalve",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "DoubleOrHalve@positive", "with spec"): {
        "status": "passed",
        "twin": "right:DoubleOrHalve@positive",
    },
    ("wrong", "ZeroFirstColumns", "with spec"): {
        "status": "failed",
        "twin": "right:ZeroFirstColumns",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "AbsProduct", "with spec"): {
        "status": "failed",
        "twin": "right:AbsProduct",
        "errors": {"GV101"},
        "names": ("`u`", "`v`"),
    },
    ("wrong", "MulConstant", "with spec"): {
        "status": "failed",
        "twin": "right:MulConstant",
        "errors": {"GV407"},
        "source": "grad_output * ctx.constant",
    },
    ("wrong", "NumPyExp", "with spec"): {
        "status": "failed",
        "twin": "right:NumPyExp",
        "errors": {"GV202"},
        "names": ("`x`",),
    },
    ("wrong", "FFTMagnitude", "with spec"): {
        "status": "failed",
        "twin": "right:FFTMagnitude",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Sort", "with spec"): {
        "status": "failed",
        "twin": "right:Sort",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "Transpose", "with spec"): {
        "status": "failed",
        "twin": "right:Transpose",
        "errors": {"GV101"},
        "names": ("`x`",),
    },
    ("wrong", "SquareInPlace", "with spec"): {
        "status": "failed",
        "twin": "right:SquareInPlace",
        "errors": {"GV101"},
        "may": {"GV201"},
        "names": ("`x`",),
    },
    ("wrong", "NearestCodeLookup", "with spec"): {
        "status": "failed",
        "twin": "right:NearestCode",
        "errors": {"GV107"},
        "names": ("`codes`",),
    },
    # Without a spec
    ("bare", "Product", "without spec"): {"status": "passed", "twin": "bare:ProductSwapped"},
    ("bare", "OldStyleProduct", "without spec"): {
        "status": "passed",
        "twin": "bare:ProductSwapped",
        "warnings": {"GV810"},
    },
    ("bare", "ProductSwapped", "without spec"): {
        "status": "failed",
        "twin": "bare:Product",
        "errors": {"GV101"},
        "names": ("`a`", "`b`"),
    },
    ("bare", "ReLU", "without spec"): {"status": "passed", "twin": "bare:ReLUForgetsToSave"},
    ("bare", "ReLUForgetsToSave", "without spec"): {
        "status": "failed",
        "twin": "bare:ReLU",
        "errors": {"GV102"},
        "names": ("no saved tensors",),
        "source": "(x,) = ctx.saved_tensors",
    },
    ("bare", "Cube", "without spec"): {"status": "passed", "twin": "wrong:CubeInDoubleBackward"},
    ("bare", "DoubleOrHalve", "without spec"): {"status": "passed", "twin": "wrong:DoubleOrHalve"},
    ("bare", "NumPyExp", "without spec"): {
        "status": "passed",
        "twin": "wrong:NumPyExp",
        "warnings": {"GV202"},
        "names": ("`x`",),
    },
}
