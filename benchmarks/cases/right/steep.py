"""Right Functions whose values are hard: steep, saturated, cancelling, tiny, huge, near an edge."""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SteepSigmoid(Function):
    @staticmethod
    def forward(ctx, x, sharpness):
        y = torch.sigmoid(sharpness * x)
        ctx.save_for_backward(y)
        ctx.sharpness = sharpness
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * ctx.sharpness * y * (1 - y), None


class SaturatedTanh(Function):
    """1 - tanh^2 far out, where hardly a digit of it is left."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class LogNearZero(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x


class Versine(Function):
    """(1 - cos x) / x^2 as it stands in the book: half the digits cancel for small x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 - x.cos()) / x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.sin() / x**2 - 2 * (1 - x.cos()) / x**3)


class Offset(Function):
    """Cancels eight digits on purpose, as differences of time stamps do."""

    @staticmethod
    def forward(ctx, x, origin):
        ctx.save_for_backward(x)
        return ((x + origin) - origin) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x, None


class HugeSquare(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class TinyRoot(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


class RadioWave(Function):
    """A carrier of 10 kHz over a second."""

    @staticmethod
    def forward(ctx, t, frequency):
        ctx.save_for_backward(t)
        ctx.omega = 2 * math.pi * frequency
        return torch.sin(ctx.omega * t)

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * ctx.omega * torch.cos(ctx.omega * t), None


class MaskedLogSumExp(Function):
    """Rows that are masked out altogether give 0."""

    @staticmethod
    def forward(ctx, x, mask):
        filled = x.masked_fill(~mask, -math.inf)
        some = mask.any(dim=-1)
        y = torch.where(some, filled.logsumexp(dim=-1), x.new_zeros(()))
        ctx.save_for_backward(filled, y, some)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        filled, y, some = ctx.saved_tensors
        p = torch.where(some[:, None], (filled - y[:, None]).exp(), 0.0)
        return g[:, None] * p, None


class MaskedSoftmax(Function):
    @staticmethod
    def forward(ctx, x, mask):
        p = torch.softmax(x.masked_fill(~mask, -math.inf), dim=-1).nan_to_num(0.0)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True)), None


class CumulativeProduct(Function):
    """Zeros are valid, so nothing is divided by x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cumprod(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        columns = []
        for j in range(n):
            without = torch.cat([x[..., :j], torch.ones_like(x[..., :1]), x[..., j + 1 :]], dim=-1)
            columns.append((g * without.cumprod(-1))[..., j:].sum(-1))
        return torch.stack(columns, dim=-1)


class SafeNorm(Function):
    """The gradient at zero is zero, as torch has it."""

    @staticmethod
    def forward(ctx, x):
        y = x.norm(dim=-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        safe = torch.where(y > 0, y, 1.0)
        return (g / safe)[..., None] * x


class Angle(Function):
    @staticmethod
    def forward(ctx, y, x):
        ctx.save_for_backward(y, x)
        return torch.atan2(y, x)

    @staticmethod
    def backward(ctx, g):
        y, x = ctx.saved_tensors
        squared = x * x + y * y
        return g * x / squared, -g * y / squared


class ComplexRoot(Function):
    """The branch cut is the negative real axis."""

    @staticmethod
    def forward(ctx, z):
        w = z.sqrt()
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * (1 / (2 * w)).conj()


class Polar(Function):
    @staticmethod
    def forward(ctx, radius, angle):
        z = torch.polar(radius, angle)
        ctx.save_for_backward(radius, angle)
        return z

    @staticmethod
    def backward(ctx, g):
        radius, angle = ctx.saved_tensors
        c, s = angle.cos(), angle.sin()
        return g.real * c + g.imag * s, radius * (g.imag * c - g.real * s)


class InverseErf(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.erfinv(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (math.sqrt(math.pi) / 2) * torch.exp(y * y)


class InverseErfc(Function):
    @staticmethod
    def forward(ctx, x):
        y = -torch.special.ndtri(x / 2) / math.sqrt(2)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -g * (math.sqrt(math.pi) / 2) * torch.exp(y * y)


class LogGamma(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.lgamma(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.digamma(x)


class Digamma(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.digamma(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.polygamma(1, x)


class BesselJ0(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.bessel_j0(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * torch.special.bessel_j1(x)


class ScaledBesselI0(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.special.i0e(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (torch.special.i1e(x) - x.sign() * y)


class ExpRatio(Function):
    """(e^x - 1) / x, by its series near zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        small = x.abs() < 1e-2
        safe = torch.where(small, 1.0, x)
        series = 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7)))))
        return torch.where(small, series, torch.expm1(safe) / safe)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        small = x.abs() < 1e-2
        safe = torch.where(small, 1.0, x)
        series = 1 / 2 + x * (1 / 3 + x * (1 / 8 + x * (1 / 30 + x * (1 / 144 + x / 840))))
        closed = (safe * torch.exp(safe) - torch.expm1(safe)) / safe**2
        return g * torch.where(small, series, closed)


class Softplus(Function):
    """Linear past 20, as torch's."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 20, x, torch.log1p(torch.exp(torch.clamp(x, max=20.0))))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 20, 1.0, torch.sigmoid(x))


class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.abs()
        return a + torch.log1p(torch.exp(-2 * a)) - math.log(2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.tanh(x)


class Sinc(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinc(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = math.pi * x
        safe = torch.where(t == 0, 1.0, t)
        return g * math.pi * torch.where(t == 0, 0.0, (safe * safe.cos() - safe.sin()) / safe**2)


class LogDifference(Function):
    """log(e^a - e^b) for a above b."""

    @staticmethod
    def forward(ctx, b, gap):
        ctx.save_for_backward(gap)
        return b + torch.log(torch.expm1(gap))

    @staticmethod
    def backward(ctx, g):
        (gap,) = ctx.saved_tensors
        return g, -g / torch.expm1(-gap)


class XLogY(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.where(x == 0, 0.0, x * y.log())

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y.log(), g * x / y


class Power(Function):
    @staticmethod
    def forward(ctx, base, exponent):
        y = base**exponent
        ctx.save_for_backward(base, exponent, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        base, exponent, y = ctx.saved_tensors
        return g * exponent * base ** (exponent - 1), g * y * base.log()


class Arrhenius(Function):
    """A rate over thirty decades."""

    @staticmethod
    def forward(ctx, temperature, energy):
        y = torch.exp(-energy / (8.314 * temperature))
        ctx.save_for_backward(temperature, energy, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        temperature, energy, y = ctx.saved_tensors
        rt = 8.314 * temperature
        return g * y * energy / (rt * temperature), -g * y / rt


class Planck(Function):
    """x^3 / (e^x - 1)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 / torch.expm1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = torch.expm1(x)
        return g * (3 * x**2 / e - x**3 * (e + 1) / e**2)
