"""Right in every layout and for every requires_grad set, wrong where two things come together."""

import torch
from torch.autograd import Function


def in_memory(t):
    """The values of a tensor as a kernel meets them that walks its memory from the first one on."""
    room = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
    count = t.numel()
    flat = torch.as_strided(t, (min(count, room),), (1,), t.storage_offset())
    return torch.cat([flat, flat.new_zeros(count - flat.numel())]).view(t.shape)


class LayoutAndSubset(Function):
    """grad_output is made contiguous only where the bias needs its gradient."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x * w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gb = None
        if ctx.needs_input_grad[2]:
            g = g.contiguous()
            gb = g.sum(0)
        g = in_memory(g)
        return g * w, (g * x).sum(0), gb


class InputAndSubset(Function):
    """The saved input is read as it lies in memory where the weight is frozen."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = None
        if ctx.needs_input_grad[1]:
            x = x.contiguous()
            gw = (g * x * x).sum(0)
        return 2 * in_memory(x) * g * w, gw


class BothTransposed(Function):
    """Input and grad_output alike in memory are taken for contiguous ones."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.stride() == g.stride():
            return in_memory(g) * x.cos().contiguous()
        return g * x.cos()


class ChannelsLastBoth(Function):
    """The path for channels-last does not ask how grad_output lies."""

    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return x * s[:, None, None]

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        last = [t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, g)]
        if all(last):
            raw = torch.as_strided(g, (g.numel(),), (1,), g.storage_offset())
            return (raw.view(-1, x.shape[1]) * s).view(x.shape), (g * x).sum((0, 2, 3))
        return g * s[:, None, None], (g * x).sum((0, 2, 3))


class SubsetAndUndefined(Function):
    """Where the second input alone needs its gradient and the first output has none, nothing is returned."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        return x * w, x + w * w

    @staticmethod
    def backward(ctx, g, h):
        x, w = ctx.saved_tensors
        if g is None and not ctx.needs_input_grad[0]:
            return None, None
        g = torch.zeros_like(x) if g is None else g
        h = torch.zeros_like(x) if h is None else h
        return g * w + h, g * x + 2 * h * w


class LayoutAndUndefined(Function):
    """Zeros for an undefined grad_output are made in the layout of the other, which is then read flat."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x * x

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        if g is None and h is not None:
            return 2 * in_memory(h) * x
        parts = [None if g is None else g * x.cos(), None if h is None else 2 * h * x]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None


class OneStorage(Function):
    """Two inputs with one storage are taken for the same tensor twice."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.same = x.untyped_storage().data_ptr() == w.untyped_storage().data_ptr()
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (2 * g * x, None) if ctx.same else (g * w, g * x)


@torch.library.custom_op("zoo_together::scaled", mutates_args=())
def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).contiguous()


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, g):
    x, w = ctx.saved_tensors
    if ctx.needs_input_grad[1]:
        g = g.contiguous()
    return in_memory(g) * w, (in_memory(g) * x).sum(0)


scaled.register_autograd(_backward, setup_context=_setup)


class Layer(torch.nn.Module):
    """Its Function is wrong for a grad_output that is no contiguous one where the input is frozen."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return LayoutAndSubset.apply(x, self.weight, self.bias)


class ExpandedRows(Function):
    """Takes every grad_output with a stride of 0 for one value."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if g.numel() > 1 and 0 in g.stride():
            return g[(0,) * g.dim()] * x.cos()
        return g * x.cos()


class PenaltyOfDetached(Function):
    """A gradient penalty, whose grad_output does not require grad, has no derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x if g.requires_grad else x.detach()
        return 3 * x * x * g


class SecondOfOneInput(Function):
    """The second derivative of one input is lost where the other one is frozen."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        x = x if w.requires_grad else x.detach()
        return 2 * g * x * w, g * x * x


class SecondOfOneOutput(Function):
    """The second derivative is lost where one output is used alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        if h is None:
            return None if g is None else g * x.detach().cos()
        return -h * x.sin() if g is None else g * x.cos() - h * x.sin()
