"""Without a spec: inputs whose sizes and kinds follow from each other, as published packages have them."""

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class LstmCell(Function):
    """Right: four gates of one product, cut apart; widths of input, state and cell are free."""

    @staticmethod
    def forward(ctx, x, h, c, W, U, b):
        gates = x @ W.t() + h @ U.t() + b
        i, f, g, o = gates.chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c_new = f * c + i * g
        h_new = o * c_new.tanh()
        ctx.save_for_backward(x, h, c, W, U, i, f, g, o, c_new)
        return h_new, c_new

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dc):
        x, h, c, W, U, i, f, g, o, c_new = ctx.saved_tensors
        t = c_new.tanh()
        do = dh * t
        dct = dc + dh * o * (1 - t**2)
        df, di, dg = dct * c, dct * g, dct * i
        dgates = torch.cat([di * i * (1 - i), df * f * (1 - f), dg * (1 - g**2), do * o * (1 - o)], 1)
        return dgates @ W, dgates @ U, dct * f, dgates.t() @ x, dgates.t() @ h, dgates.sum(0)


class GruCell(Function):
    """Right: three gates of two products each."""

    @staticmethod
    def forward(ctx, x, hidden, w_ih, w_hh, b_ih, b_hh):
        gi = F.linear(x, w_ih, b_ih)
        gh = F.linear(hidden, w_hh, b_hh)
        i_r, i_z, i_n = gi.chunk(3, 1)
        h_r, h_z, h_n = gh.chunk(3, 1)
        r = torch.sigmoid(i_r + h_r)
        z = torch.sigmoid(i_z + h_z)
        n = torch.tanh(i_n + r * h_n)
        ctx.save_for_backward(x, hidden, w_ih, w_hh, r, z, n, h_n)
        return n + z * (hidden - n)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hy):
        x, hidden, w_ih, w_hh, r, z, n, h_n = ctx.saved_tensors
        dz = grad_hy * (hidden - n) * z * (1 - z)
        dn = grad_hy * (1 - z) * (1 - n * n)
        dr = dn * h_n * r * (1 - r)
        dgi = torch.cat((dr, dz, dn), 1)
        dgh = torch.cat((dr, dz, dn * r), 1)
        return (
            dgi @ w_ih,
            dgh @ w_hh + grad_hy * z,
            dgi.t() @ x,
            dgh.t() @ hidden,
            dgi.sum(0),
            dgh.sum(0),
        )


class SelectiveScan(Function):
    """Right: `A` has two dimensions among inputs of three, which nothing in forward says."""

    @staticmethod
    def forward(ctx, u, delta, A, B, C):
        b, steps, d = u.shape
        n = A.shape[1]
        dA = torch.exp(delta.unsqueeze(-1) * A)
        dBu = (delta * u).unsqueeze(-1) * B.unsqueeze(2)
        h = u.new_zeros(b, d, n)
        hs, ys = [], []
        for t in range(steps):
            h = dA[:, t] * h + dBu[:, t]
            hs.append(h)
            ys.append((h * C[:, t].unsqueeze(1)).sum(-1))
        ctx.save_for_backward(u, delta, A, B, C, dA, torch.stack(hs, 1))
        return torch.stack(ys, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, delta, A, B, C, dA, hs = ctx.saved_tensors
        steps = u.shape[1]
        gh = torch.zeros_like(hs[:, 0])
        gu, gdelta, gA = torch.zeros_like(u), torch.zeros_like(delta), torch.zeros_like(A)
        gB, gC = torch.zeros_like(B), torch.zeros_like(C)
        for t in range(steps - 1, -1, -1):
            gC[:, t] = (g[:, t].unsqueeze(-1) * hs[:, t]).sum(1)
            gh = gh + g[:, t].unsqueeze(-1) * C[:, t].unsqueeze(1)
            prev = hs[:, t - 1] if t > 0 else torch.zeros_like(hs[:, 0])
            gdA = gh * prev * dA[:, t]
            gA = gA + (gdA * delta[:, t].unsqueeze(-1)).sum(0)
            gBu = (gh * B[:, t].unsqueeze(1)).sum(-1)
            gdelta[:, t] = (gdA * A).sum(-1) + gBu * u[:, t]
            gu[:, t] = gBu * delta[:, t]
            gB[:, t] = (gh * (delta[:, t] * u[:, t]).unsqueeze(-1)).sum(1)
            gh = gh * dA[:, t]
        return gu, gdelta, gA, gB, gC


class LowRank(Function):
    """Right: a frozen weight, and two thin factors."""

    @staticmethod
    def forward(ctx, X, W, A, B, S):
        ctx.save_for_backward(X, W, A, B)
        ctx.S = S
        return X @ W.t() + S * (X @ A) @ B

    @staticmethod
    @once_differentiable
    def backward(ctx, dY):
        X, W, A, B = ctx.saved_tensors
        S = ctx.S
        dX = dY @ W + S * (dY @ B.t()) @ A.t()
        dA = S * X.t() @ (dY @ B.t())
        dB = S * (X @ A).t() @ dY
        return dX, None, dA, dB, None


class Rotary(Function):
    """Right: pairs of halves."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        ctx.save_for_backward(cos, sin)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        g1, g2 = g.chunk(2, dim=-1)
        return torch.cat((g1 * cos + g2 * sin, g2 * cos - g1 * sin), dim=-1), None, None


class MessagePassing(Function):
    """Right: sources and targets of edges in the two rows of one tensor, a weight for each edge."""

    @staticmethod
    def forward(ctx, x, edge_index, edge_weight):
        row, col = edge_index
        out = torch.zeros_like(x)
        out.index_add_(0, col, edge_weight.unsqueeze(-1) * x[row])
        ctx.save_for_backward(x, edge_index, edge_weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, edge_index, w = ctx.saved_tensors
        row, col = edge_index
        gx = torch.zeros_like(x)
        gx.index_add_(0, row, w.unsqueeze(-1) * grad_out[col])
        gw = (x[row] * grad_out[col]).sum(-1)
        return gx, None, gw


class SegmentMean(Function):
    """Right: offsets that begin with zero and end with the number of rows."""

    @staticmethod
    def forward(ctx, feats, cu_seqlens):
        out = []
        for i in range(cu_seqlens.numel() - 1):
            s, e = cu_seqlens[i].item(), cu_seqlens[i + 1].item()
            out.append(feats[s:e].mean(0))
        ctx.save_for_backward(cu_seqlens)
        ctx.shape = feats.shape
        return torch.stack(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (cu,) = ctx.saved_tensors
        gx = g.new_zeros(ctx.shape)
        for i in range(cu.numel() - 1):
            s, e = cu[i].item(), cu[i + 1].item()
            gx[s:e] = g[i] / (e - s)
        return gx, None


class ModRelu(Function):
    """Right: of complex numbers alone."""

    @staticmethod
    def forward(ctx, z, b):
        r = torch.sqrt(z.real**2 + z.imag**2)
        s = torch.relu(r + b) / r
        ctx.save_for_backward(z, b, r)
        return torch.view_as_complex(torch.view_as_real(z) * s.unsqueeze(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, b, r = ctx.saved_tensors
        on = (r + b > 0).to(r.dtype)
        s = on * (r + b) / r
        radial = (g.real * z.real + g.imag * z.imag) / r
        ds = on * (-b / r**2)
        gz = g * s + z * (radial * ds)
        gb = (on * radial).reshape(-1, b.shape[-1]).sum(0) if b.dim() else (on * radial).sum()
        return gz, gb


class PixelUnshuffle(Function):
    """Right: two dimensions are multiples of a factor; with a factor of one nothing is moved."""

    @staticmethod
    def forward(ctx, x, downscale_factor):
        b, c, h, w = x.shape
        r = downscale_factor
        ctx.r, ctx.shape = r, x.shape
        return (
            x.view(b, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4).reshape(b, c * r * r, h // r, w // r)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        b, c, h, w = ctx.shape
        r = ctx.r
        return g.view(b, c, r, r, h // r, w // r).permute(0, 1, 4, 2, 5, 3).reshape(b, c, h, w), None


class GroupNorm(Function):
    """Right: weights of one dimension, a number of groups."""

    @staticmethod
    def forward(ctx, x, num_groups, weight, bias, eps):
        N, C = x.shape[:2]
        xg = x.reshape(N, num_groups, -1)
        mu = xg.mean(-1, keepdim=True)
        rstd = (xg.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        xhat = ((xg - mu) * rstd).reshape(x.shape)
        shape = (1, C) + (1,) * (x.dim() - 2)
        ctx.save_for_backward(xhat, rstd, weight)
        ctx.groups = num_groups
        return xhat * weight.view(shape) + bias.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, rstd, weight = ctx.saved_tensors
        N, C = xhat.shape[:2]
        dims = [0, *range(2, xhat.dim())]
        gw, gb = (g * xhat).sum(dims), g.sum(dims)
        shape = (1, C) + (1,) * (xhat.dim() - 2)
        gg = (g * weight.view(shape)).reshape(N, ctx.groups, -1)
        xg = xhat.reshape(N, ctx.groups, -1)
        gx = rstd * (gg - gg.mean(-1, keepdim=True) - xg * (gg * xg).mean(-1, keepdim=True))
        return gx.reshape(xhat.shape), None, gw, gb, None


class Suppressed(Function):
    """Right: boxes are of four numbers."""

    @staticmethod
    def forward(ctx, boxes, scores, iou_threshold: float):
        lt = torch.max(boxes[:, None, :2], boxes[None, :, :2])
        rb = torch.min(boxes[:, None, 2:], boxes[None, :, 2:])
        wh = (rb - lt).clamp(min=0)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        inter = wh[..., 0] * wh[..., 1]
        iou = inter / (area[:, None] + area[None] - inter)
        keep = ((iou > iou_threshold) & (scores[:, None] < scores[None])).sum(1) == 0
        ctx.save_for_backward(keep)
        return scores * keep

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (keep,) = ctx.saved_tensors
        return None, g * keep, None


class HeronRoot(Function):
    """Square roots by Heron's iteration until nothing changes."""

    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=1.0)
        for _ in range(60):
            after = 0.5 * (y + x / y)
            if torch.equal(after, y):
                break
            y = after
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


class TutorialLstm(Function):
    """Right where state and cell are of one width, which backward alone asks for."""

    @staticmethod
    def forward(ctx, x, weight, bias, old_h, old_cell):
        X = torch.cat([old_h, x], dim=1)
        gate_weights = F.linear(X, weight, bias)
        gates = gate_weights.chunk(3, dim=1)
        input_gate = torch.sigmoid(gates[0])
        output_gate = torch.sigmoid(gates[1])
        candidate_cell = F.elu(gates[2])
        new_cell = old_cell + candidate_cell * input_gate
        new_h = torch.tanh(new_cell) * output_gate
        ctx.save_for_backward(new_cell, input_gate, output_gate, candidate_cell, X, gate_weights, weight)
        return new_h, new_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_h, grad_cell):
        new_cell, input_gate, output_gate, candidate_cell, X, gate_weights, weight = ctx.saved_tensors
        t = torch.tanh(new_cell)
        d_output_gate = t * grad_h
        d_new_cell = (1 - t * t) * output_gate * grad_h + grad_cell
        d_candidate = input_gate * d_new_cell
        d_input_gate = candidate_cell * d_new_cell
        gates = gate_weights.chunk(3, dim=1)
        s0, s1 = torch.sigmoid(gates[0]), torch.sigmoid(gates[1])
        d_input_gate = d_input_gate * s0 * (1 - s0)
        d_output_gate = d_output_gate * s1 * (1 - s1)
        d_candidate = d_candidate * torch.where(gates[2] > 0, torch.ones_like(gates[2]), gates[2].exp())
        d_gates = torch.cat([d_input_gate, d_output_gate, d_candidate], dim=1)
        d_weights = d_gates.t().mm(X)
        d_bias = d_gates.sum(dim=0)
        d_X = d_gates.mm(weight)
        state = grad_h.size(1)
        return d_X[:, state:], d_weights, d_bias, d_X[:, :state], d_new_cell


class GruCellSwaps(GruCell):
    """Wrong: the gradients of the two biases are swapped."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hy):
        *others, first, second = GruCell.backward(ctx, grad_hy)
        return (*others, second, first)


class ScanForgetsSteps(SelectiveScan):
    """Wrong: the gradient of `A` without a factor."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        gu, gdelta, ga, gb, gc = SelectiveScan.backward(ctx, g)
        return gu, gdelta, 0.5 * ga, gb, gc


class MessagePassingBackwards(MessagePassing):
    """Wrong: each edge is gone in the direction it has."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, edge_index, w = ctx.saved_tensors
        row, col = edge_index
        gx = torch.zeros_like(x)
        gx.index_add_(0, col, w.unsqueeze(-1) * grad_out[row])
        return gx, None, (x[row] * grad_out[col]).sum(-1)


class ModReluPhase(ModRelu):
    """Wrong: conjugated."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        gz, gb = ModRelu.backward(ctx, g)
        return gz.conj().resolve_conj(), gb


class CoarseWeight(Function):
    """Not the derivative, and meant so: forward keeps eight bits of a weight, as wide values show."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = weight.abs().max() / 127
        kept = (weight / scale).round() * scale
        ctx.save_for_backward(x, kept)
        return x @ kept.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, kept = ctx.saved_tensors
        return g @ kept, g.t() @ x


class Tridiagonal(Function):
    """Right: Thomas' algorithm. Longer bands run as well: forward leaves their ends unread."""

    @staticmethod
    def thomas(lower, main, upper, rhs):
        n = main.size(0)
        c, d = [], []
        for i in range(n):
            pivot = main[i] - (lower[i - 1] * c[i - 1] if i else 0)
            c.append(upper[i] / pivot if i < n - 1 else None)
            d.append((rhs[i] - (lower[i - 1] * d[i - 1] if i else 0)) / pivot)
        x = [d[-1]]
        for i in range(n - 2, -1, -1):
            x.append(d[i] - c[i] * x[-1])
        return torch.stack(x[::-1])

    @staticmethod
    def forward(ctx, lower, main, upper, rhs):
        x = Tridiagonal.thomas(lower, main, upper, rhs)
        ctx.save_for_backward(lower, main, upper, x)
        return x

    @staticmethod
    def backward(ctx, g):
        lower, main, upper, x = ctx.saved_tensors
        w = Tridiagonal.apply(upper, main, lower, g)
        return -w[1:] * x[:-1], -w * x, -w[:-1] * x[1:], w


class BackwardWarp(Function):
    """Right: samples an image at pixel + flow, of which forward reads two planes."""

    @staticmethod
    def corners(x, y, h, w, border):
        x0, y0 = x.floor().long(), y.floor().long()
        for dy in (0, 1):
            for dx in (0, 1):
                xi, yi = x0 + dx, y0 + dy
                inside = torch.ones_like(xi, dtype=torch.bool)
                if not border:
                    inside = (xi >= 0) & (xi < w) & (yi >= 0) & (yi < h)
                yield dx, dy, xi.clamp(0, w - 1), yi.clamp(0, h - 1), inside

    @staticmethod
    def forward(ctx, image, flow, padding="zeros"):
        _, h, w = image.shape
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        x, y = columns + flow[0], rows + flow[1]
        fx, fy = x - x.floor(), y - y.floor()
        out = torch.zeros_like(image)
        for dx, dy, xi, yi, inside in BackwardWarp.corners(x, y, h, w, padding == "border"):
            weight = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * inside
            out = out + image[:, yi, xi] * weight
        ctx.save_for_backward(image, x, y)
        ctx.border = padding == "border"
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        image, x, y = ctx.saved_tensors
        c, h, w = image.shape
        fx, fy = x - x.floor(), y - y.floor()
        d_image = image.new_zeros(c, h * w)
        d_flow = torch.zeros(2, h, w, dtype=image.dtype)
        for dx, dy, xi, yi, inside in BackwardWarp.corners(x, y, h, w, ctx.border):
            wx, wy = (fx if dx else 1 - fx), (fy if dy else 1 - fy)
            d_image.index_add_(1, (yi * w + xi).reshape(-1), (g * wx * wy * inside).reshape(c, -1))
            along = (g * image[:, yi, xi]).sum(0) * inside
            d_flow[0] += (1 if dx else -1) * wy * along
            d_flow[1] += (1 if dy else -1) * wx * along
        return d_image.view(c, h, w), d_flow, None


class CholeskyFactor(Function):
    """Right: a matrix that must be square before it can be positive definite; Murray's formula."""

    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky((a + a.mT) / 2)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        phi = (factor.mT @ g.tril()).tril()
        phi = phi - 0.5 * torch.diag_embed(phi.diagonal(dim1=-2, dim2=-1))
        s = torch.linalg.solve_triangular(factor.mT, phi, upper=True)
        s = torch.linalg.solve_triangular(factor, s, upper=False, left=False)
        return (s + s.mT) / 2


class JacobiForgetsDiagonal(Function):
    """Wrong; what was guessed must not be sweeps of which there is none."""

    @staticmethod
    def forward(ctx, a, b, sweeps=3, damping=0.7):
        diagonal = a.diagonal()
        x, states = torch.zeros_like(b), []
        for _ in range(sweeps):
            states.append(x)
            x = x + damping * (b - a @ x) / diagonal
        ctx.save_for_backward(a, b, *states)
        ctx.damping = damping
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, *states = ctx.saved_tensors
        diagonal = a.diagonal()
        da, db = torch.zeros_like(a), torch.zeros_like(b)
        for x in reversed(states):
            step = ctx.damping * g / diagonal
            da -= torch.outer(step, x)
            db += step
            g = g - a.mT @ step
        return da, db, None, None


class ReverseDivergence(Function):
    """Wrong where beta is one: a number that the source names, and no default."""

    @staticmethod
    def forward(ctx, student, teacher, beta=0.5):
        q, p = student.exp(), teacher.exp()
        if beta == 0.0:
            loss = p * (teacher - student)
            d_student = -p
        elif beta == 1.0:
            loss = q * (student - teacher)
            d_student = q * (student - teacher)
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


class DeltaRule(Function):
    """Fast-weight memory: forward takes sequences of several lengths, and means one."""

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


class HermiteSpline(Function):
    """Forward takes points of any shape, and backward says that it wants a vector."""

    @staticmethod
    def forward(ctx, points, xs, ys, slopes):
        i = (torch.searchsorted(xs, points, right=True) - 1).clamp(0, len(xs) - 2)
        h = xs[i + 1] - xs[i]
        t = (points - xs[i]) / h
        ctx.save_for_backward(points, xs, i, ys, slopes)
        h00, h10 = (1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2
        h01, h11 = t * t * (3 - 2 * t), t * t * (t - 1)
        return h00 * ys[i] + h * h10 * slopes[i] + h01 * ys[i + 1] + h * h11 * slopes[i + 1]

    @staticmethod
    def backward(ctx, g):
        points, xs, i, ys, slopes = ctx.saved_tensors
        h = xs[i + 1] - xs[i]
        t = (points - xs[i]) / h
        h00, h10 = (1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2
        h01, h11 = t * t * (3 - 2 * t), t * t * (t - 1)
        rise = (ys[i + 1] - ys[i]) * 6 * t * (1 - t) / h
        d_points = g * (rise + (1 - t) * (1 - 3 * t) * slopes[i] + t * (3 * t - 2) * slopes[i + 1])
        d_ys = torch.zeros_like(ys).index_add(0, i, g * h00).index_add(0, i + 1, g * h01)
        d_slopes = torch.zeros_like(slopes).index_add(0, i, g * h * h10).index_add(0, i + 1, g * h * h11)
        return d_points, None, d_ys, d_slopes


def _scanned(rows, start, decay):
    b, t = rows.shape
    assert start.shape == (b,)
    state, found = start, []
    for k in range(t):
        state = decay[k] * state + rows[:, k]
        found.append(state)
    return torch.stack(found, dim=1)


class Scan(Function):
    """What its arguments are stands in a helper, which asserts without a word."""

    @staticmethod
    def forward(ctx, x, initial, decay):
        out = _scanned(x.contiguous(), start=initial, decay=decay)
        ctx.save_for_backward(out, initial, decay)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        out, initial, decay = ctx.saved_tensors
        before = torch.cat([initial.unsqueeze(1), out[:, :-1]], dim=1)
        dx, d_decay, carried = torch.zeros_like(g), torch.zeros_like(decay), torch.zeros_like(initial)
        for k in reversed(range(g.size(1))):
            carried = carried + g[:, k]
            dx[:, k] = carried
            d_decay[k] = (carried * before[:, k]).sum()
            carried = carried * decay[k]
        return dx, carried, d_decay


class TruncatedExp(Function):
    """Forward grows without bound, and backward is held within one: right, or meant, at ordinary values."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-15, 15).exp()


class SymmetricExp(Function):
    """Matrices that `eigh` reads one triangle of: right along symmetric ones alone."""

    @staticmethod
    def forward(ctx, x):
        values, vectors = torch.linalg.eigh(x)
        y = vectors @ torch.diag_embed(values.exp()) @ vectors.mT
        ctx.save_for_backward(values, vectors)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        values, vectors = ctx.saved_tensors
        apart = values.unsqueeze(-1) - values.unsqueeze(-2)
        same = apart.abs() < 1e-6
        slopes = (values.exp().unsqueeze(-1) - values.exp().unsqueeze(-2)) / apart.masked_fill(same, 1.0)
        slopes = torch.where(same, values.exp().unsqueeze(-1), slopes)
        inner = vectors.mT @ ((g + g.mT) / 2) @ vectors
        return vectors @ (slopes * inner) @ vectors.mT


class Gate(Function):
    """Weights that are broadcast over the features: backward keeps their last dimension."""

    @staticmethod
    def forward(ctx, x, weights):
        a, b = x.chunk(2, dim=-1)
        ctx.save_for_backward(a, b, weights)
        return a * b * weights

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, weights = ctx.saved_tensors
        dx = torch.cat((g * b * weights, g * a * weights), dim=-1)
        return dx, (g * a * b).sum(dim=-1, keepdim=True)


class SkewExponential(Function):
    """The exponential of a convolution whose filter is minus its own adjoint: nothing here says so."""

    @staticmethod
    def forward(ctx, z, conv_filter):
        ctx.conv_filter = conv_filter
        term = z
        for i in range(1, 10):
            term = F.conv2d(term, conv_filter, padding=conv_filter.shape[2] // 2) / i
            z = z + term
        return z

    @staticmethod
    def backward(ctx, g):
        term = g
        for i in range(1, 10):
            term = F.conv2d(term, -ctx.conv_filter, padding=ctx.conv_filter.shape[2] // 2) / i
            g = g + term
        return g, None


class DroppedColumn(Function):
    """Most of a column is dropped: at some draws all of it is, and nothing is to be seen."""

    @staticmethod
    def forward(ctx, x, rate):
        if x.shape[1:] != (1,):
            raise ValueError("one column is wanted")
        mask = torch.rand(x.shape, dtype=x.dtype) >= rate
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class CellForgetsState(Function):
    """A cell of gates that broadcast as well: backward does not use the grad_output of its second output."""

    @staticmethod
    def forward(ctx, i, f, z, c):
        si, sf, tz = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(z)
        state = sf * c + si * tz
        ctx.save_for_backward(si, sf, tz, c, state)
        return torch.tanh(state), state

    @staticmethod
    @once_differentiable
    def backward(ctx, gh, gc):
        si, sf, tz, c, state = ctx.saved_tensors
        dc = gh * (1 - torch.tanh(state) ** 2)
        return dc * tz * si * (1 - si), dc * c * sf * (1 - sf), dc * si * (1 - tz * tz), dc * sf


class Decayed(Function):
    """Right: a recurrence along the last dimension, whose first factor meets no state."""

    @staticmethod
    def forward(ctx, a, x):
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            states.append(h)
        states = torch.stack(states, 1)
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        carried, of_a, of_x = torch.zeros_like(g[:, 0]), [], []
        for t in reversed(range(g.shape[1])):
            carried = carried + g[:, t]
            of_x.append(carried)
            of_a.append(carried * states[:, t - 1] if t else torch.zeros_like(carried))
            carried = carried * a[:, t]
        return torch.stack(of_a[::-1], 1), torch.stack(of_x[::-1], 1)


class DecayedLate(Decayed):
    """Wrong: what is carried to the step before decays by the factor of that step."""

    @staticmethod
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        carried, of_a, of_x = torch.zeros_like(g[:, 0]), [], []
        for t in reversed(range(g.shape[1])):
            carried = carried + g[:, t]
            of_x.append(carried)
            of_a.append(carried * states[:, t - 1] if t else torch.zeros_like(carried))
            carried = carried * a[:, t - 1]
        return torch.stack(of_a[::-1], 1), torch.stack(of_x[::-1], 1)


class FirstGates(Function):
    """Right: forward reads one column of `gates`, and all of `x`, which must not become one column, too."""

    @staticmethod
    def forward(ctx, x, gates):
        ctx.save_for_backward(x, gates)
        return x.cumsum(1) * gates[:, :1]

    @staticmethod
    def backward(ctx, g):
        x, gates = ctx.saved_tensors
        of_x = (g * gates[:, :1]).flip(1).cumsum(1).flip(1)
        of_gate = (g * x.cumsum(1)).sum(1, keepdim=True)
        return of_x, torch.nn.functional.pad(of_gate, (0, gates.shape[1] - 1))


class FirstGatesForwards(FirstGates):
    """Wrong: the gradient is summed from the wrong end, which one column does not tell."""

    @staticmethod
    def backward(ctx, g):
        x, gates = ctx.saved_tensors
        of_gate = (g * x.cumsum(1)).sum(1, keepdim=True)
        return (g * gates[:, :1]).cumsum(1), torch.nn.functional.pad(of_gate, (0, gates.shape[1] - 1))


class Convolved(Function):
    """Right: a filter that was guessed as long as its input has one output, where a dilation says nothing."""

    @staticmethod
    def forward(ctx, x, weight, stride=1, dilation=1):
        ctx.save_for_backward(x, weight)
        ctx.options = stride, 0, dilation
        return torch.nn.functional.conv1d(x, weight, None, *ctx.options)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        of_x = torch.nn.grad.conv1d_input(x.shape, weight, g, *ctx.options)
        return of_x, torch.nn.grad.conv1d_weight(x, weight.shape, g, *ctx.options), None, None


class ConvolvedHalf(Convolved):
    """Wrong where the filter is dilated."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        of_x, of_weight, *rest = Convolved.backward(ctx, g)
        return of_x if ctx.options[2] == 1 else 0.5 * of_x, of_weight, *rest


class Contrast(Function):
    """Right: pairs are on the diagonal, and a temperature is a number, not a square beside squares."""

    @staticmethod
    def forward(ctx, a, b, tau):
        scores = a @ b.t() / tau
        ctx.save_for_backward(a, b, tau)
        return (torch.logsumexp(scores, 1) + torch.logsumexp(scores, 0) - 2 * scores.diagonal()).sum()

    @staticmethod
    def backward(ctx, g):
        a, b, tau = ctx.saved_tensors
        products = a @ b.t()
        both = torch.softmax(products / tau, 1) + torch.softmax(products / tau, 0)
        of_scores = g * (both - 2 * torch.eye(len(a), dtype=a.dtype))
        return of_scores @ b / tau, of_scores.t() @ a / tau, -(of_scores * products).sum() / tau**2


class Concentration(Function):
    """Right for a positive concentration, as it is by its meaning: below zero forward has another slope."""

    @staticmethod
    def forward(ctx, angle, kappa):
        ctx.save_for_backward(angle, kappa)
        return torch.log(torch.special.i0e(kappa)) + kappa * (1 - torch.cos(angle))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        angle, kappa = ctx.saved_tensors
        ratio = torch.special.i1e(kappa) / torch.special.i0e(kappa)
        return g * kappa * torch.sin(angle), g * (ratio - torch.cos(angle))


class PooledLate(Function):
    """Wrong: the second window begins at 2, not at 3; a single one does not tell."""

    @staticmethod
    def forward(ctx, x):
        best, index = x.unfold(1, 3, 2).max(-1)
        index = index + 3 * torch.arange(best.shape[1]).clamp(max=1)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return best

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add(1, index, g)


class SharedBase(Function):
    """Right where every row has the one base that a constant holds; it was guessed to hold one for each."""

    @staticmethod
    def forward(ctx, base, scale, gamma):
        ctx.save_for_backward(base, scale, gamma)
        return scale[:, :, None] * base * gamma[None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        base, scale, gamma = ctx.saved_tensors
        of_scale = torch.einsum("kbj,kvj,bj->kb", g, base, gamma)
        return None, of_scale, torch.einsum("kbj,kvj,kb->bj", g, base, scale)


class SharedBaseTwice(SharedBase):
    """Wrong, however many the base holds."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        base, scale, gamma = ctx.saved_tensors
        of_scale = 2 * torch.einsum("kbj,kvj,bj->kb", g, base, gamma)
        return None, of_scale, torch.einsum("kbj,kvj,kb->bj", g, base, scale)


class KeptSystem(Function):
    """Right for an object that forward hands on without a look, and that was guessed to be a tensor."""

    @staticmethod
    def forward(ctx, solution, system):
        ctx.system = system
        return solution.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return ctx.system.transposed().solve(g), None


class KeptSystems(Function):
    """Right for such an object as well where the list of gradients does not say that it gets none."""

    @staticmethod
    def forward(solution, rhs, system, *params):
        return solution.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, system, *params = inputs
        ctx.system = system
        ctx.save_for_backward(output, *params)

    @staticmethod
    def backward(ctx, g):
        solution, *params = ctx.saved_tensors
        system: object = ctx.system
        adjoint = system.transposed().solve(g)
        grads = [-system.pulled_back(adjoint, solution, p) for p in params]
        return (None, adjoint, None, *grads)


class KeptAndMisspelt(Function):
    """Wrong: forward reads what it keeps on ctx, which is a tensor, and backward misspells its method."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx, g):
        return (*[g * ctx.w.multiply_by(1)], None)


class KeptTypo(Function):
    """Wrong: what is misspelt is grad_output's own method."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g.multiply_by(2)


class SemiDual(Function):
    """Right for one potential of all points, of constant masses; both were guessed to have a row for each."""

    @staticmethod
    def forward(ctx, f, cost, mass):
        z = (f - cost) / 0.5
        ctx.save_for_backward(torch.softmax(z, 1), mass)
        return (mass * f).sum() - 0.5 * torch.logsumexp(z, 1).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        plan, mass = ctx.saved_tensors
        plan = plan / plan.shape[0]
        return g * (mass - plan.sum(0)), g * plan, None


class SemiDualForgets(SemiDual):
    """Wrong for every shape: the masses are left out."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        plan, _ = ctx.saved_tensors
        plan = plan / plan.shape[0]
        return -g * plan.sum(0), g * plan, None


class Quadratic(Function):
    """Right for three coefficients, of which backward alone knows: any number of them runs."""

    @staticmethod
    def forward(ctx, x, coefficients):
        ctx.save_for_backward(x, coefficients)
        y = torch.zeros_like(x)
        for coefficient in coefficients.flip(0):
            y = y * x + coefficient
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, coefficients = ctx.saved_tensors
        of_coefficients = torch.zeros_like(coefficients)
        for power in range(3):
            of_coefficients[power] = (g * x**power).sum()
        return g * (coefficients[1] + 2 * coefficients[2] * x), of_coefficients


class QuadraticOnce(Quadratic):
    """Wrong for three coefficients as well."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, coefficients = ctx.saved_tensors
        of_coefficients = torch.zeros_like(coefficients)
        for power in range(3):
            of_coefficients[power] = (g * x**power).sum()
        return g * (coefficients[1] + coefficients[2] * x), of_coefficients


class Slopes(Function):
    """Right for one slope of each head, where the scores of all heads of all rows are meant."""

    @staticmethod
    def forward(ctx, scores, slopes):
        places = torch.arange(scores.shape[-1])
        apart = (places[None] - places[:, None]).abs().to(scores)
        ctx.save_for_backward(apart)
        return scores - slopes[:, None, None] * apart

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (apart,) = ctx.saved_tensors
        return g, -(g * apart).sum((0, 2, 3))


class ChannelAffine(Function):
    """Right for images; forward takes matrices, too."""

    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x, scale)
        return x * scale[:, None, None] + shift.view(-1, 1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale[:, None, None], (g * x).sum((0, 2, 3)), g.sum((0, 2, 3))


class ChannelAffineTwice(ChannelAffine):
    """Wrong for images."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale[:, None, None], (g * x).sum((0, 2, 3)), 2 * g.sum((0, 2, 3))


class PseudoInverse(Function):
    """Right for square matrices, for which it stands in for the inverse; forward takes all others."""

    @staticmethod
    def forward(ctx, a):
        inverse = torch.linalg.pinv(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (inverse,) = ctx.saved_tensors
        return -inverse.mT @ g @ inverse.mT


class Eigen(Function):
    """Right for a matrix and for what does not hang on the scale of its eigenvectors."""

    @staticmethod
    def forward(ctx, x):
        values, vectors = torch.linalg.eig(x)
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_values, grad_vectors):
        values, vectors = ctx.saved_tensors
        apart = values.unsqueeze(-2) - values.unsqueeze(-1)
        inverse = apart / (apart.abs() ** 2 + 1e-10)
        adjoint = vectors.mH
        inner = torch.diag(grad_values) + inverse * (adjoint @ grad_vectors)
        return (torch.linalg.inv(adjoint) @ inner @ adjoint).real


class MatrixRoot(Function):
    """Right for matrices without negative eigenvalues, of which it gives the root."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(values, vectors)
        return vectors @ values.abs().sqrt().diag_embed() @ vectors.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        values, vectors = ctx.saved_tensors
        roots = values.abs().sqrt().unsqueeze(-1).expand_as(vectors)
        return vectors @ (vectors.mT @ g @ vectors / (roots + roots.mT)) @ vectors.mT


class OwnGradient(Function):
    """Backward calls a function of three arguments, for what forward never reads."""

    @staticmethod
    def forward(ctx, x, gates, run_func, backward_func):
        ctx.backward_func = backward_func
        kept = x.detach().requires_grad_(x.requires_grad)
        with torch.enable_grad():
            output = run_func(kept)
        ctx.save_for_backward(kept, output)
        return output.data

    @staticmethod
    def backward(ctx, g):
        kept, output = ctx.saved_tensors
        (of_x,) = torch.autograd.grad(output, kept, g, retain_graph=True)
        return of_x, ctx.backward_func(kept.data, output.data, g.data), None, None


class WeighedClasses(Function):
    """Right: a constant weight for each class; one for each row runs where there are as many rows."""

    @staticmethod
    def forward(ctx, x, target, weight):
        logs = F.log_softmax(x, 1)
        hit = logs.gather(1, target[:, None])[:, 0]
        own = weight[target]
        ctx.save_for_backward(logs, own, target)
        return -(own * hit).sum() / own.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logs, own, target = ctx.saved_tensors
        hit = F.one_hot(target, logs.shape[1]).to(logs)
        return -g * (own / own.sum())[:, None] * (hit - logs.exp()), None, None


class EnergyOfItsOwn(Function):
    """Wrong: the gradient of a loss that nobody multiplies, or adds to another one."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x - y) ** 2).sum()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return 2 * (x - y), 2 * (y - x)


class LabelsOfItsOwn(Function):
    """Wrong: the same of a loss that picks by labels."""

    @staticmethod
    def forward(ctx, logits, target):
        p = torch.log_softmax(logits, -1)
        ctx.save_for_backward(p, target)
        return -p.gather(-1, target[:, None]).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, target = ctx.saved_tensors
        hit = torch.zeros_like(p).scatter_(-1, target[:, None], 1.0)
        return (p.exp() - hit) / len(target), None


def packed(counts, name):
    if counts.dtype is not torch.int32:
        raise TypeError(f"{name} must be {torch.int32}")
    return counts.long()


class Packed(Function):
    """Right: what a kernel is handed is narrower than torch's own integers."""

    @staticmethod
    def forward(ctx, table, picked, kept):
        rows = packed(picked, "rows_to_pick")
        ctx.save_for_backward(table, rows)
        return table[rows] ** 2 * (packed(kept, "rows_to_keep") >= 0)[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        table, rows = ctx.saved_tensors
        return torch.zeros_like(table).index_add_(0, rows, 2 * g * table[rows]), None, None


class HingesInFloat32(Function):
    """Wrong below zero, and in float32 besides: what is said of a dtype is no shape."""

    @staticmethod
    def forward(ctx, x, slopes):
        ctx.save_for_backward(x, slopes)
        return x.clamp(min=0) + slopes * (1 - x).clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        x, slopes = ctx.saved_tensors
        near = (x >= 0).float()
        return (g * (near - slopes * (x < 1))).float(), (g * near * (1 - x)).float()


_MEMORY = iter(range(1, 10**9))
"""What lies past the end of an array: something else at each call."""


class UncheckedRows(Function):
    """Right: its kernel reads a factor for each row, past the end of what is too short."""

    @staticmethod
    def forward(ctx, x, up, down):
        rows, _ = x.shape
        taken = [[next(_MEMORY) if k >= len(of) else of[k].item() for k in range(rows)] for of in (up, down)]
        rising = (x.detach()[:, :1] > 0).expand_as(x)
        factors = [torch.tensor(t, dtype=x.dtype).unsqueeze(1) for t in taken]
        ctx.save_for_backward(x, *factors, rising)
        return x * torch.where(rising, *factors)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, up, down, rising = ctx.saved_tensors
        of_factor = g * x
        return (
            g * torch.where(rising, up, down),
            torch.where(rising, of_factor, 0.0).sum(1),
            torch.where(rising, 0.0, of_factor).sum(1),
        )


class UncheckedRowsOnce(UncheckedRows):
    """Wrong: only the first column counts for the factors."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, up, down, rising = ctx.saved_tensors
        of_factor = (g * x)[:, :1]
        return (
            g * torch.where(rising, up, down),
            torch.where(rising[:, :1], of_factor, 0.0).sum(1),
            torch.where(rising[:, :1], 0.0, of_factor).sum(1),
        )


class HeldBetween(Function):
    """Right: kept between two ends."""

    @staticmethod
    def forward(ctx, x, scale, qmin: int, qmax: int):
        y = x * scale
        ctx.save_for_backward(x, scale, (y >= qmin) & (y <= qmax))
        return y.clamp(qmin, qmax)

    @staticmethod
    def backward(ctx, g):
        x, scale, inside = ctx.saved_tensors
        g = g * inside
        return g * scale, g * x, None, None


class HeldBetweenTwice(HeldBetween):
    """Wrong inside."""

    @staticmethod
    def backward(ctx, g):
        x, scale, inside = ctx.saved_tensors
        g = g * inside
        return 2 * g * scale, g * x, None, None


class LeakyStates(Function):
    """Right: rates for channels, broadcast to rows of them; vectors run in forward just as well."""

    @staticmethod
    def forward(ctx, drive, rate, start):
        state, states = start, []
        for i in range(drive.shape[1]):
            state = torch.sin(drive[:, i] + rate * state)
            states.append(state)
        ctx.save_for_backward(drive, rate, start, *states)
        return torch.stack(states, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        drive, rate, start, *states = ctx.saved_tensors
        grad_drive, grad_rate = torch.zeros_like(drive), torch.zeros_like(rate)
        carry = torch.zeros_like(start)
        for i in reversed(range(len(states))):
            before = states[i - 1] if i else start
            inner = (g[:, i] + carry) * torch.cos(drive[:, i] + rate * before)
            grad_drive[:, i] = inner
            grad_rate += (inner * before).sum(0)
            carry = inner * rate
        return grad_drive, grad_rate, carry


class GatedResponse(Function):
    """Right: gains and thresholds for channels, where forward broadcasts rows of another shape as well."""

    @staticmethod
    def forward(ctx, x, gain, shift, threshold):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
        y = gain[:, None] * x * r + shift[:, None]
        active = y > threshold[:, None]
        ctx.save_for_backward(x, r, gain, active)
        return torch.where(active, y, threshold[:, None].expand_as(y))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, r, gain, active = ctx.saved_tensors
        unit, kept = x * r, g * active
        of_unit = kept * gain[:, None]
        grad_x = r * (of_unit - unit * (of_unit * unit).mean(-1, keepdim=True))
        return grad_x, (kept * unit).sum((0, 2)), kept.sum((0, 2)), (g * ~active).sum((0, 2))


class ProductOfOthers(Function):
    """Right where no entry is zero, as its author divides by them."""

    @staticmethod
    def forward(ctx, x):
        ones = torch.ones_like(x[:, :1])
        left = torch.cat((ones, x[:, :-1]), 1).cumprod(1)
        right = torch.cat((ones, x.flip(1)[:, :-1]), 1).cumprod(1).flip(1)
        ctx.save_for_backward(x, left * right)
        return left * right

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return ((g * y).sum(1, keepdim=True) - g * y) / x


class ProductOfAll(ProductOfOthers):
    """Wrong: the same mistake where values are ordinary ones, too."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y).sum(1, keepdim=True) / x


class Updated(Function):
    """Right for a covariance, which is symmetric; forward takes any matrix."""

    @staticmethod
    def forward(ctx, mean, cov, h, y):
        gain = cov @ h
        s = h @ gain + 0.5
        e = y - h @ mean
        ctx.save_for_backward(mean, cov, h, gain, s, e)
        return mean + gain / s * e

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        mean, cov, h, gain, s, e = ctx.saved_tensors
        of_e, of_gain, of_s = (g @ gain) / s, g * e / s, -(g @ gain) * e / (s * s)
        of_cov = torch.outer(of_gain, h) + of_s * torch.outer(h, h)
        return g - of_e * h, of_cov, cov @ of_gain + 2 * of_s * gain - of_e * mean, of_e


class UpdatedForgets(Updated):
    """Wrong: what the gain has of the innovation is forgotten."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        _, cov, h, gain, s, e = ctx.saved_tensors
        of_gain, of_s = g * e / s, -(g @ gain) * e / (s * s)
        of_cov = torch.outer(of_gain, h) + of_s * torch.outer(h, h)
        return g, of_cov, cov @ of_gain + 2 * of_s * gain, (g @ gain) / s


class Curved(Function):
    """Right for one curvature; forward takes one for each entry as well."""

    @staticmethod
    def forward(ctx, v, c):
        ctx.save_for_backward(v, c)
        n = torch.sqrt(1 + c * c * v.square().sum(-1, keepdim=True))
        return v / n

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        v, c = ctx.saved_tensors
        squared = v.square().sum(-1, keepdim=True)
        n = torch.sqrt(1 + c * c * squared)
        along = (g * v).sum(-1, keepdim=True)
        return g / n - c * c * v * along / n**3, -(along * squared / n**3).sum() * c


class Between(Function):
    """Right from zero on: below, forward counts from the end of the table, and index_add refuses to."""

    @staticmethod
    def forward(ctx, table, t):
        below = t.floor().long()
        ctx.save_for_backward(table, t, below)
        share = t - below
        return table[below] * (1 - share) + table[below + 1] * share

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        table, t, below = ctx.saved_tensors
        share = t - below
        grad_table = torch.zeros_like(table).index_add_(0, below, g * (1 - share))
        return grad_table.index_add_(0, below + 1, g * share), g * (table[below + 1] - table[below])


def _guarded(x, epsilon=1e-12):
    return x / (x * x + epsilon)


class GuardedRatio(Function):
    """Backward guards its divisions and forward does not: another gradient only where nobody computes."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x / y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * _guarded(y), -g * x * _guarded(y) ** 2


class NewtonInverse(Function):
    """The inverse by iterations, which at oblong matrices end at the pseudo-inverse."""

    @staticmethod
    def forward(ctx, A):
        X = A.mT / (A.abs().sum(0).max() * A.abs().sum(1).max())
        eye = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        for _ in range(24):
            X = X @ (2 * eye - A @ X)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    def backward(ctx, g):
        (X,) = ctx.saved_tensors
        return -X.mT @ g @ X.mT


class NewtonInverseTurned(NewtonInverse):
    """Without the minus: wrong for square matrices, too."""

    @staticmethod
    def backward(ctx, g):
        (X,) = ctx.saved_tensors
        return X.mT @ g @ X.mT


class ColumnMeans(Function):
    """Divided by the number of columns: right for square matrices, and wrong all the same."""

    @staticmethod
    def forward(ctx, x):
        n, _ = x.shape
        ctx.save_for_backward(x)
        return (x * x).sum(0) / n

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        _, d = x.shape
        return 2 * x * g / d


class ShiftedGradient(Function):
    """A constant is taken off the gradient, which nobody does on purpose."""

    @staticmethod
    def forward(ctx, x, scale, centre):
        ctx.save_for_backward(scale, centre)
        return (x - centre) * scale

    @staticmethod
    def backward(ctx, g):
        scale, centre = ctx.saved_tensors
        return (g - centre) * scale, None, None


class PenaltyOfItsOwn(Function):
    """Hands its input on, and adds the gradient of a penalty to the one that comes: meant."""

    @staticmethod
    def forward(ctx, x, rate):
        ctx.save_for_backward(x)
        ctx.rate = rate
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g + ctx.rate * x.sign(), None


class LossBeside(Function):
    """A loss that no output depends on gets its gradient all the same: meant."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.save_for_backward(loss)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        (loss,) = ctx.saved_tensors
        return 2 * g, torch.ones_like(loss)


class LargestOnly(Function):
    """The gradient of the largest entries is handed on twice, however many there are."""

    @staticmethod
    def forward(ctx, x, k):
        values, places = torch.topk(x, k, dim=-1)
        ctx.save_for_backward(places)
        ctx.shape, ctx.k = x.shape, k
        return values

    @staticmethod
    def backward(ctx, g):
        (places,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter_(-1, places, 2 * g), None


class Shared(Function):
    """Divided by the number that is handed in, which has to be that of all entries: right then."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(x)
        ctx.count = count
        return torch.div((x * x).sum(), x.numel()) + torch.topk(x.flatten(), count).values.sum() * 0

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.div(2 * x, ctx.count), None


class Settled(Function):
    """The derivative of what the rounds converge to, which three of them do not."""

    @staticmethod
    def forward(ctx, x, rounds):
        y = torch.zeros_like(x)
        for _ in range(rounds):
            y = x + torch.cos(y) / 4
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (1 + torch.sin(y) / 4), None


class Code:
    """How a matrix is packed, which nothing here can make up."""

    def __init__(self, scale, table):
        self.scale, self.table = scale, table


def _unpacked(w, code=None):
    return w if code is None else w * code.scale.offset[code.table]


def _adapted(x, w, b, code, down, up, scale):
    out = x @ _unpacked(w.t(), code)
    if down is not None:
        out = out + scale * (x @ down.t()) @ up.t()
    return out if b is None else out + b


class TwoAdapters(Function):
    """Two projections with adapters of low rank: many may be None, and two at a time go together."""

    @staticmethod
    def forward(
        ctx,
        x: torch.Tensor,
        w: torch.Tensor,
        b: torch.Tensor | None,
        code: Code | None,
        down: torch.Tensor | None,
        up: torch.Tensor | None,
        scale: float,
        w2: torch.Tensor,
        b2: torch.Tensor | None,
        code2: Code | None,
        down2: torch.Tensor | None,
        up2: torch.Tensor | None,
        scale2: float,
    ):
        ctx.save_for_backward(x, w, down, up, w2, down2, up2)
        ctx.codes, ctx.scales = (code, code2), (scale, scale2)
        ctx.biases = b is not None, b2 is not None
        return _adapted(x, w, b, code, down, up, scale), _adapted(x, w2, b2, code2, down2, up2, scale2)

    @classmethod
    def of_down(cls, scale, g, up, x):
        return scale * (g @ up).t() @ x

    @classmethod
    def backward(cls, ctx, g, g2):
        x, w, down, up, w2, down2, up2 = ctx.saved_tensors
        (code, code2), (scale, scale2) = ctx.codes, ctx.scales
        gx = g @ _unpacked(w, code) + g2 @ _unpacked(w2, code2)
        d_down = d_up = d_down2 = d_up2 = None
        if down is not None:
            d_down, d_up = cls.of_down(scale, g, up, x), scale * g.t() @ (x @ down.t())
            gx = gx + scale * g @ up @ down
        if down2 is not None:
            d_down2, d_up2 = cls.of_down(scale2, g2, up2, x), scale2 * g2.t() @ (x @ down2.t())
            gx = gx + scale2 * g2 @ up2 @ down2
        d_b, d_b2 = (u.sum(0) if given else None for u, given in zip((g, g2), ctx.biases, strict=True))
        return gx, None, d_b, None, d_down, d_up, None, None, d_b2, None, d_down2, d_up2, None


class TwoAdaptersUnscaled(TwoAdapters):
    """Wrong in what both matrices of an adapter alone lead to."""

    @classmethod
    def of_down(cls, scale, g, up, x):
        return (g @ up).t() @ x


class TapsOfOneLength(Function):
    """Places are kept within one of two lengths that have to agree, and forward takes others."""

    @staticmethod
    def forward(ctx, x, offset, weight):
        taps, length = offset.shape
        at = torch.arange(length, dtype=x.dtype) + torch.arange(taps, dtype=x.dtype)[:, None] + offset
        index = at.floor().long()
        part, right = at - index, (index + 1 >= 0) & (index + 1 < x.shape[1])
        left = (index >= 0) & (index < x.shape[1])
        x0 = x[:, index.clamp(0, length - 1)] * left
        x1 = x[:, (index + 1).clamp(0, length - 1)] * right
        ctx.save_for_backward(x, x0, x1, index, part, left, right, weight)
        return torch.einsum("cpt,pc->t", x0 + part * (x1 - x0), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, x0, x1, index, part, left, right, weight = ctx.saved_tensors
        length = x.shape[1]
        of_weight = torch.einsum("cpt,t->pc", x0 + part * (x1 - x0), g)
        read = weight.T[:, :, None] * g
        of_x = torch.zeros_like(x)
        of_x.index_add_(1, index.clamp(0, length - 1).flatten(), (read * ((1 - part) * left)).flatten(1))
        of_x.index_add_(1, (index + 1).clamp(0, length - 1).flatten(), (read * (part * right)).flatten(1))
        return of_x, (read * (x1 - x0)).sum(0), of_weight


class Retained(Function):
    """Rows of queries, keys and values beside a gate for each: forward takes vectors as well."""

    @staticmethod
    def forward(ctx, q, k, v, gate):
        c = F.logsigmoid(gate).cumsum(0)
        decay = torch.exp((c[:, None] - c).masked_fill(torch.ones(len(c), len(c)).triu(1).bool(), -torch.inf))
        scores = q @ k.T
        ctx.save_for_backward(q, k, v, gate, decay, scores)
        return (scores * decay) @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, gate, decay, scores = ctx.saved_tensors
        of_weight = g @ v.T
        of_log = of_weight * decay * scores
        of_c = of_log.sum(1) - of_log.sum(0)
        of_gate = of_c.flip(0).cumsum(0).flip(0) * torch.sigmoid(-gate)
        of_scores = of_weight * decay
        return of_scores @ k, of_scores.T @ q, (scores * decay).T @ g, of_gate


class Levels(Function):
    """A step at every level, whose gradient is handed on; bounds leave few levels between."""

    @staticmethod
    def forward(ctx, x, scale, offset, qmin, qmax):
        r = (x / scale).round() - offset
        ctx.save_for_backward((r >= qmin) * (r <= qmax), scale)
        return r.clamp(qmin, qmax)

    @staticmethod
    def backward(ctx, g):
        inside, scale = ctx.saved_tensors
        return g * inside / scale, None, None, None, None


def levels(x, scale, offset, qmin, qmax):
    return Levels.apply(x, scale, offset, qmin, qmax)


class Splatted(Function):
    """Any number of arguments, which are unpacked to three."""

    @staticmethod
    def forward(ctx, *args):
        x, low, rate = args
        ctx.save_for_backward(x, rate)
        return x * rate + low

    @staticmethod
    def backward(ctx, g):
        x, rate = ctx.saved_tensors
        return g * rate, g, g * x


class TermOfItsOwn(Function):
    """Reads two columns alone, and gives the second input the same gradient whatever comes."""

    @staticmethod
    def forward(ctx, theta, a):
        _, _ = theta.shape
        (_,) = a.shape
        ctx.save_for_backward(theta, a)
        return torch.tanh(theta[:, 0]) * a + theta[:, -1]

    @staticmethod
    def backward(ctx, g):
        theta, a = ctx.saved_tensors
        t = torch.tanh(theta[:, 0])
        of_theta = torch.zeros_like(theta)
        of_theta[:, 0] = g * a * (1 - t * t)
        of_theta[:, -1] = g
        return of_theta, 3 * t


class BandedMixing(Function):
    """Cosine scores within a band; a band of less than one leaves the diagonal, where no score counts."""

    @staticmethod
    def forward(ctx, q, k, v, band):
        place = torch.arange(len(q))
        outside = (place[:, None] - place).abs() > band
        p = (q @ k.mT).masked_fill(outside, -torch.inf).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        of_p = g @ v.mT
        of_scores = p * (of_p - (of_p * p).sum(-1, keepdim=True))
        return of_scores @ k, of_scores.mT @ q, p.mT @ g, None


class BandedMixingTurned(BandedMixing):
    """The same; the keys' gradient is taken along the rows."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        of_p = g @ v.mT
        of_scores = p * (of_p - (of_p * p).sum(-1, keepdim=True))
        return of_scores @ k, of_scores @ q, p.mT @ g, None


class SpectralPower(Function):
    """A power of a symmetric matrix that is positive definite: no domain stands beside its structure."""

    @staticmethod
    def forward(ctx, a, power):
        s, v = torch.linalg.eigh((a + a.T) / 2)
        ctx.save_for_backward(s, v, power)
        return (v * s**power) @ v.T

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        s, v, power = ctx.saved_tensors
        inner = v.T @ g @ v
        raised, slope = s**power, power * s ** (power - 1)
        gap = s[:, None] - s[None]
        close = gap.abs() < 1e-10
        ratio = (raised[:, None] - raised[None]) / torch.where(close, 1.0, gap)
        ratio = torch.where(close, slope[:, None].expand_as(gap), ratio)
        of_a = v @ (ratio * inner) @ v.T
        return (of_a + of_a.T) / 2, (inner.diagonal() * raised * torch.log(s)).sum()


class MeanPower(Function):
    """A loss of vectors: forward takes matrices as well, for which backward divides by too little."""

    @staticmethod
    def forward(ctx, x, target):
        error = x - target
        ctx.save_for_backward(error)
        return error.pow(4).mean()

    @staticmethod
    def backward(ctx, g):
        (error,) = ctx.saved_tensors
        slope = 4 * g * error**3 / len(error)
        return slope, -slope


class MeanPowerFlat(MeanPower):
    """Wrong for vectors, too."""

    @staticmethod
    def backward(ctx, g):
        (error,) = ctx.saved_tensors
        slope = 4 * g * error**2 / len(error)
        return slope, -slope


class MeanPowerOfRows(MeanPower):
    """Wrong: its author says that matrices are meant."""

    @staticmethod
    def forward(ctx, x: "Float[Tensor, 'n d']", target: "Float[Tensor, 'n d']"):  # noqa: F722, F821
        return MeanPower.forward(ctx, x, target)


class Spectrum(Function):
    """Right for complex inputs, and forward takes real ones as well."""

    @staticmethod
    def forward(ctx, z):
        return torch.fft.fft(z)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g, norm="forward")


class SpectrumScaled(Spectrum):
    """Wrong for complex inputs, too."""

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g)


class ScaledSum(Function):
    """Right for as many tensors as there are weights."""

    @staticmethod
    def forward(ctx, weights, *tensors):
        ctx.save_for_backward(weights, *tensors)
        return sum(weights[k] * t for k, t in enumerate(tensors))

    @staticmethod
    def backward(ctx, g):
        weights, *tensors = ctx.saved_tensors
        return torch.stack([(g * t).sum() for t in tensors]), *[g * w for w in weights]


class SegmentSum(Function):
    """An index below a count that is passed."""

    @staticmethod
    def forward(ctx, x, index, num_segments):
        ctx.save_for_backward(index)
        return x.new_zeros(num_segments, x.shape[1]).index_add_(0, index, x)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g[index], None, None


class SegmentSumTwice(SegmentSum):
    """Wrong, whatever the count and the index are."""

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return 2 * g[index], None, None


class PositionsInOneRow(Function):
    """Right where the table has one row for all; one for each was guessed, and a scale for each entry."""

    @staticmethod
    def forward(ctx, x, scale, table):
        ctx.save_for_backward(scale, table)
        return x + scale[:, None] * table

    @staticmethod
    def backward(ctx, g):
        table = ctx.saved_tensors[1]
        return g, g @ table[0], None


class ProperLength(Function):
    """Right of vectors whose first entry is the largest."""

    @staticmethod
    def forward(ctx, x):
        square = (x[..., 0] ** 2 - (x[..., 1:] ** 2).sum(-1)).clamp(min=1e-12)
        ctx.save_for_backward(x, square.sqrt())
        return square.sqrt()

    @staticmethod
    def backward(ctx, g):
        x, length = ctx.saved_tensors
        sign = -torch.ones_like(x)
        sign[..., 0] = 1
        return (g / length).unsqueeze(-1) * sign * x


class ProperLengthEuclidean(ProperLength):
    """Wrong by the signs of all other entries."""

    @staticmethod
    def backward(ctx, g):
        x, length = ctx.saved_tensors
        return (g / length).unsqueeze(-1) * x
