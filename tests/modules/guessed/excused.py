"""Wrong at every size, with something beside it that was guessed; and right twins where the guess makes it."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Causal(Function):
    """Wrong: `dk` lacks the scale. The first row of `q` is never read: it sees a single key."""

    @staticmethod
    def forward(ctx, q, k, v):
        n, d = q.shape
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        s = (q @ k.t() / d**0.5).masked_fill(~mask, float("-inf"))
        p = torch.softmax(s, dim=-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v.t()
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k / q.shape[-1] ** 0.5, ds.t() @ q, p.t() @ do


class CausalRight(Function):
    """The same with the scale."""

    @staticmethod
    def forward(ctx, q, k, v):
        return Causal.forward(ctx, q, k, v)

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v.t()
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k / q.shape[-1] ** 0.5, ds.t() @ q / q.shape[-1] ** 0.5, p.t() @ do


class Doubled(Function):
    """Wrong in `x`, whatever the shape of `b`, whose gradient comes back unsummed."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * g @ w.t(), x.t() @ g, g


class Unsummed(Function):
    """Right where `b` has the shape of the output."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g, g


class OtherLength(Function):
    """Wrong where the lengths of `a` and `b` differ, and where they agree."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.sum(0) * b.mean(0)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return 3 * (g * b.mean(0)).expand_as(a), (g * a.sum(0) / a.shape[0]).expand_as(b)


class OneLength(Function):
    """Right where the lengths of `a` and `b` agree."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.sum(0) * b.mean(0)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * b.mean(0)).expand_as(a), (g * a.sum(0) / a.shape[0]).expand_as(b)


class LongerLeftUnwritten(Function):
    """Right where `a` and `b` are of one length: what backward leaves of a longer `b` holds anything."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.stack([a[t].sigmoid() * b[t] for t in range(a.size(0))])

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        of_a, of_b = torch.empty_like(a), torch.empty_like(b)
        of_b[a.size(0) :] = g.sum() * 1e3 + 7
        for t in range(a.size(0)):
            s = a[t].sigmoid()
            of_a[t], of_b[t] = g[t] * b[t] * s * (1 - s), g[t] * s
        return of_a, of_b


class OfShares(Function):
    """Right for labels that add up to one, which are guessed as integers: nothing refuses those."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        return -(target * logits.log_softmax(-1)).sum(-1)

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        return g.unsqueeze(-1) * (logits.softmax(-1) - target), None


class OfSharesTwice(OfShares):
    """Wrong for them as well."""

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        return 2 * g.unsqueeze(-1) * (logits.softmax(-1) - target), None
