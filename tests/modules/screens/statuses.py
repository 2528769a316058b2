"""One Function for each status that needs a spec to come about."""

from torch.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * x


class NearestIndex(Function):
    @staticmethod
    def forward(ctx, x):
        nearest = x.round().long()
        ctx.mark_non_differentiable(nearest)
        return nearest

    @staticmethod
    def backward(ctx, g):
        return None


class NeedsShapes(Function):
    @staticmethod
    def forward(ctx, x, sizes):
        return x.view(*sizes)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(-1), None
