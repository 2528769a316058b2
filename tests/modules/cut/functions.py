"""Functions whose second derivative is cut in part, though no inputs are named."""

import torch
from torch.autograd import Function


class CausalScores(Function):
    """Part of the second derivative is cut, and the first row, which has nothing before it, is not read."""

    @staticmethod
    def forward(ctx, q, k, v):
        scores = q @ k.transpose(-1, -2)
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        p = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, p = ctx.saved_tensors
        grad_p = grad_output @ v.transpose(-1, -2)
        grad_s = p * (grad_p - (grad_p * p).sum(-1, keepdim=True))
        return grad_s @ k, grad_s.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad_output


class Labelled(Function):
    """The second derivative is cut whatever the labels are."""

    @staticmethod
    def forward(ctx, logits, target):
        log_p = logits.log_softmax(-1)
        ctx.save_for_backward(log_p, target)
        return -log_p.gather(-1, target[:, None]).mean()

    @staticmethod
    def backward(ctx, grad_output):
        log_p, target = ctx.saved_tensors
        grad = log_p.exp()
        grad[torch.arange(len(target)), target] -= 1
        return grad_output * grad / len(target), None


class OnContext(Function):
    """The norms are kept as an attribute."""

    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm
        ctx.save_for_backward(y)
        ctx.norm = norm
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return (grad_output - y * (grad_output * y).sum(-1, keepdim=True)) / ctx.norm


class Detached(Function):
    """Nothing but inputs is kept: backward itself detaches one."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return w * x**3

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return 3 * grad_output * w * x.detach() ** 2, grad_output * x**3
