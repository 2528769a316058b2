"""Functions as packages for large models, speech, graphs and physics write them in plain torch."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

NEG = float("-inf")


class FusedCrossEntropyInPlace(Function):
    """Cross entropy that overwrites a copy of the logits with its gradient in forward."""

    @staticmethod
    def forward(ctx, logits, target, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
        n, v = logits.shape
        keep = target != ignore_index
        safe = torch.where(keep, target, torch.zeros_like(target))
        buf = logits.clone()
        lse = torch.logsumexp(buf, -1, keepdim=True)
        picked = buf.gather(1, safe.unsqueeze(1)).squeeze(1)
        loss = lse.squeeze(1) - (1 - label_smoothing) * picked
        if label_smoothing > 0:
            loss = loss - label_smoothing * buf.mean(-1)
        loss = torch.where(keep, loss, torch.zeros_like(loss))
        buf.sub_(lse).exp_()
        buf.scatter_add_(1, safe.unsqueeze(1), torch.full((n, 1), -(1 - label_smoothing), dtype=buf.dtype))
        if label_smoothing > 0:
            buf.sub_(label_smoothing / v)
        buf.mul_(keep.unsqueeze(1).to(buf.dtype))
        ctx.count = max(int(keep.sum()), 1)
        ctx.reduction = reduction
        ctx.save_for_backward(buf)
        if reduction == "none":
            return loss
        total = loss.sum()
        return total / ctx.count if reduction == "mean" else total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (buf,) = ctx.saved_tensors
        if ctx.reduction == "none":
            grad = buf * grad_output.unsqueeze(1)
        else:
            grad = buf * grad_output
            if ctx.reduction == "mean":
                grad = grad / ctx.count
        return grad, None, None, None, None


class ChunkedLinearCrossEntropy(Function):
    """Fused linear + cross entropy: gradients are made in forward, chunk by chunk."""

    @staticmethod
    def forward(ctx, hidden, weight, target, bias=None, chunk=2):
        n = hidden.shape[0]
        grad_h = torch.zeros_like(hidden)
        grad_w = torch.zeros_like(weight) if weight.requires_grad else None
        grad_b = torch.zeros_like(bias) if bias is not None else None
        loss = hidden.new_zeros(())
        for s in range(0, n, chunk):
            h, t = hidden[s : s + chunk], target[s : s + chunk]
            logits = h @ weight.t()
            if bias is not None:
                logits = logits + bias
            logp = logits.log_softmax(-1)
            loss += -logp.gather(1, t[:, None]).sum() / n
            g = logp.exp()
            g[torch.arange(len(t)), t] -= 1.0
            g /= n
            grad_h[s : s + chunk] = g @ weight
            if grad_w is not None:
                torch.addmm(grad_w, g.t(), h, out=grad_w)
            if grad_b is not None:
                grad_b += g.sum(0)
        ctx.save_for_backward(grad_h.detach(), grad_w.detach() if grad_w is not None else None, grad_b)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        gh, gw, gb = ctx.saved_tensors
        return (
            gh * grad_output,
            gw * grad_output if gw is not None else None,
            None,
            gb * grad_output if gb is not None else None,
            None,
        )


class LigerRMSNorm(Function):
    """RMSNorm with an offset and casting modes; x is overwritten in backward by nobody."""

    @staticmethod
    def forward(ctx, x, weight, eps, offset=0.0, casting_mode="llama"):
        shape = x.shape
        d = shape[-1]
        rows = x.reshape(-1, d)
        wide = (
            rows.to(torch.float32)
            if rows.dtype in (torch.float16, torch.bfloat16) and casting_mode != "none"
            else rows
        )
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        normed = wide * rstd
        if casting_mode == "llama":
            normed = normed.to(x.dtype)
            y = normed * (offset + weight)
        elif casting_mode == "gemma":
            y = (normed * (offset + weight.to(normed.dtype))).to(x.dtype)
        elif casting_mode == "none":
            y = normed * (offset + weight)
        else:
            raise ValueError(f"unknown casting mode {casting_mode!r}")
        ctx.save_for_backward(rows, weight, rstd)
        ctx.offset, ctx.shape = offset, shape
        return y.reshape(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        rows, weight, rstd = ctx.saved_tensors
        d = rows.shape[-1]
        dy2 = dy.reshape(-1, d).to(rstd.dtype)
        x = rows.to(rstd.dtype)
        w = (weight + ctx.offset).to(rstd.dtype)
        m = dy2 * w
        dx = rstd * m - rstd.pow(3) / d * (m * x).sum(-1, keepdim=True) * x
        dw = (dy2 * x * rstd).sum(0)
        return dx.to(rows.dtype).reshape(ctx.shape), dw.to(weight.dtype), None, None, None


class SwiGLURecompute(Function):
    @staticmethod
    def forward(ctx, gate_up, limit=None):
        gate, up = gate_up.chunk(2, dim=-1)
        if limit is not None:
            gate = gate.clamp(max=limit)
        ctx.save_for_backward(gate_up)
        ctx.limit = limit
        return F.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (gate_up,) = ctx.saved_tensors
        with torch.enable_grad():
            gate, up = gate_up.chunk(2, dim=-1)
        clamped = gate if ctx.limit is None else gate.clamp(max=ctx.limit)
        s = torch.sigmoid(clamped)
        silu = clamped * s
        dgate = grad * up * (s + silu * (1 - s))
        if ctx.limit is not None:
            dgate = dgate * (gate <= ctx.limit)
        return torch.cat([dgate, grad * silu], -1), None


class RopeInPlace(Function):
    """Rotary embedding written over q itself (mark_dirty)."""

    @staticmethod
    def forward(ctx, q, cos, sin, interleaved=False):
        ctx.interleaved = interleaved
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(q)
        if interleaved:
            a, b = q[..., 0::2], q[..., 1::2]
        else:
            a, b = q.chunk(2, -1)
        na = a * cos - b * sin
        nb = b * cos + a * sin
        a.copy_(na)
        b.copy_(nb)
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        if ctx.interleaved:
            a, b = grad[..., 0::2], grad[..., 1::2]
            out = torch.stack([a * cos + b * sin, b * cos - a * sin], -1).flatten(-2)
        else:
            a, b = grad.chunk(2, -1)
            out = torch.cat([a * cos + b * sin, b * cos - a * sin], -1)
        return out, None, None, None


class KTOLoss(Function):
    """KTO with a detached KL baseline and a boolean mask of preferred samples."""

    @staticmethod
    def forward(ctx, policy_logps, ref_logps, preferred, kl, beta=0.1):
        r = beta * (policy_logps - ref_logps - kl)
        h = torch.sigmoid(torch.where(preferred, r, -r))
        ctx.save_for_backward(h, preferred)
        ctx.beta = beta
        return (1 - h).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        h, preferred = ctx.saved_tensors
        sign = torch.where(preferred, 1.0, -1.0).to(h.dtype)
        d = -(h * (1 - h)) * sign * ctx.beta / h.numel() * g
        return d, None, None, None, None


class GroupNormSwish(Function):
    @staticmethod
    def forward(ctx, x, groups, weight, bias, eps=1e-5):
        n, c = x.shape[:2]
        xr = x.reshape(n, groups, -1)
        mean = xr.mean(-1, keepdim=True)
        rstd = (xr.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        xhat = ((xr - mean) * rstd).reshape(x.shape)
        aff = [1, c] + [1] * (x.dim() - 2)
        z = xhat * weight.view(aff) + bias.view(aff)
        ctx.groups = groups
        ctx.save_for_backward(xhat, rstd, weight, z)
        return z * torch.sigmoid(z)

    @staticmethod
    @once_differentiable
    def backward(ctx, gy):
        xhat, rstd, weight, z = ctx.saved_tensors
        n, c = xhat.shape[:2]
        aff = [1, c] + [1] * (xhat.dim() - 2)
        dims = [0, *range(2, xhat.dim())]
        s = torch.sigmoid(z)
        gz = gy * s * (1 + z * (1 - s))
        gw = (gz * xhat).sum(dims)
        gb = gz.sum(dims)
        gx = (gz * weight.view(aff)).reshape(n, ctx.groups, -1)
        xh = xhat.reshape(n, ctx.groups, -1)
        gx = rstd * (gx - gx.mean(-1, keepdim=True) - xh * (gx * xh).mean(-1, keepdim=True))
        return gx.reshape(xhat.shape), None, gw, gb, None


class WeightNormGroups(Function):
    @staticmethod
    def forward(ctx, v, g, dim=0):
        dims = [d for d in range(v.dim()) if d != dim]
        norm = v.pow(2).sum(dims, keepdim=True).sqrt()
        ctx.dims = dims
        ctx.save_for_backward(v, g, norm)
        shape = [1] * v.dim()
        shape[dim] = -1
        return v * (g.view(shape) / norm)

    @staticmethod
    @once_differentiable
    def backward(ctx, gw):
        v, g, norm = ctx.saved_tensors
        u = v / norm
        proj = (gw * u).sum(ctx.dims, keepdim=True)
        gg = proj.reshape(g.shape)
        gv = (g.view(norm.shape) / norm) * (gw - u * proj)
        return gv, gg, None


class FlashLSE(Function):
    """Attention that also returns the log-sum-exp, which is not differentiated."""

    @staticmethod
    def forward(ctx, q, k, v, causal=False, scale=None):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        s = torch.einsum("bhid,bhjd->bhij", q, k) * scale
        if causal:
            m = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(k.shape[-2] - q.shape[-2] + 1)
            s = s.masked_fill(m, float("-inf"))
        lse = torch.logsumexp(s, -1)
        p = (s - lse[..., None]).exp()
        o = p @ v
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, _):
        q, k, v, o, lse = ctx.saved_tensors
        s = torch.einsum("bhid,bhjd->bhij", q, k) * ctx.scale
        if ctx.causal:
            m = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(k.shape[-2] - q.shape[-2] + 1)
            s = s.masked_fill(m, float("-inf"))
        p = (s - lse[..., None]).exp()
        dv = p.transpose(-1, -2) @ do
        dp = do @ v.transpose(-1, -2)
        delta = (do * o).sum(-1, keepdim=True)
        ds = p * (dp - delta) * ctx.scale
        return ds @ k, ds.transpose(-1, -2) @ q, dv, None, None


class FlashWithLSEGrad(Function):
    """Ring attention needs the gradient of LSE too."""

    @staticmethod
    def forward(ctx, q, k, v, block=2):
        n, d = q.shape
        scale = 1 / math.sqrt(d)
        o = torch.zeros(n, v.shape[1], dtype=q.dtype)
        m = torch.full((n,), -float("inf"), dtype=q.dtype)
        l = torch.zeros(n, dtype=q.dtype)
        for j in range(0, k.shape[0], block):
            s = q @ k[j : j + block].t() * scale
            new = torch.maximum(m, s.amax(-1))
            p = (s - new[:, None]).exp()
            alpha = (m - new).exp()
            l = alpha * l + p.sum(-1)
            o = alpha[:, None] * o + p @ v[j : j + block]
            m = new
        o = o / l[:, None]
        lse = m + l.log()
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.block = scale, block
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (do * o).sum(-1) - dlse
        for j in range(0, k.shape[0], ctx.block):
            kj, vj = k[j : j + ctx.block], v[j : j + ctx.block]
            p = (q @ kj.t() * ctx.scale - lse[:, None]).exp()
            dv[j : j + ctx.block] = p.t() @ do
            ds = p * (do @ vj.t() - delta[:, None]) * ctx.scale
            dq = dq + ds @ kj
            dk[j : j + ctx.block] = ds.t() @ q
        return dq, dk, dv, None


class VarlenAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens, max_seqlen, softmax_scale=None):
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        out = torch.empty_like(v)
        probs = []
        for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            if b - a > max_seqlen:
                raise ValueError("a sequence is longer than max_seqlen")
            p = torch.softmax(torch.einsum("ihd,jhd->hij", q[a:b], k[a:b]) * scale, -1)
            out[a:b] = torch.einsum("hij,jhd->ihd", p, v[a:b])
            probs.append(p)
        ctx.save_for_backward(q, k, v, cu_seqlens, *probs)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, cu, *probs = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        bounds = cu.tolist()
        for p, a, b in zip(probs, bounds[:-1], bounds[1:], strict=True):
            dv[a:b] = torch.einsum("hij,ihd->jhd", p, do[a:b])
            dp = torch.einsum("ihd,jhd->hij", do[a:b], v[a:b])
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.scale
            dq[a:b] = torch.einsum("hij,jhd->ihd", ds, k[a:b])
            dk[a:b] = torch.einsum("hij,ihd->jhd", ds, q[a:b])
        return dq, dk, dv, None, None, None


class GatedDeltaRule(Function):
    @staticmethod
    def forward(ctx, q, k, v, beta, g, initial_state=None, output_final_state=False):
        T, d = q.shape
        S = q.new_zeros(d, v.shape[1]) if initial_state is None else initial_state.clone()
        states, outs, errs = [], [], []
        for t in range(T):
            states.append(S)
            S = S * g[t].exp()
            e = v[t] - k[t] @ S
            errs.append(e)
            S = S + beta[t] * torch.outer(k[t], e)
            outs.append(q[t] @ S)
        ctx.save_for_backward(q, k, v, beta, g, torch.stack(states), torch.stack(errs))
        ctx.has_init = initial_state is not None
        return torch.stack(outs), (S if output_final_state else None)

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dS_final):
        q, k, v, beta, g, states, errs = ctx.saved_tensors
        dq, dk, dv, db, dg = (torch.zeros_like(t) for t in (q, k, v, beta, g))
        dS = torch.zeros_like(states[0]) if dS_final is None else dS_final.clone()
        for t in reversed(range(q.shape[0])):
            decayed = states[t] * g[t].exp()
            S = decayed + beta[t] * torch.outer(k[t], errs[t])
            dq[t] = S @ do[t]
            dS = dS + torch.outer(q[t], do[t])
            db[t] = k[t] @ dS @ errs[t]
            de = beta[t] * (k[t] @ dS)
            dk[t] = beta[t] * (dS @ errs[t]) - decayed @ de
            dv[t] = de
            dS = dS - torch.outer(k[t], de)
            dg[t] = (dS * decayed).sum()
            dS = dS * g[t].exp()
        return dq, dk, dv, db, dg, (dS if ctx.has_init else None), None


class SelectiveScanChunked(Function):
    """Mamba: h = exp(dt A) h + dt B u; states are kept at chunk borders and recomputed."""

    @staticmethod
    def forward(ctx, u, dt, A, B, C, D=None, chunk=2, softplus=True):
        delta = torch.nn.functional.softplus(dt) if softplus else dt
        L, c = u.shape
        h = u.new_zeros(c, A.shape[1])
        ys, borders = [], []
        for t in range(L):
            if t % chunk == 0:
                borders.append(h)
            h = (delta[t][:, None] * A).exp() * h + (delta[t] * u[t])[:, None] * B[t]
            ys.append(h @ C[t])
        y = torch.stack(ys)
        if D is not None:
            y = y + u * D
        ctx.save_for_backward(u, dt, A, B, C, D, *borders)
        ctx.chunk, ctx.softplus = chunk, softplus
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        u, dt, A, B, C, D, *borders = ctx.saved_tensors
        delta = torch.nn.functional.softplus(dt) if ctx.softplus else dt
        L = u.shape[0]
        du, dd, dA, dB, dC = (torch.zeros_like(t) for t in (u, dt, A, B, C))
        dh = torch.zeros_like(borders[0])
        for i in reversed(range(len(borders))):
            lo, hi = i * ctx.chunk, min((i + 1) * ctx.chunk, L)
            hs = [borders[i]]
            for t in range(lo, hi):
                hs.append((delta[t][:, None] * A).exp() * hs[-1] + (delta[t] * u[t])[:, None] * B[t])
            for t in reversed(range(lo, hi)):
                dh = dh + dy[t][:, None] * C[t]
                dC[t] = hs[t - lo + 1].t() @ dy[t]
                a = (delta[t][:, None] * A).exp()
                ga = dh * a * hs[t - lo]
                dA += ga * delta[t][:, None]
                gb = (dh * B[t]).sum(1)
                dd[t] = (ga * A).sum(1) + gb * u[t]
                du[t] = gb * delta[t]
                dB[t] = ((delta[t] * u[t])[:, None] * dh).sum(0)
                dh = dh * a
        if ctx.softplus:
            dd = dd * torch.sigmoid(dt)
        dD = None
        if D is not None:
            du = du + dy * D
            dD = (dy * u).sum(0)
        return du, dd, dA, dB, dC, dD, None, None


class ALiBiSoftcap(Function):
    """Gemma-style logit soft capping and a bool key mask in which some rows may be all False."""

    @staticmethod
    def forward(ctx, q, k, v, mask=None, cap=5.0):
        s = q @ k.transpose(-1, -2)
        t = torch.tanh(s / cap)
        z = cap * t
        if mask is not None:
            z = z.masked_fill(~mask, -torch.inf)
        z = z - z.amax(-1, keepdim=True).clamp(min=-1e30)
        e = z.exp()
        p = e / e.sum(-1, keepdim=True).clamp(min=1e-30)
        ctx.save_for_backward(q, k, v, p, t)
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, p, t = ctx.saved_tensors
        dp = g @ v.transpose(-1, -2)
        dz = p * (dp - (p * dp).sum(-1, keepdim=True))
        ds = dz * (1 - t * t)
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g, None, None


class TransducerLoss(Function):
    """RNN-T: alphas and betas over the lattice, with lengths; gradient by occupancies."""

    @staticmethod
    def forward(ctx, log_probs, targets, f_len, y_len, blank=0, reduction="mean"):
        B, T, U, V = log_probs.shape
        losses, grads = [], torch.zeros_like(log_probs)
        for b in range(B):
            t_, u_ = int(f_len[b]), int(y_len[b]) + 1
            lp = log_probs[b]
            alpha = lp.new_full((t_, u_), NEG)
            alpha[0, 0] = 0.0
            for t in range(t_):
                for u in range(u_):
                    if t > 0:
                        alpha[t, u] = torch.logaddexp(alpha[t, u], alpha[t - 1, u] + lp[t - 1, u, blank])
                    if u > 0:
                        alpha[t, u] = torch.logaddexp(
                            alpha[t, u], alpha[t, u - 1] + lp[t, u - 1, targets[b, u - 1]]
                        )
            beta = lp.new_full((t_, u_), NEG)
            beta[-1, -1] = lp[t_ - 1, u_ - 1, blank]
            for t in reversed(range(t_)):
                for u in reversed(range(u_)):
                    if t < t_ - 1:
                        beta[t, u] = torch.logaddexp(beta[t, u], beta[t + 1, u] + lp[t, u, blank])
                    if u < u_ - 1:
                        beta[t, u] = torch.logaddexp(beta[t, u], beta[t, u + 1] + lp[t, u, targets[b, u]])
            ll = beta[0, 0]
            losses.append(-ll)
            for t in range(t_):
                for u in range(u_):
                    if t < t_ - 1:
                        grads[b, t, u, blank] -= (alpha[t, u] + beta[t + 1, u] + lp[t, u, blank] - ll).exp()
                    elif u == u_ - 1:
                        grads[b, t, u, blank] -= (alpha[t, u] + lp[t, u, blank] - ll).exp()
                    if u < u_ - 1:
                        y = targets[b, u]
                        grads[b, t, u, y] -= (alpha[t, u] + beta[t, u + 1] + lp[t, u, y] - ll).exp()
        ctx.grads = grads
        ctx.reduction = reduction
        loss = torch.stack(losses)
        return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        grads = ctx.grads
        if ctx.reduction == "mean":
            grads = grads / grads.shape[0]
        if ctx.reduction == "none":
            g = g.view(-1, 1, 1, 1)
        return grads * g, None, None, None, None, None


class SegmentCSR(Function):
    @staticmethod
    def forward(ctx, src, indptr, reduce="sum"):
        n = indptr.numel() - 1
        out, args = [], []
        for i in range(n):
            part = src[indptr[i] : indptr[i + 1]]
            if part.shape[0] == 0:
                out.append(src.new_zeros(src.shape[1:]))
                args.append(torch.full(src.shape[1:], -1, dtype=torch.long))
            elif reduce == "sum":
                out.append(part.sum(0))
            elif reduce == "mean":
                out.append(part.mean(0))
            else:
                value, arg = part.max(0)
                out.append(value)
                args.append(arg + indptr[i])
        ctx.reduce, ctx.size = reduce, src.shape
        ctx.save_for_backward(indptr, torch.stack(args) if reduce == "max" else None)
        return torch.stack(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        indptr, args = ctx.saved_tensors
        if ctx.reduce == "max":
            out = g.new_zeros(ctx.size[0] + 1, *ctx.size[1:])
            out = out.scatter_add(0, torch.where(args < 0, ctx.size[0], args), g)
            return out[:-1], None, None
        counts = indptr[1:] - indptr[:-1]
        if ctx.reduce == "mean":
            g = g / counts.clamp(min=1).view(-1, *[1] * (g.dim() - 1))
        return torch.repeat_interleave(g, counts, 0), None, None


class ScatterSoftmax(Function):
    @staticmethod
    def forward(ctx, src, index, dim_size=None):
        n = int(index.max()) + 1 if dim_size is None else dim_size
        top = src.new_full((n,), NEG).scatter_reduce(0, index, src, "amax")
        e = (src - top[index]).exp()
        p = e / src.new_zeros(n).index_add(0, index, e)[index]
        ctx.save_for_backward(p, index)
        ctx.n = n
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, index = ctx.saved_tensors
        s = (p * g).new_zeros(ctx.n).index_add(0, index, p * g)
        return p * (g - s[index]), None, None


class GATAggregate(Function):
    """Edge-weighted sum over an edge index [2, e]."""

    @staticmethod
    def forward(ctx, x, edge_index, alpha):
        src, dst = edge_index
        ctx.save_for_backward(x, edge_index, alpha)
        return torch.zeros_like(x).index_add_(0, dst, x[src] * alpha[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, (src, dst), alpha = ctx.saved_tensors
        gx = torch.zeros_like(x).index_add_(0, src, g[dst] * alpha[:, None])
        ga = (g[dst] * x[src]).sum(-1)
        return gx, None, ga


class CSRMatmul(Function):
    @staticmethod
    def forward(ctx, crow, col, values, dense):
        counts = crow[1:] - crow[:-1]
        row = torch.repeat_interleave(torch.arange(len(counts)), counts)
        ctx.save_for_backward(row, col, values, dense)
        return dense.new_zeros(len(counts), dense.shape[1]).index_add(0, row, values[:, None] * dense[col])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        row, col, values, dense = ctx.saved_tensors
        return (
            None,
            None,
            (g[row] * dense[col]).sum(1),
            torch.zeros_like(dense).index_add(0, col, values[:, None] * g[row]),
        )


class SoftDTWGamma(Function):
    """Soft-DTW with bandwidth; E computed backwards from R."""

    @staticmethod
    def forward(ctx, D, gamma=1.0, bandwidth=0):
        n, m = D.shape
        R = D.new_full((n + 2, m + 2), torch.inf)
        R[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                if 0 < bandwidth < abs(i - j):
                    continue
                prev = torch.stack([R[i - 1, j - 1], R[i - 1, j], R[i, j - 1]])
                R[i, j] = D[i - 1, j - 1] - gamma * torch.logsumexp(-prev / gamma, 0)
        ctx.gamma, ctx.bandwidth = gamma, bandwidth
        ctx.save_for_backward(D, R)
        return R[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        D, R = ctx.saved_tensors
        n, m = D.shape
        E = D.new_zeros(n + 2, m + 2)
        R = R.clone()
        R[torch.inf == R] = -torch.inf
        R[n + 1, m + 1] = R[n, m]
        Dp = D.new_zeros(n + 2, m + 2)
        Dp[1 : n + 1, 1 : m + 1] = D
        E[n + 1, m + 1] = 1
        for j in range(m, 0, -1):
            for i in range(n, 0, -1):
                if R[i, j] == -torch.inf or 0 < ctx.bandwidth < abs(i - j):
                    continue
                a = ((R[i + 1, j] - R[i, j] - Dp[i + 1, j]) / ctx.gamma).exp()
                b = ((R[i, j + 1] - R[i, j] - Dp[i, j + 1]) / ctx.gamma).exp()
                c = ((R[i + 1, j + 1] - R[i, j] - Dp[i + 1, j + 1]) / ctx.gamma).exp()
                E[i, j] = E[i + 1, j] * a + E[i, j + 1] * b + E[i + 1, j + 1] * c
        return g * E[1 : n + 1, 1 : m + 1], None, None


class CTCForward(Function):
    @staticmethod
    def forward(ctx, logits, labels, blank=0):
        lp = logits.log_softmax(-1)
        T = lp.shape[0]
        ext = torch.full((2 * len(labels) + 1,), blank, dtype=torch.long)
        ext[1::2] = labels
        S = len(ext)
        skip = torch.zeros(S, dtype=torch.bool)
        skip[2:] = (ext[2:] != blank) & (ext[2:] != ext[:-2])

        def run(em, skip):
            a = em.new_full((T, S), NEG)
            a[0, 0] = em[0, 0]
            if S > 1:
                a[0, 1] = em[0, 1]
            for t in range(1, T):
                stay = a[t - 1]
                one = torch.cat([a.new_full((1,), NEG), a[t - 1, :-1]])
                two = torch.cat([a.new_full((2,), NEG), a[t - 1, :-2]])[:S].masked_fill(~skip, NEG)
                a[t] = torch.logsumexp(torch.stack([stay, one, two]), 0) + em[t]
            return a

        em = lp[:, ext]
        alpha = run(em, skip)
        rskip = torch.zeros(S, dtype=torch.bool)
        r = ext.flip(0)
        rskip[2:] = (r[2:] != blank) & (r[2:] != r[:-2])
        beta = run(em.flip(0, 1), rskip).flip(0, 1)
        ll = torch.logaddexp(alpha[-1, -1], alpha[-1, -2]) if S > 1 else alpha[-1, -1]
        occ = (alpha + beta - em - ll).exp()
        grad = lp.exp() - torch.zeros_like(lp).index_add(1, ext, occ)
        ctx.save_for_backward(grad)
        return -ll

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        return g * grad, None, None


class KalmanLogLikelihood(Function):
    """Scalar-observation Kalman filter; gradient by reverse-mode over kept moments."""

    @staticmethod
    def forward(ctx, y, a, log_q, log_r):
        q, r = log_q.exp(), log_r.exp()
        m, P = y.new_zeros(()), y.new_ones(())
        ll = y.new_zeros(())
        tape = []
        for t in range(y.shape[0]):
            mp, Pp = a * m, a * a * P + q
            S = Pp + r
            e = y[t] - mp
            K = Pp / S
            ll = ll - 0.5 * (e * e / S + S.log())
            tape.append((m, P, Pp, S, e, K))
            m, P = mp + K * e, (1 - K) * Pp
        ctx.tape = tape
        ctx.save_for_backward(y, a, q, r)
        return ll

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, a, q, r = ctx.saved_tensors
        gy = torch.zeros_like(y)
        ga = gq = gr = gm = gP = torch.zeros_like(a)
        for t in reversed(range(y.shape[0])):
            m, P, Pp, S, e, K = ctx.tape[t]
            gmp = gm
            gK = gm * e - gP * Pp
            ge = gm * K - g * e / S
            gPp = gP * (1 - K) + gK / S
            gS = -gK * Pp / S**2 + g * 0.5 * (e * e / S**2 - 1 / S)
            gy[t] = ge
            gmp = gmp - ge
            gPp = gPp + gS
            gr = gr + gS
            ga = ga + gmp * m + gPp * 2 * a * P
            gq = gq + gPp
            gm, gP = gmp * a, gPp * a * a
        return gy, ga, gq * q, gr * r


class AdjointODE(Function):
    """Discrete adjoint of explicit Euler with an MLP field given as flat parameters."""

    @staticmethod
    def forward(ctx, y0, t, w, b):
        ys = [y0]
        for i in range(len(t) - 1):
            ys.append(ys[-1] + (t[i + 1] - t[i]) * torch.tanh(ys[-1] @ w + b))
        ys = torch.stack(ys)
        ctx.save_for_backward(t, w, b, ys)
        return ys

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        t, w, b, ys = ctx.saved_tensors
        lam = g[-1]
        gw, gb, gt = torch.zeros_like(w), torch.zeros_like(b), torch.zeros_like(t)
        for i in reversed(range(len(t) - 1)):
            f = torch.tanh(ys[i] @ w + b)
            h = t[i + 1] - t[i]
            dot = (lam * f).sum()
            gt[i + 1] += dot
            gt[i] -= dot
            z = lam * h * (1 - f * f)
            gw = gw + ys[i].reshape(-1, w.shape[0]).t() @ z.reshape(-1, w.shape[1])
            gb = gb + z.reshape(-1, w.shape[1]).sum(0)
            lam = lam + z @ w.t() + g[i]
        return lam, gt, gw, gb


class SpectrogramPower(Function):
    """|rfft of frames|^2 with a window, hop and centre padding."""

    @staticmethod
    def forward(ctx, x, window, hop):
        n = window.numel()
        pad = torch.nn.functional.pad(x, (n // 2, n // 2))
        frames = pad.unfold(-1, n, hop)
        z = torch.fft.rfft(frames * window)
        ctx.save_for_backward(frames, window, z)
        ctx.hop, ctx.shape = hop, x.shape
        return z.real**2 + z.imag**2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        frames, window, z = ctx.saved_tensors
        n = window.numel()
        full = torch.zeros(*z.shape[:-1], n, dtype=z.dtype)
        full[..., : z.shape[-1]] = 2 * g * z
        gf = torch.fft.fft(full.conj()).real
        gw = (gf * frames).reshape(-1, n).sum(0)
        gf = gf * window
        length = ctx.shape[-1] + 2 * (n // 2)
        out = torch.zeros(*ctx.shape[:-1], length, dtype=gf.dtype)
        for i in range(gf.shape[-2]):
            out[..., i * ctx.hop : i * ctx.hop + n] += gf[..., i, :]
        return out[..., n // 2 : n // 2 + ctx.shape[-1]], gw, None


class FresnelPropagate(Function):
    """Angular spectrum propagation of a complex field; the distance is a float tensor."""

    @staticmethod
    def forward(ctx, field, distance, pitch=1.0):
        n = field.shape[-1]
        f = torch.fft.fftfreq(n, pitch, dtype=field.real.dtype)
        k = -(f * f) * torch.pi
        H = torch.exp(1j * k * distance)
        spec = torch.fft.fft(field) * H
        ctx.save_for_backward(H, spec, k)
        return torch.fft.ifft(spec)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        H, spec, k = ctx.saved_tensors
        gs = torch.fft.fft(g) / g.shape[-1]
        gd = (gs.conj() * (1j * k * spec)).real.sum()
        return torch.fft.ifft(gs * g.shape[-1] * H.conj()), gd, None


class ImplicitRoot(Function):
    """x = tanh(Wx + b) by fixed-point iterations; implicit function theorem."""

    @staticmethod
    def forward(ctx, W, b):
        x = torch.zeros_like(b)
        for _ in range(200):
            x = torch.tanh(W @ x + b)
        ctx.save_for_backward(W, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        W, x = ctx.saved_tensors
        s = 1 - x * x
        n = x.shape[0]
        lam = torch.linalg.solve(torch.eye(n, dtype=x.dtype) - (s[:, None] * W).t(), g)
        u = lam * s
        return torch.outer(u, x), u


class LorentzBoost(Function):
    """Four-vectors boosted by a velocity."""

    @staticmethod
    def forward(ctx, p, v):
        v2 = (v * v).sum(-1, keepdim=True)
        gam = (1 - v2).rsqrt()
        E, q = p[..., :1], p[..., 1:]
        vq = (v * q).sum(-1, keepdim=True)
        E2 = gam * (E - vq)
        k = gam * gam / (gam + 1)
        q2 = q + v * (k * vq - gam * E)
        ctx.save_for_backward(p, v, gam)
        return torch.cat([E2, q2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, v, gam = ctx.saved_tensors
        E, q = p[..., :1], p[..., 1:]
        gE, gq = g[..., :1], g[..., 1:]
        vq = (v * q).sum(-1, keepdim=True)
        k = gam * gam / (gam + 1)
        gv_dot = (gq * v).sum(-1, keepdim=True)
        dE = gam * gE - gam * gv_dot
        dq = gq + k * gv_dot * v - gam * gE * v
        c = k * vq - gam * E
        dgam = gE * (E - vq) + gv_dot * (vq * (gam * gam + 2 * gam) / (gam + 1) ** 2 - E)
        dv = -gam * gE * q + gq * c + gv_dot * k * q + dgam * gam**3 * v
        return torch.cat([dE, dq], -1), dv


class GaussianSplat2D(Function):
    """Front-to-back alpha compositing of K Gaussians at pixels, with early stop."""

    @staticmethod
    def forward(ctx, means, inv_cov, opacity, color, pixels):
        d = pixels[:, None] - means[None]
        power = -0.5 * torch.einsum("pki,kij,pkj->pk", d, inv_cov, d)
        a = (opacity * power.exp()).clamp(max=0.99)
        T = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a], 1), 1)
        w = a * T[:, :-1]
        ctx.save_for_backward(d, inv_cov, opacity, color, a, T, power)
        return w @ color

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        d, inv_cov, opacity, color, a, T, power = ctx.saved_tensors
        w = a * T[:, :-1]
        gc = w.t() @ g
        dw = g @ color.t()
        after = torch.flip(torch.cumsum(torch.flip(dw * w, [1]), 1), [1]) - dw * w
        da = dw * T[:, :-1] - after / (1 - a)
        da = da * (opacity * power.exp() < 0.99)
        go = (da * power.exp()).sum(0)
        dp = da * a
        gm = torch.einsum("pk,kij,pkj->ki", dp, 0.5 * (inv_cov + inv_cov.transpose(1, 2)), d)
        gi = -0.5 * torch.einsum("pk,pki,pkj->kij", dp, d, d)
        return gm, gi, go, gc, None
