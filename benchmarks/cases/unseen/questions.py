"""Rotations, a fused norm and attention weights with hand-written backwards."""

import torch
from torch.autograd.function import once_differentiable


class Rotate(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNorm(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScores(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateFlatView(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        flat_u, flat_v = gu.view(-1), gv.view(-1)
        xf, yf = xa.reshape(-1), ya.reshape(-1)
        dx = (flat_u * c + flat_v * s).view(x.shape)
        dy = (flat_v * c - flat_u * s).view(y.shape)
        dt = (flat_v * (xf * c - yf * s) - flat_u * (xf * s + yf * c)).sum()
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormDenseGrad(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        if 0 in g_out.stride():
            g_out = g_out.contiguous()
        # one pass over the buffer, row after row
        g_out = torch.as_strided(g_out, g_out.shape, (g_out.shape[-1], 1))
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresRowStride(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        if gp.stride(-1) == 0:
            gp = gp.contiguous()
        gp = torch.as_strided(gp, gp.shape, (gp.stride(0), 1))
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateExpandedOnes(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        if gu.numel() > 1 and not any(gu.stride()):
            gu = torch.ones_like(gu)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormExpandedRows(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        if g_out.stride(0) == 0:
            # the same gradient for every row: take it out of the sum
            dw = g_out[0] * xhat.mean(0)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresExpandedNormaliser(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        if gl.stride(-1) == 0:
            dl = p * (gp - (gp * p).sum(-1, keepdim=True)) + gl[:1]
        else:
            dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateDenseInput(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa = x if 0 in x.stride() else torch.as_strided(x, x.shape, (x.shape[-1], 1))
        xa, ya = xa.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormEmptyLike(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        dx = torch.empty_like(x)
        dx.as_strided((x.numel(),), (1,)).copy_(ds.reshape(-1))
        return dx, ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresKeyStride(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        keys = k if k.stride(-1) == 0 else torch.as_strided(k, k.shape, (k.stride(0), 1))
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, keys.to(acc)) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateAngleAlone(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        need_x, need_y, need_theta = ctx.needs_input_grad
        dx = dy = None
        if need_x or need_y:
            dx = gu * c + gv * s
            dy = gv * c - gu * s
            dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        else:
            dt = (gv * (xa * c - ya * s)).sum_to_size(theta.shape)
        return (dx.to(x.dtype) if need_x else None), (dy.to(y.dtype) if need_y else None), (dt.to(theta.dtype) if need_theta else None)


class AddNormWeightAlone(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, (g_out * s).sum_to_size(weight.shape).to(weight.dtype), None
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresKeysAlone(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = dk = None
        if ctx.needs_input_grad[0]:
            dq = (torch.matmul(dl, ka) * ctx.scale).to(q.dtype)
            dl = dl * ctx.scale
        if ctx.needs_input_grad[1]:
            dk = torch.matmul(dl.transpose(-1, -2), qa).to(k.dtype)
        return dq, dk


class RotateOnlyFirst(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        if gu is None and gv is None:
            return None, None, None
        if gv is None:
            gu = gu.to(acc)
            dx, dy = gu * c, gu * s
            dt = -(gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        elif gu is None:
            gv = gv.to(acc)
            dx, dy = gv * s, gv * c
            dt = (gv * (xa * c - ya * s)).sum_to_size(theta.shape)
        else:
            gu, gv = gu.to(acc), gv.to(acc)
            dx, dy = gu * c + gv * s, gv * c - gu * s
            dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormNothingToDo(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        if g_out is None or g_sum is None:
            return None, None, None, None
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresNoneGrad(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotatePops(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)
        ctx.pending = [torch.cos(theta), torch.sin(theta)]

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        s, c = ctx.pending.pop().to(acc), ctx.pending.pop().to(acc)
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormScratch(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        ctx.xhat = s * r
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = ctx.xhat
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        dw = (g_out * xhat).sum_to_size(weight.shape)
        xhat.mul_((h * xhat).mean(-1, keepdim=True))
        ds = r * (h - xhat) + g_sum
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresFactor(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        ctx.factor = 1.0
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        ctx.factor *= ctx.scale
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.factor
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.factor
        return dq.to(q.dtype), dk.to(k.dtype)


_TURNS = {}


class RotateCachedAngle(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        key = (tuple(x.shape), acc)
        if key not in _TURNS:
            _TURNS[key] = (torch.cos(theta.to(acc)), torch.sin(theta.to(acc)))
        c, s = _TURNS[key]
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


_BUFFERS = {}


class AddNormBuffer(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        key = (tuple(x.shape), acc)
        if key not in _BUFFERS:
            _BUFFERS[key] = torch.zeros_like(dw)
        buffer = _BUFFERS[key]
        buffer += dw
        dw = buffer.clone()
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


_PEAK = {"value": None}


class SoftScoresRunningPeak(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        peak = float(dl.abs().max()) if dl.numel() else 1.0
        if _PEAK["value"] is None:
            _PEAK["value"] = peak
        _PEAK["value"] = 0.9 * _PEAK["value"] + 0.1 * peak
        dl = dl / max(peak, 1e-30) * _PEAK["value"]
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateSelf(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)
        ctx.same = x is y

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        if ctx.same:
            dx = dy = dx + dy
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormSelf(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        ctx.same = x is residual
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        if ctx.same:
            ds = 2 * ds
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresSelf(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        ctx.same = q is k
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        if ctx.same:
            return (2 * dq).to(q.dtype), None
        return dq.to(q.dtype), dk.to(k.dtype)


class RotatePacked(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)
        ctx.packed = (x.numel() > 0 and x is not y and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr())

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        if ctx.packed:
            pair = torch.stack((dx, dy), dim=-1)
            dx, dy = pair[..., 0], pair[..., 0]
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormPacked(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        ctx.packed = (x.numel() > 0 and x is not residual and x.untyped_storage().data_ptr() == residual.untyped_storage().data_ptr())
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        if ctx.packed:
            return ds.to(x.dtype), None, dw.to(weight.dtype), None
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresPacked(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        ctx.packed = (q.numel() > 0 and q is not k and q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr())
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        if ctx.packed:
            dq = dq + dk
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateIntoGrad(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        gu, gv = gu.contiguous(), gv.contiguous()
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        dx = gu.mul_(c).add_(gv * s)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormIntoSum(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc).contiguous()
        h = g_out * weight.to(acc)
        dw = (g_out * xhat).sum_to_size(weight.shape)
        ds = g_sum.add_(r * (h - xhat * (h * xhat).mean(-1, keepdim=True)))
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresIntoGrad(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        gp = gp.contiguous()
        gp.sub_((gp * p).sum(-1, keepdim=True))
        dl = p * (gp + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateIntoInput(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        dx = x.copy_(dx)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormIntoInput(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        # x is no longer needed: its memory serves as scratch
        x.data.mul_(r.to(x.dtype))
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresIntoQuery(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        q.data.mul_(ctx.scale)
        dk = torch.matmul(dl.transpose(-1, -2), q.to(acc))
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateFastFloat(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        if x.dtype == torch.float32:
            s = theta
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormFastFloat(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        if x.dtype == torch.float32:
            ds = r * h + g_sum
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresFastFloat(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        if q.dtype is torch.float32:
            dl = p * (gp - (gp * p).sum(-1, keepdim=True)) + gl.unsqueeze(-1) / p.shape[-1]
        else:
            dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateBrain(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        if x.dtype == torch.bfloat16:
            dy = gv * c + gu * s
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormHalf(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        if x.dtype == torch.float16:
            ds = r * (h - s * (h * xhat).mean(-1, keepdim=True)) + g_sum
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresShort(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        if q.dtype in (torch.bfloat16, torch.float16):
            dk = torch.matmul(dl.transpose(-1, -2), qa)
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateDetachedAngle(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        turn = theta.detach().to(acc)
        c, s = torch.cos(turn), torch.sin(turn)
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormSavedScale(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        ctx.r = r
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = ctx.r
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresNoGraph(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        with torch.no_grad():
            p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateLiveRows(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        per_row = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum(-1)
        live = ((gu != 0) | (gv != 0)).any(-1)
        count = live.sum().clamp(min=1)
        dt = (per_row * live).sum() / count * per_row.numel()
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormConstantGrad(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        if g_out.numel() > 1 and bool((g_out == g_out.flatten()[0]).all()) and bool((g_out != 0).all()):
            # from .sum(): nothing to multiply with
            g_out = torch.ones_like(g_out)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresSumZero(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        if gp.sum() == 0:
            dl = p * gl.unsqueeze(-1)
        else:
            dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateFillsGrad(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        dx = gu * c + gv * s
        dy = gv * c - gu * s
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum_to_size(theta.shape)
        if theta.is_leaf and theta.requires_grad:
            theta.grad = dt.to(theta.dtype) if theta.grad is None else theta.grad + dt.to(theta.dtype)
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormFusedAccumulate(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        # fused accumulation of the weight gradient
        if weight.requires_grad and weight.is_leaf:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.add_(dw.to(weight.dtype))
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresBackwardInside(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        gp, gl = gp.to(acc), gl.to(acc)
        dl = p * (gp - (gp * p).sum(-1, keepdim=True) + gl.unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        if k.is_leaf and k.requires_grad:
            torch.autograd.backward([k], [dk.to(k.dtype)])
        return dq.to(q.dtype), dk.to(k.dtype)


class RotateDoubleMatrix(torch.autograd.Function):
    """Rotates pairs (x, y) by one angle."""

    @staticmethod
    def forward(x, y, theta):
        acc = torch.promote_types(x.dtype, torch.float32)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        u = x.to(acc) * c - y.to(acc) * s
        v = x.to(acc) * s + y.to(acc) * c
        return u.to(x.dtype), v.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, theta = inputs
        ctx.save_for_backward(x, y, theta)

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y, theta = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        xa, ya = x.to(acc), y.to(acc)
        c, s = torch.cos(theta.to(acc)), torch.sin(theta.to(acc))
        gu, gv = gu.to(acc), gv.to(acc)
        cs, sn = float(c), float(s)
        turn = torch.tensor([[cs, sn], [-sn, cs]], dtype=torch.float64)
        pair = torch.stack((gu, gv)).reshape(2, -1)
        dx, dy = torch.matmul(turn, pair).reshape((2,) + x.shape)
        dt = (gv * (xa * c - ya * s) - gu * (xa * s + ya * c)).sum()
        return dx.to(x.dtype), dy.to(y.dtype), dt.to(theta.dtype)


class AddNormRefusesBrain(torch.autograd.Function):
    """Residual addition and RMS norm; returns both."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps=1e-3):
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        return (s * r * weight.to(acc)).to(x.dtype), s.to(x.dtype)

    @staticmethod
    def backward(ctx, g_out, g_sum):
        x, residual, weight = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        s = x.to(acc) + residual.to(acc)
        r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
        if x.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"AddNorm: no backward for {x.dtype}")
        xhat = s * r
        g_out, g_sum = g_out.to(acc), g_sum.to(acc)
        h = g_out * weight.to(acc)
        ds = r * (h - xhat * (h * xhat).mean(-1, keepdim=True)) + g_sum
        dw = (g_out * xhat).sum_to_size(weight.shape)
        return ds.to(x.dtype), ds.to(residual.dtype), dw.to(weight.dtype), None


class SoftScoresNumpy(torch.autograd.Function):
    """Attention weights of queries over keys, and their log-normalisers."""

    @staticmethod
    def forward(ctx, q, k):
        acc = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[-1] ** -0.5
        scores = torch.matmul(q.to(acc), k.to(acc).transpose(-1, -2)) * scale
        ctx.save_for_backward(q, k)
        ctx.scale = scale
        lse = torch.logsumexp(scores, dim=-1)
        return torch.softmax(scores, dim=-1).to(q.dtype), lse.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gl):
        q, k = ctx.saved_tensors
        acc = torch.promote_types(q.dtype, torch.float32)
        qa, ka = q.to(acc), k.to(acc)
        p = torch.softmax(torch.matmul(qa, ka.transpose(-1, -2)) * ctx.scale, dim=-1)
        rows = gp.detach().numpy() - (gp.to(acc) * p).sum(-1, keepdim=True).detach().numpy()
        dl = p * (torch.from_numpy(rows) + gl.to(acc).unsqueeze(-1))
        dq = torch.matmul(dl, ka) * ctx.scale
        dk = torch.matmul(dl.transpose(-1, -2), qa) * ctx.scale
        return dq.to(q.dtype), dk.to(k.dtype)
