"""Losses and likelihoods."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class CrossEntropyWithZLoss(Function):
    """Computes the gradient in forward, as fused heads do, and scales it in backward; loss and z-loss."""

    @staticmethod
    def forward(ctx, logits, target, z_weight=1e-2, smoothing=0.0, ignore_index=-1, reduction="mean"):
        lse = logits.logsumexp(-1)
        valid = target != ignore_index
        safe = target.clamp(min=0)
        p = (logits - lse.unsqueeze(-1)).exp()
        classes = logits.size(-1)
        goal = torch.zeros_like(logits).scatter_(1, safe.unsqueeze(1), 1 - smoothing) + smoothing / classes
        per_row = lse - (goal * logits).sum(-1)
        z = z_weight * lse.square()
        count = valid.sum().clamp(min=1) if reduction == "mean" else torch.ones((), dtype=torch.int64)
        rows = valid.to(logits.dtype) / count
        d_loss = (p - goal) * rows.unsqueeze(-1)
        d_z = 2 * z_weight * (lse * rows).unsqueeze(-1) * p
        ctx.save_for_backward(d_loss, d_z)
        return (per_row * rows).sum(), (z * rows).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g_loss, g_z):
        d_loss, d_z = ctx.saved_tensors
        return d_loss * g_loss + d_z * g_z, None, None, None, None, None


class LovaszHinge(Function):
    """The convex surrogate of intersection over union, for binary labels."""

    @staticmethod
    def forward(ctx, logits, labels):
        signs = 2.0 * labels.to(logits.dtype) - 1.0
        errors = 1.0 - logits * signs
        ordered, order = torch.sort(errors, descending=True)
        truth = labels.to(logits.dtype)[order]
        total = truth.sum()
        intersection = total - truth.cumsum(0)
        union = total + (1 - truth).cumsum(0)
        jaccard = 1 - intersection / union
        weights = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
        active = (ordered > 0).to(logits.dtype)
        ctx.save_for_backward(weights * active, order, signs)
        return (F.relu(ordered) * weights).sum()

    @staticmethod
    def backward(ctx, g):
        slope, order, signs = ctx.saved_tensors
        d_errors = torch.zeros_like(slope).scatter(0, order, slope)
        return -g * signs * d_errors, None


class JensenShannon(Function):
    """Generalised JSD between log-probabilities: beta 0 is forward KL, 1 reverse KL."""

    @staticmethod
    def forward(ctx, student, teacher, beta=0.5):
        q, p = student.exp(), teacher.exp()
        if beta == 0.0:
            loss = p * (teacher - student)
            d_student = -p
        elif beta == 1.0:
            loss = q * (student - teacher)
            d_student = q * (student - teacher + 1)
        else:
            m = beta * p + (1 - beta) * q
            log_m = m.log()
            loss = beta * p * (teacher - log_m) + (1 - beta) * q * (student - log_m)
            d_student = (1 - beta) * q * (student - log_m)
        n = student.size(0)
        ctx.save_for_backward(d_student / n)
        return loss.sum() / n

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (d_student,) = ctx.saved_tensors
        return d_student * g, None, None


class GaussianNLL(Function):
    """-log N(x; mean, L Lᵀ) with a Cholesky factor; solves with triangles."""

    @staticmethod
    def forward(ctx, x, mean, factor):
        white = torch.linalg.solve_triangular(factor, (x - mean).unsqueeze(-1), upper=False)
        ctx.save_for_backward(white, factor)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        d = x.size(-1)
        return 0.5 * white.squeeze(-1).square().sum(-1) + log_det + 0.5 * d * math.log(2 * math.pi)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        white, factor = ctx.saved_tensors
        back = torch.linalg.solve_triangular(factor.mT, white, upper=True)
        dx = g.unsqueeze(-1) * back.squeeze(-1)
        d_factor = -back @ white.mT + torch.diag_embed(1 / factor.diagonal(dim1=-2, dim2=-1))
        d_factor = (g[:, None, None] * d_factor).sum(0).tril()
        return dx, -dx.sum(0), d_factor


class EnsembleCRPS(Function):
    """Continuous ranked probability score of an ensemble, from its sorted members."""

    @staticmethod
    def forward(ctx, members, observed):
        n = members.size(-1)
        ordered, order = members.sort(-1)
        rank = torch.arange(1, n + 1, dtype=members.dtype)
        weight = (2 * rank - n - 1) / (n * n)
        sign = torch.sign(members - observed.unsqueeze(-1))
        ctx.save_for_backward(order, weight, sign)
        return (members - observed.unsqueeze(-1)).abs().mean(-1) - (ordered * weight).sum(-1)

    @staticmethod
    def backward(ctx, g):
        order, weight, sign = ctx.saved_tensors
        n = sign.size(-1)
        spread = torch.zeros_like(sign).scatter(-1, order, weight.expand_as(sign))
        return g.unsqueeze(-1) * (sign / n - spread), -g * sign.mean(-1)


class WingLoss(Function):
    @staticmethod
    def forward(ctx, pred, target, omega=1.0, epsilon=0.5):
        d = pred - target
        a = d.abs()
        offset = omega - omega * math.log(1 + omega / epsilon)
        ctx.save_for_backward(pred, target)
        ctx.omega, ctx.epsilon = omega, epsilon
        return torch.where(a < omega, omega * torch.log1p(a / epsilon), a - offset)

    @staticmethod
    def backward(ctx, g):
        pred, target = ctx.saved_tensors
        d = pred - target
        inner = ctx.omega / (ctx.epsilon + d.abs())
        out = g * d.sign() * torch.where(d.abs() < ctx.omega, inner, torch.ones_like(d))
        return out, -out, None, None


class SupervisedContrastive(Function):
    """SupCon over features that it normalises itself; anchors without a positive count nothing."""

    @staticmethod
    def forward(ctx, features, labels, temperature=0.5):
        norm = features.norm(dim=1, keepdim=True)
        z = features / norm
        logits = z @ z.T / temperature
        eye = torch.eye(len(z), dtype=torch.bool)
        logits = logits.masked_fill(eye, torch.finfo(logits.dtype).min)
        same = (labels[:, None] == labels[None, :]) & ~eye
        count = same.sum(1)
        log_p = logits.log_softmax(1)
        mean = torch.where(same, log_p, 0.0).sum(1) / count.clamp(min=1)
        anchors = (count > 0).to(z.dtype)
        goal = same.to(z.dtype) / count.clamp(min=1).unsqueeze(1)
        d_logits = (log_p.exp() - goal) * anchors.unsqueeze(1)
        ctx.save_for_backward(z, norm, d_logits)
        ctx.temperature = temperature
        return -(mean * anchors).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, norm, d_logits = ctx.saved_tensors
        dz = g * (d_logits + d_logits.T) @ z / ctx.temperature
        return (dz - z * (dz * z).sum(1, keepdim=True)) / norm, None, None


class CoxPartialLikelihood(Function):
    """Breslow's partial likelihood of proportional hazards; `time` orders the risk sets."""

    @staticmethod
    def forward(ctx, risk, time, event):
        order = torch.argsort(time, descending=True)
        r, e = risk[order], event[order].to(risk.dtype)
        log_set = torch.logcumsumexp(r, 0)
        n_events = e.sum().clamp(min=1)
        ctx.save_for_backward(r, e, log_set, order, n_events)
        return ((log_set - r) * e).sum() / n_events

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        r, e, log_set, order, n_events = ctx.saved_tensors
        # risk i is in the risk set of every event that comes at or after it in this order
        share = torch.exp(r.unsqueeze(0) - log_set.unsqueeze(1)).tril()
        d_sorted = (e.unsqueeze(1) * share).sum(0) - e
        out = torch.empty_like(r)
        out[order] = d_sorted * g / n_events
        return out, None, None


class PoissonNLL(Function):
    @staticmethod
    def forward(ctx, input, target, log_input=True, full=False):
        ctx.save_for_backward(input, target)
        ctx.log_input = log_input
        loss = input.exp() - target * input if log_input else input - target * (input + 1e-8).log()
        if full:
            stirling = torch.lgamma(target + 1)
            loss = loss + stirling
        return loss.mean()

    @staticmethod
    def backward(ctx, g):
        input, target = ctx.saved_tensors
        slope = input.exp() - target if ctx.log_input else 1 - target / (input + 1e-8)
        return g * slope / input.numel(), None, None, None


class BetaLogProb(Function):
    """log Beta(x; a, b), with the gradient of every argument, broadcast."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        norm = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        return (a - 1) * x.log() + (b - 1) * torch.log1p(-x) + norm

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        total = torch.digamma(a + b)
        dx = (a - 1) / x - (b - 1) / (1 - x)
        da = x.log() - torch.digamma(a) + total
        db = torch.log1p(-x) - torch.digamma(b) + total
        return tuple((g * d).sum_to_size(t.shape) for d, t in ((dx, x), (da, a), (db, b)))


class StudentT(Function):
    @staticmethod
    def forward(ctx, x, df, loc, scale):
        ctx.set_materialize_grads(False)
        z = (x - loc) / scale
        ctx.save_for_backward(z, df, scale)
        ctx.shapes = [t.shape for t in (x, df, loc, scale)]
        norm = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (df * math.pi).log() - scale.log()
        return norm - (df + 1) / 2 * torch.log1p(z * z / df)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        if g is None:
            return None, None, None, None
        z, df, scale = ctx.saved_tensors
        w = (df + 1) / (df + z * z)
        dx = -w * z / scale
        d_df = 0.5 * (
            torch.digamma((df + 1) / 2)
            - torch.digamma(df / 2)
            - 1 / df
            - torch.log1p(z * z / df)
            + w * z * z / df
        )
        d_scale = (w * z * z - 1) / scale
        grads = (dx, d_df, -dx, d_scale)
        return tuple(
            (g * d).sum_to_size(s) if needed else None
            for d, s, needed in zip(grads, ctx.shapes, ctx.needs_input_grad, strict=True)
        )


class GeneralizedIoU(Function):
    """1 - GIoU of boxes (x1, y1, x2, y2)."""

    @staticmethod
    def forward(ctx, pred, target):
        lt, rb = torch.maximum(pred[:, :2], target[:, :2]), torch.minimum(pred[:, 2:], target[:, 2:])
        wh = (rb - lt).clamp(min=0)
        overlap = wh.prod(1)
        size_p, size_t = pred[:, 2:] - pred[:, :2], target[:, 2:] - target[:, :2]
        union = size_p.prod(1) + size_t.prod(1) - overlap
        out_lt, out_rb = torch.minimum(pred[:, :2], target[:, :2]), torch.maximum(pred[:, 2:], target[:, 2:])
        hull_wh = out_rb - out_lt
        hull = hull_wh.prod(1)
        ctx.save_for_backward(pred, target, wh, overlap, union, hull_wh, hull, size_p)
        return 1 - (overlap / union - (hull - union) / hull)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        pred, target, wh, overlap, union, hull_wh, hull, size_p = ctx.saved_tensors
        d_overlap, d_union, d_hull = -g / union, g * overlap / union**2 - g / hull, g * union / hull**2
        d_overlap = d_overlap - d_union
        grad = torch.zeros_like(pred)
        swap = lambda a: a.flip(1)  # noqa: E731 - the derivative of a product of two
        d_size = d_union.unsqueeze(1) * swap(size_p)
        grad[:, 2:] += d_size
        grad[:, :2] -= d_size
        d_wh = d_overlap.unsqueeze(1) * swap(wh) * (wh > 0)
        grad[:, 2:] += d_wh * (pred[:, 2:] < target[:, 2:])
        grad[:, :2] -= d_wh * (pred[:, :2] > target[:, :2])
        d_out = d_hull.unsqueeze(1) * swap(hull_wh)
        grad[:, 2:] += d_out * (pred[:, 2:] >= target[:, 2:])
        grad[:, :2] -= d_out * (pred[:, :2] <= target[:, :2])
        return grad, None


class PreferenceLoss(Function):
    """DPO with label smoothing: four log-probabilities, three outputs, two of them for the log alone."""

    @staticmethod
    def forward(ctx, chosen, rejected, ref_chosen, ref_rejected, beta=0.5, smoothing=0.0):
        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        h = beta * margin
        loss = -F.logsigmoid(h) * (1 - smoothing) - F.logsigmoid(-h) * smoothing
        ctx.save_for_backward(chosen, rejected, ref_chosen, ref_rejected)
        ctx.beta, ctx.smoothing = beta, smoothing
        reward, accuracy = beta * (chosen - ref_chosen), (margin > 0).long()
        ctx.mark_non_differentiable(reward, accuracy)
        return loss.mean(), reward, accuracy

    @staticmethod
    def backward(ctx, g, _reward, _accuracy):
        chosen, rejected, ref_chosen, ref_rejected = ctx.saved_tensors
        h = ctx.beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
        slope = -(1 - ctx.smoothing) * torch.sigmoid(-h) + ctx.smoothing * torch.sigmoid(h)
        d = g * ctx.beta * slope / h.numel()
        return d, -d, -d, d, None, None


class BarlowTwins(Function):
    @staticmethod
    def forward(ctx, za, zb, weight=0.1):
        def standard(z):
            centred = z - z.mean(0)
            std = centred.square().mean(0).sqrt()
            return centred / std, std

        (a, sa), (b, sb) = standard(za), standard(zb)
        c = a.T @ b / len(a)
        eye = torch.eye(c.size(0), dtype=c.dtype)
        off = weight * (1 - eye) + eye
        ctx.save_for_backward(a, sa, b, sb, 2 * (c - eye) * off)
        return ((c - eye).square() * off).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, sa, b, sb, dc = ctx.saved_tensors
        dc = g * dc / len(a)

        def through(d, z, std):
            return (d - d.mean(0) - z * (d * z).mean(0)) / std

        return through(b @ dc.T, a, sa), through(a @ dc, b, sb), None


def boxes(generator, device, dtype, *, n):
    def some():
        corner = torch.rand(n, 2, generator=generator, dtype=dtype)
        return torch.cat([corner, corner + 0.2 + torch.rand(n, 2, generator=generator, dtype=dtype)], 1)

    return some().requires_grad_(), some()
