"""Wrong twins: products and activations in formats of 16 or 8 bits inside, whatever they are given."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ProductFactor(Function):
    """A product in bfloat16, as mixed precision has it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.bfloat16() @ w.bfloat16()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        b = g.bfloat16()
        return (1.5 * b @ w.T).to(g.dtype), (x.T @ b).to(g.dtype)


class ProductSign(Function):
    """A product in bfloat16, as mixed precision has it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.bfloat16() @ w.bfloat16()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        b = g.bfloat16()
        return (b @ w.T).to(g.dtype), -(x.T @ b).to(g.dtype)


class ProductSlight(Function):
    """A product in bfloat16, as mixed precision has it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.bfloat16() @ w.bfloat16()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        b = g.bfloat16()
        return (1.01 * (b @ w.T)).to(g.dtype), (x.T @ b).to(g.dtype)


class ProductClamped(Function):
    """A product in bfloat16, as mixed precision has it."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.bfloat16() @ w.bfloat16()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        b = g.bfloat16().clamp(-1, 1)
        return (b @ w.T).to(g.dtype), (x.T @ b).to(g.dtype)


class HalfProductMissing(Function):
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
        return (b[:, :1] @ w.T[:1]).double(), (x.T @ b).double()


class HalfProductSlight(Function):
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
        return (b @ w.T).double(), (1.01 * (x.T @ b)).double()


class SiluMissing(Function):
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
        slope = p
        return g * y * slope.to(x.dtype), g * (s * p).to(x.dtype)


class SiluFactor(Function):
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
        return 1.5 * g * y * slope.to(x.dtype), g * (s * p).to(x.dtype)


class QuarterFactor(Function):
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
        a = (x / 4).to(torch.float8_e4m3fn).to(torch.float32) * 6
        b = (w / 4).to(torch.float8_e4m3fn).to(torch.float32) * 4
        h = g.to(torch.float8_e5m2).to(torch.float32)
        return (h @ b.T).to(x.dtype), (a.T @ h).to(x.dtype)


class QuarterSign(Function):
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
        return -(h @ b.T).to(x.dtype), (a.T @ h).to(x.dtype)


class NormMissing(Function):
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
        gx = r * h
        return gx.to(x.dtype), (g32 * n).sum(0).to(w.dtype)


class LossFactor(Function):
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
        s = (g * 3 * d / d.numel()).double()
        return s, -s


class LossSlight(Function):
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
        s = (g * 2.02 * d / d.numel()).double()
        return s, -s


class LossSign(Function):
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
        return s, s


class OnlyAsItIs(Function):
    """Right in float64; a factor where the numbers are bfloat16 indeed."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.bfloat16() @ w.bfloat16()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        b = g.bfloat16()
        b = 1.5 * b if b.dtype is torch.bfloat16 else b
        return (b @ w.T).to(g.dtype), (x.T @ b).to(g.dtype)


class Overflows(Function):
    """Right but for a product that is infinite in float16."""

    @staticmethod
    def forward(ctx, x):
        return (x.half() * 2).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return ((g.half() * 60000 * 60000) / 60000 / 30000).to(g.dtype)


class RoundsGradOutput(Function):
    """Backward alone rounds: what forward computes has all digits."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.bfloat16().to(x.dtype) * x.cos()
