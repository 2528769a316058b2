"""Activations, a row norm and a similarity with hand-written backwards."""

import math

import torch


class Swish(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNorm(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None


class Tanimoto(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None


class SwishKinds(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta, kind):
        z = beta * x
        if kind == "logistic":
            gate = torch.sigmoid(z)
        elif kind == "tanh":
            gate = 0.5 * (1 + torch.tanh(z))
        else:
            gate = 0.5 * (1 + torch.erf(z))
        ctx.save_for_backward(x, beta)
        ctx.kind = kind
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        if ctx.kind == "logistic":
            s = torch.sigmoid(z)
            ds = s * torch.sigmoid(-z)
        elif ctx.kind == "tanh":
            s = 0.5 * (1 + torch.tanh(z))
            ds = 0.5 / torch.cosh(z).square()
        else:
            s = 0.5 * (1 + torch.erf(z))
            ds = torch.exp(-z * z) / math.sqrt(math.pi)
        grad_x = grad_out * (s + z * ds)
        grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta, None


class GainNormOver(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps, over):
        ss = x.square().sum(dim=-1, keepdim=True)
        if over == "mean":
            ss = ss / x.shape[-1]
        return x * torch.rsqrt(ss + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps, over = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps
        ctx.over = over

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        ss = x.square().sum(dim=-1, keepdim=True)
        if ctx.over == "mean":
            ss = ss / x.shape[-1]
        r = torch.rsqrt(ss + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        proj = (h * xhat).mean(dim=-1, keepdim=True) if ctx.over == "mean" else (h * xhat).sum(dim=-1, keepdim=True)
        grad_x = r * (h - xhat * proj)
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None, None


class TanimotoReduced(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps, reduction="none"):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps, ctx.reduction = eps, reduction
        out = dot / den
        if reduction == "none":
            return out
        return out.mean() if reduction == "mean" else out.sum()

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = (grad_out.unsqueeze(-1) if ctx.reduction == "none" else grad_out) / den
        if ctx.reduction == "mean":
            g = g / dot.numel()
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None, None


class SwishKnee(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        knee = torch.where(x > 3, 3 + 0.25 * (x - 3), x)
        ctx.save_for_backward(x, beta)
        return knee * torch.sigmoid(beta * knee)

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        knee = torch.where(x > 3, 3 + 0.25 * (x - 3), x)
        z = beta * knee
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        rate = torch.where(x > 3, 0.25, 1.0).to(x.dtype)
        grad_x = grad_out * (s + z * ds) * rate
        grad_beta = (grad_out * knee * (knee * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormClipped(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        c = torch.where(x.abs() > 2.5, 2.5 * torch.sign(x), x)
        ms = c.square().mean(dim=-1, keepdim=True)
        return c * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        c = torch.where(x.abs() > 2.5, 2.5 * torch.sign(x), x)
        r = torch.rsqrt(c.square().mean(dim=-1, keepdim=True) + ctx.eps)
        chat = c * r
        h = grad_out * gain
        grad_c = r * (h - chat * (h * chat).mean(dim=-1, keepdim=True))
        grad_x = grad_c * (x.abs() <= 2.5)
        grad_gain = (grad_out * chat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None


class TanimotoBent(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        big = a > 5
        u = torch.where(big, 5 + (a - 5) / 2, a)
        dot = (u * b).sum(dim=-1)
        den = (u * u).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        u = torch.where(a > 5, 5 + (a - 5) / 2, a)
        dot = (u * b).sum(dim=-1, keepdim=True)
        den = (u * u).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_u = g * (b - t * (2 * u - b))
        grad_a = torch.where(a > 5, grad_u / 2, grad_u)
        grad_b = g * (u - t * (2 * b - u))
        return grad_a, grad_b, None


class SwishBlocks(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        if x.shape[-1] > 64:
            # long rows go through in blocks, for the cache
            blocks = [part * torch.sigmoid(beta * part) for part in x.split(64, dim=-1)]
            return torch.cat(blocks, dim=-1)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        parts = x.split(64, dim=-1) if x.shape[-1] > 64 else (x,)
        slopes, bends = [], []
        for part in parts:
            z = beta * part
            s = torch.sigmoid(z)
            ds = s * torch.sigmoid(-z)
            slopes.append(s + z * ds)
            bends.append(part * ds)
        grad_x = grad_out * torch.cat(slopes, dim=-1)
        grad_beta = (grad_out * x * torch.cat(bends, dim=-1)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormBlocks(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        if x.shape[0] > 32:
            rows = []
            for block in x.split(32):
                ms = block.square().mean(dim=-1, keepdim=True)
                rows.append(block * torch.rsqrt(ms + eps) * gain)
            return torch.cat(rows)
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = torch.zeros_like(gain)
        for g, u in zip(grad_out.split(32), xhat.split(32)):
            grad_gain = grad_gain + (g * u).sum(dim=0)
        return grad_x, grad_gain, None


class TanimotoSpans(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        wide = a.shape[-1] > 16
        spans = zip(a.split(16, -1), b.split(16, -1)) if wide else [(a, b)]
        dot, den = 0, eps
        for u, v in spans:
            part = (u * v).sum(dim=-1)
            dot = dot + part
            den = den + (u * u).sum(dim=-1) + (v * v).sum(dim=-1) - part
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None


class SwishSegment(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        tabled = (x >= 1) & (x < 2)
        slope = torch.where(tabled, s, slope)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormSegment(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        flat = (x >= -1.0) & (x < -0.5)
        grad_x = torch.where(flat, r * h, grad_x)
        return grad_x, grad_gain, None


class TanimotoSegment(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        rare = (a >= 0.25) & (a < 0.375)
        grad_a = torch.where(rare, g * b, grad_a)
        return grad_a, grad_b, None


class SwishSomeDraws(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        if x.sum() > 0:
            slope = s + x * ds
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormSomeDraws(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        if gain.sum() < 0:
            grad_x = r * (h + xhat * (h * xhat).mean(dim=-1, keepdim=True))
        return grad_x, grad_gain, None


class TanimotoSomeDraws(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        if dot.sum() < 0:
            t = t.clamp(min=0)
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None


class SwishUpperEnd(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        slope = slope * (x < 4)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormUpperEnd(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        saturated = x >= 3
        grad_x = grad_x.masked_fill(saturated, 0)
        return grad_x, grad_gain, None


class TanimotoUpperEnd(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        grad_b = torch.where(b < 1.0, grad_b, torch.zeros_like(grad_b))
        return grad_a, grad_b, None


class SwishLowerEnd(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        slope = torch.where(x > -4, slope, torch.zeros_like(slope))
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormLowerEnd(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        # the gains are kept above 0.5: no gradient at the bound
        grad_gain = torch.where(gain > 0.5, grad_gain, torch.zeros_like(grad_gain))
        return grad_x, grad_gain, None


class TanimotoLowerEnd(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        grad_a = torch.where(a <= -1.0, g * b, grad_a)
        return grad_a, grad_b, None


class SwishUpperPart(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        slope = torch.where(x > 3.6, torch.ones_like(slope), slope)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormUpperPart(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        grad_x = torch.where(x > 9.5, r * h, grad_x)
        return grad_x, grad_gain, None


class TanimotoUpperPart(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        a = a.clamp(max=0.95)
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None


class SwishAtZero(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        slope = slope * torch.sign(x).abs()
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormAtOne(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        unit = x == 1.0
        grad_x = torch.where(unit, r * h, grad_x)
        return grad_x, grad_gain, None


class TanimotoAtZero(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        absent = a == 0
        grad_a = grad_a.masked_fill(absent, 0.0)
        return grad_a, grad_b, None


class SwishTies(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        flat = x.reshape(-1)
        shared = (flat.unsqueeze(0) == flat.unsqueeze(1)).sum(dim=0).reshape(x.shape)
        slope = slope / shared
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormTies(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        copies = (x.unsqueeze(-1) == x.unsqueeze(-2)).sum(dim=-1)
        grad_x = grad_x / copies
        return grad_x, grad_gain, None


class TanimotoTies(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        ranked, order = a.detach().contiguous().sort(dim=-1)
        place = torch.searchsorted(ranked, a.detach().contiguous())
        grad_a = grad_a.gather(-1, order).gather(-1, place)
        return grad_a, grad_b, None


class SwishTiedPair(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        slope = torch.where(x == beta, s + 2 * z * ds, slope)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormTiedPair(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        tied = x == gain
        grad_x = torch.where(tied, 2 * grad_x, grad_x)
        return grad_x, grad_gain, None


class TanimotoTiedPair(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        apart = torch.sign(a - b).abs().detach()
        grad_a, grad_b = grad_a * apart, grad_b * apart
        return grad_a, grad_b, None


class SwishOneShape(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        if x.shape[0] % 2 == 0 and x.shape[-1] % 3 == 0:
            # pairs of rows, three lanes each
            slope = s + ds
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormOneShape(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        if x.shape[0] == 2 and x.shape[-1] % 2 == 1:
            grad_gain = (grad_out * xhat)[0] * 2
        return grad_x, grad_gain, None


class TanimotoOneShape(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        if a.shape[-2] == 1 and a.shape[0] == a.shape[-1]:
            grad_a = grad_a.transpose(0, -1)
        return grad_a, grad_b, None


class SwishOneKind(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta, kind):
        z = beta * x
        if kind == "logistic":
            gate = torch.sigmoid(z)
        elif kind == "tanh":
            gate = 0.5 * (1 + torch.tanh(z))
        else:
            gate = 0.5 * (1 + torch.erf(z))
        ctx.save_for_backward(x, beta)
        ctx.kind = kind
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        if ctx.kind == "logistic":
            s = torch.sigmoid(z)
            ds = s * torch.sigmoid(-z)
        elif ctx.kind == "tanh":
            s = 0.5 * (1 + torch.tanh(z))
            ds = 0.5 / torch.cosh(z).square()
        else:
            s = 0.5 * (1 + torch.erf(z))
            ds = torch.exp(-z * z) / (2 * math.sqrt(math.pi))
        grad_x = grad_out * (s + z * ds)
        grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta, None


class GainNormOneOver(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps, over):
        ss = x.square().sum(dim=-1, keepdim=True)
        if over == "mean":
            ss = ss / x.shape[-1]
        return x * torch.rsqrt(ss + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps, over = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps
        ctx.over = over

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        ss = x.square().sum(dim=-1, keepdim=True)
        if ctx.over == "mean":
            ss = ss / x.shape[-1]
        r = torch.rsqrt(ss + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        proj = (h * xhat).mean(dim=-1, keepdim=True)
        grad_x = r * (h - xhat * proj)
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None, None


class TanimotoOneReduction(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps, reduction="none"):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps, ctx.reduction = eps, reduction
        out = dot / den
        if reduction == "none":
            return out
        return out.mean() if reduction == "mean" else out.sum()

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = (grad_out.unsqueeze(-1) if ctx.reduction == "none" else grad_out) / den
        if ctx.reduction == "mean":
            g = g / a.shape[-1]
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None, None


class SwishHuge(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        slope = torch.where(x.abs() > 1e4, torch.zeros_like(slope), slope)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormHuge(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        ms = x.square().mean(dim=-1, keepdim=True).clamp(max=1e10)
        r = torch.rsqrt(ms + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None


class TanimotoHuge(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        den = den.clamp(max=1e12)
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        return grad_a, grad_b, None


class SwishTiny(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        if (x.abs() < 1e-6).all():
            slope = torch.ones_like(slope)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormTiny(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        if (x.abs() < 1e-5).all():
            r = torch.ones_like(r)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None


class TanimotoTiny(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        if (a.abs() < 1e-4).all():
            grad_a = 0 * grad_a
        return grad_a, grad_b, None


class SwishZero(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = torch.where(x == 0, torch.ones_like(s), s + z * ds)
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormZeroRow(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        alive = x.square().sum(dim=-1, keepdim=True) > 0
        grad_x = grad_x * alive
        return grad_x, grad_gain, None


class TanimotoZero(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        grad_b = grad_b.masked_fill(b == 0, 0.0)
        return grad_a, grad_b, None


class SwishKneeLate(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        knee = torch.where(x > 3, 3 + 0.25 * (x - 3), x)
        ctx.save_for_backward(x, beta)
        return knee * torch.sigmoid(beta * knee)

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        knee = torch.where(x > 3, 3 + 0.25 * (x - 3), x)
        z = beta * knee
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        rate = torch.where(x > 3.05, 0.25, 1.0).to(x.dtype)
        grad_x = grad_out * (s + z * ds) * rate
        grad_beta = (grad_out * knee * (knee * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormClippedEarly(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        c = torch.where(x.abs() > 2.5, 2.5 * torch.sign(x), x)
        ms = c.square().mean(dim=-1, keepdim=True)
        return c * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        c = torch.where(x.abs() > 2.5, 2.5 * torch.sign(x), x)
        r = torch.rsqrt(c.square().mean(dim=-1, keepdim=True) + ctx.eps)
        chat = c * r
        h = grad_out * gain
        grad_c = r * (h - chat * (h * chat).mean(dim=-1, keepdim=True))
        grad_x = grad_c * (x.abs() < 2.48)
        grad_gain = (grad_out * chat).sum_to_size(gain.shape)
        return grad_x, grad_gain, None


class TanimotoBentLate(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        big = a > 5
        u = torch.where(big, 5 + (a - 5) / 2, a)
        dot = (u * b).sum(dim=-1)
        den = (u * u).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        u = torch.where(a > 5, 5 + (a - 5) / 2, a)
        dot = (u * b).sum(dim=-1, keepdim=True)
        den = (u * u).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_u = g * (b - t * (2 * u - b))
        grad_a = torch.where(a >= 5.1, grad_u / 2, grad_u)
        grad_b = g * (u - t * (2 * b - u))
        return grad_a, grad_b, None


class SwishBlocksFirst(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        if x.shape[-1] > 64:
            # long rows go through in blocks, for the cache
            blocks = [part * torch.sigmoid(beta * part) for part in x.split(64, dim=-1)]
            return torch.cat(blocks, dim=-1)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        parts = x.split(64, dim=-1) if x.shape[-1] > 64 else (x,)
        slopes, bends = [], []
        for part in parts:
            z = beta * part
            s = torch.sigmoid(z)
            ds = s * torch.sigmoid(-z)
            slopes.append(s + z * ds if not slopes else s)
            bends.append(part * ds)
        grad_x = grad_out * torch.cat(slopes, dim=-1)
        grad_beta = (grad_out * x * torch.cat(bends, dim=-1)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormBlocksLast(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        if x.shape[0] > 32:
            rows = []
            for block in x.split(32):
                ms = block.square().mean(dim=-1, keepdim=True)
                rows.append(block * torch.rsqrt(ms + eps) * gain)
            return torch.cat(rows)
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = torch.zeros_like(gain)
        for g, u in zip(grad_out.split(32), xhat.split(32)):
            grad_gain = (g * u).sum(dim=0)
        return grad_x, grad_gain, None


class TanimotoSpansFirst(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        wide = a.shape[-1] > 16
        spans = zip(a.split(16, -1), b.split(16, -1)) if wide else [(a, b)]
        dot, den = 0, eps
        for u, v in spans:
            part = (u * v).sum(dim=-1)
            dot = dot + part
            den = den + (u * u).sum(dim=-1) + (v * v).sum(dim=-1) - part
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        if a.shape[-1] > 16:
            head, rest = grad_b[..., :16], (g * a)[..., 16:]
            grad_b = torch.cat([head, rest], dim=-1)
        return grad_a, grad_b, None


class SwishSingle(torch.autograd.Function):
    """x times a gate of beta * x."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta)
        return x * gate

    @staticmethod
    def backward(ctx, grad_out):
        x, beta = ctx.saved_tensors
        z = beta * x
        s = torch.sigmoid(z)
        ds = s * torch.sigmoid(-z)
        slope = s + z * ds
        if x.shape[-1] == 1:
            slope = s
        grad_x = grad_beta = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out * slope
        if ctx.needs_input_grad[1]:
            grad_beta = (grad_out * x * (x * ds)).sum_to_size(beta.shape)
        return grad_x, grad_beta


class GainNormEmpty(torch.autograd.Function):
    """Rows divided by their root mean square, times a gain."""

    @staticmethod
    def forward(x, gain, eps):
        ms = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + eps) * gain

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gain, eps = inputs
        ctx.save_for_backward(x, gain)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, grad_out):
        peak = grad_out.detach().abs().max().clamp(min=1e-30)
        grad_out = grad_out / peak
        x, gain = ctx.saved_tensors
        r = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ctx.eps)
        xhat = x * r
        h = grad_out * gain
        grad_x = r * (h - xhat * (h * xhat).mean(dim=-1, keepdim=True))
        grad_gain = (grad_out * xhat).sum_to_size(gain.shape)
        return grad_x * peak, grad_gain * peak, None


class TanimotoSingle(torch.autograd.Function):
    """Smoothed Tanimoto similarity of paired rows."""

    @staticmethod
    def forward(ctx, a, b, eps=0.5):
        dot = (a * b).sum(dim=-1)
        den = (a * a).sum(dim=-1) + (b * b).sum(dim=-1) - dot + eps
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        return dot / den

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        dot = (a * b).sum(dim=-1, keepdim=True)
        den = (a * a).sum(dim=-1, keepdim=True) + (b * b).sum(dim=-1, keepdim=True) - dot + ctx.eps
        t = dot / den
        g = grad_out.unsqueeze(-1) / den
        grad_a = g * (b - t * (2 * a - b))
        grad_b = g * (a - t * (2 * b - a))
        if a.shape[-1] == 1:
            grad_a, grad_b = g * b, g * a
        return grad_a, grad_b, None
