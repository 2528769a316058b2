"""Right on the CPU; on the other device each has one mistake of its own."""

import second_device  # noqa: F401 - registers it
import torch
from torch.autograd import Function


class ForgetsTheLowerEnd(Function):
    """The kernel of the device clips on one side alone, and only its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inside = x.abs() < 1 if x.device.type == "cpu" else x < 1
        return torch.where(inside, g, torch.zeros_like(g))


class AnotherBranch(Function):
    """The kernel of the device has a block for large values, which the first draw does not reach."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        factor = 2 if x.device.type == "cpu" else torch.where(x[0] < 0, 2.0, 2.5)
        return factor * x * g


class ForwardDiffers(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.device = x.device.type
        return x * (3 if x.device.type == "cpu" else 3.001)

    @staticmethod
    def backward(ctx, g):
        return g * 3


class AllocatesOnTheCpu(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g + torch.ones(g.shape, dtype=g.dtype) * 0 + g


class RunsDiffer(Function):
    """A race: what comes first there changes from run to run."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        if g.device.type == "cpu":
            return 2 * g
        RunsDiffer.runs += 1
        return 2 * g * (1 + 1e-3 * (RunsDiffer.runs**2 * 7919 % 13))


class OnlyOnTheCpu(Function):
    """Leaves torch for NumPy, which knows no other device."""

    @staticmethod
    def forward(ctx, x):
        if x.device.type != "cpu":
            raise NotImplementedError("this kernel is for the CPU")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class LosesTheDevice(Function):
    """What a kernel that leaves its memory does: every call of the device from then on raises the same."""

    lost = False

    @staticmethod
    def forward(ctx, x):
        if LosesTheDevice.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        LosesTheDevice.lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")


class AfterIt(Function):
    """Right, and verified by a process of its own."""

    @staticmethod
    def forward(ctx, x):
        if LosesTheDevice.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
