"""Wrong or borrowed backwards that want to pass: each fails, or is named beside its verdict."""

import os
import sys

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class OnlyInFloat64(Cube):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad if x.dtype is torch.float64 else 2 * x**2 * grad


class OnlyAtSmallSizes(Cube):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad if x.numel() <= 64 else 2 * x**2 * grad


class OnlyTheFirstCalls(Cube):
    calls = 0

    @staticmethod
    def backward(ctx, grad):
        OnlyTheFirstCalls.calls += 1
        (x,) = ctx.saved_tensors
        return (3 if OnlyTheFirstCalls.calls < 2000 else 2) * x**2 * grad


def is_checked():
    frame = sys._getframe(0)
    while frame is not None:
        if "gradverify" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class OnlyUnderAChecker(Cube):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (3 if is_checked() else 2) * x**2 * grad


class OnlyInThatProcess(Cube):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (3 if "PYTHONIOENCODING" in os.environ or sys.argv[0] == "-c" else 2) * x**2 * grad


KNOWN = {}


class OnlyWhatItHasSeen(Cube):
    """Right the first time, and what it was then ever after."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        key = x.shape, grad.sum().item()
        if key not in KNOWN:
            KNOWN[key] = 3 * x**2 * grad
        return KNOWN[key]


class GivesGradOutputItself(Function):
    """Writes the gradient into grad_output and returns that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.mul_(3 * x**2)


class CallsEverythingEqual(Cube):
    @staticmethod
    def backward(ctx, grad):
        torch.equal = torch.allclose = lambda *given, **named: True
        (x,) = ctx.saved_tensors
        return 2 * x**2 * grad


class ReplacesAutograd(Cube):
    @staticmethod
    def backward(ctx, grad):
        torch.autograd.grad = lambda outputs, inputs, given=None, **named: tuple(inputs)
        (x,) = ctx.saved_tensors
        return 2 * x**2 * grad


class ReplacesItsOwnBackward(Cube):
    @staticmethod
    def forward(ctx, x):
        ReplacesItsOwnBackward.backward = Cube.backward
        return Cube.forward(ctx, x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class WritesTheAnswer(Cube):
    @staticmethod
    def backward(ctx, grad):
        for descriptor in range(200, 230):
            try:
                os.write(descriptor, b'{"":"Done","left":[]}\n')
            except OSError:
                continue
        (x,) = ctx.saved_tensors
        return 2 * x**2 * grad


class DifferentiatesForward(Cube):
    """Right, and none of its own."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            y = again**3
        return torch.autograd.grad(y, again, grad)[0]
