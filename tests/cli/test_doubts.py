"""Right Functions that once failed: what a guess, or float32 inside, makes of them."""

import json
import shutil
from pathlib import Path

import forked_command

ZOO = Path(__file__).parents[1] / "zoo"

BATCH_NORM = '''
import torch
from torch.autograd.function import Function, once_differentiable


class BatchNormTrain(Function):
    """Right for [n, c, l] and a weight and a bias of [c], of which forward takes any that broadcast."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        mean, var = x.mean((0, 2)), x.var((0, 2), unbiased=False)
        count = x.shape[0] * x.shape[2]
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(var * count / (count - 1), alpha=momentum)
        rstd = torch.rsqrt(var + eps)
        hat = (x - mean[:, None]) * rstd[:, None]
        ctx.save_for_backward(hat, rstd, weight)
        return hat * weight[:, None] + bias[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, rstd, weight = ctx.saved_tensors
        of_bias, of_weight = g.sum((0, 2)), (g * hat).sum((0, 2))
        count = g.shape[0] * g.shape[2]
        inner = g - of_bias[:, None] / count - hat * of_weight[:, None] / count
        return (weight * rstd)[:, None] * inner, of_weight, of_bias, None, None, None, None
'''


def verdict(folder, *arguments):
    done = forked_command.run(["check", *arguments, "--format", "json"], folder)
    (target,) = json.loads(done.out)["targets"]
    return target["status"], {f["code"] for f in target["findings"] if f["severity"] == "error"}


def test_other_values_settle_nothing_where_a_gradient_has_another_shape(tmp_path):
    (tmp_path / "norm.py").write_text(BATCH_NORM)
    assert verdict(tmp_path, "norm.py") == ("inconclusive", set())


def test_a_slope_between_two_float32_numbers_is_none(tmp_path):
    for name in ("right.py", "right.gradverify.yaml"):
        shutil.copy(ZOO / "precision" / name, tmp_path)
    assert verdict(tmp_path, "right.py::StatisticsInFloat32", "--seed", "1") == ("inconclusive", set())


SEGMENTS = '''
import torch
from torch.autograd import Function


class SegmentSoftmax(Function):
    """Of two entries in segments of their own nothing depends on anything; of four some share one."""

    @staticmethod
    def forward(ctx, scores, segment, count):
        e = torch.exp(scores)
        total = torch.zeros(count, dtype=scores.dtype).index_add(0, segment, e)
        y = e / total[segment]
        ctx.save_for_backward(y, segment)
        ctx.count = count
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, segment = ctx.saved_tensors
        weighted = y * grad_output
        total = torch.zeros(ctx.count, dtype=y.dtype).index_add(0, segment, weighted)
        return weighted - y * total[segment], None, None
'''


def test_a_gradient_that_other_draws_or_sizes_show_was_seen(tmp_path):
    (tmp_path / "segments.py").write_text(SEGMENTS)
    assert verdict(tmp_path, "segments.py") == ("passed", set())


CLAMPED = """
import torch
from torch.autograd import Function


class Artanh(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clamp(-1 + 1e-15, 1 - 1e-15)
        ctx.save_for_backward(x)
        return 0.5 * (torch.log(1 + x) - torch.log(1 - x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 - x**2)


class Gap(Function):
    @staticmethod
    def forward(ctx, x):
        gap = (1 - (x * x).sum(-1, keepdim=True)).clamp_min(1e-5)
        ctx.save_for_backward(x, gap)
        return torch.log(gap)

    @staticmethod
    def backward(ctx, g):
        x, gap = ctx.saved_tensors
        return -2 * g * x / gap
"""


def test_values_outside_of_a_domain_are_no_step_and_no_structure(tmp_path):
    (tmp_path / "clamped.py").write_text(CLAMPED)
    done = forked_command.run(["check", "clamped.py", "--format", "json"], tmp_path)
    targets = json.loads(done.out)["targets"]
    assert {t["status"] for t in targets} == {"inconclusive"}
    said = " ".join(f["message"] for t in targets for f in t["findings"] if f["code"] == "GV109")
    assert "step" not in said and "unit-norm" not in said
