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


class Interleaved(Function):
    """Right because a table of angles holds each of them twice, side by side."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * cos + turned * sin

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        turned = torch.stack([g[..., 1::2], -g[..., ::2]], dim=-1).flatten(-2)
        return g * cos + turned * sin, None, None


class QuadraticForm(Function):
    """Right for a symmetric metric."""

    @staticmethod
    def forward(ctx, x, metric):
        y = x @ metric
        ctx.save_for_backward(y)
        return (x * y).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 2 * g[..., None] * y, None


class Reflected(Function):
    """Right for a direction of norm 1."""

    @staticmethod
    def forward(ctx, x, normal):
        ctx.save_for_backward(normal)
        return x * (normal * normal).sum(-1, keepdim=True) - 2 * normal * (x * normal).sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        (normal,) = ctx.saved_tensors
        return g - 2 * normal * (g * normal).sum(-1, keepdim=True), None


class GatedTwice(Function):
    """Right for a gate of zeros and ones, which is its own square."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(gate)
        return x * gate * gate

    @staticmethod
    def backward(ctx, g):
        (gate,) = ctx.saved_tensors
        return g * gate, None


class Rotated(Function):
    """Right for an orthogonal basis, whose inverse is its transpose."""

    @staticmethod
    def forward(ctx, x, basis):
        ctx.save_for_backward(basis)
        return torch.linalg.solve(basis, x.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        (basis,) = ctx.saved_tensors
        return g @ basis.mT, None


class Generator(Function):
    """Right for an antisymmetric generator."""

    @staticmethod
    def forward(ctx, x, generator):
        ctx.save_for_backward(generator)
        return x @ generator

    @staticmethod
    def backward(ctx, g):
        (generator,) = ctx.saved_tensors
        return -(g @ generator), None


import torch
from torch.autograd import Function
