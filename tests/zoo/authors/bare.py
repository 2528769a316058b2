"""Without a spec: a forward that broadcasts more than backward is made for, and what a default hides."""

import torch


class InstanceNormScale(torch.autograd.Function):
    """`gamma` is one number for each channel; nothing in forward says so."""

    @staticmethod
    def forward(ctx, x, gamma):
        mean = x.mean(2, keepdim=True)
        deviation = (x.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        z = (x - mean) / deviation
        ctx.save_for_backward(z, deviation, gamma)
        return z * gamma[None, :, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        z, deviation, gamma = ctx.saved_tensors
        dz = grad_output * gamma[None, :, None]
        dx = dz - dz.mean(2, keepdim=True) - z * (dz * z).mean(2, keepdim=True)
        return dx / deviation, (grad_output * z).sum((0, 2))


class OneWay(torch.autograd.Function):
    """A cumulative sum; the reversed one is right as well."""

    @staticmethod
    def forward(ctx, x, dim=0, reverse=False):
        ctx.dim, ctx.reverse = dim, reverse
        return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        if ctx.reverse:
            return grad.cumsum(ctx.dim), None, None
        return grad.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


class OneWayAlone(torch.autograd.Function):
    """Its backward does not know that it may be reversed."""

    @staticmethod
    def forward(ctx, x, dim=0, reverse=False):
        ctx.dim = dim
        return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


class Windows(torch.autograd.Function):
    """Right as long as windows do not overlap, as by default."""

    @staticmethod
    def forward(ctx, x, width=3, stride=None):
        ctx.width, ctx.stride, ctx.shape = width, stride or width, x.shape
        return torch.nn.functional.avg_pool1d(x, width, stride)

    @staticmethod
    def backward(ctx, grad):
        gradient = grad.new_zeros(ctx.shape)
        for k in range(grad.shape[-1]):
            start = k * ctx.stride
            gradient[..., start : start + ctx.width] = grad[..., k : k + 1] / ctx.width
        return gradient, None, None


class RoundedByTheLargest(torch.autograd.Function):
    """Meant: it hands on what forward rounds on a scale that hangs on the largest entry."""

    @staticmethod
    def forward(ctx, w, bits: int = 8):
        scale = w.abs().max() / (2 ** (bits - 1) - 1)
        return (w / scale).round() * scale

    @staticmethod
    def backward(ctx, g):
        return g, None


class RoundedBetweenBounds(torch.autograd.Function):
    """The same on a scale and from an offset that hang on the least and the largest entry."""

    @staticmethod
    def forward(ctx, x, bits: int = 4):
        low, high = x.min(), x.max()
        scale = (high - low) / (2**bits - 1)
        offset = torch.round(-low / scale)
        return (torch.clamp(torch.round(x / scale) + offset, 0, 2**bits - 1) - offset) * scale

    @staticmethod
    def backward(ctx, g):
        return g, None


class RoundedByRows(torch.autograd.Function):
    """The same on a scale for each row."""

    @staticmethod
    def forward(ctx, w):
        scale = w.abs().amax(dim=-1, keepdim=True) / 7
        return torch.round(w / scale) * scale

    @staticmethod
    def backward(ctx, g):
        return g


class SignsOnAMean(torch.autograd.Function):
    """The sign of each weight, on a scale that all of them move."""

    @staticmethod
    def forward(ctx, w):
        return w.sign() * w.abs().mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        return g


class ReluOnAMean(torch.autograd.Function):
    """Wrong: nothing steps, and backward leaves out what moves the scale."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu() * x.abs().mean()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0) * x.abs().mean()


class KeptInEightBits(torch.autograd.Function):
    """The derivative as an integer, up or down at random, so that it is right in the mean."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x - 1.0)
        if x.requires_grad:
            derivative = x * s * (1 - s) + s
            ctx.save_for_backward(((derivative + 0.1) * 180 + torch.rand_like(x)).to(torch.uint8))
        return x * s

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g * (kept / 180 - 0.1)


class DrawnInVain(torch.autograd.Function):
    """Wrong: a factor, whatever forward draws."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, torch.rand_like(x))
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        x, _ = ctx.saved_tensors
        return g * x


class SolvedByRounds(torch.autograd.Function):
    """Right where the rounds converge, forward's and backward's."""

    @staticmethod
    def forward(ctx, a, b):
        x = b
        for _ in range(80):
            x = b + a @ x
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        y = g
        for _ in range(80):
            y = g + a.t() @ y
        return torch.outer(y, x), y


class MedianTwice(torch.autograd.Function):
    """Wrong: most entries of a median may move, and change nothing; backward gives these nothing, either."""

    @staticmethod
    def forward(ctx, x):
        value, ctx.index = x.flatten().median(0)
        ctx.shape = x.shape
        return value

    @staticmethod
    def backward(ctx, g):
        gradient = torch.zeros(ctx.shape, dtype=g.dtype).flatten()
        gradient[ctx.index] = 2 * g
        return gradient.view(ctx.shape)


class ClampTwice(torch.autograd.Function):
    """Wrong: flat outside of its bounds alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-0.3, 0.3)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * (x.abs() <= 0.3)


class SampledAtPoints(torch.autograd.Function):
    """Values of image [c, h, w] at pixel positions [n, 2] = (x, y), zero outside."""

    @staticmethod
    def corners(points, h, w):
        x, y = points[:, 0], points[:, 1]
        x0, y0 = x.floor(), y.floor()
        fx, fy = x - x0, y - y0
        for dy in (0, 1):
            for dx in (0, 1):
                xi, yi = x0 + dx, y0 + dy
                inside = (xi >= 0) & (xi < w) & (yi >= 0) & (yi < h)
                flat = (yi.clamp(0, h - 1) * w + xi.clamp(0, w - 1)).long()
                wx, wy = (fx if dx else 1 - fx), (fy if dy else 1 - fy)
                yield flat, inside, wx, wy, (1.0 if dx else -1.0), (1.0 if dy else -1.0)

    @staticmethod
    def forward(ctx, image, points):
        c, h, w = image.shape
        flat_image = image.reshape(c, h * w)
        out = image.new_zeros(points.shape[0], c)
        for flat, inside, wx, wy, _, _ in SampledAtPoints.corners(points, h, w):
            out = out + (flat_image[:, flat] * (wx * wy * inside)).t()
        ctx.save_for_backward(image, points)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        image, points = ctx.saved_tensors
        c, h, w = image.shape
        flat_image = image.reshape(c, h * w)
        grad_image = torch.zeros_like(flat_image)
        gx, gy = torch.zeros_like(points[:, 0]), torch.zeros_like(points[:, 1])
        for flat, inside, wx, wy, sx, sy in SampledAtPoints.corners(points, h, w):
            grad_image.index_add_(1, flat, (grad_output * (wx * wy * inside)[:, None]).t())
            along = (grad_output * flat_image[:, flat].t()).sum(1) * inside
            gx += along * sx * wy
            gy += along * sy * wx
        return grad_image.view(c, h, w), torch.stack((gx, gy), dim=1)


class LearnedStep(torch.autograd.Function):
    """Right by intent: a quantiser with a learned step size (LSQ, Esser et al. 2020)."""

    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return (x / s).round().clamp(-8, 7) * s

    @staticmethod
    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        q = x / s
        inside = (q >= -8) & (q <= 7)
        of_s = torch.where(inside, q.round() - q, q.clamp(-8, 7))
        return grad * inside, (grad * of_s).sum().reshape(s.shape)


class LearnedStepAndOffset(torch.autograd.Function):
    """Right by intent: both ends of what is quantised are learned."""

    @staticmethod
    def forward(ctx, x, s, b):
        q = (x - b) / s
        ctx.save_for_backward(q)
        return q.round().clamp(0, 15) * s + b

    @staticmethod
    def backward(ctx, grad):
        (q,) = ctx.saved_tensors
        inside = (q >= 0) & (q <= 15)
        of_s = (grad * torch.where(inside, q.round() - q, q.clamp(0, 15))).sum()
        return grad * inside, of_s, (grad * ~inside).sum()


class WeightedFloor(torch.autograd.Function):
    """Wrong: what weighs the steps moves none of them, and has a derivative."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.floor() * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, 2 * grad * x.floor()


class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dim, *parts):
        ctx.dim, ctx.sizes = dim, [part.shape[dim] for part in parts]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, grad):
        return None, *grad.split(ctx.sizes, ctx.dim)


class JoinedOfOneSize(Joined):
    """Wrong where the parts differ in size."""

    @staticmethod
    def backward(ctx, grad):
        return None, *grad.chunk(len(ctx.sizes), ctx.dim)


class SigmoidOfAScale(torch.autograd.Function):
    """Wrong for every shape: a sum over rows where there are columns, and no shape to give back."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        of_beta = (grad * x * x * s * (1 - s)).sum(0).reshape(-1)[: beta.numel()].view(beta.shape)
        return grad * (s + beta * x * s * (1 - s)), of_beta


class BendsAtFive(torch.autograd.Function):
    """Up to 5 the input, then a parabola that is level at 6."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        t = (x - 5).clamp(0, 1)
        return torch.where(x < 5, x, 5 + t - 0.5 * t * t)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - (x - 5).clamp(0, 1))


class BendsTooLate(BendsAtFive):
    """Wrong between 5 and 6 alone."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        t = (x - 5).clamp(0, 1)
        return grad * (1 - 0.5 * t * (1 + (x >= 6)))


class TanhOfSoftplus(torch.autograd.Function):
    """Wrong in float32 from 30 on, where forward is not: one infinite number is divided by another."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(torch.nn.functional.softplus(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = x.exp()
        omega = 4 * (x + 1) + 4 * e**2 + e**3 + e * (4 * x + 6)
        delta = 2 * e + e**2 + 2
        return grad * e * omega / delta**2


class Clamped(torch.autograd.Function):
    """The term through the variance is missing, whatever the sizes of the statistics."""

    @staticmethod
    def forward(ctx, x, running_mean, running_var, eps, momentum):
        mean = x.mean(dim=(0, 2, 3), keepdim=True)
        var = (x - mean).pow(2).mean(dim=(0, 2, 3), keepdim=True)
        mean, var = mean.squeeze(), var.squeeze()
        running_mean.copy_(momentum * mean + (1 - momentum) * running_mean)
        running_var.copy_(momentum * var + (1 - momentum) * running_var)
        y = (x - mean[None, :, None, None]) / torch.sqrt(var[None, :, None, None] + eps)
        ctx.eps = eps
        ctx.save_for_backward(y, var)
        return y

    @staticmethod
    def backward(ctx, grad):
        _, var = ctx.saved_tensors
        centred = grad - grad.mean(dim=(0, 2, 3), keepdim=True)
        return centred / torch.sqrt(var[None, :, None, None] + ctx.eps), None, None, None, None


class Sorted(torch.autograd.Function):
    """Of sorted values the sign is taken as of unsorted ones; the other argument need not be integers."""

    @staticmethod
    def forward(ctx, pred, target):
        ctx.save_for_backward(pred, target)
        return (pred.sort()[0] - target.sort()[0]).abs().mean()

    @staticmethod
    def backward(ctx, grad):
        pred, target = ctx.saved_tensors
        return grad * (pred - target).sign(), None


class ScaledRows(torch.autograd.Function):
    """Right, for one argument less than forward has: what is left out needs no gradient."""

    @staticmethod
    def forward(ctx, x, weight, eps=1e-5):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        root = torch.sqrt(x.pow(2).mean(-1, keepdim=True) + ctx.eps)
        of_weight = (grad * x / root).sum(dim=tuple(range(x.dim() - 1)))
        dot = (grad * x * weight).sum(-1, keepdim=True)
        return grad * weight / root - dot * x / (x.shape[-1] * root**3), of_weight


class Quarters(torch.autograd.Function):
    """Weights joined to one of four times their rows, as of quaternions; right."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return x @ torch.cat([a, -b, b, a], dim=0)

    @staticmethod
    def backward(ctx, grad):
        x, a, b = ctx.saved_tensors
        of_whole = x.t() @ grad
        one, two, three, four = of_whole.chunk(4)
        return grad @ torch.cat([a, -b, b, a], dim=0).t(), one + four, three - two


class Lengths(torch.autograd.Function):
    """Half of it: along unit rows forward is constant, which excuses nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(2).sum(-1).sqrt()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 0.5 * grad[..., None] * x / x.pow(2).sum(-1, keepdim=True).sqrt()


class Feedback(torch.autograd.Function):
    """Backward goes through a weight of its own, whose shape nothing in forward shows."""

    @staticmethod
    def forward(ctx, x, weight, feedback):
        ctx.save_for_backward(x, weight, feedback)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, _, feedback = ctx.saved_tensors
        return grad.mm(feedback), grad.t().mm(x), None


class TriangularProduct(torch.autograd.Function):
    """Of lower triangular matrices, to which the product and the gradients are cut; right for these."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a @ b).tril()

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad = grad.tril()
        return (grad @ b.mT).tril(), (a.mT @ grad).tril()


class WithoutABias(torch.autograd.Function):
    """Breaks where the bias is left to its default."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        y = x @ weight.t()
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x, grad.sum(0)


class LastButOne(torch.autograd.Function):
    """Has a path for an option that forward refuses for such ranks."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        if dim == -2 and x.dim() < 5:
            raise ValueError("dim=-2 is for images of time: [b, t, c, h, w]")
        ctx.dim, ctx.shape = dim, x.shape
        return x.sum(dim)

    @staticmethod
    def backward(ctx, grad):
        if ctx.dim == -2:
            return (grad.unsqueeze(-2) * 0.5).expand(ctx.shape), None
        return grad.unsqueeze(ctx.dim).expand(ctx.shape), None


class PaddedConvolution(torch.autograd.Function):
    """Of signals whose second half is zeros, in the inputs, the output and the gradients; right for these."""

    @staticmethod
    def forward(ctx, u, v):
        n = u.shape[-1]
        ctx.save_for_backward(u, v)
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(v, n=n), n=n)
        return torch.nn.functional.pad(y[..., : n // 2], (0, n // 2))

    @staticmethod
    def backward(ctx, grad):
        u, v = ctx.saved_tensors
        n = u.shape[-1]
        grad = torch.nn.functional.pad(grad[..., : n // 2].flip(-1), (0, n // 2))
        both = (torch.fft.irfft(torch.fft.rfft(grad, n=n) * torch.fft.rfft(o, n=n), n=n) for o in (v, u))
        return tuple(torch.nn.functional.pad(g[..., : n // 2].flip(-1), (0, n // 2)) for g in both)


class PickedOnce(torch.autograd.Function):
    """Right for one label of each row: an entry that is picked twice gets the gradient of one."""

    @staticmethod
    def forward(ctx, *args):
        activation = args[0]
        target = args[1]
        gamma = args[2]
        ctx.save_for_backward(activation, target)
        ctx.gamma = gamma
        where = range(activation.shape[0]), target
        return -(((1 - activation[where]) ** gamma) * torch.log(activation)[where]).mean()

    @staticmethod
    def backward(ctx, *grads):
        x, target = ctx.saved_tensors
        picked, gamma = x[range(x.shape[0]), target], ctx.gamma
        slope = gamma * (1 - picked) ** (gamma - 1) * torch.log(picked) - (1 - picked) ** gamma / picked
        of_x = torch.zeros_like(x)
        of_x[range(x.shape[0]), target] = grads[0] * slope / picked.numel()
        return of_x, None, None
