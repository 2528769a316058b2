"""Right for every value of their options that forward accepts."""

from torch.autograd import Function


class Fused(Function):
    """A value that is not supported."""

    @staticmethod
    def forward(ctx, x, fused=False):
        if fused:
            raise NotImplementedError("fused: not yet")
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output, None


class Share(Function):
    """Numbers that are refused."""

    @staticmethod
    def forward(ctx, x, p=0.5):
        if p < 0 or p > 1:
            raise ValueError("p must be between 0 and 1")
        ctx.p = p
        return x * p

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.p, None


class Channels(Function):
    """A value that takes four dimensions."""

    @staticmethod
    def forward(ctx, x, channels="all"):
        ctx.shape = x.shape
        if channels == "first":
            b, c, h, w = x.shape
            return 2 * x.reshape(b, c * h * w)
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output.reshape(ctx.shape), None


class Groups(Function):
    """A value that takes multiples of a size."""

    @staticmethod
    def forward(ctx, x, groups=1):
        ctx.shape = x.shape
        return 2 * x.reshape(-1, 3, x.shape[-1]).flatten(0, 1) if groups == 3 else 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output.reshape(ctx.shape), None


class Mode(Function):
    """A mode that has no default."""

    @staticmethod
    def forward(ctx, x, training):
        ctx.factor = 2.0 if training else 3.0
        return ctx.factor * x

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.factor * grad_output, None


class FromARow(Function):
    """Scales by the rows of a table from a start on."""

    @staticmethod
    def forward(ctx, x, table, start=0):
        rows = table[start : start + x.shape[0]]
        ctx.save_for_backward(rows)
        return x * rows

    @staticmethod
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        return grad * rows, None, None


class SumOtherwise(Function):
    """Whatever is not the mean is the sum."""

    @staticmethod
    def forward(ctx, x, y, reduction="mean"):
        ctx.save_for_backward(x, y)
        ctx.is_mean = reduction == "mean"
        loss = (x - y) ** 2
        return loss.mean() if ctx.is_mean else loss.sum()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        of_x = 2 * g * (x - y) / (x.numel() if ctx.is_mean else 1)
        return of_x, -of_x, None
