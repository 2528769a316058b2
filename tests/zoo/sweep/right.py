"""Right under every variation, each in a way that a careless sweep would take for a mistake."""

from collections import OrderedDict

import torch
from memory import at_address
from torch.autograd import Function

CACHE = OrderedDict()
"""Of the last few results of Cached."""


class Scale(Function):
    """A kernel that reads memory, after `.contiguous()`."""

    @staticmethod
    def forward(ctx, x, w):
        x, w = x.contiguous(), w.contiguous()
        ctx.save_for_backward(x, w)
        return at_address(x) * at_address(w)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.contiguous()
        return at_address(g) * w, at_address(g) * x


class ImageScale(Function):
    """The same for images."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 3 * at_address(g.contiguous())


class OnlyContiguous(Function):
    """Refuses what its kernel cannot read, with a sentence."""

    @staticmethod
    def forward(ctx, x):
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Views(Function):
    """`view` refuses other layouts at once, which nobody overlooks."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view(-1).cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.flip(0).cumsum(0).flip(0).reshape(ctx.shape)


class Linear(Function):
    """Each gradient by itself, and only what it needs is saved."""

    @staticmethod
    def forward(ctx, x, w, b):
        need_x, need_w, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if need_w else None, w if need_x else None)
        return x @ w.mT + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        need_x, need_w, need_b = ctx.needs_input_grad
        return g @ w if need_x else None, g.mT @ x if need_w else None, g.sum(0) if need_b else None


class NeedsBoth(Function):
    """Refuses a subset with a sentence."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        if not all(ctx.needs_input_grad):
            raise NotImplementedError("frozen inputs are not supported yet")
        x, w = ctx.saved_tensors
        return g * w, g * x


class ReluInPlace(Function):
    """Writes into its input and says so."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)


class BatchMean(Function):
    """Updates a running buffer, which the spec declares."""

    @staticmethod
    def forward(ctx, x, running):
        running.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0), None


class SumBoth(Function):
    """Returns grad_output itself, twice."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g, g


class TotalOf(Function):
    """Returns an expanded gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)


class Windowed(Function):
    """A constant of the class, saved by every call, is no growth."""

    window = torch.hann_window(4, periodic=False, dtype=torch.float64) + 0.5

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(Windowed.window)
        return x * Windowed.window

    @staticmethod
    def backward(ctx, g):
        (window,) = ctx.saved_tensors
        return g * window


class Cached(Function):
    """A cache of bounded size, by value."""

    @staticmethod
    def forward(ctx, x):
        key = tuple(x.detach().flatten().tolist())
        if key not in CACHE:
            CACHE[key] = (x.detach().clone(), x.detach().exp())
        ctx.save_for_backward(CACHE[key][1])
        if len(CACHE) > 4:
            CACHE.popitem(last=False)
        return CACHE[key][1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Dropout(Function):
    """The mask lies as x does: other layouts draw other masks."""

    @staticmethod
    def forward(ctx, x, p):
        mask = (torch.rand_like(x) > p) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class DropoutDrawnAgain(Function):
    """Saves memory: the mask is drawn once more, from the state that forward found."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.state, ctx.p = torch.get_rng_state(), p
        return x * (torch.rand_like(x) > p) / (1 - p)

    @staticmethod
    def backward(ctx, g):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            return g * (torch.rand(g.shape, dtype=g.dtype) > ctx.p) / (1 - ctx.p), None


class OtherOrder(Function):
    """Adds up in another order each time, as atomic additions do."""

    calls = 0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        OtherOrder.calls += 1
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(OtherOrder.calls))
        total = torch.zeros_like(w)
        for row in order.tolist():
            total = total + g[row] * x[row]
        return g.outer(w), total


class SoftmaxScores(Function):
    """A gradient that cancels to rounding for a constant grad_output."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class RowLargest(Function):
    """Ties are broken by position: rows that are all alike have many."""

    @staticmethod
    def forward(ctx, x):
        values, index = x.max(0)
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return values

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.rows, *g.shape).scatter(0, index[None], g[None])


class SinCos(Function):
    """Any of its grad_outputs may be None, or both."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        (x,) = ctx.saved_tensors
        if g_sin is None and g_cos is None:
            return None
        left = 0 if g_sin is None else g_sin * x.cos()
        return left - (0 if g_cos is None else g_cos * x.sin())


class ByPointer(Function):
    """Frees nothing, shares nothing: forward and setup_context apart."""

    @staticmethod
    def forward(x, y):
        return x * y + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * (x + 1)


class Gather(Function):
    """Indices, in whatever layout."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(1, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add(1, index, g), None


class Mean(Function):
    """Its count is on ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.count = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return (g / ctx.count).expand(ctx.count, *g.shape)


class Power(Function):
    """Its option is on ctx."""

    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.exponent * x ** (ctx.exponent - 1), None


def scaled_sum(x, w):
    """A composite over a Function, with an in-place step that autograd follows."""
    y = Scale.apply(x, w)
    y.mul_(2)
    return y.sum(-1)


class ToSparse(Function):
    """Its result is sparse, and so is the grad_output that comes back through `to_dense`."""

    @staticmethod
    def forward(ctx, values, index):
        ctx.save_for_backward(index)
        return torch.sparse_coo_tensor(index[None], 2 * values, (5,))

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        dense = grad_output.to_dense() if grad_output.is_sparse else grad_output
        return 2 * dense[index], None
