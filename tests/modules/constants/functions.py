"""Functions whose constants have values of a kind that their shape does not tell."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Rotary(Function):
    """Right because a table of angles holds each of them twice, once for each half."""

    @staticmethod
    def forward(ctx, q, cos, sin):
        ctx.save_for_backward(cos, sin)
        half = q.shape[-1] // 2
        return q * cos + torch.cat([-q[..., half:], q[..., :half]], -1) * sin

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        half = grad_output.shape[-1] // 2
        turned = torch.cat([grad_output[..., half:], -grad_output[..., :half]], -1)
        return grad_output * cos + turned * sin, None, None


class RotaryBackwards(Function):
    """Wrong for every table: it turns the gradient the way that forward turns the input."""

    @staticmethod
    def forward(ctx, q, cos, sin):
        ctx.save_for_backward(cos, sin)
        half = q.shape[-1] // 2
        return q * cos + torch.cat([-q[..., half:], q[..., :half]], -1) * sin

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        half = grad_output.shape[-1] // 2
        turned = torch.cat([-grad_output[..., half:], grad_output[..., :half]], -1)
        return grad_output * cos + turned * sin, None, None


class SoftLabels(Function):
    """Right because what the teacher says of a row sums to one."""

    @staticmethod
    def forward(ctx, scores, teacher):
        log_p = torch.log_softmax(scores, -1)
        ctx.save_for_backward(log_p, teacher)
        return -(teacher * log_p).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        log_p, teacher = ctx.saved_tensors
        return grad_output[..., None] * (log_p.exp() - teacher), None


class Weighted(Function):
    """Wrong for weights of every kind: forgets them."""

    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights)
        return (weights * x * x).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        x, _ = ctx.saved_tensors
        return grad_output[..., None] * 2 * x, None
