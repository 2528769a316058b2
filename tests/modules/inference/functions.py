"""Functions that nobody wrote a spec for: what they take stands in their source, or in what torch says."""

import hashlib
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Linear(Function):
    """Right. Three related shapes, told by the errors of mm and of the sum."""

    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight)
        return input.mm(weight.t()) + bias

    @staticmethod
    def backward(ctx, g):
        input, weight = ctx.saved_tensors
        return g.mm(weight), g.t().mm(input), g.sum(0)


class LinearFactor(Function):
    """Wrong: twice the gradient of `weight`."""

    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight)
        return input.mm(weight.t()) + bias

    @staticmethod
    def backward(ctx, g):
        input, weight = ctx.saved_tensors
        return g.mm(weight), 2 * g.t().mm(input), g.sum(0)


class CrossEntropy(Function):
    """Right: class labels, and a word that the source compares with."""

    @staticmethod
    def forward(ctx, logits, target, reduction):
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        loss = -logits.log_softmax(-1).gather(1, target.unsqueeze(1))
        return loss.sum() if reduction == "sum" else loss.mean()

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        hot = torch.zeros_like(logits).scatter_(1, target.unsqueeze(1), 1.0)
        count = 1 if ctx.reduction == "sum" else len(target)
        return g * (logits.softmax(-1) - hot) / count, None, None


class CrossEntropyUnweighted(Function):
    """Wrong for whatever labels: forgets to divide."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        return -logits.log_softmax(-1).gather(1, target.unsqueeze(1)).mean()

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        hot = torch.zeros_like(logits).scatter_(1, target.unsqueeze(1), 1.0)
        return g * (logits.softmax(-1) - hot), None


class PickedRows(Function):
    """Right for rows that are picked once; what is guessed may pick one twice."""

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return 1.5 * table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        out = g.new_zeros(ctx.shape)
        out[index] = 1.5 * g
        return out, None


class Repeated(Function):
    """Wrong with one more repetition, and with one fewer: a count that is invented stands in no one's way."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return x.unsqueeze(1).repeat(1, count, 1)

    @staticmethod
    def backward(ctx, g):
        return 2 * g.sum(1), None


class Normalized(Function):
    """Wrong by the norm: right on unit rows, but forward is made for others."""

    @staticmethod
    def forward(ctx, x):
        y = x / x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - y * (g * y).sum(-1, keepdim=True)


class Attention(Function):
    """Right: the equation tells the ranks; `attention_reference` computes the same."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return torch.einsum("bnd,bmd->bnm", q, k)

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        return g @ k, g.transpose(1, 2) @ q


def attention_reference(q, k):
    return q @ k.transpose(1, 2)


class Gated(Function):
    """Right: an assert asks for an even dimension."""

    @staticmethod
    def forward(ctx, x):
        assert x.shape[1] % 2 == 0
        ctx.save_for_backward(x)
        a, b = x.chunk(2, dim=1)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors[0].chunk(2, dim=1)
        return torch.cat([g * b, g * a], 1)


class Log(Function):
    """Right: of positive numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, g):
        return g / ctx.saved_tensors[0]


class ScaledSquare(Function):
    """Wrong: forgets its factor, which is 1 where the module itself calls it."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x)
        return alpha * x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0], None


def scaled_square(x, alpha=1.0):
    return ScaledSquare.apply(x, alpha)


class Modulus(Function):
    """Right: of pairs, which only the arithmetic tells. Of three numbers the third is never read."""

    @staticmethod
    def forward(ctx, x):
        out = (x[..., 0] ** 2 + x[..., 1] ** 2).sqrt()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return x / out.unsqueeze(-1) * g.unsqueeze(-1)


class ModulusTwice(Modulus):
    """Wrong: of pairs as well."""

    @staticmethod
    def backward(ctx, g):
        return 2 * Modulus.backward(ctx, g)


class LogDeterminant(Function):
    """Right: of symmetric positive matrices. Cholesky reads one half of whatever it gets."""

    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[0], dtype=a.dtype))
        ctx.save_for_backward(factor)
        return (
            torch.linalg.cholesky(a.abs() + 20 * torch.eye(a.shape[0], dtype=a.dtype)).diagonal().log().sum()
        )

    @staticmethod
    def backward(ctx, g):
        return g * torch.ones_like(ctx.saved_tensors[0])


class Untrained(Function):
    """Wrong: None for what `Layer` holds as a parameter."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        (weight,) = ctx.saved_tensors
        return g * weight, None


class Layer(nn.Module):
    def __init__(self, features=3):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return Untrained.apply(x, self.weight)


class Constant(Function):
    """Right: None for what counts as a constant."""

    @staticmethod
    def forward(ctx, x, mean):
        return x - mean.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g, None


class Settings:
    """Passed as it is: only a spec says which."""

    def __init__(self, slope=0.3):
        self.slope = slope


class Leaky(Function):
    """Right: of settings, which are never made up."""

    @staticmethod
    def forward(ctx, x, settings: Settings):
        ctx.save_for_backward(x)
        ctx.slope = settings.slope
        return torch.where(x > 0, x, settings.slope * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, ctx.slope * g), None


class Portal(Function):
    """Nobody can guess its portal: forward hands it on, with nothing in it, and only backward enters it."""

    @staticmethod
    def forward(ctx, portal, tensor):
        ctx.portal = portal
        return tensor.new_zeros(0)

    @staticmethod
    def backward(ctx, g):
        return None, ctx.portal.through(2 * g)


class Residual(Function):
    """Right: around a module, whose parameters come behind it."""

    @staticmethod
    def forward(ctx, x, inner, *weights):
        ctx.save_for_backward(x, *weights)
        ctx.inner = inner
        with torch.no_grad():
            return x + inner.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.inner.forward(x)
        dx, *of_weights = torch.autograd.grad(y, (x, *weights), g)
        return dx + g, None, *of_weights


class Impossible(Function):
    """Nobody can guess this."""

    @staticmethod
    def forward(ctx, x, secret):
        if hashlib.sha256(secret.code.encode()).hexdigest()[:8] != "184858a0":
            raise ValueError("no")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


class Act(Function):
    """Right as its author means it: of a quaternion, whose gradient is that of a rotation before it."""

    @staticmethod
    def forward(ctx, q, p):
        v, w = q[..., :3], q[..., 3:]
        u = 2 * torch.linalg.cross(v, p)
        out = p + w * u + torch.linalg.cross(v, u)
        ctx.save_for_backward(q, out)
        return out

    @staticmethod
    def backward(ctx, g):
        q, out = ctx.saved_tensors
        v, w = -q[..., :3], q[..., 3:]
        u = 2 * torch.linalg.cross(v, g)
        turn = torch.linalg.cross(out, g)
        return torch.cat([turn, turn.new_zeros(*q.shape[:-1], 1)], -1), g + w * u + torch.linalg.cross(v, u)


class ClampSte(Function):
    """Deliberate, as its name says."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx, g):
        return g


class Bounded(Function):
    """Deliberate, as a backward says that hands on what forward cuts off."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx, g):
        return g


class Weighted(Function):
    """Deliberate, as a strength says that backward alone goes by."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(x, strength)
        return x * x

    @staticmethod
    def backward(ctx, g):
        x, strength = ctx.saved_tensors
        return 2 * strength * g * x, None


class UnitStep(Function):
    """Deliberate, as a backward says that is not linear."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return (2 * g * ctx.saved_tensors[0]).clamp(-0.1, 0.1)


class Membrane(Function):
    """Deliberate at both outputs, as the step in one of them says."""

    @staticmethod
    def forward(ctx, x):
        fired = (x > 0).to(x.dtype)
        ctx.save_for_backward(x)
        return fired, x - 0.5 * fired * x

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g / (1 + x * x) + h


class Spike(Function):
    """Deliberate, as its steps say; in float32, as forward says."""

    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()

    @staticmethod
    def backward(ctx, g):
        return g


class Flip(Function):
    """Deliberate, as a forward says that does nothing."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.7 * g


class Chosen(Function):
    """Right: what scatter says of its index tells that `target` is one."""

    @staticmethod
    def forward(ctx, x, target):
        hot = torch.zeros_like(x).scatter_add_(1, target.unsqueeze(1), torch.ones_like(x))
        ctx.save_for_backward(hot, x)
        return (hot * x * x).sum(1)

    @staticmethod
    def backward(ctx, g):
        hot, x = ctx.saved_tensors
        return 2 * g.unsqueeze(1) * hot * x, None


class SummedAway(Function):
    """Its gradient is right for a number alone: inputs of no dimension would hide that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x).sum(0)


class LossScale(Function):
    """A number that is broadcast, rightly."""

    @staticmethod
    def forward(ctx, loss, scale):
        ctx.save_for_backward(loss, scale)
        return loss * scale

    @staticmethod
    def backward(ctx, g):
        loss, scale = ctx.saved_tensors
        return g * scale, (g * loss).sum()
