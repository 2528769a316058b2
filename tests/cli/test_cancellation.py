"""What loses its digits by cancellation in float64 is not taken for a computation in float32."""

import json

import forked_command

MODULE = """
import torch


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x + 1e9) - 1e9

    @staticmethod
    def backward(ctx, g):
        return g


class FarShifted(Shifted):
    @staticmethod
    def forward(ctx, x):
        return (x + 1e12) - 1e12


class BelowTheGrid(FarShifted):
    pass


class WrongBelowTheGrid(FarShifted):
    @staticmethod
    def backward(ctx, g):
        return 5 * g


class InFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().sin().double()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()
"""

SPEC = """
gradverify: 1
module: m.py
functions:
  Shifted: {inputs: {x: [n]}, dtypes: [float64]}
  Shifted@ShiftedInFloat32: {target: Shifted, inputs: {x: [n]}}
  FarShifted: {inputs: {x: {shape: [n], range: [1, 2]}}, dtypes: [float64]}
  BelowTheGrid: {inputs: {x: {shape: [n], range: [-1.0e-5, 1.0e-5]}}}
  WrongBelowTheGrid: {inputs: {x: {shape: [n], range: [-1.0e-5, 1.0e-5]}}}
  InFloat32: {inputs: {x: [n]}}
"""


def test_verdicts(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "m.gradverify.yaml").write_text(SPEC)
    done = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    targets = {t["name"]: t for t in json.loads(done.out)["targets"]}
    assert targets["Shifted"]["status"] == "passed"
    # No dtype is listed and no range declared: that it is unstable in float32 fails nobody, and is said.
    unstable = targets["Shifted@ShiftedInFloat32"]
    assert unstable["status"] == "passed"
    assert any("unstable" in f["message"] for f in unstable["findings"])
    assert "float32" not in unstable["swept"]["dtypes"]
    # In float32 it is a constant: nothing of what is judged there would be true of it.
    assert targets["FarShifted"]["status"] != "failed"
    assert "GV104" not in {f["code"] for f in targets["FarShifted"]["findings"]}
    # Forward is 0 there, whatever backward says: it is no failure, and no pass.
    for name in ("BelowTheGrid", "WrongBelowTheGrid"):
        assert targets[name]["status"] == "inconclusive"
        assert "nothing decides" in targets[name]["findings"][0]["message"]
    assert targets["InFloat32"]["status"] == "passed"
