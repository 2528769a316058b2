"""Recurrences, scans and ragged sequences, as sequence models write them."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class MaskedMeanPool(Function):
    """Mean over the first `lengths[i]` steps of each padded sequence."""

    @staticmethod
    def forward(ctx, x, lengths):
        steps = torch.arange(x.size(1), device=x.device)
        mask = (steps[None, :] < lengths[:, None]).to(x.dtype)
        count = lengths.clamp(min=1).to(x.dtype)
        ctx.save_for_backward(mask, count)
        return (x * mask.unsqueeze(-1)).sum(1) / count.unsqueeze(-1)

    @staticmethod
    def backward(ctx, grad):
        mask, count = ctx.saved_tensors
        return mask.unsqueeze(-1) * (grad / count.unsqueeze(-1)).unsqueeze(1), None


class MinGRU(Function):
    """h_t = (1 - z_t) h_{t-1} + z_t c_t, with z = sigmoid(gate); returns all states."""

    @staticmethod
    def forward(ctx, gate, cand, h0):
        z = torch.sigmoid(gate)
        h, states = h0, []
        for t in range(gate.size(0)):
            h = (1 - z[t]) * h + z[t] * cand[t]
            states.append(h)
        states = torch.stack(states)
        ctx.save_for_backward(z, cand, h0, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_states):
        z, cand, h0, states = ctx.saved_tensors
        dz, dcand = torch.empty_like(z), torch.empty_like(cand)
        dh = torch.zeros_like(h0)
        for t in range(z.size(0) - 1, -1, -1):
            dh = dh + grad_states[t]
            before = states[t - 1] if t > 0 else h0
            dz[t] = dh * (cand[t] - before)
            dcand[t] = dh * z[t]
            dh = dh * (1 - z[t])
        return dz * z * (1 - z), dcand, dh


class CRFLogPartition(Function):
    """log Z of a linear chain with padded sequences; the gradient is the marginals."""

    @staticmethod
    def forward(ctx, emissions, transitions, lengths):
        b, t, s = emissions.shape
        alpha = emissions.new_empty(b, t, s)
        alpha[:, 0] = emissions[:, 0]
        for i in range(1, t):
            scores = alpha[:, i - 1].unsqueeze(2) + transitions
            alpha[:, i] = torch.logsumexp(scores, 1) + emissions[:, i]
        last = alpha[torch.arange(b), lengths - 1]
        log_z = torch.logsumexp(last, 1)
        ctx.save_for_backward(emissions, transitions, lengths, alpha, log_z)
        return log_z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        emissions, transitions, lengths, alpha, log_z = ctx.saved_tensors
        b, t, s = emissions.shape
        beta = torch.zeros_like(alpha)
        for i in range(t - 2, -1, -1):
            inner = transitions + (emissions[:, i + 1] + beta[:, i + 1]).unsqueeze(1)
            value = torch.logsumexp(inner, 2)
            beta[:, i] = torch.where((i < lengths - 1).unsqueeze(1), value, torch.zeros_like(value))
        valid = (torch.arange(t) < lengths.unsqueeze(1)).unsqueeze(-1)
        unary = torch.exp(alpha + beta - log_z.view(-1, 1, 1)) * valid
        pair = torch.zeros_like(transitions)
        for i in range(1, t):
            log_p = alpha[:, i - 1].unsqueeze(2) + transitions + (emissions[:, i] + beta[:, i]).unsqueeze(1)
            p = torch.exp(log_p - log_z.view(-1, 1, 1)) * valid[:, i].unsqueeze(-1)
            pair += (p * grad.view(-1, 1, 1)).sum(0)
        return unary * grad.view(-1, 1, 1), pair, None


class CumMax(Function):
    """Running maximum along a dimension, and where it was attained."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        values, indices = torch.cummax(x, dim)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        ctx.dim = dim
        return values, indices

    @staticmethod
    def backward(ctx, grad_values, _grad_indices):
        (indices,) = ctx.saved_tensors
        out = torch.zeros_like(grad_values)
        return out.scatter_add(ctx.dim, indices, grad_values), None


class DeltaRule(Function):
    """Fast-weight memory: S += beta k (v - Sᵀk)ᵀ, o = Sᵀq; the states are recomputed in backward."""

    @staticmethod
    def states(k, v, beta, s0):
        s, all_states, errors = s0, [s0], []
        for t in range(k.size(0)):
            error = v[t] - k[t] @ s
            s = s + beta[t] * torch.outer(k[t], error)
            all_states.append(s)
            errors.append(error)
        return all_states, errors

    @staticmethod
    def forward(ctx, q, k, v, beta, s0):
        states, _ = DeltaRule.states(k, v, beta, s0)
        ctx.save_for_backward(q, k, v, beta, s0)
        out = torch.stack([q[t] @ states[t + 1] for t in range(q.size(0))])
        return out, states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out, d_final):
        q, k, v, beta, s0 = ctx.saved_tensors
        states, errors = DeltaRule.states(k, v, beta, s0)
        dq, dk, dv, dbeta = (torch.zeros_like(a) for a in (q, k, v, beta))
        ds = d_final.clone()
        for t in reversed(range(q.size(0))):
            ds = ds + torch.outer(q[t], d_out[t])
            dq[t] = states[t + 1] @ d_out[t]
            dbeta[t] = k[t] @ ds @ errors[t]
            d_error = beta[t] * (k[t] @ ds)
            dk[t] = beta[t] * (ds @ errors[t]) - states[t] @ d_error
            dv[t] = d_error
            ds = ds - torch.outer(k[t], d_error)
        return dq, dk, dv, dbeta, ds


class WKV(Function):
    """The RWKV recurrence, numerators and denominators kept relative to a running maximum."""

    @staticmethod
    def forward(ctx, w, u, k, v):
        t, c = k.shape
        decay = -torch.exp(w)
        top = torch.full_like(w, -1e38)
        num, den = torch.zeros_like(w), torch.zeros_like(w)
        y = torch.empty_like(v)
        for i in range(t):
            m = torch.maximum(top, u + k[i])
            e1, e2 = torch.exp(top - m), torch.exp(u + k[i] - m)
            y[i] = (e1 * num + e2 * v[i]) / (e1 * den + e2)
            m = torch.maximum(top + decay, k[i])
            e1, e2 = torch.exp(top + decay - m), torch.exp(k[i] - m)
            num, den, top = e1 * num + e2 * v[i], e1 * den + e2, m
        ctx.save_for_backward(w, u, k, v, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, gy):
        w, u, k, v, y = ctx.saved_tensors
        t, c = k.shape
        decay = -torch.exp(w)
        dw, du, dk, dv = (torch.zeros_like(a) for a in (w, u, k, v))
        ages = torch.arange(t, dtype=k.dtype)
        for i in range(t):
            lag = (i - 1 - ages[:i]).unsqueeze(1)
            logits = torch.cat([lag * decay + k[:i], (u + k[i]).unsqueeze(0)])
            p = torch.softmax(logits, 0)
            d_logits = p * gy[i] * (v[: i + 1] - y[i])
            dv[: i + 1] += p * gy[i]
            dk[: i + 1] += d_logits
            du += d_logits[i]
            dw += (d_logits[:i] * lag).sum(0) * decay
        return dw, du, dk, dv


class ReversibleBlock(Function):
    """Additive coupling; keeps its outputs alone and computes its inputs from them again."""

    @staticmethod
    def forward(ctx, x1, x2, wf, wg):
        y1 = x1 + torch.tanh(x2 @ wf)
        y2 = x2 + torch.tanh(y1 @ wg)
        ctx.save_for_backward(y1, y2, wf, wg)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, dy1, dy2):
        y1, y2, wf, wg = ctx.saved_tensors
        g = torch.tanh(y1 @ wg)
        x2 = y2 - g
        d_pre = dy2 * (1 - g * g)
        dwg = y1.t() @ d_pre
        dx1 = dy1 + d_pre @ wg.t()
        f = torch.tanh(x2 @ wf)
        d_pre = dx1 * (1 - f * f)
        dwf = x2.t() @ d_pre
        dx2 = dy2 + d_pre @ wf.t()
        return dx1, dx2, dwf, dwg


class CausalConv1d(Function):
    """Depthwise causal convolution with an initial state, silu or not, and the state that follows."""

    @staticmethod
    def forward(ctx, x, weight, bias, initial=None, activation=None):
        width = weight.size(1)
        left = x.new_zeros(*x.shape[:2], width - 1) if initial is None else initial
        padded = torch.cat([left, x], -1)
        windows = padded.unfold(-1, width, 1)
        pre = torch.einsum("bctw,cw->bct", windows, weight)
        if bias is not None:
            pre = pre + bias[:, None]
        ctx.save_for_backward(padded, weight, pre)
        ctx.activation, ctx.width = activation, width
        final = padded[..., padded.size(-1) - (width - 1) :].clone()
        return (pre * torch.sigmoid(pre) if activation == "silu" else pre.clone()), final

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, d_final):
        padded, weight, pre = ctx.saved_tensors
        if ctx.activation == "silu":
            s = torch.sigmoid(pre)
            dy = dy * (s + pre * s * (1 - s))
        dx = dw = db = d_initial = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[3]:
            d_padded = torch.zeros_like(padded)
            t = dy.size(-1)
            for j in range(ctx.width):
                d_padded[..., j : j + t] += dy * weight[:, j, None]
            keep = ctx.width - 1
            d_padded[..., padded.size(-1) - keep :] += d_final
            if ctx.needs_input_grad[0]:
                dx = d_padded[..., keep:]
            if ctx.needs_input_grad[3]:
                d_initial = d_padded[..., :keep]
        if ctx.needs_input_grad[1]:
            dw = torch.einsum("bct,bctw->cw", dy, padded.unfold(-1, ctx.width, 1))
        if ctx.needs_input_grad[2]:
            db = dy.sum((0, 2))
        return dx, dw, db, d_initial, None


class GAE(Function):
    """Generalised advantage estimates, cut where an episode ends."""

    @staticmethod
    def forward(ctx, rewards, values, dones, gamma=0.9, lam=0.8):
        alive = 1.0 - dones.to(rewards.dtype)
        advantages = torch.zeros_like(rewards)
        running = torch.zeros_like(rewards[0])
        for t in range(rewards.size(0) - 1, -1, -1):
            delta = rewards[t] + gamma * values[t + 1] * alive[t] - values[t]
            running = delta + gamma * lam * alive[t] * running
            advantages[t] = running
        ctx.save_for_backward(alive)
        ctx.gamma, ctx.lam = gamma, lam
        return advantages

    @staticmethod
    def backward(ctx, grad):
        (alive,) = ctx.saved_tensors
        deltas, running = [], torch.zeros_like(grad[0])
        for t in range(grad.size(0)):
            before = ctx.gamma * ctx.lam * alive[t - 1] * running if t else 0.0
            running = grad[t] + before
            deltas.append(running)
        d_delta = torch.stack(deltas)
        d_values = torch.cat([-d_delta, torch.zeros_like(grad[:1])])
        shifted = torch.cat([torch.zeros_like(grad[:1]), ctx.gamma * alive * d_delta])
        return d_delta, d_values + shifted, None, None, None


class Biquad(Function):
    """A recursive filter of second order, y[t] = Σ b x - a1 y[t-1] - a2 y[t-2]."""

    @staticmethod
    def run(x, b, a):
        y = torch.zeros_like(x)
        for t in range(x.size(-1)):
            now = b[0] * x[..., t]
            for j in (1, 2):
                if t >= j:
                    now = now + b[j] * x[..., t - j] - a[j - 1] * y[..., t - j]
            y[..., t] = now
        return y

    @staticmethod
    def forward(ctx, x, b, a):
        y = Biquad.run(x, b, a)
        ctx.save_for_backward(x, b, a, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, b, a, y = ctx.saved_tensors
        only_poles = torch.tensor([1.0, 0.0, 0.0], dtype=g.dtype)
        s = Biquad.run(g.flip(-1), only_poles, a).flip(-1)
        n = x.size(-1)
        dx = b[0] * s
        db, da = [(s * x).sum()], []
        for j in (1, 2):
            if n > j:
                dx[..., : n - j] += b[j] * s[..., j:]
                db.append((s[..., j:] * x[..., : n - j]).sum())
                da.append(-(s[..., j:] * y[..., : n - j]).sum())
            else:
                db.append(s.new_zeros(()))
                da.append(s.new_zeros(()))
        return dx, torch.stack(db), torch.stack(da)


class LearnedEMA(Function):
    """s_t = a s_{t-1} + (1 - a) x_t with a = sigmoid(logit) per channel; only some states are kept."""

    @staticmethod
    def forward(ctx, x, logit, stride=2):
        a = torch.sigmoid(logit)
        s, out, kept = torch.zeros_like(x[:, 0]), [], []
        for t in range(x.size(1)):
            if t % stride == 0:
                kept.append(s)
            s = a * s + (1 - a) * x[:, t]
            out.append(s)
        ctx.save_for_backward(x, a, torch.stack(kept))
        ctx.stride = stride
        return torch.stack(out, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, a, kept = ctx.saved_tensors
        dx, da, ds = torch.empty_like(x), torch.zeros_like(a), torch.zeros_like(x[:, 0])
        for block in range(len(kept) - 1, -1, -1):
            first = block * ctx.stride
            last = min(first + ctx.stride, x.size(1))
            befores, s = [], kept[block]
            for t in range(first, last):
                befores.append(s)
                s = a * s + (1 - a) * x[:, t]
            for t in range(last - 1, first - 1, -1):
                ds = ds + g[:, t]
                da += (ds * (befores[t - first] - x[:, t])).sum(0)
                dx[:, t] = ds * (1 - a)
                ds = ds * a
        return dx, da * a * (1 - a), None
