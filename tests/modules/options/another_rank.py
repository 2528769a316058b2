"""Elementwise and row-wise Functions whose forward takes any rank; backward of the first two does not."""

from torch.autograd import Function


class Squeezed(Function):
    """Wrong where the middle one of three dimensions is of size 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if x.dim() == 3 and x.shape[1] == 1:
            return grad_output * x.sin()
        return grad_output * x.cos()


class Doubled(Function):
    """Wrong at three dimensions, for each value of its option."""

    @staticmethod
    def forward(ctx, x, squared=True):
        ctx.squared = squared
        ctx.save_for_backward(x)
        return x * x if squared else 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        factor = 1 if x.dim() < 3 else 2
        return factor * grad_output * (2 * x if ctx.squared else 3), None


class Linear(Function):
    """Right for matrices, and right to raise for more."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output @ w, grad_output.t() @ x, grad_output.sum(0)


class Rows(Function):
    """Right at any rank."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True))


class Columns(Function):
    """Right for matrices; for more, forward means something else."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.reshape(-1, 1).expand(ctx.shape[0], ctx.shape[-1]).reshape(ctx.shape)


class AlongAnAxis(Function):
    """Wrong for an axis before one of size 1: sums that are squeezed spread over rows."""

    @staticmethod
    def forward(ctx, x, dim=0):
        ctx.dim = dim
        ctx.save_for_backward(x)
        return x.exp() / x.exp().sum(dim, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        total = x.exp().sum(ctx.dim, keepdim=True)
        y = x.exp() / total
        along = ((grad_output * x.exp()).sum(ctx.dim) / total.squeeze()).unsqueeze(ctx.dim)
        return y * (grad_output - along), None
