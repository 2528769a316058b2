"""Eleventh set: written by a seventh hand, which read neither the checker's source nor the other sets.

The format is that of `fifth.py`: an entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text,
what stands in its place, causes). The names of all Functions were drawn into two halves by their SHA-256 before one was
written. The causes were written down with the entries; the author never ran the checker. A word alone is the cause that
is right, one with `~` before it is coarser but true, `none` says that there may be no hypothesis for it. `SELF` stands
for the name of the class; what is above `@@` is written above the class. A comment above a bug says where torch's
gradcheck cannot see it, or sees it in the second order only, and `two at once` where two mistakes are in one backward:
the causes are then those of either.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, t: 7, d: 3"
FUNCTIONS = []
TWICE_DIFFERENTIABLE = (
    "BondAngle", "PeriodicPairs", "QuaternionChain", "DirichletNll", "LowRankGaussianNll", "ComplexGate", "ReducedCauchy",
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- losses ------------------------------------------------------------------------------------------------------

fn("BarlowTwins", "za: [k, n]\nzb: [k, n]\nlambd: 0.3", '''
def _SELF_standardized(x, eps=1e-2):
    r = torch.rsqrt(x.var(0, correction=0) + eps)
    return (x - x.mean(0)) * r, r


def _SELF_through(g, xhat, r):
    return r * (g - g.mean(0) - xhat * (g * xhat).mean(0))
@@
    """Redundancy reduction of two views: the cross-correlation of standardized features against the identity."""

    @staticmethod
    def forward(ctx, za, zb, lambd):
        a, ra = _SELF_standardized(za)
        b, rb = _SELF_standardized(zb)
        c = a.T @ b / a.shape[0]
        on = torch.diagonal(c)
        ctx.save_for_backward(a, ra, b, rb, c)
        ctx.lambd = lambd
        return (on - 1).square().sum() + lambd * (c.square().sum() - on.square().sum())

    @staticmethod
    def backward(ctx, grad_output):
        a, ra, b, rb, c = ctx.saved_tensors
        n = a.shape[0]
        grad_c = 2 * ctx.lambd * c
        grad_c.diagonal().copy_(2 * (torch.diagonal(c) - 1))
        grad_c *= grad_output / n
        grad_a = b @ grad_c.T
        grad_b = a @ grad_c
        return _SELF_through(grad_a, a, ra), _SELF_through(grad_b, b, rb), None
''',
 ("correlation-not-transposed", "b @ grad_c.T", "b @ grad_c", "transposed operand none"),
 ("diagonal-weighted", "copy_(2 * (torch.diagonal(c) - 1))", "copy_(2 * ctx.lambd * (torch.diagonal(c) - 1))",
  "constant-factor missing-factor operand diagonal-only none ~missing-term"),
 ("deviation-held", "r * (g - g.mean(0) - xhat * (g * xhat).mean(0))", "r * (g - g.mean(0))", "missing-term"),
 ("diagonal-left", "        grad_c.diagonal().copy_(2 * (torch.diagonal(c) - 1))\n", "", "missing-term operand none"),
 # two at once: no 1/N for the correlation, and the second view standardized by the first one's deviation
 ("no-count-and-other-deviation", ("grad_c *= grad_output / n", "_SELF_through(grad_b, b, rb)"),
  ("grad_c *= grad_output", "_SELF_through(grad_b, b, ra)"), "constant-factor operand chain-factor"),
)

fn("WingLoss", "pred: [b, n]\ntarget: [b, n]\nvisible: {shape: [n], domain: positive}\nwidth: 0.9\ncurve: 0.4", '''
    """Wing loss of landmarks: a logarithm near zero, linear beyond `width`; weighted, a mean over the batch."""

    @staticmethod
    def forward(ctx, pred, target, visible, width, curve):
        r = pred - target
        a = r.abs()
        offset = width - width * math.log1p(width / curve)
        wing = torch.where(a < width, width * torch.log1p(a / curve), a - offset)
        ctx.save_for_backward(r, visible)
        ctx.width, ctx.curve, ctx.offset = width, curve, offset
        return (wing * visible).sum() / r.shape[0]

    @staticmethod
    def backward(ctx, grad_output):
        r, visible = ctx.saved_tensors
        a = r.abs()
        scale = grad_output / r.shape[0]
        near = a < ctx.width
        slope = torch.where(near, ctx.width / (ctx.curve + a), 1.0)
        grad_r = scale * visible * slope * r.sign()
        grad_visible = None
        if ctx.needs_input_grad[2]:
            wing = torch.where(near, ctx.width * torch.log1p(a / ctx.curve), a - ctx.offset)
            grad_visible = scale * wing.sum(0)
        return grad_r, -grad_r, grad_visible, None, None
''',
 ("curve-lost", "ctx.width / (ctx.curve + a)", "ctx.width / (1 + a / ctx.curve)", "branch"),
 ("other-side", "near = a < ctx.width", "near = a > ctx.width", "branch none"),
 ("offset-forgotten", "a - ctx.offset)", "a)", "missing-term branch none"),
 ("summed-over-features", "scale * wing.sum(0)", "scale * wing.mean(0)", "constant-factor"),
 # gradcheck cannot see it: with every input differentiated both flags are the same
 ("flag-of-another", "ctx.needs_input_grad[2]", "ctx.needs_input_grad[1]", "needs-input-grad zero none"),
)

fn("ReducedCauchy", "pred: [b, n]\ntarget: [b, n]\nlog_scale: [n]\nreduction: {choices: [mean, sum, none]}", '''
    """Negative log-likelihood of a Cauchy distribution with a scale for each column, reduced as asked."""

    @staticmethod
    def forward(pred, target, log_scale, reduction):
        u = (pred - target) * torch.exp(-log_scale)
        loss = torch.log1p(u * u) + log_scale
        if reduction == "none":
            return loss
        return loss.mean() if reduction == "mean" else loss.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pred, target, log_scale, ctx.reduction = inputs
        ctx.save_for_backward(pred, target, log_scale)

    @staticmethod
    def backward(ctx, grad_output):
        pred, target, log_scale = ctx.saved_tensors
        inv = torch.exp(-log_scale)
        u = (pred - target) * inv
        if ctx.reduction == "mean":
            grad_output = grad_output / u.numel()
        du = grad_output * 2 * u / (1 + u * u)
        grad_pred = du * inv
        grad_log_scale = (grad_output - du * u).sum(0)
        return grad_pred, -grad_pred, grad_log_scale, None
''',
 ("mean-not-divided", "grad_output = grad_output / u.numel()", "pass", "constant-factor"),
 ("mean-over-batch-only", "grad_output / u.numel()", "grad_output / u.shape[0]", "constant-factor"),
 ("normalizer-of-scale-forgotten", "(grad_output - du * u).sum(0)", "(-du * u).sum(0)", "missing-term"),
 ("scale-twice", "grad_pred = du * inv", "grad_pred = du * inv * inv", "chain-factor operand"),
 # second order: the Cauchy weight is taken as constant, as in iteratively reweighted least squares
 ("weight-held", "2 * u / (1 + u * u)", "2 * u / (1 + u * u).detach()", "detached"),
)

# --- normalisations, pooling -------------------------------------------------------------------------------------

fn("EvoNorm", "x: [b, k, m]\nv: [k]\ngamma: [k]\nbeta: [k]\ngroups: 2", '''
    """EvoNorm-S0: a gate over the standard deviation of a group of channels."""

    @staticmethod
    def forward(ctx, x, v, gamma, beta, groups):
        grouped = x.reshape(x.shape[0], groups, -1)
        var = grouped.var(-1, keepdim=True, correction=0)
        r = torch.rsqrt(var + 1e-3).expand_as(grouped).reshape(x.shape)
        mean = grouped.mean(-1, keepdim=True).expand_as(grouped).reshape(x.shape)
        s = torch.sigmoid(v[:, None] * x)
        ctx.save_for_backward(x, v, gamma, s, r, mean)
        ctx.groups = groups
        return x * s * r * gamma[:, None] + beta[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        x, v, gamma, s, r, mean = ctx.saved_tensors
        h = grad_output * gamma[:, None]
        ds = s * (1 - s)
        direct = h * r * (s + x * v[:, None] * ds)
        along = (h * x * s).reshape(x.shape[0], ctx.groups, -1)
        grad_r = along.sum(-1, keepdim=True).expand_as(along).reshape(x.shape)
        count = along.shape[-1]
        grad_x = direct - grad_r * r**3 * (x - mean) / count
        grad_v = (h * r * x * x * ds).sum((0, 2))
        grad_gamma = (grad_output * x * s * r).sum((0, 2))
        return grad_x, grad_v, grad_gamma, grad_output.sum((0, 2)), None
''',
 ("deviation-held", "grad_x = direct - grad_r * r**3 * (x - mean) / count", "grad_x = direct", "missing-term"),
 ("squared-not-cubed", "grad_r * r**3", "grad_r * r**2", "missing-term chain-factor operand missing-factor none"),
 ("one-x-in-v", "(h * r * x * x * ds)", "(h * r * x * ds)", "missing-factor operand chain-factor none"),
 # too small for gradcheck's tolerances
 ("gate-in-float32", "ds = s * (1 - s)", "ds = (s * (1 - s)).float()", "float32-inside"),
 ("time-alone", "(grad_output * x * s * r).sum((0, 2))", "(grad_output * x * s * r).sum(2)[0]", "region not-summed-over-broadcast missing-term"),
)

fn("GemPool", "x: {shape: [b, n, m], range: [0.2, 2.0]}\np: {shape: [n], range: [1.2, 4.0]}\nlengths: {shape: [b], dtype: int64, range: [1, m+1]}", '''
    """Generalised mean over the valid steps, with a power for each channel."""

    @staticmethod
    def forward(x, p, lengths):
        mask = (torch.arange(x.shape[-1]) < lengths[:, None]).to(x.dtype)[:, None, :]
        mean = (x ** p[:, None] * mask).sum(-1) / lengths[:, None]
        return mean ** (1 / p), mean

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, p, lengths = inputs
        pooled, mean = output
        ctx.mark_non_differentiable(mean)
        ctx.save_for_backward(x, p, lengths, pooled, mean)

    @staticmethod
    def backward(ctx, grad_pooled, _):
        x, p, lengths, pooled, mean = ctx.saved_tensors
        mask = (torch.arange(x.shape[-1]) < lengths[:, None]).to(x.dtype)[:, None, :]
        count = lengths[:, None]
        outer = grad_pooled * pooled / mean / count
        grad_x = outer[..., None] * x ** (p[:, None] - 1) * mask
        weighted = (x ** p[:, None] * torch.log(x) * mask).sum(-1)
        grad_p = (outer * weighted / p - grad_pooled * pooled * torch.log(mean) / p**2).sum(0)
        return grad_x, grad_p, None
''',
 ("full-length", "count = lengths[:, None]", "count = x.shape[-1]", "chain-factor operand missing-factor none"),
 ("mask-forgotten", "(p[:, None] - 1) * mask", "(p[:, None] - 1)", "branch region operand missing-factor none"),
 ("root-not-through", "outer * weighted / p - grad_pooled * pooled * torch.log(mean) / p**2", "outer * weighted / p", "missing-term"),
 # two at once: the exponent of the power rule is not lowered, and one division by p is left out
 ("power-and-p", ("** (p[:, None] - 1)", "torch.log(mean) / p**2"), ("** p[:, None]", "torch.log(mean) / p"),
  "chain-factor operand missing-factor missing-term none"),
)

fn("SegmentVariance", "x: [t, n]\nsegment: {shape: [t], dtype: int64, range: [0, d]}\nsegments: {size: d}\ncorrection: {choices: [0, 1]}", '''
    """Mean and variance of the rows of each segment; an empty one has zeros."""

    @staticmethod
    def forward(ctx, x, segment, segments, correction):
        count = x.new_zeros(segments).index_add_(0, segment, x.new_ones(len(segment)))
        total = x.new_zeros(segments, x.shape[1]).index_add_(0, segment, x)
        mean = total / count.clamp(min=1)[:, None]
        r = x - mean[segment]
        free = (count - correction).clamp(min=1)
        var = torch.zeros_like(mean).index_add_(0, segment, r * r) / free[:, None]
        ctx.save_for_backward(r, segment, count, free)
        return mean, var

    @staticmethod
    def backward(ctx, grad_mean, grad_var):
        r, segment, count, free = ctx.saved_tensors
        through_mean = (grad_mean / count.clamp(min=1)[:, None])[segment]
        through_var = 2 * r * (grad_var / free[:, None])[segment]
        return through_mean + through_var, None, None, None
''',
 ("variance-ignored", "return through_mean + through_var", "return through_mean", "ignored-output missing-term"),
 ("divided-by-count", "grad_var / free[:, None]", "grad_var / count.clamp(min=1)[:, None]", "chain-factor operand missing-term ignored-output none"),
 ("two-dropped", "2 * r * (grad_var", "r * (grad_var", "constant-factor ~ignored-output ~missing-term"),
 # gradcheck cannot see it: its last forward is at nearly the same point
 ("kept-on-the-class", ("ctx.save_for_backward(r, segment, count, free)", "r, segment, count, free = ctx.saved_tensors"),
  ("ctx.save_for_backward(segment, count, free)\n        SELF.residual = r", "segment, count, free = ctx.saved_tensors\n        r = SELF.residual"), "stale"),
)

# --- recurrences -------------------------------------------------------------------------------------------------

fn("CoupledUnroll", "xs: [n, b, k]\nw: [k, 2*m]\nu: [m, 2*m]\nh0: [b, m]", '''
    """A recurrent layer whose input gate is one minus the forget gate; all states are returned."""

    @staticmethod
    def forward(ctx, xs, w, u, h0):
        h, states, forgets, cands = h0, [h0], [], []
        for x in xs:
            f, c = (x @ w + h @ u).chunk(2, -1)
            f, c = torch.sigmoid(f), torch.tanh(c)
            h = f * h + (1 - f) * c
            states.append(h)
            forgets.append(f)
            cands.append(c)
        ctx.save_for_backward(xs, w, u, torch.stack(states), torch.stack(forgets), torch.stack(cands))
        return torch.stack(states[1:])

    @staticmethod
    def backward(ctx, grad_states):
        xs, w, u, states, forgets, cands = ctx.saved_tensors
        grad_xs, grad_w, grad_u = torch.empty_like(xs), torch.zeros_like(w), torch.zeros_like(u)
        gh = torch.zeros_like(states[0])
        for i in reversed(range(len(xs))):
            gh = gh + grad_states[i]
            f, c, prev = forgets[i], cands[i], states[i]
            gf = gh * (prev - c) * f * (1 - f)
            gc = gh * (1 - f) * (1 - c * c)
            gz = torch.cat([gf, gc], -1)
            grad_xs[i] = gz @ w.T
            grad_w += xs[i].T @ gz
            grad_u += prev.T @ gz
            gh = gh * f + gz @ u.T
        return grad_xs, grad_w, grad_u, gh
''',
 ("state-after", "f, c, prev = forgets[i], cands[i], states[i]", "f, c, prev = forgets[i], cands[i], states[i + 1]", "wrong-saved operand permuted none"),
 ("recurrent-path-cut", "gh = gh * f + gz @ u.T", "gh = gh * f", "missing-term"),
 ("candidate-gate", "gh * (1 - f) * (1 - c * c)", "gh * f * (1 - c * c)", "operand chain-factor none"),
 ("last-step-only", "grad_u += prev.T @ gz", "grad_u = prev.T @ gz", "missing-term region duplicates none"),
 # two at once: the gradient of a state replaces the one that comes from behind, and the candidate is left out of the gate's
 ("overwritten-and-gate", ("gh = gh + grad_states[i]", "gh * (prev - c) * f"), ("gh = grad_states[i]", "gh * prev * f"),
  "missing-term diagonal-only region none"),
)

fn("DeltaRule", "q: [m, n]\nkey: [m, n]\nvalue: [m, d]\nbeta: {shape: [m], domain: unit}", '''
    """Fast weights written by the delta rule, read by a query after each write."""

    @staticmethod
    def forward(ctx, q, key, value, beta):
        state = q.new_zeros(value.shape[1], q.shape[1])
        before, errors, out = [], [], []
        for i in range(q.shape[0]):
            before.append(state)
            error = value[i] - state @ key[i]
            state = state + beta[i] * torch.outer(error, key[i])
            errors.append(error)
            out.append(state @ q[i])
        ctx.save_for_backward(q, key, beta, torch.stack(before), torch.stack(errors), state)
        return torch.stack(out), state

    @staticmethod
    def backward(ctx, grad_out, grad_state):
        q, key, beta, before, errors, last = ctx.saved_tensors
        grad_q, grad_key, grad_value = torch.zeros_like(q), torch.zeros_like(key), torch.zeros_like(errors)
        grad_beta = torch.zeros_like(beta)
        after = torch.cat([before[1:], last[None]])
        gs = grad_state.clone()
        for i in range(q.shape[0] - 1, -1, -1):
            gs += torch.outer(grad_out[i], q[i])
            grad_q[i] = after[i].T @ grad_out[i]
            gk = gs @ key[i]
            ge = beta[i] * gk
            grad_beta[i] = errors[i] @ gk
            grad_value[i] = ge
            grad_key[i] = beta[i] * gs.T @ errors[i] - before[i].T @ ge
            gs = gs - torch.outer(ge, key[i])
        return grad_q, grad_key, grad_value, grad_beta
''',
 ("read-before-the-write", "grad_q[i] = after[i].T", "grad_q[i] = before[i].T", "wrong-saved region operand missing-term none"),
 ("erasure-held", "gs = gs - torch.outer(ge, key[i])", "pass", "missing-term"),
 ("key-written-only", "grad_key[i] = beta[i] * gs.T @ errors[i] - before[i].T @ ge", "grad_key[i] = beta[i] * gs.T @ errors[i]", "missing-term"),
 ("final-state-ignored", "gs = grad_state.clone()", "gs = torch.zeros_like(grad_state)", "ignored-output"),
 ("beta-forgotten", "grad_value[i] = ge", "grad_value[i] = gk", "chain-factor missing-factor operand"),
)

fn("CombFilter", "x: [n, t]\ngain: [n]\nmix: []\ndelay: 2", '''
    """A feedback comb filter for each channel, mixed with the dry signal."""

    @staticmethod
    def forward(ctx, x, gain, mix, delay):
        y = x.clone()
        for i in range(delay, x.shape[1]):
            y[:, i] += gain * y[:, i - delay]
        ctx.save_for_backward(x, y, gain, mix)
        ctx.delay = delay
        return torch.lerp(x, y, mix)

    @staticmethod
    def backward(ctx, grad_output):
        x, y, gain, mix = ctx.saved_tensors
        delay = ctx.delay
        gy = grad_output * mix
        for i in range(x.shape[1] - 1, delay - 1, -1):
            gy[:, i - delay] += gain * gy[:, i]
        grad_x = gy + grad_output * (1 - mix)
        grad_gain = (gy[:, delay:] * y[:, :-delay]).sum(1)
        grad_mix = (grad_output * (y - x)).sum()
        return grad_x, grad_gain, grad_mix, None
''',
 ("loop-ends-early", "range(x.shape[1] - 1, delay - 1, -1)", "range(x.shape[1] - 1, delay, -1)", "region missing-term"),
 ("forwards-in-time", "range(x.shape[1] - 1, delay - 1, -1)", "range(delay, x.shape[1])", "permuted missing-term none"),
 ("dry-forgotten", "grad_x = gy + grad_output * (1 - mix)", "grad_x = gy", "missing-term"),
 ("gain-from-the-input", "(gy[:, delay:] * y[:, :-delay])", "(gy[:, delay:] * x[:, :-delay])", "wrong-saved operand missing-term"),
 ("echo-one-early", "(gy[:, delay:] * y[:, :-delay])", "(gy[:, delay - 1 :] * y[:, : 1 - delay])", "permuted operand none"),
)

# --- convolutions by hand ----------------------------------------------------------------------------------------

fn("DeformTaps", "x: [n, t]\noffset: {shape: [m, t], range: [-0.9, 0.9], avoid: [0]}\nweight: [m, n]", '''
def _SELF_taps(x, at):
    """Where a tap reads, with zeros outside, and how far between."""
    low = at.floor()
    index = low.long()
    left = (index >= 0) & (index < x.shape[1])
    right = (index + 1 >= 0) & (index + 1 < x.shape[1])
    return index, at - low, left, right
@@
    """A deformable convolution over time: each tap reads at its place plus an offset, between two samples."""

    @staticmethod
    def forward(ctx, x, offset, weight):
        taps, length = offset.shape
        at = torch.arange(length, dtype=x.dtype) + torch.arange(taps, dtype=x.dtype)[:, None] - taps // 2 + offset
        index, part, left, right = _SELF_taps(x, at)
        x0 = x[:, index.clamp(0, length - 1)] * left
        x1 = x[:, (index + 1).clamp(0, length - 1)] * right
        ctx.save_for_backward(x, x0, x1, index, part, left, right, weight)
        return torch.einsum("cpt,pc->t", x0 + part * (x1 - x0), weight)

    @staticmethod
    def backward(ctx, grad_output):
        x, x0, x1, index, part, left, right, weight = ctx.saved_tensors
        length = x.shape[1]
        grad_weight = torch.einsum("cpt,t->pc", x0 + part * (x1 - x0), grad_output)
        grad_read = weight.T[:, :, None] * grad_output
        grad_offset = (grad_read * (x1 - x0)).sum(0)
        grad_x = torch.zeros_like(x)
        grad_x.index_add_(1, index.clamp(0, length - 1).flatten(), (grad_read * ((1 - part) * left)).flatten(1))
        grad_x.index_add_(1, (index + 1).clamp(0, length - 1).flatten(), (grad_read * (part * right)).flatten(1))
        return grad_x, grad_offset, grad_weight
''',
 ("parts-exchanged", ("(grad_read * ((1 - part) * left))", "(grad_read * (part * right))"),
  ("(grad_read * (part * left))", "(grad_read * ((1 - part) * right))"), "operand permuted none"),
 ("edges-clamped", "(grad_read * (part * right))", "(grad_read * part)", "region missing-factor none"),
 ("offset-unweighted", "(grad_read * (x1 - x0)).sum(0)", "(grad_output * (x1 - x0)).sum(0)", "operand missing-factor"),
 ("right-sample-on-the-left", "grad_x.index_add_(1, (index + 1).clamp", "grad_x.index_add_(1, index.clamp", "permuted missing-term region none"),
)

fn("PadModesConv", "x: [n, t]\nweight: [n, 5]\nbias: [n]\nmode: {choices: [zeros, circular, edge]}", '''
def _SELF_padded(x, reach, mode):
    if mode == "circular":
        return torch.cat([x[:, -reach:], x, x[:, :reach]], 1)
    if mode == "edge":
        return torch.cat([x[:, :1].expand(-1, reach), x, x[:, -1:].expand(-1, reach)], 1)
    return torch.nn.functional.pad(x, (reach, reach))
@@
    """A depthwise convolution with a choice of padding, as long as its input."""

    @staticmethod
    def forward(ctx, x, weight, bias, mode):
        reach = weight.shape[1] // 2
        ctx.save_for_backward(x, weight)
        ctx.mode = mode
        return torch.einsum("ctk,ck->ct", _SELF_padded(x, reach, mode).unfold(1, weight.shape[1], 1), weight) + bias[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        taps, length = weight.shape[1], x.shape[1]
        reach = taps // 2
        padded = _SELF_padded(x, reach, ctx.mode)
        grad_padded = torch.zeros_like(padded)
        grad_weight = torch.zeros_like(weight)
        for j in range(taps):
            grad_padded[:, j : j + length] += weight[:, j, None] * grad_output
            grad_weight[:, j] = (padded[:, j : j + length] * grad_output).sum(1)
        grad_x = grad_padded[:, reach : reach + length].clone()
        if ctx.mode == "circular":
            grad_x[:, -reach:] += grad_padded[:, :reach]
            grad_x[:, :reach] += grad_padded[:, -reach:]
        elif ctx.mode == "edge":
            grad_x[:, 0] += grad_padded[:, :reach].sum(1)
            grad_x[:, -1] += grad_padded[:, -reach:].sum(1)
        return grad_x, grad_weight, grad_output.sum(1), None
''',
 ("kernel-flipped", "+= weight[:, j, None] * grad_output", "+= weight[:, -1 - j, None] * grad_output", "permuted operand"),
 ("wrapped-to-the-wrong-end", ("grad_x[:, -reach:] += grad_padded[:, :reach]", "grad_x[:, :reach] += grad_padded[:, -reach:]"),
  ("grad_x[:, :reach] += grad_padded[:, :reach]", "grad_x[:, -reach:] += grad_padded[:, -reach:]"), "region permuted none"),
 ("edge-not-gathered", "grad_x[:, 0] += grad_padded[:, :reach].sum(1)", "pass", "region missing-term"),
 ("zeros-for-the-weight", "padded = _SELF_padded(x, reach, ctx.mode)", 'padded = _SELF_padded(x, reach, "zeros")', "operand missing-term region branch none"),
 # two at once: the bias's sum runs over the channels' mean, and the last tap is left out of x
 ("bias-mean-and-short-loop", ("grad_output.sum(1), None", "            grad_padded[:, j : j + length] += weight"),
  ("grad_output.mean(1), None", "            if j < taps - 1:\n                grad_padded[:, j : j + length] += weight"),
  "constant-factor missing-term region operand"),
)

# --- geometry and physics ----------------------------------------------------------------------------------------

fn("BondAngle", "a: [k, d]\ncentre: [k, d]\nc: [k, d]\nrest: [k]\nstiffness: [k]", '''
    """Harmonic energy of the angle at `centre`, for each triple of atoms."""

    @staticmethod
    def forward(ctx, a, centre, c, rest, stiffness):
        ctx.save_for_backward(a, centre, c, rest, stiffness)
        u, v = a - centre, c - centre
        cos = (u * v).sum(-1) / (u.norm(dim=-1) * v.norm(dim=-1))
        return 0.5 * stiffness * (torch.acos(cos) - rest) ** 2

    @staticmethod
    def backward(ctx, grad_output):
        a, centre, c, rest, stiffness = ctx.saved_tensors
        u, v = a - centre, c - centre
        lu, lv = u.norm(dim=-1, keepdim=True), v.norm(dim=-1, keepdim=True)
        eu, ev = u / lu, v / lv
        cos = (eu * ev).sum(-1, keepdim=True)
        gap = torch.acos(cos[:, 0]) - rest
        force = (grad_output * stiffness * gap)[:, None]
        to_cos = -force / torch.sqrt(1 - cos * cos)
        grad_a = to_cos * (ev - cos * eu) / lu
        grad_c = to_cos * (eu - cos * ev) / lv
        return grad_a, -(grad_a + grad_c), grad_c, -force[:, 0], 0.5 * grad_output * gap * gap
''',
 ("length-of-the-other", "(ev - cos * eu) / lu", "(ev - cos * eu) / lv", "operand chain-factor"),
 ("not-projected", "(eu - cos * ev) / lv", "eu / lv", "missing-term"),
 ("centre-feels-one", "-(grad_a + grad_c)", "-grad_a", "missing-term"),
 # second order: the lengths are cut from the graph
 ("lengths-in-data", "eu, ev = u / lu, v / lv", "eu, ev = u / lu.data, v / lv.data", "detached"),
 # two at once: the derivative of acos has no root, and the rest angle's sign is lost
 ("acos-and-rest", ("torch.sqrt(1 - cos * cos)", "grad_c, -force[:, 0],"), ("(1 - cos * cos)", "grad_c, force[:, 0],"),
  "constant-factor chain-factor missing-factor operand"),
)

fn("PeriodicPairs", "pos: {shape: [m, d], range: [0, 2]}\nbox: {shape: [d], range: [2.2, 3.2]}\ncharge: [m]", '''
    """A screened energy of all pairs in a periodic box, by the nearest image."""

    @staticmethod
    def forward(ctx, pos, box, charge):
        ctx.save_for_backward(pos, box, charge)
        i, j = torch.triu_indices(len(pos), len(pos), 1)
        r = pos[i] - pos[j]
        r = r - box * torch.round(r / box)
        return (charge[i] * charge[j] * torch.exp(-r.square().sum(-1) / 2)).sum()

    @staticmethod
    def backward(ctx, grad_output):
        pos, box, charge = ctx.saved_tensors
        i, j = torch.triu_indices(len(pos), len(pos), 1)
        r = pos[i] - pos[j]
        image = torch.round(r / box)
        r = r - box * image
        e = grad_output * torch.exp(-r.square().sum(-1) / 2)
        pull = -(charge[i] * charge[j] * e)[:, None] * r
        grad_pos = torch.zeros_like(pos).index_add(0, i, pull).index_add(0, j, -pull)
        grad_box = -(pull * image).sum(0)
        grad_charge = torch.zeros_like(charge).index_add(0, i, charge[j] * e).index_add(0, j, charge[i] * e)
        return grad_pos, grad_box, grad_charge
''',
 ("newtons-third", "index_add(0, i, pull).index_add(0, j, -pull)", "index_add(0, i, pull)", "missing-term region none"),
 ("no-image", "        r = r - box * image\n", "", "branch operand missing-term none"),
 ("box-forgotten", "-(pull * image).sum(0)", "torch.zeros_like(box)", "zero"),
 ("own-charge", "index_add(0, i, charge[j] * e)", "index_add(0, i, charge[i] * e)", "operand permuted none"),
 # second order: the screening is taken as constant
 ("screen-held", "e = grad_output * torch.exp(-r.square().sum(-1) / 2)", "e = grad_output * torch.exp(-r.detach().square().sum(-1) / 2)", "detached"),
)

fn("QuaternionChain", "q: [m, 4]", '''
def _SELF_times(p, q):
    a, b, c, d = p.unbind(-1)
    e, f, g, h = q.unbind(-1)
    return torch.stack([a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g,
                        a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e], -1)


def _SELF_inverse(q):
    return torch.cat([q[..., :1], -q[..., 1:]], -1)
@@
    """The product of a chain of rotations, each brought to unit length first."""

    @staticmethod
    def forward(ctx, q):
        ctx.save_for_backward(q)
        unit = q / q.norm(dim=1, keepdim=True)
        total = unit[0]
        for link in unit[1:]:
            total = _SELF_times(total, link)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        (q,) = ctx.saved_tensors
        length = q.norm(dim=1, keepdim=True)
        unit = q / length
        before = [torch.cat([torch.ones_like(q[0, :1]), torch.zeros_like(q[0, 1:])])]
        for link in unit[:-1]:
            before.append(_SELF_times(before[-1], link))
        g, grads = grad_output, []
        for link, prefix in zip(unit.flip(0), reversed(before)):
            grads.append(_SELF_times(_SELF_inverse(prefix), g))
            g = _SELF_times(g, _SELF_inverse(link))
        grad_unit = torch.stack(grads[::-1])
        return (grad_unit - unit * (unit * grad_unit).sum(1, keepdim=True)) / length
''',
 ("prefix-not-conjugated", "grads.append(_SELF_times(_SELF_inverse(prefix), g))", "grads.append(_SELF_times(prefix, g))", "conjugate operand missing-term none ~region"),
 ("left-for-right", "g = _SELF_times(g, _SELF_inverse(link))", "g = _SELF_times(_SELF_inverse(link), g)", "operand permuted none ~region"),
 ("radial-part", "(grad_unit - unit * (unit * grad_unit).sum(1, keepdim=True)) / length", "grad_unit / length", "missing-term"),
 ("order-not-restored", "torch.stack(grads[::-1])", "torch.stack(grads)", "permuted"),
 # second order: the units are made of a length without a graph
 ("length-without-graph", "length = q.norm(dim=1, keepdim=True)", "length = q.detach().norm(dim=1, keepdim=True)", "detached"),
)

fn("RayTriangle", "origin: [k, 3]\ndirection: [k, 3]\ntriangle: [3, 3]", '''
    """Where rays meet the plane of one triangle: depth and the first barycentric coordinate."""

    @staticmethod
    def forward(ctx, origin, direction, triangle):
        v0, v1, v2 = triangle
        e1, e2 = v1 - v0, v2 - v0
        h = torch.linalg.cross(direction, e2.expand_as(direction))
        det = h @ e1
        s = origin - v0
        w = torch.linalg.cross(s, e1.expand_as(s))
        depth, u = w @ e2 / det, (s * h).sum(-1) / det
        ctx.save_for_backward(direction, e1, e2, h, det, s, w, depth, u)
        return depth, u

    @staticmethod
    def backward(ctx, grad_depth, grad_u):
        direction, e1, e2, h, det, s, w, depth, u = ctx.saved_tensors
        gd, gu = (grad_depth / det)[:, None], (grad_u / det)[:, None]
        grad_det = -(gd * depth[:, None] + gu * u[:, None])
        grad_w = gd * e2
        grad_h = gu * s + grad_det * e1
        ones = torch.ones_like(s)
        grad_s = gu * h + torch.linalg.cross(e1 * ones, grad_w)
        grad_direction = torch.linalg.cross(e2 * ones, grad_h)
        grad_e1 = (grad_det * h + torch.linalg.cross(grad_w, s)).sum(0)
        grad_e2 = (gd * w + torch.linalg.cross(grad_h, direction)).sum(0)
        grad_v0 = -grad_s.sum(0) - grad_e1 - grad_e2
        return grad_s, grad_direction, torch.stack([grad_v0, grad_e1, grad_e2])
''',
 ("determinant-held", "grad_h = gu * s + grad_det * e1", "grad_h = gu * s", "missing-term"),
 ("cross-the-other-way", "torch.linalg.cross(e2 * ones, grad_h)", "torch.linalg.cross(grad_h, e2 * ones)", "constant-factor"),
 ("corner-without-edges", "-grad_s.sum(0) - grad_e1 - grad_e2", "-grad_s.sum(0)", "missing-term region"),
 # two at once: the determinant's gradient leaves out u, and the corners are stacked in another order
 ("u-and-order", ("-(gd * depth[:, None] + gu * u[:, None])", "[grad_v0, grad_e1, grad_e2]"),
  ("-(gd * depth[:, None])", "[grad_v0, grad_e2, grad_e1]"), "missing-term permuted ignored-output none"),
)

# --- densities ---------------------------------------------------------------------------------------------------

fn("DirichletNll", "concentration: {shape: [b, n], domain: positive}\nshares: {shape: [b, n], range: [0.05, 0.9]}\nweight: [b]", '''
    """Weighted mean of the negative log-densities of Dirichlet distributions; the shares need not sum to one."""

    @staticmethod
    def forward(ctx, concentration, shares, weight):
        ctx.save_for_backward(concentration, shares, weight)
        log_norm = torch.lgamma(concentration).sum(1) - torch.lgamma(concentration.sum(1))
        return (weight * (log_norm - ((concentration - 1) * shares.log()).sum(1))).mean()

    @staticmethod
    def backward(ctx, grad_output):
        concentration, shares, weight = ctx.saved_tensors
        scale = grad_output / weight.numel()
        w = (scale * weight)[:, None]
        total = concentration.sum(1, keepdim=True)
        grad_concentration = w * (torch.digamma(concentration) - torch.digamma(total) - shares.log())
        grad_shares = -w * (concentration - 1) / shares
        log_norm = torch.lgamma(concentration).sum(1) - torch.lgamma(total[:, 0])
        grad_weight = scale * (log_norm - ((concentration - 1) * shares.log()).sum(1))
        return grad_concentration, grad_shares, grad_weight
''',
 ("total-forgotten", "torch.digamma(concentration) - torch.digamma(total) - shares.log()", "torch.digamma(concentration) - shares.log()", "missing-term"),
 ("total-over-batch", "total = concentration.sum(1, keepdim=True)", "total = concentration.sum(0, keepdim=True)",
  "wrong-reduction-dim operand none missing-term"),
 ("minus-one-forgotten", "-w * (concentration - 1) / shares", "-w * concentration / shares", "missing-term operand"),
 # second order: the shares' part does not know the concentration
 ("concentration-cut", "-w * (concentration - 1) / shares", "-w * (concentration.detach() - 1) / shares", "detached"),
 ("unweighted", "w = (scale * weight)[:, None]", "w = scale", "operand chain-factor missing-factor"),
)

fn("LowRankGaussianNll", "x: [b, n]\nmean: [n]\nfactor: [n, 2]\nlog_diag: [n]", '''
def _SELF_precision(factor, log_diag):
    """The inverse of F F' + diag(exp(log_diag)), by Woodbury's identity."""
    inv = torch.exp(-log_diag)
    scaled = inv[:, None] * factor
    capacitance = torch.eye(factor.shape[1], dtype=factor.dtype) + factor.T @ scaled
    return torch.diag(inv) - scaled @ torch.linalg.solve(capacitance, scaled.T), capacitance
@@
    """Mean negative log-density of a Gaussian whose covariance is of low rank plus a diagonal."""

    @staticmethod
    def forward(ctx, x, mean, factor, log_diag):
        ctx.save_for_backward(x, mean, factor, log_diag)
        precision, capacitance = _SELF_precision(factor, log_diag)
        r = x - mean
        quad = torch.einsum("bi,ij,bj->", r, precision, r) / len(x)
        return 0.5 * (quad + torch.logdet(capacitance) + log_diag.sum())

    @staticmethod
    def backward(ctx, grad_output):
        x, mean, factor, log_diag = ctx.saved_tensors
        precision, _ = _SELF_precision(factor, log_diag)
        a = (x - mean) @ precision
        grad_x = grad_output * a / len(x)
        grad_cov = 0.5 * grad_output * (precision - a.T @ a / len(x))
        grad_factor = 2 * grad_cov @ factor
        grad_log_diag = torch.diagonal(grad_cov) * torch.exp(log_diag)
        return grad_x, -grad_x.sum(0), grad_factor, grad_log_diag
''',
 ("determinant-forgotten", "(precision - a.T @ a / len(x))", "(-a.T @ a / len(x))", "missing-term"),
 ("outer-not-averaged", "a.T @ a / len(x)", "a.T @ a", "missing-term constant-factor none"),
 ("factor-once", "2 * grad_cov @ factor", "grad_cov @ factor", "constant-factor"),
 ("exp-forgotten", "torch.diagonal(grad_cov) * torch.exp(log_diag)", "torch.diagonal(grad_cov)", "chain-factor missing-factor"),
 # second order: the precision is computed without a graph
 ("precision-without-graph", "precision, _ = _SELF_precision(factor, log_diag)\n        a",
  "with torch.no_grad():\n            precision, _ = _SELF_precision(factor, log_diag)\n        a", "detached"),
)

# --- linear algebra, graphs --------------------------------------------------------------------------------------

fn("BidiagonalSolve", "diag: {shape: [t], range: [0.8, 2.0]}\nsub: [t-1]\nrhs: [n, t]", '''
    """Solves a lower bidiagonal system by substitution, for several right-hand sides."""

    @staticmethod
    def forward(diag, sub, rhs):
        x = torch.empty_like(rhs)
        x[:, 0] = rhs[:, 0] / diag[0]
        for i in range(1, rhs.shape[1]):
            x[:, i] = (rhs[:, i] - sub[i - 1] * x[:, i - 1]) / diag[i]
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        diag, sub, _ = inputs
        ctx.save_for_backward(diag, sub, output)

    @staticmethod
    def backward(ctx, grad_x):
        diag, sub, x = ctx.saved_tensors
        lam = torch.empty_like(grad_x)
        lam[:, -1] = grad_x[:, -1] / diag[-1]
        for i in range(grad_x.shape[1] - 2, -1, -1):
            lam[:, i] = (grad_x[:, i] - sub[i] * lam[:, i + 1]) / diag[i]
        grad_diag = -(lam * x).sum(0)
        grad_sub = -(lam[:, 1:] * x[:, :-1]).sum(0)
        return grad_diag, grad_sub, lam
''',
 ("same-direction", ("lam[:, -1] = grad_x[:, -1] / diag[-1]\n        for i in range(grad_x.shape[1] - 2, -1, -1):\n            lam[:, i] = (grad_x[:, i] - sub[i] * lam[:, i + 1])",),
  ("lam[:, 0] = grad_x[:, 0] / diag[0]\n        for i in range(1, grad_x.shape[1]):\n            lam[:, i] = (grad_x[:, i] - sub[i - 1] * lam[:, i - 1])",), "transposed operand"),
 ("sub-shifted", "sub[i] * lam[:, i + 1]", "sub[i - 1] * lam[:, i + 1]", "permuted operand none"),
 ("pairs-exchanged", "-(lam[:, 1:] * x[:, :-1]).sum(0)", "-(lam[:, :-1] * x[:, 1:]).sum(0)", "transposed swapped-inputs permuted operand none"),
 ("first-side-only", "-(lam * x).sum(0)", "-(lam * x)[0]", "not-summed-over-broadcast region missing-term none"),
)

fn("LeastSquaresFit", "design: [k, d]\ntargets: [k, 2]\nweight: {shape: [k], range: [0.5, 2.0]}", '''
    """Weighted least squares: the coefficients and what is left of the sum of squares."""

    @staticmethod
    def forward(ctx, design, targets, weight):
        wa = weight[:, None] * design
        normal = design.T @ wa
        beta = torch.linalg.solve(normal, wa.T @ targets)
        r = targets - design @ beta
        ctx.save_for_backward(design, weight, normal, beta, r)
        return beta, (weight[:, None] * r * r).sum()

    @staticmethod
    def backward(ctx, grad_beta, grad_rss):
        design, weight, normal, beta, r = ctx.saved_tensors
        w = weight[:, None]
        s = torch.linalg.solve(normal, grad_beta)
        fitted = design @ s
        grad_design = w * (r @ s.T - fitted @ beta.T) - 2 * grad_rss * w * r @ beta.T
        grad_targets = w * fitted + 2 * grad_rss * w * r
        grad_weight = (r * fitted).sum(1) + grad_rss * r.square().sum(1)
        return grad_design, grad_targets, grad_weight
''',
 ("normal-held", "w * (r @ s.T - fitted @ beta.T)", "w * (r @ s.T)", "missing-term"),
 ("residual-term-lost", "w * (r @ s.T - fitted @ beta.T)", "w * (-fitted @ beta.T)", "missing-term"),
 ("rss-of-weight-ignored", "(r * fitted).sum(1) + grad_rss * r.square().sum(1)", "(r * fitted).sum(1)", "ignored-output"),
 ("rss-gradient-forgotten", "w * fitted + 2 * grad_rss * w * r", "w * fitted + 2 * w * r", "grad-output-ones grad-output-nonlinear missing-factor operand ignored-output none"),
 # two at once: the two of the square is dropped for the targets, and the weight for the design
 ("no-two-and-no-weight", ("w * fitted + 2 * grad_rss * w * r", "w * (r @ s.T - fitted @ beta.T)"),
  ("w * fitted + grad_rss * w * r", "(r @ s.T - fitted @ beta.T)"), "constant-factor missing-factor operand chain-factor ignored-output missing-term"),
)

fn("LaplacianSmooth", "x: [m, n]\nsource: {shape: [t], dtype: int64, range: [0, m]}\ntarget: {shape: [t], dtype: int64, range: [0, m]}\nweight: {shape: [t], domain: positive}\nstep: 0.7", '''
    """One step of smoothing over a weighted directed graph, by degrees on both sides."""

    @staticmethod
    def forward(ctx, x, source, target, weight, step):
        degree = weight.new_ones(len(x)).index_add(0, target, weight)
        r = degree.rsqrt()
        flow = (weight * r[source] * r[target])[:, None] * x[source]
        ctx.save_for_backward(x, source, target, weight, r)
        ctx.step = step
        return (1 - step) * x + step * torch.zeros_like(x).index_add(0, target, flow)

    @staticmethod
    def backward(ctx, grad_output):
        x, source, target, weight, r = ctx.saved_tensors
        g = ctx.step * grad_output
        along = (g[target] * x[source]).sum(1)
        coefficient = weight * r[source] * r[target]
        grad_x = (1 - ctx.step) * grad_output
        grad_x = grad_x.index_add(0, source, coefficient[:, None] * g[target])
        grad_r = torch.zeros_like(r)
        grad_r.index_add_(0, source, along * weight * r[target])
        grad_r.index_add_(0, target, along * weight * r[source])
        grad_degree = -0.5 * grad_r * r**3
        grad_weight = along * r[source] * r[target] + grad_degree[target]
        return grad_x, None, None, grad_weight, None
''',
 ("spread-to-the-target", "grad_x.index_add(0, source, coefficient[:, None] * g[target])", "grad_x.index_add(0, target, coefficient[:, None] * g[source])", "transposed"),
 ("degrees-held", "along * r[source] * r[target] + grad_degree[target]", "along * r[source] * r[target]", "missing-term"),
 ("one-side-of-the-degree", "        grad_r.index_add_(0, source, along * weight * r[target])\n", "", "missing-term"),
 # grad_output is scaled in place and then used again
 ("scaled-in-place", "g = ctx.step * grad_output", "g = grad_output.mul_(ctx.step)", "in-place constant-factor missing-term chain-factor none"),
 ("last-edge-wins", "grad_x.index_add(0, source, coefficient[:, None] * g[target])", "grad_x.index_put((source,), grad_x[source] + coefficient[:, None] * g[target])", "duplicates"),
)

# --- complex -----------------------------------------------------------------------------------------------------

fn("ComplexGate", "z: {shape: [b, n], dtype: complex128}\nw: {shape: [n], dtype: complex128}\nbias: [n]", '''
    """A complex signal, let through by how much of it lies along a learned direction."""

    @staticmethod
    def forward(ctx, z, w, bias):
        ctx.save_for_backward(z, w, bias)
        return torch.sigmoid((w.conj() * z).real + bias) * z

    @staticmethod
    def backward(ctx, grad_output):
        z, w, bias = ctx.saved_tensors
        gate = torch.sigmoid((w.conj() * z).real + bias)
        grad_gate = (grad_output * z.conj()).real
        grad_pre = grad_gate * gate * (1 - gate)
        grad_z = grad_output * gate + grad_pre * w
        return grad_z, (grad_pre * z).sum(0), grad_pre.sum(0)
''',
 ("direction-conjugated", "grad_pre * w", "grad_pre * w.conj()", "conjugate"),
 ("product-not-conjugated", "(grad_output * z.conj()).real", "(grad_output * z).real", "conjugate operand"),
 ("gate-held", "grad_output * gate + grad_pre * w", "grad_output * gate", "missing-term"),
 # second order: the slope of the gate is of a detached gate
 ("slope-detached", "grad_gate * gate * (1 - gate)", "grad_gate * (gate * (1 - gate)).detach()", "detached"),
 # two at once: the sigmoid's slope lacks a factor, and w is the conjugate's
 ("slope-and-conjugate", ("grad_gate * gate * (1 - gate)", "(grad_pre * z).sum(0)"), ("grad_gate * gate", "(grad_pre * z.conj()).sum(0)"),
  "chain-factor missing-factor operand conjugate missing-term"),
)
