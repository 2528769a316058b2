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


class NeedsTable(Function):
    @staticmethod
    def forward(ctx, x, table):
        return x * table.row("first")["weight"]

    @staticmethod
    def backward(ctx, g):
        return g, None
