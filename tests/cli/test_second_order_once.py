"""What cuts a second derivative is said once, and names all that it cuts."""

import json

MODULE = """
import torch
from torch.autograd import Function


class SavedSlope(Function):
    @staticmethod
    def forward(ctx, x, w):
        s = torch.sigmoid(x * w)
        slope = s * (1 - s)
        ctx.save_for_backward(x, w, slope)
        return s

    @staticmethod
    def backward(ctx, g):
        x, w, slope = ctx.saved_tensors
        return g * slope * w, g * slope * x
"""

SPEC = """
gradverify: 1
module: kept.py
functions:
  SavedSlope: {sizes: {n: 3}, inputs: {x: [n], w: [n]}}
"""


def test_one_finding_names_what_a_saved_intermediate_cuts(place):
    here = place("cut")
    (here.folder / "kept.py").write_text(MODULE)
    (here.folder / "kept.gradverify.yaml").write_text(SPEC)
    (target,) = json.loads(here("check", "kept.py", "--format", "json").out)["targets"]
    (finding,) = (f for f in target["findings"] if f["severity"] == "error")
    assert (finding["code"], finding["cause"]) == ("GV201", "detached")
    assert finding["hint"].startswith("`slope`, which forward keeps, is neither an input nor an output")
    pairs = {f"`{of}` by `{by}`" for of in "xw" for by in "xw"}
    said = f"{finding['message']} {finding['hint']}".replace("gradient of ", "")
    assert all(pair in said for pair in pairs)
