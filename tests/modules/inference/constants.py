"""None from backward for what may be a constant, or learned: the source shows which, or nobody knows."""

import torch
from torch import nn
from torch.autograd import Function


class Affine(Function):
    """Nothing shows whether `b` is a number: the gradient of a bias would be missing."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.mT + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.mT @ x, None


class ScaledRows(Function):
    """Nothing shows whether `gain` is learned."""

    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x.exp() * gain

    @staticmethod
    def backward(ctx, g):
        x, gain = ctx.saved_tensors
        return g * x.exp() * gain, None


class Shifted(Function):
    """A call passes a number."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x)
        return (x + 1) ** 3 + b

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * (x + 1) ** 2, None


def shifted(x):
    return Shifted.apply(x, 0.3)


class Annotated(Function):
    """Its author wrote that it is a number."""

    @staticmethod
    def forward(ctx, x, b: float):
        ctx.save_for_backward(x)
        return x**3 + b

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2, None


class Tilted(Function):
    """What is kept as an attribute of ctx is a setting."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x)
        ctx.b = b
        return x**3 + b * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (3 * x**2 + ctx.b), None


class Limited(Function):
    """What numbers are only compared with has no derivative."""

    @staticmethod
    def forward(ctx, x, b):
        over = x > b
        ctx.save_for_backward(x, over)
        return torch.where(over, x.sin(), x)

    @staticmethod
    def backward(ctx, g):
        x, over = ctx.saved_tensors
        return g * torch.where(over, x.cos(), 1.0), None


class Toned(Function):
    """A module passes a buffer."""

    @staticmethod
    def forward(ctx, x, curve):
        ctx.save_for_backward(x, curve)
        return x.sin() * curve

    @staticmethod
    def backward(ctx, g):
        x, curve = ctx.saved_tensors
        return g * x.cos() * curve, None


class Tone(nn.Module):
    def __init__(self, features=3):
        super().__init__()
        self.register_buffer("curve", torch.linspace(0, 1, features))

    def forward(self, x):
        return Toned.apply(x, self.curve)


class Trained(Affine):
    """A module passes a parameter: its gradient is missing."""


class Layer(nn.Module):
    def __init__(self, features=3):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, features))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return Trained.apply(x, self.weight, self.bias)


class Tempered(ScaledRows):
    """A module passes what it makes of a parameter."""


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return Tempered.apply(x, self.logarithm.exp())


class Asked(Affine):
    """What a call passes requires grad."""


def example():
    w, b = torch.ones(2, 3), torch.zeros(2)
    bias = b.requires_grad_()
    return Asked.apply(torch.ones(1, 3), w, bias)


class Rounded(Function):
    """A call passes what it computes without a gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * w, None


def rounded(x):
    with torch.no_grad():
        w = x.abs().max()
    return Rounded.apply(x, w)


class Centred(Function):
    """A call passes what it makes of the first input, through which backward goes."""

    @staticmethod
    def forward(ctx, x, mean, v):
        ctx.save_for_backward(x - mean, v)
        return (x - mean) * v

    @staticmethod
    def backward(ctx, g):
        centred, v = ctx.saved_tensors
        return g * v - (g * v).mean(-1, keepdim=True), None, (g * centred).sum(0)


class CentredTwice(Centred):
    """The gradient of another input is wrong, whatever the mean is made of."""

    @staticmethod
    def backward(ctx, g):
        centred, v = ctx.saved_tensors
        return g * v - (g * v).mean(-1, keepdim=True), None, 2 * (g * centred).sum(0)


def centred(x, v):
    return Centred.apply(x, x.detach().mean(-1, keepdim=True), v)


def centred_twice(x, v):
    mean = x.detach().mean(-1, keepdim=True)
    return CentredTwice.apply(x, mean, v)


class Gated(Rounded):
    """A module passes what a layer returns, which its parameters lead to."""


class Pooled(Rounded):
    """A module passes what a layer without parameters returns."""


class Scheduled(Rounded):
    """A module passes what a layer keeps, and does not learn."""


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.pool = nn.MaxPool1d(1)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x, w):
        gated, pooled = Gated.apply(x, self.gate(w)), Pooled.apply(x, self.pool(w))
        return gated + pooled + Scheduled.apply(x, self.norm.running_var)


class Looked(Rounded):
    """What a module passes is found nowhere: its properties name each other, and its class has their name."""


class Layers(Layers):  # noqa: F811 - as `class Linear(Linear)` beside an import
    @property
    def gain(self):
        return self.second

    @property
    def second(self):
        return self.gain

    def forward(self, x):
        return Looked.apply(x, self.gain)


class Optional(Function):
    """Nothing shows whether `b`, which may be left out, is a number."""

    @staticmethod
    def forward(ctx, x, b=None):
        ctx.save_for_backward(x)
        return x**3 if b is None else x**3 + b

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2, None
