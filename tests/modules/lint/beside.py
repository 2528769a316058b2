"""What only one path does: the verifier passes it, the source tells."""

from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        if x.dim() > 4:
            return grad_output * w
        return grad_output * w, grad_output * x


class Kept(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.x * grad_output
