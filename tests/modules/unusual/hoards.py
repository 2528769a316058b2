"""Functions that take memory without end: each costs its own verdict alone."""

import torch
from torch.autograd import Function

KEPT = []


class Appends(Function):
    @staticmethod
    def forward(ctx, x):
        KEPT.append(torch.ones(100 * 2**17, dtype=torch.float64))
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Doubles(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        kept = [1.0]
        while True:
            kept = kept + kept


class Concatenates(Function):
    @staticmethod
    def forward(ctx, x):
        while x.numel():
            x = torch.cat([x, torch.ones(100 * 2**17, dtype=x.dtype)])
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
