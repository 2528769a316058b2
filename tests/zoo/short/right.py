"""Right; products and activations in formats of 16 or 8 bits inside, whatever they are given."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Product(Function):
    """A product in bfloat16, as mixed precision has it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.bfloat16() @ w.bfloat16()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        b = g.bfloat16()
        return (b @ w.T).to(g.dtype), (x.T @ b).to(g.dtype)


class HalfProduct(Function):
    """A product in float16 whose sum is kept in float32."""

    @staticmethod
    def forward(ctx, x, w):
        x, w = x.half(), w.half()
        ctx.save_for_backward(x, w)
        return (x.float() @ w.float()).double()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        b = g.half()
        return (b @ w.T).double(), (x.T @ b).double()


class Silu(Function):
    """A gate whose activation is computed in bfloat16."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        s = x.to(torch.bfloat16)
        return (s * torch.sigmoid(s)).to(x.dtype) * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        s = x.to(torch.bfloat16)
        p = torch.sigmoid(s)
        slope = p * (1 + s * (1 - p))
        return g * y * slope.to(x.dtype), g * (s * p).to(x.dtype)


class Quarter(Function):
    """A product whose factors are cast to float8 with a scale each."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        a = (x / 4).to(torch.float8_e4m3fn).to(torch.float32)
        b = (w / 4).to(torch.float8_e4m3fn).to(torch.float32)
        return ((a @ b) * 16).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        a = (x / 4).to(torch.float8_e4m3fn).to(torch.float32) * 4
        b = (w / 4).to(torch.float8_e4m3fn).to(torch.float32) * 4
        h = g.to(torch.float8_e5m2).to(torch.float32)
        return (h @ b.T).to(x.dtype), (a.T @ h).to(x.dtype)


class Norm(Function):
    """Root mean square in float32, the rest in bfloat16."""

    @staticmethod
    def forward(ctx, x, w):
        r = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        y = (x.float() * r).bfloat16()
        ctx.save_for_backward(x, w, r)
        return (y * w.bfloat16()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        x32, g32 = x.float(), g.float()
        n = x32 * r
        h = g32 * w.float()
        gx = r * (h - n * (h * n).mean(-1, keepdim=True))
        return gx.to(x.dtype), (g32 * n).sum(0).to(w.dtype)


class Loss(Function):
    """A loss in float16."""

    @staticmethod
    def forward(ctx, x, t):
        d = (x - t).half()
        ctx.save_for_backward(d)
        return (d * d).double().mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        s = (g * 2 * d / d.numel()).double()
        return s, -s


class Kept8(Function):
    """forward exact, activation kept as int8 with a scale"""

    @staticmethod
    def forward(ctx, x):
        s = x.abs().max() / 127
        ctx.save_for_backward((x / s).round().to(torch.int8), s)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, s = ctx.saved_tensors
        return 2 * g * q.to(g.dtype) * s


class KeptHalf(Function):
    """forward exact, activation kept in bfloat16"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.bfloat16())
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.to(g.dtype)


class KeptHalfDeclared(KeptHalf):
    """the spec says that so few digits are meant"""


class FakeQuantised(Function):
    """forward by int8 values, straight through"""

    @staticmethod
    def forward(ctx, x, w):
        s, t = x.abs().max() / 127, w.abs().max() / 127
        q, r = (x / s).round().to(torch.int8), (w / t).round().to(torch.int8)
        ctx.save_for_backward(q, s, r, t)
        return (q.to(x.dtype) * s) @ (r.to(w.dtype) * t)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, s, r, t = ctx.saved_tensors
        return g @ (r.to(g.dtype) * t).T, (q.to(g.dtype) * s).T @ g


class QuantisedBothWays(Function):
    """Integers of 8 bits in forward and in backward."""

    @staticmethod
    def forward(ctx, x, w):
        s, t = x.abs().max() / 127, w.abs().max() / 127
        q, r = (x / s).round().to(torch.int8), (w / t).round().to(torch.int8)
        ctx.save_for_backward(q, s, r, t)
        return (q.to(x.dtype) * s) @ (r.to(w.dtype) * t)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, s, r, t = ctx.saved_tensors
        u = g.abs().max() / 127
        h = (g / u).round().to(torch.int8).to(g.dtype) * u
        return h @ (r.to(g.dtype) * t).T, (q.to(g.dtype) * s).T @ h


class ByBits(Function):
    """bfloat16 by its bits: the low half of a float32 is cut off."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        kept = x.bfloat16().float().view(torch.int32) & -65536
        return (kept.view(torch.float32).bfloat16() * 3).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return (g.bfloat16() * 3).to(g.dtype)
