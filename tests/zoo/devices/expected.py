"""What `--device all` must answer here; the form of a row is that of ../general/expected.py."""

EXPECTED = {
    ("right", "Square", "with spec"): {"status": "passed"},
    ("right", "TwoKernels", "with spec"): {"status": "passed"},
    ("wrong", "ForgetsTheLowerEnd", "with spec"): {
        "status": "failed", "errors": {"GV701"}, "names": ["gradient of `x`", "second:0"],
    },
    ("wrong", "AnotherBranch", "with spec"): {
        "status": "failed", "errors": {"GV701"}, "names": ["second:0"],
    },
    ("wrong", "ForwardDiffers", "with spec"): {"status": "failed", "errors": {"GV701"}},
    ("wrong", "AllocatesOnTheCpu", "with spec"): {
        "status": "failed", "errors": {"GV701"}, "names": ["same device"],
    },
    ("wrong", "RunsDiffer", "with spec"): {
        "status": "failed", "any_of": {"GV408", "GV410"}, "names": ["on second:0"],
    },
    ("wrong", "OnlyOnTheCpu", "with spec"): {
        "status": "inconclusive", "warnings": {"GV109"}, "names": ["devices: [cpu]"],
    },
    ("wrong", "LosesTheDevice", "with spec"): {
        "status": "failed", "errors": {"GV901"}, "names": ["illegal memory access", "CUDA_LAUNCH_BLOCKING=1"],
    },
    ("wrong", "AfterIt", "with spec"): {"status": "passed"},
}  # fmt: skip
