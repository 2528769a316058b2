"""Matrices that are wrong only where two sizes are equal: no shape tells what is transposed there."""

from torch.autograd import Function


class Linear(Function):
    """Wrong: the weight is transposed where it is square."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if w.shape[0] == w.shape[1]:
            return g @ w.t(), g.t() @ x
        return g @ w, g.t() @ x


class ByShape(Function):
    """Wrong: which side is transposed is guessed from the shapes."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        of_x = g @ w if g.shape[1] == w.shape[0] else g @ w.t()
        return of_x, x.t() @ g, g.sum(0)


class Rows(Function):
    """Wrong: the input is not transposed where it is square."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        left = x if x.shape[0] == x.shape[1] else x.t()
        return g @ w.t(), left @ g


class Right(Function):
    """The same product with its gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class RefusesSquares(Right):
    """Right, and takes no square weight."""

    @staticmethod
    def forward(ctx, x, w):
        if w.shape[0] == w.shape[1]:
            raise ValueError("a square weight has an inverse: use it")
        return Right.forward(ctx, x, w)
