"""Functions that leave state behind which another one stumbles over: that is asked again without it."""

import torch
from torch.autograd import Function

LEFT = {}


class Right(Function):
    @staticmethod
    def forward(ctx, x):
        assert "flag" not in LEFT
        return 2 * x + LEFT.get("noise", 0) * torch.randn(x.shape, generator=LEFT.get("generator"))

    @staticmethod
    def backward(ctx, grad):
        return LEFT.get("factor", 2) * grad


class Wrong(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


class LeavesAFlag(Function):
    @staticmethod
    def forward(ctx, x):
        LEFT["flag"] = True
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class RightAfterLeavesAFlag(Right):
    pass


class WrongAfterLeavesAFlag(Wrong):
    pass


class LeavesNoise(LeavesAFlag):
    @staticmethod
    def forward(ctx, x):
        LEFT["noise"], LEFT["generator"] = 1, torch.Generator()
        return 2 * x


class RightAfterLeavesNoise(Right):
    pass


class WrongAfterLeavesNoise(Wrong):
    pass


class LeavesAFactor(LeavesAFlag):
    @staticmethod
    def forward(ctx, x):
        LEFT["factor"] = 5
        return 2 * x


class RightAfterLeavesAFactor(Right):
    pass


class WrongAfterLeavesAFactor(Wrong):
    pass
