"""Heads that share keys and values in groups: any number of them that is a multiple."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Grouped(Function):
    """Wrong: the mean over a group in place of the sum, which shows where there are fewer keys than queries."""

    @staticmethod
    def forward(ctx, q, k, v):
        _, h, _, d = q.shape
        r = h // k.shape[1]
        kk, vv = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        p = torch.softmax(q @ kk.transpose(-1, -2) / d**0.5, -1)
        ctx.save_for_backward(q, k, v, p)
        return p @ vv

    @staticmethod
    def fold(t, k):
        b, h, n, d = t.shape
        return t.reshape(b, k.shape[1], h // k.shape[1], n, d).mean(2)

    @classmethod
    def grads(cls, ctx, g):
        q, k, v, p = ctx.saved_tensors
        d = q.shape[-1]
        r = q.shape[1] // k.shape[1]
        kk, vv = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        dv = p.transpose(-1, -2) @ g
        dp = g @ vv.transpose(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / d**0.5
        return ds @ kk, ds.transpose(-1, -2) @ q, dv

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        _, k, v, _ = ctx.saved_tensors
        dq, dk, dv = Grouped.grads(ctx, g)
        return dq, Grouped.fold(dk, k), Grouped.fold(dv, k)


class GroupedRight(Grouped):
    """The sum."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, _ = ctx.saved_tensors
        dq, dk, dv = Grouped.grads(ctx, g)
        r = q.shape[1] // k.shape[1]
        return dq, r * Grouped.fold(dk, k), r * Grouped.fold(dv, k)
