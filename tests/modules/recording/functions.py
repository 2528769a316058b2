import torch
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    def forward(ctx, input, weight, bias=None):
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        output = input @ weight.t()
        return output + bias if bias is not None else output

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        bias = grad_output.sum(0) if ctx.has_bias else None
        return grad_output @ weight, grad_output.t() @ input, bias


def naive_linear(input, weight, bias):
    return input @ weight.T if bias is None else input @ weight.T + bias


def linear_reference(input, weight, bias):
    """Computes something else, and is none."""
    return input @ weight.T + 1


class Lookup(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.rows, grad_output.shape[1])
        return grad.index_add(0, index, grad_output), None


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, reduction):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor * 2, None, None


class Apply(Function):
    """Takes a callable."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(x)
        return kernel(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x, None


class Heads(Function):
    """The last size is a multiple of the number of heads."""

    @staticmethod
    def forward(ctx, x, weight, heads):
        ctx.save_for_backward(x, weight)
        ctx.heads = heads
        return (x.unflatten(1, (heads, len(weight))) * weight).flatten(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad = grad_output.unflatten(1, (ctx.heads, len(weight)))
        return (grad * weight).flatten(1), (grad * x.unflatten(1, (ctx.heads, len(weight)))).sum((0, 1)), None


def square(x):
    return x * x
