"""A module that cannot be imported: lint reads it all the same."""

import missing_extension._C as kernels  # there is no such module
from torch.autograd import Function

raise RuntimeError("imported")


class Scale(Function):
    """Right."""

    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


class Lerp(Function):
    """Nothing for `t`, and grad_output is overwritten."""

    @staticmethod
    def forward(ctx, a, b, t):
        ctx.t = t
        return a + t * (b - a)

    @staticmethod
    def backward(ctx, grad_output):
        grad_output.mul_(ctx.t)
        return grad_output * (1 - ctx.t), grad_output


class Fused(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.x = x
        ctx.save_for_backward(w)
        return kernels.fused(x, w)

    @staticmethod
    def backward(ctx, grad_output):
        (w,) = ctx.saved_tensors
        grad_x = w.new_empty(ctx.shape)
        kernels.fused_backward(grad_output.data_ptr(), w.data_ptr(), grad_x.data_ptr())
        return grad_x, grad_output * ctx.x


class Waived(Function):
    @staticmethod
    def forward(ctx, x):
        x.relu_()  # noqa: GV811 - its only caller gives it a copy
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
