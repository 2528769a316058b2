"""Gradients that are None: those that the source intends are missing, those that it leaves out are constants."""

import torch
from torch.autograd import Function


class OtherVariable(Function):
    """Wrong: the gradient of `weight` is put into `grad_input`."""

    @staticmethod
    def forward(ctx, input, weight, bias=None):
        ctx.save_for_backward(input, weight, bias)
        output = input.mm(weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_input = grad_output.t().mm(input)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


class NeverAssigned(Function):
    """Wrong: `grad_b` is initialised beside `grad_a`, and nothing is put into it."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        _, b = ctx.saved_tensors
        grad_a, grad_b = None, None
        grad_a = g * b
        return grad_a, grad_b


class Unpacked(Function):
    """Wrong: backward asks whether `b` needs a gradient, and returns None for it."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b.sin()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        for_a, for_b = ctx.needs_input_grad
        grad_a = g * b.sin() if for_a else None
        if for_b:
            grad_a = grad_a + 0 * a if for_a else None
        return grad_a, None


class Masked(Function):
    """Right: a name says that there is no gradient for the mask."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        grad_x = g * mask
        grad_mask = None
        return grad_x, grad_mask


class Rotated(Function):
    """Right: two tables, of which the names are given None, and nobody asks for their gradients."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return x * cos + x.flip(-1) * sin

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        grad_cos = grad_sin = None
        return g * cos + (g * sin).flip(-1), grad_cos, grad_sin


class Refusing(Function):
    """Right: a gradient for `table` is refused."""

    @staticmethod
    def forward(ctx, x, table):
        ctx.save_for_backward(table)
        return x * table

    @staticmethod
    def backward(ctx, g):
        (table,) = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            raise NotImplementedError("no gradient for table")
        return g * table if ctx.needs_input_grad[0] else None, None


class Warning(Function):
    """Right: that there is none for `table` is said."""

    @staticmethod
    def forward(ctx, x, table):
        ctx.save_for_backward(table)
        return x * table

    @staticmethod
    def backward(ctx, g):
        (table,) = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            print("no gradient for table")
        return g * table, None


class Offset(Function):
    """Right: the output does not depend on `like`, though its gradient is initialised."""

    @staticmethod
    def forward(ctx, x, like):
        ctx.save_for_backward(x)
        return x.sin().to(like.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad_x = grad_like = None
        grad_x = g * x.cos()
        return grad_x, grad_like


class Boxes(Function):
    """Right: both are initialised, and backward asks for the first one's gradient alone."""

    @staticmethod
    def forward(ctx, x, boxes):
        ctx.save_for_backward(boxes)
        return x * boxes

    @staticmethod
    def backward(ctx, g):
        (boxes,) = ctx.saved_tensors
        grad_x = grad_boxes = None
        if ctx.needs_input_grad[0]:
            grad_x = g * boxes
        return grad_x, grad_boxes
