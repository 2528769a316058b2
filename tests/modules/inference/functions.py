"""Functions that nobody wrote a spec for: what they take stands in their source, or in what torch says."""

import torch
from torch import nn
from torch.autograd import Function


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
    """Wrong: forgets to divide; but the labels are invented, so nobody can be certain."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        return -logits.log_softmax(-1).gather(1, target.unsqueeze(1)).mean()

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        hot = torch.zeros_like(logits).scatter_(1, target.unsqueeze(1), 1.0)
        return g * (logits.softmax(-1) - hot), None


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


class LogDeterminant(Function):
    """Right: of symmetric positive matrices. Cholesky reads one half of whatever it gets."""

    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[0], dtype=a.dtype))
        ctx.save_for_backward(factor)
        return torch.linalg.cholesky(a.abs() + 20 * torch.eye(a.shape[0], dtype=a.dtype)).diagonal().log().sum()

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


class Impossible(Function):
    """Nobody can guess this."""

    @staticmethod
    def forward(ctx, x, secret):
        if secret.code != "xyzzy":
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
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx, g):
        return g


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
