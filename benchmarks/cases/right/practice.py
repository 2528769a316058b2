"""Functions of many fields, as their authors write them: the first half."""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


# --- losses of language models -------------------------------------------------------------------
class ChunkedLinearCrossEntropy(Function):
    """Cross entropy of hidden @ weight.T by chunks of tokens; gradients are computed while the logits are there."""

    @staticmethod
    def forward(ctx, hidden, weight, target, ignore_index=-100, label_smoothing=0.0, chunk=4):
        tokens, vocabulary = hidden.shape[0], weight.shape[0]
        valid = target != ignore_index
        count = valid.sum().clamp(min=1)
        loss = hidden.new_zeros(())
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight)
        for start in range(0, tokens, chunk):
            rows = slice(start, start + chunk)
            h, keep = hidden[rows], valid[rows]
            logits = h @ weight.t()
            log_p = torch.log_softmax(logits, dim=-1)
            safe = target[rows].masked_fill(~keep, 0)
            nll = -log_p.gather(1, safe[:, None]).squeeze(1)
            smooth = -log_p.mean(dim=-1)
            per_token = (1 - label_smoothing) * nll + label_smoothing * smooth
            loss = loss + per_token.masked_fill(~keep, 0.0).sum()
            g = log_p.exp()
            g = g - label_smoothing / vocabulary
            g.scatter_add_(1, safe[:, None], torch.full_like(g[:, :1], -(1 - label_smoothing)))
            g = g.masked_fill(~keep[:, None], 0.0) / count
            grad_hidden[rows] = g @ weight
            grad_weight += g.t() @ h
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_output, grad_weight * grad_output, None, None, None, None


class ZLossCrossEntropy(Function):
    """Cross entropy with the z-loss of PaLM; returns the loss and the z term alone, for logging."""

    @staticmethod
    def forward(ctx, logits, target, z_weight):
        lse = torch.logsumexp(logits, dim=-1)
        picked = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        z = z_weight * lse.square().mean()
        loss = (lse - picked).mean() + z
        ctx.save_for_backward(logits, target)
        ctx.z_weight = z_weight
        z = z.clone()
        ctx.mark_non_differentiable(z)
        return loss, z

    @staticmethod
    def backward(ctx, grad_loss, _):
        logits, target = ctx.saved_tensors
        n = logits.shape[0]
        lse = torch.logsumexp(logits, dim=-1, keepdim=True)
        p = torch.exp(logits - lse)
        grad = p * (1 + 2 * ctx.z_weight * lse)
        grad = grad - F.one_hot(target, logits.shape[-1]).to(p.dtype)
        return grad_loss * grad / n, None, None


class DPOLoss(Function):
    """Direct preference optimisation with label smoothing (cDPO)."""

    @staticmethod
    def forward(ctx, chosen, rejected, ref_chosen, ref_rejected, beta, smoothing):
        h = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
        loss = -(1 - smoothing) * F.logsigmoid(h) - smoothing * F.logsigmoid(-h)
        ctx.save_for_backward(chosen, rejected, ref_chosen, ref_rejected)
        ctx.beta, ctx.smoothing = beta, smoothing
        return loss.mean()

    @staticmethod
    def backward(ctx, grad_output):
        chosen, rejected, ref_chosen, ref_rejected = ctx.saved_tensors
        h = ctx.beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
        dh = -(1 - ctx.smoothing) * torch.sigmoid(-h) + ctx.smoothing * torch.sigmoid(h)
        g = grad_output * ctx.beta * dh / chosen.numel()
        return g, -g, -g, g, None, None


class GRPOTokenLoss(Function):
    """Clipped policy gradient with a KL penalty (k3 estimator), averaged over the valid tokens of all sequences."""

    @staticmethod
    def forward(ctx, logp, old_logp, ref_logp, advantage, mask, eps_low, eps_high, kl):
        ratio = torch.exp(logp - old_logp)
        clipped = ratio.clamp(1 - eps_low, 1 + eps_high)
        adv = advantage.unsqueeze(1)
        surrogate = torch.minimum(ratio * adv, clipped * adv)
        delta = ref_logp - logp
        penalty = torch.exp(delta) - delta - 1
        m = mask.to(logp.dtype)
        total = m.sum().clamp(min=1.0)
        ctx.save_for_backward(logp, old_logp, ref_logp, advantage, m, total)
        ctx.eps_low, ctx.eps_high, ctx.kl = eps_low, eps_high, kl
        return ((kl * penalty - surrogate) * m).sum() / total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        logp, old_logp, ref_logp, advantage, m, total = ctx.saved_tensors
        ratio = torch.exp(logp - old_logp)
        adv = advantage.unsqueeze(1)
        outside = ((adv > 0) & (ratio > 1 + ctx.eps_high)) | ((adv < 0) & (ratio < 1 - ctx.eps_low))
        d_surrogate = torch.where(outside, torch.zeros_like(ratio), ratio * adv)
        d_penalty = 1 - torch.exp(ref_logp - logp)
        g = grad_output * (ctx.kl * d_penalty - d_surrogate) * m / total
        return g, None, None, None, None, None, None, None


class InfoNCE(Function):
    """Symmetric contrastive loss of normalised embeddings (CLIP) with a learned log temperature."""

    @staticmethod
    def forward(ctx, image, text, log_scale):
        logits = log_scale.exp() * image @ text.t()
        labels = torch.arange(len(image), device=image.device)
        ctx.save_for_backward(image, text, log_scale)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    @staticmethod
    def backward(ctx, grad_output):
        image, text, log_scale = ctx.saved_tensors
        scale = log_scale.exp()
        cosine = image @ text.t()
        logits = scale * cosine
        n = logits.shape[0]
        eye = torch.eye(n, dtype=logits.dtype, device=logits.device)
        g = (torch.softmax(logits, 1) - eye) + (torch.softmax(logits, 0) - eye)
        g = grad_output * g / (2 * n)
        return scale * g @ text, scale * g.t() @ image, (g * logits).sum()


# --- layers of transformers ----------------------------------------------------------------------
class PartialRotary(Function):
    """Rotary embedding of the first 2*r features (NeoX halves or GPT-J pairs); the rest passes."""

    @staticmethod
    def forward(ctx, x, cos, sin, interleaved):
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return PartialRotary.rotate(x, cos, sin, interleaved)

    @staticmethod
    def rotate(x, cos, sin, interleaved):
        width = 2 * cos.shape[-1]
        part, rest = x[..., :width], x[..., width:]
        if interleaved:
            a, b = part[..., 0::2], part[..., 1::2]
        else:
            a, b = part.chunk(2, dim=-1)
        first, second = a * cos - b * sin, b * cos + a * sin
        if interleaved:
            turned = torch.stack((first, second), dim=-1).flatten(-2)
        else:
            turned = torch.cat((first, second), dim=-1)
        return torch.cat((turned, rest), dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        return PartialRotary.rotate(grad_output, cos, -sin, ctx.interleaved), None, None, None


class AddRMSNorm(Function):
    """h = x + residual; returns (rms_norm(h) * (1 + weight), h), as fused kernels of decoders do."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        h = x + residual
        rstd = torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(h, weight)
        ctx.eps = eps
        return h * rstd * (1 + weight), h

    @staticmethod
    def backward(ctx, grad_y, grad_h):
        h, weight = ctx.saved_tensors
        rstd = torch.rsqrt(h.square().mean(-1, keepdim=True) + ctx.eps)
        normed = h * rstd
        wg = grad_y * (1 + weight)
        grad = rstd * (wg - normed * (wg * normed).mean(-1, keepdim=True)) + grad_h
        grad_weight = (grad_y * normed).flatten(0, -2).sum(0)
        return grad, grad, grad_weight, None


class SwiGLUPacked(Function):
    @staticmethod
    def forward(ctx, packed, limit):
        gate, up = packed.chunk(2, dim=-1)
        ctx.save_for_backward(packed)
        ctx.limit = limit
        return F.silu(gate) * up.clamp(-limit, limit)

    @staticmethod
    def backward(ctx, grad_output):
        (packed,) = ctx.saved_tensors
        gate, up = packed.chunk(2, dim=-1)
        sig = torch.sigmoid(gate)
        inside = (up.abs() <= ctx.limit).to(packed.dtype)
        grad_gate = grad_output * up.clamp(-ctx.limit, ctx.limit) * sig * (1 + gate * (1 - sig))
        grad_up = grad_output * gate * sig * inside
        return torch.cat((grad_gate, grad_up), dim=-1), None


class TopKRouter(Function):
    """Softmax over the k largest logits; returns weights and expert ids."""

    @staticmethod
    def forward(ctx, logits, k):
        values, index = logits.topk(k, dim=-1)
        weights = torch.softmax(values, dim=-1)
        ctx.save_for_backward(weights, index)
        ctx.experts = logits.shape[-1]
        ctx.mark_non_differentiable(index)
        return weights, index

    @staticmethod
    def backward(ctx, grad_weights, _):
        weights, index = ctx.saved_tensors
        inner = (grad_weights * weights).sum(-1, keepdim=True)
        g = weights * (grad_weights - inner)
        out = torch.zeros(*g.shape[:-1], ctx.experts, dtype=g.dtype, device=g.device)
        return out.scatter(-1, index, g), None


class ExpertCombine(Function):
    """y[t] = sum_k gate[t, k] * (x[t] @ w[expert[t, k]]): loop over experts, index_add into the result."""

    @staticmethod
    def forward(ctx, x, w, gate, expert):
        out = x.new_zeros(x.shape[0], w.shape[2])
        for e in range(w.shape[0]):
            token, slot = torch.where(expert == e)
            out.index_add_(0, token, gate[token, slot].unsqueeze(1) * (x[token] @ w[e]))
        ctx.save_for_backward(x, w, gate, expert)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, w, gate, expert = ctx.saved_tensors
        grad_x, grad_w, grad_gate = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(gate)
        for e in range(w.shape[0]):
            token, slot = torch.where(expert == e)
            g = grad_output[token]
            weighted = gate[token, slot].unsqueeze(1) * g
            grad_x.index_add_(0, token, weighted @ w[e].t())
            grad_w[e] = x[token].t() @ weighted
            grad_gate[token, slot] = (g * (x[token] @ w[e])).sum(1)
        return grad_x, grad_w, grad_gate, None


class BlockedAttention(Function):
    """Causal attention over blocks of keys with a running maximum; also gives the log-sum-exp."""

    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        scale = q.shape[-1] ** -0.5
        rows, keys = q.shape[-2], k.shape[-2]
        m = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype, device=q.device)
        total = torch.zeros_like(m)
        acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        position = torch.arange(rows, device=q.device)
        for start in range(0, keys, block):
            kb, vb = k[..., start : start + block, :], v[..., start : start + block, :]
            s = q @ kb.transpose(-1, -2) * scale
            if causal:
                column = torch.arange(start, start + kb.shape[-2], device=q.device)
                s = s.masked_fill(column[None, :] > position[:, None], -math.inf)
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new.unsqueeze(-1))
            fix = torch.exp(m - new)
            total = total * fix + p.sum(-1)
            acc = acc * fix.unsqueeze(-1) + p @ vb
            m = new
        out = acc / total.unsqueeze(-1)
        lse = m + total.log()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.block, ctx.causal = block, causal
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, _):
        q, k, v, out, lse = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        rows, keys = q.shape[-2], k.shape[-2]
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (grad_out * out).sum(-1, keepdim=True)
        position = torch.arange(rows, device=q.device)
        for start in range(0, keys, ctx.block):
            part = slice(start, min(start + ctx.block, keys))
            kb, vb = k[..., part, :], v[..., part, :]
            s = q @ kb.transpose(-1, -2) * scale
            if ctx.causal:
                column = torch.arange(part.start, part.stop, device=q.device)
                s = s.masked_fill(column[None, :] > position[:, None], -math.inf)
            p = torch.exp(s - lse.unsqueeze(-1))
            grad_v[..., part, :] = p.transpose(-1, -2) @ grad_out
            ds = p * (grad_out @ vb.transpose(-1, -2) - delta) * scale
            grad_q += ds @ kb
            grad_k[..., part, :] = ds.transpose(-1, -2) @ q
        return grad_q, grad_k, grad_v, None, None


# --- recurrences ---------------------------------------------------------------------------------
class CausalLinearAttention(Function):
    """out_t = q_t . sum_{s<=t} k_s v_s^T, one step at a time."""

    @staticmethod
    def forward(ctx, q, k, v):
        state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
        out = []
        for t in range(q.shape[1]):
            state = state + k[:, t].unsqueeze(2) * v[:, t].unsqueeze(1)
            out.append(torch.einsum("bd,bde->be", q[:, t], state))
        ctx.save_for_backward(q, k, v)
        return torch.stack(out, dim=1)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        steps = q.shape[1]
        state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
        grad_q, grad_k, grad_v = [], [None] * steps, [None] * steps
        for t in range(steps):
            state = state + k[:, t].unsqueeze(2) * v[:, t].unsqueeze(1)
            grad_q.append(torch.einsum("be,bde->bd", grad_output[:, t], state))
        adjoint = torch.zeros_like(state)
        for t in reversed(range(steps)):
            adjoint = adjoint + q[:, t].unsqueeze(2) * grad_output[:, t].unsqueeze(1)
            grad_k[t] = torch.einsum("bde,be->bd", adjoint, v[:, t])
            grad_v[t] = torch.einsum("bde,bd->be", adjoint, k[:, t])
        return torch.stack(grad_q, 1), torch.stack(grad_k, 1), torch.stack(grad_v, 1)


class SelectiveScan(Function):
    """h_t = exp(delta_t * A) h_{t-1} + delta_t * B_t * u_t; y_t = C_t . h_t + D u_t (Mamba)."""

    @staticmethod
    def forward(ctx, u, delta, A, B, C, D):
        length, channels = u.shape
        h = u.new_zeros(channels, A.shape[1])
        states, out = [], []
        for t in range(length):
            h = torch.exp(delta[t, :, None] * A) * h + (delta[t] * u[t])[:, None] * B[t]
            states.append(h)
            out.append(h @ C[t] + D * u[t])
        ctx.save_for_backward(u, delta, A, B, C, D, torch.stack(states))
        return torch.stack(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        u, delta, A, B, C, D, states = ctx.saved_tensors
        grad_u, grad_delta = torch.zeros_like(u), torch.zeros_like(delta)
        grad_A, grad_B, grad_C = torch.zeros_like(A), torch.zeros_like(B), torch.zeros_like(C)
        carry = torch.zeros_like(A)
        for t in range(u.shape[0] - 1, -1, -1):
            g = grad_y[t]
            before = states[t - 1] if t > 0 else torch.zeros_like(A)
            grad_C[t] = (g[:, None] * states[t]).sum(0)
            carry = carry + g[:, None] * C[t]
            decay = torch.exp(delta[t, :, None] * A)
            through = carry * decay * before
            grad_A += delta[t, :, None] * through
            inner = (carry * B[t]).sum(1)
            grad_delta[t] = (through * A).sum(1) + inner * u[t]
            grad_u[t] = inner * delta[t] + D * g
            grad_B[t] = (carry * (delta[t] * u[t])[:, None]).sum(0)
            carry = carry * decay
        return grad_u, grad_delta, grad_A, grad_B, grad_C, (grad_y * u).sum(0)


class DecayedCumsum(Function):
    """y_t = gamma * y_{t-1} + x_t along dim, gamma per channel (retention without heads)."""

    @staticmethod
    def forward(ctx, x, log_gamma, reverse):
        gamma = log_gamma.exp()
        order = range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0])
        y = torch.empty_like(x)
        carry = torch.zeros_like(x[0])
        for t in order:
            carry = gamma * carry + x[t]
            y[t] = carry
        ctx.save_for_backward(log_gamma, y)
        ctx.reverse = reverse
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        log_gamma, y = ctx.saved_tensors
        gamma = log_gamma.exp()
        n = y.shape[0]
        order = range(n) if ctx.reverse else range(n - 1, -1, -1)
        step = 1 if ctx.reverse else -1
        grad_x = torch.empty_like(y)
        grad_gamma = torch.zeros_like(gamma)
        carry = torch.zeros_like(y[0])
        for t in order:
            carry = gamma * carry + grad_output[t]
            grad_x[t] = carry
            source = t + step
            if 0 <= source < n:
                grad_gamma += (carry * y[source]).reshape(-1, gamma.shape[0]).sum(0)
        return grad_x, grad_gamma * gamma, None


# --- graphs, segments, sparse --------------------------------------------------------------------
class SegmentSoftmax(Function):
    @staticmethod
    def forward(ctx, scores, segment, count):
        top = torch.full((count,), -math.inf, dtype=scores.dtype, device=scores.device)
        top = top.scatter_reduce(0, segment, scores, "amax")
        e = torch.exp(scores - top[segment])
        total = torch.zeros(count, dtype=scores.dtype, device=scores.device).index_add(0, segment, e)
        y = e / total[segment]
        ctx.save_for_backward(y, segment)
        ctx.count = count
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, segment = ctx.saved_tensors
        weighted = y * grad_output
        total = torch.zeros(ctx.count, dtype=y.dtype, device=y.device).index_add(0, segment, weighted)
        return weighted - y * total[segment], None, None


class EmbeddingBagMean(Function):
    """Mean of the rows of each bag; rows equal to padding do not count; per-sample weights are optional."""

    @staticmethod
    def forward(ctx, table, index, offsets, weights, padding):
        bags = torch.bucketize(torch.arange(len(index), device=index.device), offsets[1:], right=True)
        keep = index != padding
        w = keep.to(table.dtype) if weights is None else weights * keep
        size = len(offsets) - 1
        count = torch.zeros(size, dtype=table.dtype).index_add(0, bags, keep.to(table.dtype)).clamp(min=1)
        out = table.new_zeros(size, table.shape[1]).index_add(0, bags, table[index] * w[:, None])
        ctx.save_for_backward(table, index, bags, keep, count, weights)
        return out / count[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        table, index, bags, keep, count, weights = ctx.saved_tensors
        g = (grad_output / count[:, None])[bags] * keep[:, None]
        rows = g if weights is None else g * weights[:, None]
        grad_table = torch.zeros_like(table).index_add(0, index, rows)
        grad_weights = None
        if ctx.needs_input_grad[3]:
            grad_weights = (g * table[index]).sum(1)
        return grad_table, None, None, grad_weights, None


class CooMatmul(Function):
    """Sparse (values at rows, cols; duplicates add) times dense."""

    @staticmethod
    def forward(ctx, values, rows, cols, dense, m):
        ctx.save_for_backward(values, rows, cols, dense)
        ctx.m = m
        return dense.new_zeros(m, dense.shape[1]).index_add(0, rows, values[:, None] * dense[cols])

    @staticmethod
    def backward(ctx, grad_output):
        values, rows, cols, dense = ctx.saved_tensors
        grad_values = grad_dense = None
        picked = grad_output[rows]
        if ctx.needs_input_grad[0]:
            grad_values = (picked * dense[cols]).sum(-1)
        if ctx.needs_input_grad[3]:
            grad_dense = torch.zeros_like(dense).index_add(0, cols, values[:, None] * picked)
        return grad_values, None, None, grad_dense, None


class SegmentMaxArg(Function):
    """Maximum over the rows of each (sorted) segment and its row; empty segments give zero."""

    @staticmethod
    def forward(ctx, x, offsets):
        out, arg = [], []
        for i in range(len(offsets) - 1):
            a, b = int(offsets[i]), int(offsets[i + 1])
            if a == b:
                out.append(x.new_zeros(x.shape[1]))
                arg.append(torch.full((x.shape[1],), -1, dtype=torch.int64, device=x.device))
            else:
                value, where = x[a:b].max(0)
                out.append(value)
                arg.append(where + a)
        out, arg = torch.stack(out), torch.stack(arg)
        ctx.save_for_backward(arg)
        ctx.rows = x.shape[0]
        ctx.mark_non_differentiable(arg)
        return out, arg

    @staticmethod
    def backward(ctx, grad_out, _):
        (arg,) = ctx.saved_tensors
        hit = arg >= 0
        grad = grad_out.new_zeros(ctx.rows, grad_out.shape[1])
        return grad.scatter_add(0, arg.clamp(min=0), grad_out * hit), None


# --- images, rendering ---------------------------------------------------------------------------
class BilinearSample(Function):
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
        for flat, inside, wx, wy, _, _ in BilinearSample.corners(points, h, w):
            out = out + (flat_image[:, flat] * (wx * wy * inside)).t()
        ctx.save_for_backward(image, points)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        image, points = ctx.saved_tensors
        c, h, w = image.shape
        flat_image = image.reshape(c, h * w)
        grad_image = torch.zeros_like(flat_image)
        gx, gy = torch.zeros_like(points[:, 0]), torch.zeros_like(points[:, 1])
        for flat, inside, wx, wy, sx, sy in BilinearSample.corners(points, h, w):
            grad_image.index_add_(1, flat, (grad_output * (wx * wy * inside)[:, None]).t())
            along = (grad_output * flat_image[:, flat].t()).sum(1) * inside
            gx += along * sx * wy
            gy += along * sy * wx
        return grad_image.view(c, h, w), torch.stack((gx, gy), dim=1)


class VolumeRender(Function):
    """Colour, depth and opacity of rays from densities (NeRF)."""

    @staticmethod
    def forward(ctx, sigma, rgb, delta, t):
        tau = sigma * delta
        before = torch.cumsum(tau, 1) - tau
        weight = torch.exp(-before) * (1 - torch.exp(-tau))
        ctx.save_for_backward(sigma, rgb, delta, t, weight)
        return (weight[..., None] * rgb).sum(1), (weight * t).sum(1), weight.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_color, grad_depth, grad_opacity):
        sigma, rgb, delta, t, weight = ctx.saved_tensors
        tau = sigma * delta
        after = torch.exp(-torch.cumsum(tau, 1))
        grad_weight = (grad_color[:, None] * rgb).sum(-1) + grad_depth[:, None] * t + grad_opacity[:, None]
        contribution = grad_weight * weight
        behind = contribution.sum(1, keepdim=True) - torch.cumsum(contribution, 1)
        grad_tau = grad_weight * after - behind
        grad_rgb = weight[..., None] * grad_color[:, None]
        return grad_tau * delta, grad_rgb, None, None


# --- transforms ----------------------------------------------------------------------------------
class FFTCausalConv(Function):
    """y[b, d, t] = sum_{s<=t} k[d, s] u[b, d, t-s] through FFTs of twice the length, plus a skip D*u."""

    @staticmethod
    def forward(ctx, u, k, D):
        n = u.shape[-1]
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * n) * torch.fft.rfft(k, n=2 * n), n=2 * n)[..., :n]
        ctx.save_for_backward(u, k, D)
        return y + D[:, None] * u

    @staticmethod
    def backward(ctx, grad_output):
        u, k, D = ctx.saved_tensors
        n = u.shape[-1]
        g = torch.fft.rfft(grad_output, n=2 * n)
        grad_u = torch.fft.irfft(g * torch.fft.rfft(k, n=2 * n).conj(), n=2 * n)[..., :n]
        grad_k = torch.fft.irfft((g * torch.fft.rfft(u, n=2 * n).conj()).sum(0), n=2 * n)[..., :n]
        return grad_u + D[:, None] * grad_output, grad_k, (grad_output * u).sum((0, 2))


class ModReLU(Function):
    """relu(|z| + b) z/|z| of complex activations."""

    @staticmethod
    def forward(ctx, z, b):
        r = z.abs()
        ctx.save_for_backward(z, b)
        return F.relu(r + b) * z / r

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, b = ctx.saved_tensors
        r = z.abs()
        unit = z / r
        on = (r + b > 0).to(r.dtype)
        radial = (g * unit.conj()).real
        tangential = (g * unit.conj()).imag
        grad_z = unit * torch.complex(on * radial, on * tangential * (r + b) / r)
        return grad_z, (on * radial).sum(0)


# --- linear algebra ------------------------------------------------------------------------------
class GaussianNLL(Function):
    """0.5 (y^T K^-1 y + log det K) by a Cholesky factor."""

    @staticmethod
    def forward(ctx, K, y):
        L = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(y[:, None], L)[:, 0]
        ctx.save_for_backward(L, alpha)
        return 0.5 * y.dot(alpha) + L.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        L, alpha = ctx.saved_tensors
        inverse = torch.cholesky_inverse(L)
        grad_K = 0.5 * (inverse - torch.outer(alpha, alpha))
        return grad_output * grad_K, grad_output * alpha


class TriangularSolve(Function):
    """X with T X = B (or T^T X = B), T a triangle of the given matrix."""

    @staticmethod
    def forward(ctx, T, B, upper, transpose):
        A = T.triu() if upper else T.tril()
        X = torch.linalg.solve_triangular(A.mT if transpose else A, B, upper=upper != transpose)
        ctx.save_for_backward(T, X)
        ctx.upper, ctx.transpose = upper, transpose
        return X

    @staticmethod
    def backward(ctx, grad_X):
        T, X = ctx.saved_tensors
        A = T.triu() if ctx.upper else T.tril()
        op = A if ctx.transpose else A.mT
        grad_B = torch.linalg.solve_triangular(op, grad_X, upper=ctx.upper == ctx.transpose)
        grad_T = -X @ grad_B.mT if ctx.transpose else -grad_B @ X.mT
        grad_T = grad_T.triu() if ctx.upper else grad_T.tril()
        return grad_T, grad_B, None, None


class MatrixLogSPD(Function):
    """log of a symmetric positive definite matrix by its eigenvalues."""

    @staticmethod
    def forward(ctx, A):
        w, V = torch.linalg.eigh(A)
        ctx.save_for_backward(w, V)
        return (V * w.log()) @ V.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        w, V = ctx.saved_tensors
        gap = w[:, None] - w[None, :]
        same = gap.abs() < 1e-8
        slope = (w.log()[:, None] - w.log()[None, :]) / gap.masked_fill(same, 1.0)
        slope = torch.where(same, 1 / w[:, None].expand_as(gap), slope)
        inner = V.mT @ (0.5 * (G + G.mT)) @ V
        return V @ (slope * inner) @ V.mT


# --- implicit ------------------------------------------------------------------------------------
class FixedPointTanh(Function):
    """z = tanh(W z + U x + b), iterated to rest; gradient by the implicit function theorem."""

    @staticmethod
    def forward(ctx, x, W, U, b):
        z = torch.zeros(x.shape[0], W.shape[0], dtype=x.dtype, device=x.device)
        for _ in range(200):
            z = torch.tanh(z @ W.t() + x @ U.t() + b)
        ctx.save_for_backward(x, W, U, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z):
        x, W, U, z = ctx.saved_tensors
        slope = 1 - z * z
        eye = torch.eye(W.shape[0], dtype=z.dtype, device=z.device)
        jacobian = eye - slope.unsqueeze(2) * W
        v = torch.linalg.solve(jacobian.mT, grad_z.unsqueeze(2)).squeeze(2)
        v = v * slope
        return v @ U, v.t() @ z, v.t() @ x, v.sum(0)


class CRFLogPartition(Function):
    """log Z of a linear chain with unaries [t, k], transitions [k, k] and start scores [k]."""

    @staticmethod
    def forward(ctx, unary, transition, start):
        alpha = [start + unary[0]]
        for t in range(1, unary.shape[0]):
            alpha.append(torch.logsumexp(alpha[-1][:, None] + transition, 0) + unary[t])
        ctx.save_for_backward(unary, transition, torch.stack(alpha))
        return torch.logsumexp(alpha[-1], 0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        unary, transition, alpha = ctx.saved_tensors
        steps = unary.shape[0]
        log_z = torch.logsumexp(alpha[-1], 0)
        beta = torch.zeros_like(unary[0])
        marginal = [torch.exp(alpha[-1] - log_z)]
        grad_transition = torch.zeros_like(transition)
        for t in range(steps - 1, 0, -1):
            message = transition + (unary[t] + beta)[None, :]
            grad_transition += torch.exp(alpha[t - 1][:, None] + message - log_z)
            beta = torch.logsumexp(message, 1)
            marginal.append(torch.exp(alpha[t - 1] + beta - log_z))
        marginal = torch.stack(marginal[::-1])
        return grad_output * marginal, grad_output * grad_transition, grad_output * marginal[0]


class SinkhornPlan(Function):
    """Entropic transport plan after a fixed number of iterations; backward runs the iterations backwards."""

    @staticmethod
    def forward(ctx, cost, eps, iterations):
        M = -cost / eps
        history = []
        for _ in range(iterations):
            M = M - torch.logsumexp(M, 1, keepdim=True)
            history.append(M)
            M = M - torch.logsumexp(M, 0, keepdim=True)
            history.append(M)
        ctx.save_for_backward(*history)
        ctx.eps = eps
        return M.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        history = ctx.saved_tensors
        g = grad_output * history[-1].exp()
        for i in range(len(history) - 1, -1, -1):
            dim = 0 if i % 2 else 1
            g = g - history[i].exp() * g.sum(dim, keepdim=True)
        return -g / ctx.eps, None, None


# --- geometry, blocks, interfaces ----------------------------------------------------------------
class QuaternionRotate(Function):
    """Rotates v [n, 3] by q [n, 4] = (w, x, y, z), which is normalised first."""

    @staticmethod
    def forward(ctx, q, v):
        norm = q.norm(dim=-1, keepdim=True)
        unit = q / norm
        w, u = unit[:, :1], unit[:, 1:]
        t = 2 * torch.linalg.cross(u, v)
        ctx.save_for_backward(q, v)
        return v + w * t + torch.linalg.cross(u, t)

    @staticmethod
    def backward(ctx, g):
        q, v = ctx.saved_tensors
        norm = q.norm(dim=-1, keepdim=True)
        unit = q / norm
        w, u = unit[:, :1], unit[:, 1:]
        t = 2 * torch.linalg.cross(u, v)
        grad_w = (g * t).sum(-1, keepdim=True)
        grad_t = w * g + torch.linalg.cross(g, u)
        grad_u = torch.linalg.cross(t, g) + 2 * torch.linalg.cross(v, grad_t)
        grad_v = g + 2 * torch.linalg.cross(grad_t, u)
        grad_unit = torch.cat((grad_w, grad_u), dim=-1)
        grad_q = (grad_unit - unit * (grad_unit * unit).sum(-1, keepdim=True)) / norm
        return grad_q, grad_v


class AffineCoupling(Function):
    """RealNVP coupling: the second half scaled by exp(tanh(s(a))) and shifted; returns y and log|det|."""

    @staticmethod
    def forward(ctx, x, Ws, Wt):
        a, b = x.chunk(2, dim=-1)
        s = torch.tanh(a @ Ws)
        ctx.save_for_backward(x, Ws, Wt)
        return torch.cat((a, b * s.exp() + a @ Wt), dim=-1), s.sum(-1)

    @staticmethod
    def backward(ctx, grad_y, grad_logdet):
        x, Ws, Wt = ctx.saved_tensors
        a, b = x.chunk(2, dim=-1)
        s = torch.tanh(a @ Ws)
        ga, gb = grad_y.chunk(2, dim=-1)
        grad_s = gb * b * s.exp() + grad_logdet.unsqueeze(-1)
        pre = grad_s * (1 - s * s)
        grad_a = ga + pre @ Ws.t() + gb @ Wt.t()
        return torch.cat((grad_a, gb * s.exp()), dim=-1), a.t() @ pre, a.t() @ gb


class CheckpointedBlock(Function):
    """x + W2 gelu(W1 norm(x)): keeps the inputs only and runs forward again in backward."""

    @staticmethod
    def block(x, w1, w2):
        return x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ w1) @ w2

    @staticmethod
    def forward(ctx, x, w1, w2):
        ctx.save_for_backward(x, w1, w2)
        return CheckpointedBlock.block(x, w1, w2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        inputs = [t.detach().requires_grad_(True) for t in ctx.saved_tensors]
        with torch.enable_grad():
            y = CheckpointedBlock.block(*inputs)
        return torch.autograd.grad(y, inputs, grad_output)


class MeanVar(Function):
    """Mean and variance over a dimension; undefined gradients stay None."""

    @staticmethod
    def forward(ctx, x, dim, unbiased):
        ctx.set_materialize_grads(False)
        mean = x.mean(dim)
        var = x.var(dim, unbiased=unbiased)
        ctx.save_for_backward(x)
        ctx.dim, ctx.unbiased = dim, unbiased
        return mean, var

    @staticmethod
    def backward(ctx, grad_mean, grad_var):
        (x,) = ctx.saved_tensors
        n = x.shape[ctx.dim]
        grad = None
        if grad_mean is not None:
            grad = (grad_mean / n).unsqueeze(ctx.dim).expand_as(x)
        if grad_var is not None:
            centred = x - x.mean(ctx.dim, keepdim=True)
            term = 2 * centred * grad_var.unsqueeze(ctx.dim) / (n - int(ctx.unbiased))
            grad = term if grad is None else grad + term
        return grad, None, None


class InplaceLeakyReLU(Function):
    """Leaky ReLU that overwrites its input; the sign of the result tells the branch."""

    @staticmethod
    def forward(ctx, x, slope):
        x.copy_(torch.where(x > 0, x, x * slope))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad_output, grad_output * ctx.slope), None


class BatchNormTrain(Function):
    """Batch norm of [n, c, l] in training, writing running statistics."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        dims = (0, 2)
        mean, var = x.mean(dims), x.var(dims, unbiased=False)
        count = x.shape[0] * x.shape[2]
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(var * count / (count - 1), alpha=momentum)
        rstd = torch.rsqrt(var + eps)
        hat = (x - mean[:, None]) * rstd[:, None]
        ctx.save_for_backward(hat, rstd, weight)
        return hat * weight[:, None] + bias[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, rstd, weight = ctx.saved_tensors
        dims = (0, 2)
        grad_bias = g.sum(dims)
        grad_weight = (g * hat).sum(dims)
        count = g.shape[0] * g.shape[2]
        inner = g - grad_bias[:, None] / count - hat * grad_weight[:, None] / count
        return (weight * rstd)[:, None] * inner, grad_weight, grad_bias, None, None, None, None


class GroupNormAffine(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        n, c, length = x.shape
        grouped = x.reshape(n, groups, -1)
        mean = grouped.mean(-1, keepdim=True)
        rstd = torch.rsqrt(grouped.var(-1, keepdim=True, unbiased=False) + eps)
        hat = ((grouped - mean) * rstd).view(n, c, length)
        ctx.save_for_backward(x, weight, bias)
        ctx.groups, ctx.eps = groups, eps
        out = hat * weight[:, None]
        return out if bias is None else out + bias[:, None]

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        n, c, length = x.shape
        grouped = x.reshape(n, ctx.groups, -1)
        mean = grouped.mean(-1, keepdim=True)
        rstd = torch.rsqrt(grouped.var(-1, keepdim=True, unbiased=False) + ctx.eps)
        hat = (grouped - mean) * rstd
        gw = (g * weight[:, None]).reshape(n, ctx.groups, -1)
        grad_x = rstd * (gw - gw.mean(-1, keepdim=True) - hat * (gw * hat).mean(-1, keepdim=True))
        grad_weight = (g * hat.view(n, c, length)).sum((0, 2))
        grad_bias = g.sum((0, 2)) if bias is not None else None
        return grad_x.view(n, c, length), grad_weight, grad_bias, None, None


class WeightNormLinear(Function):
    """x @ (g v / |v|)^T + b, rows of v normalised."""

    @staticmethod
    def forward(ctx, x, v, g, bias):
        norm = v.norm(dim=1)
        ctx.save_for_backward(x, v, g)
        ctx.has_bias = bias is not None
        out = (x @ v.t()) * (g / norm)
        return out + bias if bias is not None else out

    @staticmethod
    def backward(ctx, grad_output):
        x, v, g = ctx.saved_tensors
        norm = v.norm(dim=1)
        scale = g / norm
        grad_x = (grad_output * scale) @ v
        grad_w = grad_output.t() @ x
        along = (grad_w * v).sum(1)
        grad_g = along / norm
        grad_v = scale[:, None] * (grad_w - v * (along / norm.square())[:, None])
        return grad_x, grad_v, grad_g, grad_output.sum(0) if ctx.has_bias else None


class QuantisedLinear(Function):
    """y = x (scale * (codes - zero))^T: codes are int8, scales per row learn, x gets its gradient."""

    @staticmethod
    def forward(ctx, x, codes, scale, zero):
        w = (codes.to(x.dtype) - zero) * scale[:, None]
        ctx.save_for_backward(x, codes, scale)
        ctx.zero = zero
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, codes, scale = ctx.saved_tensors
        centred = codes.to(x.dtype) - ctx.zero
        grad_x = (grad_output * scale) @ centred
        grad_scale = ((grad_output.t() @ x) * centred).sum(1)
        return grad_x, None, grad_scale, None
