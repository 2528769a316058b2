"""Functions that break torch, Python or another Function; a right and a wrong one behind each."""

import builtins

import torch
from torch import Tensor
from torch.autograd import Function


class Right(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Wrong(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


class ReplacesRandom(Right):
    @staticmethod
    def forward(ctx, x):
        torch.randn = torch.rand = None
        return 2 * x


class RightAfterReplacesRandom(Right):
    pass


class WrongAfterReplacesRandom(Wrong):
    pass


class ReplacesAMethod(Right):
    @staticmethod
    def forward(ctx, x):
        Tensor.abs = lambda tensor: 1 / 0
        return 2 * x


class RightAfterReplacesAMethod(Right):
    pass


class WrongAfterReplacesAMethod(Wrong):
    pass


class ReplacesABuiltin(Right):
    @staticmethod
    def backward(ctx, grad):
        builtins.len = None
        return 2 * grad


class RightAfterReplacesABuiltin(Right):
    pass


class WrongAfterReplacesABuiltin(Wrong):
    pass


class AlwaysEqual(Right):
    @staticmethod
    def backward(ctx, grad):
        torch.equal = torch.allclose = lambda *given, **named: True
        return 3 * grad


class RightAfterAlwaysEqual(Right):
    pass


class WrongAfterAlwaysEqual(Wrong):
    pass


class ReplacesTheEngine(Right):
    @staticmethod
    def backward(ctx, grad):
        torch.autograd.grad = lambda outputs, inputs, given, **named: [2 * g for g in given]
        return 3 * grad


class RightAfterReplacesTheEngine(Right):
    pass


class WrongAfterReplacesTheEngine(Wrong):
    pass
