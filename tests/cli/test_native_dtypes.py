"""What is right in float64 and wrong in a shorter dtype fails; bad rounding never does."""

import json

import pytest
import verdicts_only

MODULE = '''
import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class HalfSign(Function):
    """The half path has the wrong sign."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (-1 if x.dtype is torch.float16 else 1) * g * x.cos()


class FastDrops(Function):
    """A fast path for float32 leaves out the sum."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        inner = 0 if y.dtype is torch.float32 else (g * y).sum(-1, keepdim=True)
        return y * (g - inner)


class BrainScale(Function):
    """The bfloat16 path is not scaled."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return (q @ k.mT) * q.shape[-1] ** -0.5

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        scale = 1.0 if q.dtype is torch.bfloat16 else q.shape[-1] ** -0.5
        return g @ k * scale, g.mT @ q * scale


class OpaqueFactor(Function):
    """NumPy alone, three percent off in float32: no operation tells what rounding does."""

    FACTOR = 0.97

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        factor = OpaqueFactor.FACTOR if x.dtype is torch.float32 else 1
        slope = np.cos(x.numpy()) * g.numpy()
        return torch.from_numpy((factor * slope).astype(slope.dtype))


class OwnEps(Function):
    """An eps that depends on the dtype, in forward and in backward."""

    SIGN = 1

    @staticmethod
    def forward(ctx, x):
        ctx.eps = 1e-12 if x.dtype is torch.float64 else 1e-4
        ctx.save_for_backward(x)
        return x * (x.square() + ctx.eps).rsqrt() + x.square()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        squares = x.square() + ctx.eps
        return g * (ctx.eps * squares.rsqrt() ** 3 + 2 * x)


class OwnEpsAndSign(OwnEps):
    """The same; beside it the sign is wrong in float32: what forward does there is no excuse."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        squares = x.square() + ctx.eps
        sign = -1 if x.dtype is torch.float32 else 1
        return g * (ctx.eps * squares.rsqrt() ** 3 + sign * 2 * x)


class AnyOrder(Function):
    """Atomic additions of float32: each call adds in another order."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        order = torch.arange(len(index))
        if g.dtype is torch.float32:
            order = torch.from_numpy(np.random.default_rng().permutation(len(index)))
        return g.new_zeros(ctx.rows, *g.shape[1:]).index_add(0, index[order], g[order]), None


class OpaqueRounding(Function):
    """NumPy that loses digits in float32: right, and badly rounded."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.square(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        large = x.numpy().dtype.type(3e4)
        return torch.from_numpy(((x.numpy() + large) - large) * 2) * g


class Refuses(Function):
    """Backward raises on purpose in bfloat16, which forward accepts."""

    REFUSED = (torch.bfloat16,)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @classmethod
    def backward(cls, ctx, g):
        (x,) = ctx.saved_tensors
        if x.dtype in Refuses.REFUSED:
            raise TypeError(f"no backward for {x.dtype}")
        return g * x.cos()


class RefusesFloat32(Function):
    """The same in float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.dtype is torch.float32:
            raise TypeError("no backward for float32")
        return g * x.cos()


class DoubleMatrix(Function):
    """A matrix of float64 in backward, whatever the inputs are."""

    @staticmethod
    def forward(ctx, x):
        return x.flip(-1)

    @staticmethod
    def backward(ctx, g):
        return g @ torch.eye(g.shape[-1], dtype=torch.float64).flip(-1)


class Picked(Function):
    """NumPy in float32 alone; rows whose label is negative give zero."""

    @staticmethod
    def forward(ctx, x, label):
        if x.dtype is not torch.float32:
            raise TypeError("float32 alone")
        ctx.save_for_backward(x, label)
        values, marks = x.detach().numpy(), label.numpy()
        picked = np.take_along_axis(np.sin(values), np.maximum(marks, 0)[:, None], 1)[:, 0]
        return torch.from_numpy(np.where(marks < 0, np.float32(0), picked))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return Picked.gradient(ctx, g, marked=False)

    @staticmethod
    def gradient(ctx, g, *, marked):
        x, label = ctx.saved_tensors
        values, marks = x.numpy(), label.numpy()
        rows = g.numpy() if marked else np.where(marks < 0, np.float32(0), g.numpy())
        out = np.zeros_like(values)
        np.put_along_axis(out, np.maximum(marks, 0)[:, None], rows[:, None], 1)
        return torch.from_numpy(out * np.cos(values)), None


class IgnoredToo(Picked):
    """Rows with an ignored label get a gradient, too."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return Picked.gradient(ctx, g, marked=True)
'''

SPEC = """
gradverify: 1
module: dtypes.py
functions:
  HalfSign: {inputs: {x: [4, 3]}, dtypes: [float16]}
  FastDrops: {inputs: {x: [4, 3]}}
  BrainScale: {inputs: {q: [4, 3], k: [5, 3]}, dtypes: [float32, bfloat16]}
  OpaqueFactor: {inputs: {x: [4, 3]}}
  OwnEps: {inputs: {x: [4, 3]}}
  OwnEpsAndSign: {inputs: {x: [4, 3]}}
  AnyOrder: {inputs: {x: [4, 3], index: {shape: [50], dtype: int64, range: [0, 4]}}}
  OpaqueRounding: {inputs: {x: [4, 3]}}
  Refuses: {inputs: {x: [4, 3]}, dtypes: [float32, bfloat16]}
  RefusesFloat32: {inputs: {x: [4, 3]}}
  RefusesFloat32@listed: {target: RefusesFloat32, inputs: {x: [4, 3]}, dtypes: [float32]}
  DoubleMatrix: {inputs: {x: [4, 3]}}
"""

WRONG = {
    "HalfSign": ("GV601", "in float16 is wrong"),
    "FastDrops": ("GV601", "in float32 is wrong"),
    "BrainScale": ("GV601", "in bfloat16 is wrong"),
    "OwnEpsAndSign": ("GV601", "in float32"),
    "OpaqueFactor": ("GV601", "in float32 is wrong"),
    "Refuses": ("GV102", "backward raised TypeError in bfloat16, which forward accepts"),
    "RefusesFloat32@listed": ("GV102", "backward raised TypeError in float32, which forward accepts"),
    "DoubleMatrix": ("GV102", "backward raised RuntimeError in float32, which forward accepts"),
}

FLOAT32_ALONE = ("FastDrops",)
"""Wrong in the dtype that is judged where nobody lists one."""


@pytest.fixture
def judged(place):
    def run(*names, spec=SPEC):
        here = place("screens")
        (here.folder / "dtypes.py").write_text(MODULE)
        if spec:
            (here.folder / "dtypes.gradverify.yaml").write_text(spec)
        targets = [f"dtypes.py::{name}" for name in names] or ["dtypes.py"]
        ran = here("check", *targets, "--format", "json", **verdicts_only.VARIABLES)
        return ran.code, {target["name"]: target for target in json.loads(ran.out)["targets"]}

    return run


def test_what_is_wrong_in_one_dtype_alone_fails_and_bad_rounding_does_not(judged):
    code, found = judged()
    assert code == 1
    for name, (error, said) in WRONG.items():
        assert found[name]["status"] == "failed", name
        errors = [f for f in found[name]["findings"] if f["severity"] == "error"]
        assert {f["code"] for f in errors} == {error}
        assert any(said in f["message"] for f in errors), name
    for name in found.keys() - WRONG.keys():
        assert not [f for f in found[name]["findings"] if f["severity"] == "error"], name


def test_what_bad_rounding_leaves_open_is_said(judged):
    _, found = judged("OpaqueRounding", "OpaqueFactor", "RefusesFloat32", "OwnEps", "AnyOrder")
    assert "float32" not in found["OpaqueRounding"]["swept"]["dtypes"]
    assert any("unstable" in f["message"] for f in found["OpaqueRounding"]["findings"])
    assert "float32" not in found["RefusesFloat32"]["swept"]["dtypes"]
    assert found["OpaqueFactor"]["status"] == "failed"
    assert {found[name]["status"] for name in ("RefusesFloat32", "OwnEps", "AnyOrder")} == {"passed"}


def test_no_guess_explains_what_is_wrong_in_float32_alone(judged):
    _, found = judged(*FLOAT32_ALONE, spec="")
    assert {target["inputs"] for target in found.values()} == {"inferred"}
    for name in FLOAT32_ALONE:
        assert {f["code"] for f in found[name]["findings"] if f["severity"] == "error"} == {"GV601"}


LABELS = """
gradverify: 1
module: dtypes.py
functions:
  Picked: {inputs: {x: [5, 3], label: {shape: [5], dtype: int64, range: [0, 3], special: [-100]}}}
  IgnoredToo: {inputs: {x: [5, 3], label: {shape: [5], dtype: int64, range: [0, 3], special: [-100]}}}
"""


def test_slopes_in_float32_alone_refute_at_special_labels(judged):
    _, found = judged("Picked", "IgnoredToo", spec=LABELS)
    assert found["Picked"]["status"] == "inconclusive"
    assert found["IgnoredToo"]["status"] == "failed"
    assert {f["code"] for f in found["IgnoredToo"]["findings"] if f["severity"] == "error"} == {"GV101"}
