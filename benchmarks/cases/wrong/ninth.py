"""Ninth set, held out: written by another hand, which read neither the checker's source nor the other sets' entries.

The format is that of `fifth.py`: an entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text,
what stands in its place, causes). The causes were written down with the entries; the author never ran the checker, and
a few were sharpened after torch's gradcheck alone had run. A word alone is the cause that is right, one with `~` before
it is coarser but true, `none` says that there may be no hypothesis for it. `SELF` stands for the name of the class. A
comment above a bug says where torch's gradcheck cannot see it, or sees it in the second order only.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, t: 7, d: 3"
FUNCTIONS = []
TWICE_DIFFERENTIABLE = (
    "MinimalGatedCell", "DiscountedLyapunov", "PinholeDistort", "AconGate", "SegmentLogSum", "KumaraswamyDraw",
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- losses ------------------------------------------------------------------------------------------------------

fn("ImbalancedBce", "logits: [b, n]\ntarget: {shape: [b, n], domain: unit, requires_grad: false}\nweight: [n]\n"
   "reduction: {choices: [mean, sum]}", '''
    """Binary cross entropy of soft labels, modulated by (1 - p)^2 or p^2, with a weight for each class."""

    @staticmethod
    def forward(ctx, logits, target, weight, reduction):
        p = torch.sigmoid(logits)
        positive = -target * (1 - p) ** 2 * torch.nn.functional.logsigmoid(logits)
        negative = -(1 - target) * p**2 * torch.nn.functional.logsigmoid(-logits)
        ctx.save_for_backward(logits, target, weight, positive + negative)
        ctx.reduction = reduction
        loss = (weight * (positive + negative)).sum()
        return loss / logits.numel() if reduction == "mean" else loss

    @staticmethod
    def backward(ctx, grad_output):
        logits, target, weight, per_entry = ctx.saved_tensors
        p = torch.sigmoid(logits)
        log_p = torch.nn.functional.logsigmoid(logits)
        log_q = torch.nn.functional.logsigmoid(-logits)
        positive = 2 * p * (1 - p) ** 2 * log_p - (1 - p) ** 3
        negative = p**3 - 2 * (1 - p) * p**2 * log_q
        scale = grad_output
        if ctx.reduction == "mean":
            scale = scale / logits.numel()
        grad_logits = scale * weight * (target * positive + (1 - target) * negative)
        grad_weight = (scale * per_entry).sum(0)
        return grad_logits, None, grad_weight, None
''',
 ("modulator-held", "2 * p * (1 - p) ** 2 * log_p - (1 - p) ** 3", "-((1 - p) ** 3)", "missing-term"),
 ("over-batch-only", "scale / logits.numel()", "scale / logits.shape[0]", "constant-factor"),
 ("negative-side-of-hard-labels", "p**3 - 2", "p**2 - 2", "chain-factor operand none ~missing-term"),
)

fn("MonotonicAlign", "logp: [t, m]", '''
    """-log of the summed probability of the paths that stay or advance by one token at each frame."""

    @staticmethod
    def forward(ctx, logp):
        frames, tokens = logp.shape
        alpha = torch.full_like(logp, -float("inf"))
        alpha[0, 0] = logp[0, 0]
        for i in range(1, frames):
            alpha[i, 0] = alpha[i - 1, 0] + logp[i, 0]
            alpha[i, 1:] = torch.logaddexp(alpha[i - 1, 1:], alpha[i - 1, :-1]) + logp[i, 1:]
        ctx.save_for_backward(logp, alpha)
        return -alpha[-1, -1]

    @staticmethod
    def backward(ctx, grad_output):
        logp, alpha = ctx.saved_tensors
        frames, tokens = logp.shape
        beta = torch.full_like(logp, -float("inf"))
        beta[-1, -1] = 0
        for i in range(frames - 2, -1, -1):
            reach = beta[i + 1] + logp[i + 1]
            beta[i, -1] = reach[-1]
            beta[i, :-1] = torch.logaddexp(reach[:-1], reach[1:])
        posterior = torch.exp(alpha + beta - alpha[-1, -1])
        return -grad_output * posterior
''',
 ("emission-of-this-frame", "beta[i + 1] + logp[i + 1]", "beta[i + 1] + logp[i]", "operand none chain-factor"),
 ("not-normalised", "alpha + beta - alpha[-1, -1]", "alpha + beta", "chain-factor"),
 ("advance-only", "torch.logaddexp(reach[:-1], reach[1:])", "reach[1:]", "missing-term none"),
)

fn("SupervisedPairs", "x: [k, d]\nlabels: {shape: [k], dtype: int64, range: [0, 2]}\ntemperature: 0.5", '''
    """Supervised contrastive loss over the cosine similarities of a batch."""

    @staticmethod
    def forward(ctx, x, labels, temperature):
        count = x.shape[0]
        norm = x.square().sum(1, keepdim=True).add(1e-8).sqrt()
        f = x / norm
        own = torch.eye(count, dtype=torch.bool, device=x.device)
        logits = (f @ f.t() / temperature).masked_fill(own, -float("inf"))
        pairs = (labels[:, None] == labels[None, :]) & ~own
        share = pairs.to(x.dtype) / pairs.sum(1, keepdim=True).clamp(min=1)
        logp = logits - logits.logsumexp(1, keepdim=True)
        ctx.save_for_backward(f, norm, logp, share)
        ctx.temperature = temperature
        return -(share * logp.masked_fill(own, 0.0)).sum() / count

    @staticmethod
    def backward(ctx, grad_output):
        f, norm, logp, share = ctx.saved_tensors
        anchors = share.sum(1, keepdim=True)
        grad_s = grad_output * (anchors * logp.exp() - share) / (f.shape[0] * ctx.temperature)
        grad_f = (grad_s + grad_s.t()) @ f
        grad_x = (grad_f - f * (f * grad_f).sum(1, keepdim=True)) / norm
        return grad_x, None, None
''',
 ("anchor-side-only", "(grad_s + grad_s.t()) @ f", "grad_s @ f", "missing-term"),
 ("radial-part-kept", "grad_f - f * (f * grad_f).sum(1, keepdim=True)", "grad_f", "missing-term"),
)

# --- normalisations ----------------------------------------------------------------------------------------------

fn("FilterResponse", "x: [b, n, t]\ngamma: [n]\nbeta: [n]\ntau: [n]", '''
    """Filter response normalisation, followed by a threshold that is learned."""

    @staticmethod
    def forward(ctx, x, gamma, beta, tau):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
        xhat = x * r
        y = gamma[:, None] * xhat + beta[:, None]
        active = y > tau[:, None]
        ctx.save_for_backward(xhat, r, gamma, active)
        return torch.where(active, y, tau[:, None].expand_as(y))

    @staticmethod
    def backward(ctx, grad_output):
        xhat, r, gamma, active = ctx.saved_tensors
        grad_tau = (grad_output * ~active).sum((0, 2))
        grad_y = grad_output * active
        grad_beta = grad_y.sum((0, 2))
        grad_gamma = (grad_y * xhat).sum((0, 2))
        grad_xhat = grad_y * gamma[:, None]
        grad_x = r * (grad_xhat - xhat * (grad_xhat * xhat).mean(-1, keepdim=True))
        return grad_x, grad_gamma, grad_beta, grad_tau
''',
 ("mean-over-filters", "(grad_xhat * xhat).mean(-1, keepdim=True)", "(grad_xhat * xhat).mean(1, keepdim=True)",
  "wrong-reduction-dim"),
 ("sum-for-mean", "(grad_xhat * xhat).mean(-1, keepdim=True)", "(grad_xhat * xhat).sum(-1, keepdim=True)",
  "constant-factor operand none ~missing-term"),
 ("gamma-of-all", "(grad_y * xhat).sum((0, 2))", "(grad_output * xhat).sum((0, 2))", "branch missing-term operand none"),
)

# --- fused linear layers -----------------------------------------------------------------------------------------

fn("DoraProjection", "x: [b, n]\nbase: [m, n]\ndown: [d, n]\nup: [m, d]\nmagnitude: [m]", '''
    """Rows of base + up down, brought to a learned magnitude, applied to x."""

    @staticmethod
    def forward(ctx, x, base, down, up, magnitude):
        merged = base + up @ down
        norm = merged.norm(dim=1)
        z = x @ merged.t()
        ctx.save_for_backward(x, merged, down, up, magnitude, norm, z)
        return z * (magnitude / norm)

    @staticmethod
    def backward(ctx, grad_output):
        x, merged, down, up, magnitude, norm, z = ctx.saved_tensors
        grad_z = grad_output * (magnitude / norm)
        grad_x = grad_z @ merged
        along = (grad_output * z).sum(0)
        grad_magnitude = along / norm
        grad_merged = grad_z.t() @ x - (along * magnitude / norm**3)[:, None] * merged
        grad_down = up.t() @ grad_merged
        grad_up = grad_merged @ down.t()
        return grad_x, grad_merged, grad_down, grad_up, grad_magnitude
''',
 # the paper's own approximation, where the norm is a constant
 ("norm-held", " - (along * magnitude / norm**3)[:, None] * merged", "", "missing-term"),
 ("norm-held-for-up", "grad_merged @ down.t()", "(grad_z.t() @ x) @ down.t()", "missing-term"),
 ("adapter-not-merged", "grad_x = grad_z @ merged", "grad_x = grad_z @ (merged - up @ down)", "missing-term operand"),
)

fn("GroupDequantLinear", "x: [b, k]\nq: {shape: [m, k], dtype: int64, range: [0, 16]}\nscale: {shape: [m, d], domain: positive}\n"
   "zero: [m, d]\nbias: {shape: [m], optional: true}", '''
    """x times a weight of four bits, dequantised by groups; scale and zero point are tuned."""

    @staticmethod
    def forward(ctx, x, q, scale, zero, bias):
        size = q.shape[1] // scale.shape[1]
        centred = q - zero.repeat_interleave(size, dim=1)
        weight = centred * scale.repeat_interleave(size, dim=1)
        ctx.save_for_backward(x, centred, scale)
        ctx.biased = bias is not None
        y = x @ weight.t()
        return y + bias if ctx.biased else y

    @staticmethod
    def backward(ctx, grad_output):
        x, centred, scale = ctx.saved_tensors
        rows, groups = scale.shape
        size = centred.shape[1] // groups
        spread = scale.repeat_interleave(size, dim=1)
        grad_x = grad_output @ (centred * spread)
        grad_weight = grad_output.t() @ x
        grad_scale = (grad_weight * centred).view(rows, groups, size).sum(-1)
        grad_zero = -(grad_weight * spread).view(rows, groups, size).sum(-1)
        grad_bias = grad_output.sum(0) if ctx.biased else None
        return grad_x, None, grad_scale, grad_zero, grad_bias
''',
 ("zero-added", "grad_zero = -(grad_weight", "grad_zero = (grad_weight", "constant-factor"),
 ("groups-interleaved", "spread = scale.repeat_interleave(size, dim=1)", "spread = scale.repeat(1, size)",
  "operand permuted none"),
 ("zero-without-scale", "-(grad_weight * spread).view", "-grad_weight.view", "chain-factor operand"),
)

# --- attention ---------------------------------------------------------------------------------------------------

fn("KeyMaskAttend", "query: [b, t, d]\nkey: [b, k, d]\nvalue: [b, k, d]\nkeep: {shape: [b, k], dtype: bool}", '''
    """Attention over the keys that are kept, and the logsumexp of the scores, to be merged with other chunks."""

    @staticmethod
    def forward(ctx, query, key, value, keep):
        scale = query.shape[-1] ** -0.5
        scores = (query @ key.mT * scale).masked_fill(~keep[:, None, :], -1e9)
        lse = scores.logsumexp(-1, keepdim=True)
        ctx.save_for_backward(query, key, value, keep, lse)
        return torch.softmax(scores, -1) @ value, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, keep, lse = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        scores = (query @ key.mT * scale).masked_fill(~keep[:, None, :], -1e9)
        p = torch.exp(scores - lse)
        p = torch.where(keep.any(-1)[:, None, None], p, 1 / p.shape[-1])
        grad_value = p.mT @ grad_output
        grad_p = grad_output @ value.mT
        grad_scores = p * (grad_p - (grad_p * p).sum(-1, keepdim=True) + grad_lse)
        grad_scores = grad_scores * keep[:, None, :] * scale
        return grad_scores @ key, grad_scores.mT @ query, grad_value, None
''',
 ("mask-not-replayed", "p = torch.exp(scores - lse)", "p = torch.exp(query @ key.mT * scale - lse)",
  "operand missing-term region branch none"),
 ("delta-over-queries", "(grad_p * p).sum(-1, keepdim=True)", "(grad_p * p).sum(1, keepdim=True)", "wrong-reduction-dim"),
 ("key-unscaled", "grad_scores * keep[:, None, :] * scale\n        return grad_scores @ key,",
  "grad_scores * keep[:, None, :]\n        return grad_scores * scale @ key,", "constant-factor"),
 ("lse-forgotten", " + grad_lse)", ")", "ignored-output missing-term"),
)

fn("XposRotate", "x: [b, t, 2*d]\nzeta: {shape: [d], domain: positive}", '''
    """Rotary embedding of interleaved pairs, with a decay for each pair that is learned."""

    @staticmethod
    def forward(ctx, x, zeta):
        position = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)[:, None]
        rate = 100.0 ** -(torch.arange(zeta.shape[0], dtype=x.dtype, device=x.device) / zeta.shape[0])
        cos, sin = torch.cos(position * rate), torch.sin(position * rate)
        even, odd = x[..., 0::2], x[..., 1::2]
        growth = zeta**position
        y = torch.stack((growth * (even * cos - odd * sin), growth * (even * sin + odd * cos)), -1).flatten(-2)
        ctx.save_for_backward(y, zeta, position, cos, sin, growth)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, zeta, position, cos, sin, growth = ctx.saved_tensors
        even, odd = growth * grad_output[..., 0::2], growth * grad_output[..., 1::2]
        grad_x = torch.stack((even * cos + odd * sin, odd * cos - even * sin), -1).flatten(-2)
        pairs = (grad_output * y).unflatten(-1, (-1, 2)).sum(-1)
        grad_zeta = (pairs * position / zeta).sum((0, 1))
        return grad_x, grad_zeta
''',
 ("rotated-forwards", "(even * cos + odd * sin, odd * cos - even * sin)", "(even * cos - odd * sin, odd * cos + even * sin)",
  "transposed operand constant-factor none"),
 ("halves-for-pairs", "odd * cos - even * sin), -1).flatten(-2)\n        pairs", "odd * cos - even * sin), -2).flatten(-2)\n        pairs", "permuted"),
 ("exponent-forgotten", "(pairs * position / zeta)", "(pairs / zeta)", "chain-factor operand none"),
)

# --- recurrent ---------------------------------------------------------------------------------------------------

fn("MinimalGatedCell", "x: [b, n]\nh: [b, m]\nwf: [m, n + m]\nbf: [m]\nwc: [m, n + m]", '''
    """A recurrent cell with one gate, which both forgets and resets."""

    @staticmethod
    def forward(ctx, x, h, wf, bf, wc):
        f = torch.sigmoid(torch.cat((x, h), 1) @ wf.t() + bf)
        c = torch.tanh(torch.cat((x, f * h), 1) @ wc.t())
        ctx.save_for_backward(x, h, wf, bf, wc)
        return (1 - f) * h + f * c

    @staticmethod
    def backward(ctx, grad_output):
        x, h, wf, bf, wc = ctx.saved_tensors
        n = x.shape[1]
        joined = torch.cat((x, h), 1)
        f = torch.sigmoid(joined @ wf.t() + bf)
        reset = torch.cat((x, f * h), 1)
        c = torch.tanh(reset @ wc.t())
        grad_a = grad_output * f * (1 - c * c)
        grad_reset = grad_a @ wc
        grad_f = grad_output * (c - h) + grad_reset[:, n:] * h
        grad_z = grad_f * f * (1 - f)
        grad_joined = grad_z @ wf
        grad_x = grad_joined[:, :n] + grad_reset[:, :n]
        grad_h = grad_output * (1 - f) + grad_joined[:, n:] + grad_reset[:, n:] * f
        return grad_x, grad_h, grad_z.t() @ joined, grad_z.sum(0), grad_a.t() @ reset
''',
 ("gate-as-reset-forgotten", " + grad_reset[:, n:] * h", "", "missing-term"),
 ("reset-state-ungated", "grad_reset[:, n:] * f", "grad_reset[:, n:]", "chain-factor operand"),
 # second order: the gate is taken out of the graph
 ("gate-no-grad", "f = torch.sigmoid(joined @ wf.t() + bf)\n        reset",
  "with torch.no_grad():\n            f = torch.sigmoid(joined @ wf.t() + bf)\n        reset", "detached"),
)

# --- convolution -------------------------------------------------------------------------------------------------

fn("DilatedTaps", "x: [b, n, t]\nweight: [m, n, 3]\ndilation: {choices: [1, 2]}", '''
    """Causal convolution with a dilation, tap by tap."""

    @staticmethod
    def forward(ctx, x, weight, dilation):
        ctx.save_for_backward(x, weight)
        ctx.dilation = dilation
        steps, taps = x.shape[2], weight.shape[2]
        y = x.new_zeros(x.shape[0], weight.shape[0], steps)
        for j in range(taps):
            lag = (taps - 1 - j) * dilation
            y[:, :, lag:] += torch.einsum("mn,bnt->bmt", weight[:, :, j], x[:, :, : steps - lag])
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        steps, taps = x.shape[2], weight.shape[2]
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for j in range(taps):
            lag = (taps - 1 - j) * ctx.dilation
            late = grad_output[:, :, lag:]
            grad_x[:, :, : steps - lag] += torch.einsum("mn,bmt->bnt", weight[:, :, j], late)
            grad_weight[:, :, j] = torch.einsum("bmt,bnt->mn", late, x[:, :, : steps - lag])
        return grad_x, grad_weight, None
''',
 ("taps-flipped", "weight[:, :, j], late)", "weight[:, :, taps - 1 - j], late)", "operand permuted none"),
 # wrong for the second choice only
 ("dilation-forgotten", "lag = (taps - 1 - j) * ctx.dilation", "lag = taps - 1 - j", "none operand permuted"),
 ("only-the-last-tap", "grad_x[:, :, : steps - lag] += torch", "grad_x[:, :, : steps - lag] = torch",
  "missing-term none region"),
)

# --- segments ----------------------------------------------------------------------------------------------------

fn("SegmentLogSum", "x: [k, d]\nindex: {shape: [k], dtype: int64, range: [0, n]}\nsegments: {size: n}", '''
    """logsumexp over the rows of each segment; 0 for a segment without rows."""

    @staticmethod
    def forward(ctx, x, index, segments):
        wide = index[:, None].expand_as(x)
        top = x.new_zeros(segments, x.shape[1]).scatter_reduce(0, wide, x, "amax", include_self=False)
        total = x.new_zeros(segments, x.shape[1]).index_add(0, index, torch.exp(x - top[index]))
        out = torch.where(total > 0, torch.log(total) + top, 0.0)
        ctx.save_for_backward(x, index, out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        x, index, out = ctx.saved_tensors
        share = torch.exp(x - out[index])
        return grad_output[index] * share, None, None
''',
 ("share-of-all-rows", "torch.exp(x - out[index])", "torch.softmax(x, 0)", "operand chain-factor none"),
 ("normaliser-forgotten", "torch.exp(x - out[index])", "torch.exp(x)", "chain-factor missing-term operand"),
 # second order: an intermediate that is not the output itself
 ("normaliser-saved", "ctx.save_for_backward(x, index, out)", "ctx.save_for_backward(x, index, out.clone())",
  "saved-intermediate detached ~missing-term"),
)

# --- linear algebra ----------------------------------------------------------------------------------------------

fn("DiscountedLyapunov", "a: {shape: [d, d], range: [-0.35, 0.35]}\nq: [d, d]\ngamma: 0.8", '''
    """X = gamma A X A^T + Q, solved as one system of d^2 unknowns."""

    @staticmethod
    def solve(a, q, gamma):
        system = torch.eye(q.numel(), dtype=q.dtype, device=q.device) - gamma * torch.kron(a, a)
        return torch.linalg.solve(system, q.reshape(-1)).reshape(q.shape)

    @staticmethod
    def forward(ctx, a, q, gamma):
        x = SELF.solve(a, q, gamma)
        ctx.save_for_backward(a, x)
        ctx.gamma = gamma
        return x

    @staticmethod
    def backward(ctx, grad_output):
        a, x = ctx.saved_tensors
        grad_q = SELF.solve(a.t(), grad_output, ctx.gamma)
        grad_a = ctx.gamma * (grad_q @ a @ x.t() + grad_q.t() @ a @ x)
        return grad_a, grad_q, None
''',
 ("adjoint-of-a", "SELF.solve(a.t(), grad_output", "SELF.solve(a, grad_output", "transposed operand"),
 ("one-factor-of-two", " + grad_q.t() @ a @ x)", ")", "missing-term"),
 # right where Q is symmetric, as covariances are
 ("as-if-symmetric", "(grad_q @ a @ x.t() + grad_q.t() @ a @ x)", "2 * (grad_q @ a @ x)", "transposed operand none missing-term"),
 # second order
 ("solution-detached", "grad_a = ctx.gamma", "x = x.detach()\n        grad_a = ctx.gamma", "detached"),
)

# --- kernels and geometry ----------------------------------------------------------------------------------------

fn("MaternGram", "x: [n, d]\ny: [m, d]\nlength: {shape: [d], domain: positive}\nvariance: {shape: [], domain: positive}", '''
    """The Matern kernel of order 5/2 between two sets of points, a length for each dimension."""

    @staticmethod
    def forward(ctx, x, y, length, variance):
        diff = x[:, None, :] - y[None, :, :]
        s = (5 * ((diff / length) ** 2).sum(-1)).sqrt()
        kernel = variance * (1 + s + s**2 / 3) * torch.exp(-s)
        ctx.save_for_backward(diff, s, length, variance, kernel)
        return kernel

    @staticmethod
    def backward(ctx, grad_output):
        diff, s, length, variance, kernel = ctx.saved_tensors
        grad_square = grad_output * (-5 / 6) * variance * (1 + s) * torch.exp(-s)
        grad_diff = 2 * grad_square[:, :, None] * diff / length**2
        grad_length = -2 * (grad_square[:, :, None] * diff**2).sum((0, 1)) / length**3
        grad_variance = (grad_output * kernel / variance).sum()
        return grad_diff.sum(1), -grad_diff.sum(0), grad_length, grad_variance
''',
 ("five-thirds", "(-5 / 6)", "(-5 / 3)", "constant-factor"),
 ("order-three-halves", "variance * (1 + s) * torch", "variance * torch", "chain-factor missing-term operand"),
 # gradcheck cannot see it: the error is that of float32
 ("exponential-in-single", "variance * (1 + s) * torch.exp(-s)", "variance * (1 + s) * torch.exp(-s.float())", "float32-inside"),
)

fn("PinholeDistort", "points: {shape: [n, 3], range: [0.5, 2]}\nfocal: [2]\ncentre: [2]\nk1: {shape: []}", '''
    """Points in front of a camera, projected with one coefficient of radial distortion."""

    @staticmethod
    def forward(ctx, points, focal, centre, k1):
        uv = points[:, :2] / points[:, 2:]
        s = 1 + k1 * uv.square().sum(1, keepdim=True)
        ctx.save_for_backward(points, focal, k1)
        return focal * uv * s + centre

    @staticmethod
    def backward(ctx, grad_output):
        points, focal, k1 = ctx.saved_tensors
        z = points[:, 2:]
        uv = points[:, :2] / z
        r2 = uv.square().sum(1, keepdim=True)
        s = 1 + k1 * r2
        grad_distorted = grad_output * focal
        grad_s = (grad_distorted * uv).sum(1, keepdim=True)
        grad_uv = grad_distorted * s + 2 * k1 * grad_s * uv
        grad_z = -(grad_uv * uv).sum(1, keepdim=True) / z
        grad_points = torch.cat((grad_uv / z, grad_z), 1)
        return grad_points, (grad_output * uv * s).sum(0), grad_output.sum(0), (grad_s * r2).sum()
''',
 ("distortion-held", " + 2 * k1 * grad_s * uv", "", "missing-term"),
 ("depth-from-undistorted", "grad_z = -(grad_uv * uv)", "grad_z = -(grad_distorted * uv)", "missing-term chain-factor operand region none"),
 ("focal-of-ideal-point", "(grad_output * uv * s).sum(0)", "(grad_output * uv).sum(0)", "chain-factor missing-term operand"),
 # second order: the normalised coordinates come from forward
 ("coordinates-saved", ("ctx.save_for_backward(points, focal, k1)", "points, focal, k1 = ctx.saved_tensors", "uv = points[:, :2] / z\n"),
  ("ctx.save_for_backward(points, focal, k1, uv)", "points, focal, k1, kept = ctx.saved_tensors", "uv = kept\n"),
  "saved-intermediate detached ~missing-term"),
)

# --- probability -------------------------------------------------------------------------------------------------

fn("KumaraswamyDraw", "u: {shape: [b, n], range: [0.1, 0.9]}\na: {shape: [n], range: [0.5, 3]}\nb: {shape: [n], range: [0.5, 3]}", '''
    """A sample (1 - (1 - u)^(1/b))^(1/a), differentiable in its parameters and in u."""

    @staticmethod
    def forward(ctx, u, a, b):
        w = (1 - u) ** (1 / b)
        x = (1 - w) ** (1 / a)
        ctx.save_for_backward(u, a, b, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        u, a, b, x = ctx.saved_tensors
        w = (1 - u) ** (1 / b)
        grad_w = -grad_output * x / (a * (1 - w))
        grad_u = -grad_w * w / (b * (1 - u))
        grad_a = -(grad_output * x * torch.log(x) / a).sum(0)
        grad_b = -(grad_w * w * torch.log(w) / b).sum(0)
        return grad_u, grad_a, grad_b
''',
 ("log-of-base", "torch.log(w) / b", "torch.log(1 - u) / b", "chain-factor operand"),
 ("inner-power-lost", "x / (a * (1 - w))", "x / a", "chain-factor operand"),
 # second order: a value is read out of the graph
 ("sample-data", "torch.log(x) / a", "torch.log(x.data) / a", "detached"),
)

# --- activations and complex -------------------------------------------------------------------------------------

fn("AconGate", "x: [b, n]\np1: [n]\np2: [n]\nbeta: [n]", '''
    """(p1 - p2) x sigmoid(beta (p1 - p2) x) + p2 x: a smooth maximum of two lines for each channel."""

    @staticmethod
    def forward(ctx, x, p1, p2, beta):
        ctx.save_for_backward(x, p1, p2, beta)
        d = (p1 - p2) * x
        return d * torch.sigmoid(beta * d) + p2 * x

    @staticmethod
    def backward(ctx, grad_output):
        x, p1, p2, beta = ctx.saved_tensors
        d = (p1 - p2) * x
        gate = torch.sigmoid(beta * d)
        bump = gate * (1 - gate)
        slope = gate + beta * d * bump
        grad_x = grad_output * ((p1 - p2) * slope + p2)
        grad_p1 = (grad_output * x * slope).sum(0)
        grad_p2 = (grad_output * x * (1 - slope)).sum(0)
        grad_beta = (grad_output * d * d * bump).sum(0)
        return grad_x, grad_p1, grad_p2, grad_beta
''',
 ("p2-in-the-line-only", "x * (1 - slope)", "x", "missing-term"),
 ("returned-out-of-order", "return grad_x, grad_p1, grad_p2, grad_beta", "return grad_x, grad_p2, grad_p1, grad_beta", "swapped-inputs"),
 # second order
 ("bump-detached", "bump = gate * (1 - gate)", "bump = (gate * (1 - gate)).detach()", "detached"),
)

fn("ComplexSaturation", "z: {shape: [b, n], dtype: complex128}\nw: {shape: [n], dtype: complex128}", '''
    """w z / (1 + |z|^2): a complex gain that saturates."""

    @staticmethod
    def forward(ctx, z, w):
        s = 1 / (1 + z.abs() ** 2)
        ctx.save_for_backward(z, w, s)
        return w * z * s

    @staticmethod
    def backward(ctx, grad_output):
        z, w, s = ctx.saved_tensors
        c = grad_output * w.conj()
        along = (c.conj() * z).real
        grad_z = s * c - 2 * s**2 * along * z
        grad_w = (grad_output * (z * s).conj()).sum(0)
        return grad_z, grad_w
''',
 ("gain-not-conjugated", "grad_output * w.conj()", "grad_output * w", "conjugate operand"),
 ("imaginary-part-kept", "(c.conj() * z).real", "c.conj() * z", "missing-term none operand conjugate"),
 ("saturation-held", " - 2 * s**2 * along * z", "", "missing-term"),
)

# --- proximal step -----------------------------------------------------------------------------------------------

fn("GroupShrink", "x: [b, n]\nlam: {shape: [b], range: [0.5, 3.5]}", '''
    """Proximal step of the group lasso: rows are shortened by lam, or are 0."""

    @staticmethod
    def forward(ctx, x, lam):
        norm = x.norm(dim=1, keepdim=True).clamp(min=1e-12)
        keep = (1 - lam[:, None] / norm).clamp(min=0)
        ctx.save_for_backward(x, lam, norm, keep)
        return x * keep

    @staticmethod
    def backward(ctx, grad_output):
        x, lam, norm, keep = ctx.saved_tensors
        active = norm > lam[:, None]
        along = (grad_output * x).sum(1, keepdim=True)
        turned = torch.where(active, lam[:, None] * along / norm**3, 0.0)
        grad_x = grad_output * keep + turned * x
        grad_lam = -torch.where(active, along / norm, 0.0)
        return grad_x, grad_lam[:, 0]
''',
 ("zero-rows-turned", "torch.where(active, lam[:, None] * along / norm**3, 0.0)", "lam[:, None] * along / norm**3", "branch region none"),
 ("norm-squared", "norm**3", "norm**2", "operand chain-factor missing-term"),
 # gradcheck cannot see it: one call is checked at a time
 ("kept-on-the-class", ("ctx.save_for_backward(x, lam, norm, keep)", "x, lam, norm, keep = ctx.saved_tensors"),
  ("ctx.save_for_backward(x, lam, norm)\n        SELF.keep = keep", "x, lam, norm = ctx.saved_tensors\n        keep = SELF.keep"), "stale"),
 # gradcheck cannot see it: grad_output belongs to the caller
 ("shortened-in-place", "grad_x = grad_output * keep", "grad_x = grad_output.mul_(keep)", "in-place none"),
)
