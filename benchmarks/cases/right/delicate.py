"""Right Functions that a numerically careful hand writes: series, stable sums, dynamic programmes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class FocalLoss(Function):
    """(1 - p_t)^gamma times the cross-entropy of logits, by log-sigmoid alone."""

    @staticmethod
    def forward(ctx, x: Tensor, target: Tensor, gamma: float) -> Tensor:
        sign = 2 * target - 1
        z = sign * x
        log_p = torch.nn.functional.logsigmoid(z)
        ctx.save_for_backward(x, sign)
        ctx.gamma = gamma
        return -(torch.sigmoid(-z) ** gamma) * log_p

    @staticmethod
    def backward(ctx, g: Tensor):
        x, sign = ctx.saved_tensors
        z = sign * x
        q, p = torch.sigmoid(-z), torch.sigmoid(z)
        log_p = torch.nn.functional.logsigmoid(z)
        slope = q**ctx.gamma * (ctx.gamma * p * log_p - q)
        return g * sign * slope, None, None


class MaskedLogSoftmax(Function):
    """Log-softmax over what the mask keeps; what it hides is minus infinity, with gradient zero."""

    @staticmethod
    def forward(ctx, x: Tensor, mask: Tensor) -> Tensor:
        hidden = x.masked_fill(~mask, -math.inf)
        ctx.save_for_backward(x, mask)
        return (hidden - hidden.logsumexp(-1, keepdim=True)).masked_fill(~mask, 0.0)

    @staticmethod
    def backward(ctx, g: Tensor):
        x, mask = ctx.saved_tensors
        g = g.masked_fill(~mask, 0.0)
        return g - x.masked_fill(~mask, -math.inf).softmax(-1) * g.sum(-1, keepdim=True), None


class MaskedMean(Function):
    """The mean of what a mask keeps, zero where it keeps nothing."""

    @staticmethod
    def forward(ctx, x: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        ctx.save_for_backward(mask, count)
        return (x * mask).sum(-1) / count.squeeze(-1)

    @staticmethod
    def backward(ctx, g: Tensor):
        mask, count = ctx.saved_tensors
        return g.unsqueeze(-1) * mask / count, None


class Sparsemax(Function):
    """The projection onto the simplex, by sorting."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ordered, _ = x.sort(dim=-1, descending=True)
        total = ordered.cumsum(-1) - 1
        rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        size = (ordered * rank > total).sum(-1, keepdim=True)
        threshold = total.gather(-1, size - 1) / size
        y = (x - threshold).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g: Tensor):
        (y,) = ctx.saved_tensors
        support = y > 0
        g = g * support
        mean = g.sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return (g - mean) * support


class Entmax15(Function):
    """Entmax with exponent 1.5: y = max(x/2 - t, 0)^2, its threshold by sorting."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        z = (x - x.max(-1, keepdim=True).values) / 2
        ordered, _ = z.sort(dim=-1, descending=True)
        rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        mean = ordered.cumsum(-1) / rank
        spread = rank * (ordered.square().cumsum(-1) / rank - mean.square())
        thresholds = mean - ((1 - spread) / rank).clamp(min=0).sqrt()
        size = (thresholds <= ordered).sum(-1, keepdim=True)
        y = (z - thresholds.gather(-1, size - 1)).clamp(min=0).square()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        (y,) = ctx.saved_tensors
        root = y.sqrt()
        gx = g * root
        return gx - gx.sum(-1, keepdim=True) / root.sum(-1, keepdim=True) * root


class BestOfEach(Function):
    """The largest entry of each row and where it stands."""

    @staticmethod
    def forward(ctx, x: Tensor):
        value, index = x.max(-1)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        ctx.shape = x.shape
        return value, index

    @staticmethod
    def backward(ctx, g: Tensor, _: Tensor):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, index.unsqueeze(-1), g.unsqueeze(-1))


class Softplus(Function):
    """log(1 + exp(beta x)) / beta, and x itself past a threshold, as torch has it."""

    @staticmethod
    def forward(ctx, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.beta, ctx.threshold = beta, threshold
        return torch.where(beta * x > threshold, x, torch.log1p(torch.exp(beta * x)) / beta)

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        return torch.where(ctx.beta * x > ctx.threshold, g, g * slope), None, None


class Log1mExp(Function):
    """log(1 - exp(-x)) for positive x, by whichever of two forms is accurate."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x > math.log(2), torch.log1p(-torch.exp(-x)), torch.log(-torch.expm1(-x)))

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        return g / torch.expm1(x)


class Sinc(Function):
    """sin(x) / x, by its series near zero."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        small = x.abs() < 1e-2
        safe = torch.where(small, torch.ones_like(x), x)
        x2 = x * x
        series = 1 - x2 / 6 * (1 - x2 / 20 * (1 - x2 / 42))
        return torch.where(small, series, safe.sin() / safe)

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        small = x.abs() < 1e-1
        safe = torch.where(small, torch.ones_like(x), x)
        x2 = x * x
        series = -x / 3 * (1 - x2 / 10 * (1 - x2 / 28 * (1 - x2 / 54 * (1 - x2 / 88))))
        return g * torch.where(small, series, (safe.cos() - safe.sin() / safe) / safe)


class Rotation(Function):
    """Rodrigues' formula for one axis-angle vector: coefficients by series at small angles."""

    @staticmethod
    def coefficients(w: Tensor):
        angle2 = (w * w).sum()
        if angle2 < 1e-4:
            a = 1 - angle2 / 6 * (1 - angle2 / 20 * (1 - angle2 / 42))
            b = (1 - angle2 / 12 * (1 - angle2 / 30 * (1 - angle2 / 56))) / 2
        else:
            angle = angle2.sqrt()
            a, b = angle.sin() / angle, (1 - angle.cos()) / angle2
        return a, b

    @staticmethod
    def hat(w: Tensor) -> Tensor:
        zero = torch.zeros_like(w[0])
        return torch.stack([zero, -w[2], w[1], w[2], zero, -w[0], -w[1], w[0], zero]).view(3, 3)

    @staticmethod
    def forward(ctx, w: Tensor) -> Tensor:
        a, b = Rotation.coefficients(w)
        k = Rotation.hat(w)
        r = torch.eye(3, dtype=w.dtype, device=w.device) + a * k + b * k @ k
        ctx.save_for_backward(w, r)
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        w, r = ctx.saved_tensors
        a, b = Rotation.coefficients(w)
        k = Rotation.hat(w)
        angle2 = (w * w).sum()
        c = (1 - angle2 / 20 * (1 - angle2 / 42)) / 6 if angle2 < 1e-4 else (1 - a) / angle2
        left = torch.eye(3, dtype=w.dtype, device=w.device) + b * k + c * k @ k
        m = g @ r.T
        tangent = torch.stack([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
        return left.T @ tangent


class LogNormalCdf(Function):
    """log of the normal distribution function; its slope is the inverse Mills ratio, by erfcx."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.special.log_ndtr(x)

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        ratio = math.sqrt(2 / math.pi) / torch.special.erfcx(-x / math.sqrt(2))
        return g * ratio


class CumulativeProduct(Function):
    """Products of the entries so far, right where entries are zero: no division."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.cumprod(-1)

    @staticmethod
    def backward(ctx, g: Tensor):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        columns = []
        for k in range(n):
            before = x[..., :k].prod(-1, keepdim=True)
            after = torch.cat([torch.ones_like(before), x[..., k + 1 :].cumprod(-1)], -1)
            columns.append((g[..., k:] * before * after).sum(-1))
        return torch.stack(columns, -1)


class HiddenMarkov(Function):
    """Log-likelihood of a chain by the forward recursion, its gradient by forward-backward."""

    @staticmethod
    def forward(ctx, start: Tensor, move: Tensor, seen: Tensor) -> Tensor:
        alpha = [start + seen[0]]
        for t in range(1, seen.shape[0]):
            alpha.append((alpha[-1].unsqueeze(1) + move).logsumexp(0) + seen[t])
        total = alpha[-1].logsumexp(0)
        ctx.save_for_backward(move, seen, torch.stack(alpha), total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        move, seen, alpha, total = ctx.saved_tensors
        beta = [torch.zeros_like(seen[0])]
        for t in range(seen.shape[0] - 1, 0, -1):
            beta.append((move + (seen[t] + beta[-1]).unsqueeze(0)).logsumexp(1))
        beta = torch.stack(beta[::-1])
        single = (alpha + beta - total).exp()
        pairs = torch.zeros_like(move)
        for t in range(1, seen.shape[0]):
            pairs += (alpha[t - 1].unsqueeze(1) + move + (seen[t] + beta[t]).unsqueeze(0) - total).exp()
        return g * single[0], g * pairs, g * single


class SoftDTW(Function):
    """Soft dynamic time warping of a matrix of costs."""

    @staticmethod
    def forward(ctx, cost: Tensor, gamma: float) -> Tensor:
        n, m = cost.shape
        r = torch.full((n + 2, m + 2), math.inf, dtype=cost.dtype, device=cost.device)
        r[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                ways = torch.stack([r[i - 1, j - 1], r[i - 1, j], r[i, j - 1]])
                r[i, j] = cost[i - 1, j - 1] - gamma * torch.logsumexp(-ways / gamma, 0)
        ctx.save_for_backward(cost, r)
        ctx.gamma = gamma
        return r[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        cost, r = ctx.saved_tensors
        n, m = cost.shape
        padded = torch.zeros(n + 2, m + 2, dtype=cost.dtype, device=cost.device)
        padded[1:-1, 1:-1] = cost
        r = r.clone()
        r[:, -1] = -math.inf
        r[-1, :] = -math.inf
        r[-1, -1] = r[-2, -2]
        e = torch.zeros_like(r)
        e[-1, -1] = 1
        for j in range(m, 0, -1):
            for i in range(n, 0, -1):
                a = ((r[i + 1, j] - r[i, j] - padded[i + 1, j]) / ctx.gamma).exp()
                b = ((r[i, j + 1] - r[i, j] - padded[i, j + 1]) / ctx.gamma).exp()
                c = ((r[i + 1, j + 1] - r[i, j] - padded[i + 1, j + 1]) / ctx.gamma).exp()
                e[i, j] = e[i + 1, j] * a + e[i, j + 1] * b + e[i + 1, j + 1] * c
        return g * e[1:-1, 1:-1], None


class BestPath(Function):
    """The score of the best path through a lattice, and the path."""

    @staticmethod
    def forward(ctx, seen: Tensor, move: Tensor):
        score, back = seen[0], []
        for t in range(1, seen.shape[0]):
            best, index = (score.unsqueeze(1) + move).max(0)
            score = best + seen[t]
            back.append(index)
        path = [int(score.argmax())]
        for index in reversed(back):
            path.append(int(index[path[-1]]))
        places = torch.tensor(path[::-1], device=seen.device)
        ctx.save_for_backward(places)
        ctx.shapes = seen.shape, move.shape
        ctx.mark_non_differentiable(places)
        return score.max(), places

    @staticmethod
    def backward(ctx, g: Tensor, _):
        (places,) = ctx.saved_tensors
        of_seen, of_move = (g.new_zeros(s) for s in ctx.shapes)
        of_seen = of_seen.index_put((torch.arange(len(places)), places), g.expand(len(places)))
        steps = (places[:-1], places[1:])
        return of_seen, of_move.index_put(steps, g.expand(len(places) - 1), accumulate=True)


class BlockedAttention(Function):
    """Attention by blocks of keys with a running maximum; backward computes the weights again."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
        scale = q.shape[-1] ** -0.5
        top = q.new_full((q.shape[0], 1), -math.inf)
        total = q.new_zeros(q.shape[0], 1)
        out = q.new_zeros(q.shape[0], v.shape[-1])
        for start in range(0, k.shape[0], block):
            scores = scale * q @ k[start : start + block].T
            higher = torch.maximum(top, scores.max(-1, keepdim=True).values)
            old = (top - higher).exp()
            weight = (scores - higher).exp()
            total = total * old + weight.sum(-1, keepdim=True)
            out = out * old + weight @ v[start : start + block]
            top = higher
        out = out / total
        ctx.save_for_backward(q, k, v, out, top + total.log())
        ctx.block = block
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        q, k, v, out, norm = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        delta = (g * out).sum(-1, keepdim=True)
        gq, gk, gv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for start in range(0, k.shape[0], ctx.block):
            rows = slice(start, start + ctx.block)
            p = (scale * q @ k[rows].T - norm).exp()
            gv[rows] = p.T @ g
            gs = p * (g @ v[rows].T - delta) * scale
            gq += gs @ k[rows]
            gk[rows] = gs.T @ q
        return gq, gk, gv, None


class Compositing(Function):
    """Colours along a ray, weighted by what has not been absorbed before them."""

    @staticmethod
    def forward(ctx, density: Tensor, colour: Tensor, step: float) -> Tensor:
        depth = density * step
        before = depth.cumsum(-1) - depth
        weight = torch.exp(-before) * -torch.expm1(-depth)
        ctx.save_for_backward(depth, before, weight, colour)
        ctx.step = step
        return (weight.unsqueeze(-1) * colour).sum(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        depth, before, weight, colour = ctx.saved_tensors
        of_weight = (colour * g.unsqueeze(-2)).sum(-1)
        behind = (of_weight * weight).flip(-1).cumsum(-1).flip(-1) - of_weight * weight
        of_depth = of_weight * torch.exp(-before - depth) - behind
        return of_depth * ctx.step, weight.unsqueeze(-1) * g.unsqueeze(-2), None


class SelectiveScan(Function):
    """h_t = exp(d_t a) h_{t-1} + d_t b_t x_t, and y_t = c_t . h_t."""

    @staticmethod
    def forward(ctx, x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        h = torch.zeros_like(a)
        states, ys = [h], []
        for t in range(x.shape[0]):
            h = torch.exp(delta[t] * a) * h + delta[t] * b[t] * x[t]
            states.append(h)
            ys.append((c[t] * h).sum())
        ctx.save_for_backward(x, delta, a, b, c, torch.stack(states))
        return torch.stack(ys)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        x, delta, a, b, c, states = ctx.saved_tensors
        gx, gdelta, ga, gb, gc = (torch.zeros_like(t) for t in (x, delta, a, b, c))
        gh = torch.zeros_like(a)
        for t in reversed(range(x.shape[0])):
            gc[t] = g[t] * states[t + 1]
            gh = gh + g[t] * c[t]
            decay = torch.exp(delta[t] * a)
            ga += gh * delta[t] * decay * states[t]
            gdelta[t] = (gh * (a * decay * states[t] + b[t] * x[t])).sum()
            gb[t] = gh * delta[t] * x[t]
            gx[t] = (gh * delta[t] * b[t]).sum()
            gh = gh * decay
        return gx, gdelta, ga, gb, gc


class Chamfer(Function):
    """For each point the squared distance of the nearest of the others, and which it is."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor):
        distance = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1)
        value, index = distance.min(1)
        ctx.save_for_backward(x, y, index)
        ctx.mark_non_differentiable(index)
        return value, index

    @staticmethod
    def backward(ctx, g: Tensor, _):
        x, y, index = ctx.saved_tensors
        gx = 2 * g.unsqueeze(-1) * (x - y[index])
        return gx, torch.zeros_like(y).index_add(0, index, -gx)


class HardestTriplet(Function):
    """max(0, d(a, p) - min over n of d(a, n) + margin), squared distances."""

    @staticmethod
    def forward(ctx, a: Tensor, p: Tensor, n: Tensor, margin: float) -> Tensor:
        near = (a - p).square().sum(-1)
        far, index = (a.unsqueeze(1) - n.unsqueeze(0)).square().sum(-1).min(1)
        loss = near - far + margin
        ctx.save_for_backward(a, p, n, index, loss > 0)
        return loss.clamp(min=0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        a, p, n, index, active = ctx.saved_tensors
        on = 2 * g * active.unsqueeze(-1)
        chosen = n[index]
        gn = torch.zeros_like(n).index_add_(0, index, on * (a - chosen))
        return on * (chosen - p), on * (p - a), gn, None


class InfoNCE(Function):
    """Cross-entropy of matching rows of two sets of unit vectors; the temperature learns."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, log_scale: Tensor) -> Tensor:
        na, nb = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
        ua, ub, scale = a / na, b / nb, log_scale.exp()
        raw = ua @ ub.T
        log_p = torch.log_softmax(scale * raw, -1)
        ctx.save_for_backward(ua, ub, na, nb, raw, log_p, scale)
        return -log_p.diagonal().mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        ua, ub, na, nb, raw, log_p, scale = ctx.saved_tensors
        n = raw.shape[0]
        gs = (log_p.exp() - torch.eye(n, dtype=raw.dtype, device=raw.device)) * g / n
        graw = gs * scale
        gua, gub = graw @ ub, graw.T @ ua
        ga = (gua - ua * (ua * gua).sum(-1, keepdim=True)) / na
        gb = (gub - ub * (ub * gub).sum(-1, keepdim=True)) / nb
        return ga, gb, (gs * raw).sum() * scale


class Pinball(Function):
    """The loss of quantile regression: two slopes that meet at zero."""

    @staticmethod
    def forward(ctx, pred: Tensor, target: Tensor, q: float) -> Tensor:
        off = target - pred
        ctx.save_for_backward(off)
        ctx.q = q
        return torch.maximum(q * off, (q - 1) * off).mean()

    @staticmethod
    def backward(ctx, g: Tensor):
        (off,) = ctx.saved_tensors
        slope = ((off > 0).to(off.dtype) + (ctx.q - 1)) / off.numel()
        return -g * slope, g * slope, None


class Clenshaw(Function):
    """A Chebyshev series by Clenshaw's recurrence; its slope by the polynomials of the second kind."""

    @staticmethod
    def forward(ctx, x: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(x, c)
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        for k in range(c.shape[0] - 1, 0, -1):
            first, second = c[k] + 2 * x * first - second, first
        return c[0] + x * first - second

    @staticmethod
    def backward(ctx, g: Tensor):
        x, c = ctx.saved_tensors
        t, u = [torch.ones_like(x), x], [torch.zeros_like(x), torch.ones_like(x)]
        for _ in range(2, c.shape[0]):
            t.append(2 * x * t[-1] - t[-2])
            u.append(2 * x * u[-1] - u[-2])
        slope = sum(k * c[k] * u[k] for k in range(1, c.shape[0]))
        return g * slope, torch.stack([(g * t[k]).sum() for k in range(c.shape[0])])


class Kahan(Function):
    """A compensated sum of the rows."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        total, lost = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
        for k in range(x.shape[-1]):
            y = x[..., k] - lost
            new = total + y
            lost = (new - total) - y
            total = new
        ctx.shape = x.shape
        return total

    @staticmethod
    def backward(ctx, g: Tensor):
        return g.unsqueeze(-1).expand(ctx.shape)


class OffsetsMean(Function):
    """Means of runs of rows that offsets bound; an empty run is zero."""

    @staticmethod
    def forward(ctx, x: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.rows = x.shape[0]
        runs = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        return torch.stack([x[a:b].sum(0) / max(b - a, 1) for a, b in runs])

    @staticmethod
    def backward(ctx, g: Tensor):
        (offsets,) = ctx.saved_tensors
        lengths = offsets.diff().long()
        spread = (g / lengths.clamp(min=1).unsqueeze(-1)).repeat_interleave(lengths, 0)
        before, after = int(offsets[0]), ctx.rows - int(offsets[-1])
        return torch.nn.functional.pad(spread, (0, 0, before, after)), None


class Float32Statistics(Function):
    """Normalisation that computes in float32 whatever comes in, as kernels for half precision do."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        x32 = x.float()
        inverse = (x32.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, w, inverse)
        return (x32 * inverse * w.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor):
        x, w, inverse = ctx.saved_tensors
        g32, unit = g.float(), x.float() * inverse
        gw = g32 * w.float()
        gx = inverse * (gw - unit * (gw * unit).mean(-1, keepdim=True))
        return gx.to(x.dtype), (g32 * unit).sum(0).to(w.dtype)


def first_always(generator, device, dtype, shape):
    """A mask that keeps the first entry of each row."""
    mask = torch.rand(shape, generator=generator) > 0.4
    mask[:, 0] = True
    return mask.to(device)
