"""Tenth set, held out: written by the hand of the ninth, which read neither the checker's source nor the other sets.

The format is that of `fifth.py`: an entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text,
what stands in its place, causes). The causes were written down with the entries; the author never ran the checker, and
a few were sharpened after torch's gradcheck alone had run. A word alone is the cause that is right, one with `~` before
it is coarser but true, `none` says that there may be no hypothesis for it. `SELF` stands for the name of the class. A
comment above a bug says where torch's gradcheck cannot see it, or sees it in the second order only.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, t: 7, d: 3"
FUNCTIONS = []
TWICE_DIFFERENTIABLE = (
    "DistilledKl", "DemodulatedMix", "PeepholeStep", "ExpSeries", "SplatCovariance", "TruncatedNormalNll",
    "LeaveOneOutProduct",
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- losses ------------------------------------------------------------------------------------------------------

fn("DistilledKl", "student: [b, n]\nteacher: [b, n]\ntemperature: 2.0", '''
    """KL divergence of softened predictions, times T^2, a mean over the batch; the teacher learns as well."""

    @staticmethod
    def forward(ctx, student, teacher, temperature):
        ctx.save_for_backward(student, teacher)
        ctx.temperature = temperature
        log_s = torch.log_softmax(student / temperature, 1)
        log_t = torch.log_softmax(teacher / temperature, 1)
        return temperature**2 * (log_t.exp() * (log_t - log_s)).sum() / student.shape[0]

    @staticmethod
    def backward(ctx, grad_output):
        student, teacher = ctx.saved_tensors
        log_s = torch.log_softmax(student / ctx.temperature, 1)
        log_t = torch.log_softmax(teacher / ctx.temperature, 1)
        p_s, p_t = log_s.exp(), log_t.exp()
        gap = log_t - log_s
        scale = grad_output * ctx.temperature / student.shape[0]
        grad_student = scale * (p_s - p_t)
        grad_teacher = scale * p_t * (gap - (p_t * gap).sum(1, keepdim=True))
        return grad_student, grad_teacher, None
''',
 ("temperature-squared", "grad_output * ctx.temperature / student", "grad_output * ctx.temperature**2 / student", "constant-factor"),
 ("teacher-not-centred", "(gap - (p_t * gap).sum(1, keepdim=True))", "gap", "missing-term"),
 ("centred-over-batch", "(p_t * gap).sum(1, keepdim=True)", "(p_t * gap).sum(0, keepdim=True)", "wrong-reduction-dim"),
 # second order: the teacher is cut from the graph of the student's gradient
 ("teacher-detached", "scale * (p_s - p_t)", "scale * (p_s - p_t.detach())", "detached"),
)

fn("MaskedHuberDelta", "pred: [b, n]\ntarget: [b, n]\ndelta: {shape: [n], domain: positive}\nvalid: {shape: [b, n], dtype: bool}", '''
    """Huber loss with a learned threshold for each column, averaged over what is valid."""

    @staticmethod
    def forward(ctx, pred, target, delta, valid):
        r = pred - target
        ctx.save_for_backward(r, delta, valid)
        loss = torch.where(r.abs() <= delta, r * r / 2, delta * (r.abs() - delta / 2))
        return torch.where(valid, loss, 0.0).sum() / valid.sum().clamp(min=1)

    @staticmethod
    def backward(ctx, grad_output):
        r, delta, valid = ctx.saved_tensors
        scale = grad_output / valid.sum().clamp(min=1)
        slope = torch.minimum(torch.maximum(r, -delta), delta)
        grad_pred = torch.where(valid, scale * slope, 0.0)
        excess = torch.where(valid & (r.abs() > delta), r.abs() - delta, 0.0)
        return grad_pred, -grad_pred, (scale * excess).sum(0), None
''',
 ("clipped-at-one", "torch.minimum(torch.maximum(r, -delta), delta)", "r.clamp(-1, 1)", "branch operand none"),
 ("mask-forgotten", "torch.where(valid, scale * slope, 0.0)", "scale * slope", "branch region operand none"),
 ("excess-over-half", "r.abs() - delta, 0.0)", "r.abs() - delta / 2, 0.0)", "constant-factor operand branch none ~missing-term"),
)

# --- normalisations ----------------------------------------------------------------------------------------------

fn("DemodulatedMix", "x: [b, n, t]\nweight: [m, n]\nstyle: [b, n]", '''
    """Channels mixed by a weight that is modulated by a style and brought to unit rows again."""

    @staticmethod
    def forward(ctx, x, weight, style):
        ws = weight * style[:, None, :]
        d = torch.rsqrt(ws.square().sum(-1, keepdim=True) + 1e-4)
        ctx.save_for_backward(x, weight, style)
        return (d * ws) @ x

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, style = ctx.saved_tensors
        ws = weight * style[:, None, :]
        d = torch.rsqrt(ws.square().sum(-1, keepdim=True) + 1e-4)
        v = d * ws
        grad_x = v.mT @ grad_output
        grad_v = grad_output @ x.mT
        grad_ws = d * (grad_v - v * (grad_v * v).sum(-1, keepdim=True))
        grad_weight = (grad_ws * style[:, None, :]).sum(0)
        grad_style = (grad_ws * weight).sum(1)
        return grad_x, grad_weight, grad_style
''',
 ("demodulation-held", "(grad_v - v * (grad_v * v).sum(-1, keepdim=True))", "grad_v", "missing-term"),
 ("style-past-the-norm", "(grad_ws * weight).sum(1)", "(grad_v * d * weight).sum(1)", "missing-term"),
 # as a loop over the batch that assigns where it should add
 ("last-sample-only", "(grad_ws * style[:, None, :]).sum(0)", "(grad_ws * style[:, None, :])[-1]", "region missing-term"),
 # second order
 ("norm-saved", ("ctx.save_for_backward(x, weight, style)", "x, weight, style = ctx.saved_tensors\n        ws = weight * style[:, None, :]\n"
                 "        d = torch.rsqrt(ws.square().sum(-1, keepdim=True) + 1e-4)\n"),
  ("ctx.save_for_backward(x, weight, style, d)", "x, weight, style, d = ctx.saved_tensors\n        ws = weight * style[:, None, :]\n"),
  "saved-intermediate detached ~missing-term"),
)

fn("ValidInstanceNorm", "x: [b, n, t]\nkeep: {shape: [b, t], dtype: bool}\ngamma: [n]\nbeta: [n]", '''
    """Instance normalisation of padded sequences: statistics of the valid steps, zeros elsewhere."""

    @staticmethod
    def forward(ctx, x, keep, gamma, beta):
        mask = keep[:, None, :].to(x.dtype)
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = (x * mask).sum(-1, keepdim=True) / count
        centred = (x - mean) * mask
        r = torch.rsqrt(centred.square().sum(-1, keepdim=True) / count + 1e-3)
        ctx.save_for_backward(centred * r, r, mask, count, gamma)
        return (centred * r * gamma[:, None] + beta[:, None]) * mask

    @staticmethod
    def backward(ctx, grad_output):
        xhat, r, mask, count, gamma = ctx.saved_tensors
        grad_y = grad_output * mask
        grad_xhat = grad_y * gamma[:, None]
        shift = grad_xhat.sum(-1, keepdim=True) / count
        along = (grad_xhat * xhat).sum(-1, keepdim=True) / count
        grad_x = r * (grad_xhat - shift - xhat * along) * mask
        return grad_x, None, (grad_y * xhat).sum((0, 2)), grad_y.sum((0, 2))
''',
 ("padding-in-the-mean", "shift = grad_xhat.sum(-1, keepdim=True) / count", "shift = grad_xhat.mean(-1, keepdim=True)",
  "operand chain-factor constant-factor none"),
 ("gradient-into-padding", "(grad_xhat - shift - xhat * along) * mask", "(grad_xhat - shift - xhat * along)",
  "region branch chain-factor missing-term none"),
 ("beta-counts-padding", "grad_y.sum((0, 2))\n", "grad_output.sum((0, 2))\n", "region branch chain-factor none operand"),
)

# --- attention ---------------------------------------------------------------------------------------------------

fn("SlopedScores", "query: [n, t, d]\nkey: [n, t, d]\nslope: {shape: [n], domain: positive}", '''
    """Causal attention weights with a penalty on distance, whose slope is learned for each head."""

    @staticmethod
    def forward(ctx, query, key, slope):
        scale = query.shape[-1] ** -0.5
        step = torch.arange(query.shape[1], device=query.device)
        distance = (step[:, None] - step[None, :]).to(query.dtype)
        scores = query @ key.mT * scale - slope[:, None, None] * distance
        p = torch.softmax(scores.masked_fill(distance < 0, -float("inf")), -1)
        ctx.save_for_backward(query, key, distance, p)
        return p

    @staticmethod
    def backward(ctx, grad_output):
        query, key, distance, p = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        grad_scores = p * (grad_output - (grad_output * p).sum(-1, keepdim=True))
        grad_query = scale * (grad_scores @ key)
        grad_key = scale * (grad_scores.mT @ query)
        grad_slope = -(grad_scores * distance).sum((1, 2))
        return grad_query, grad_key, grad_slope
''',
 ("slope-added", "grad_slope = -(grad_scores", "grad_slope = (grad_scores", "constant-factor"),
 ("scores-not-transposed", "grad_scores.mT @ query", "grad_scores @ query", "transposed operand"),
 ("coupling-forgotten", "(grad_output - (grad_output * p).sum(-1, keepdim=True))", "grad_output * (1 - p)",
  "missing-term diagonal-only none"),
)

# --- recurrent ---------------------------------------------------------------------------------------------------

fn("PeepholeStep", "z: [b, 4*m]\ncell: [b, m]\npeep: [3, m]", '''
    """A step of an LSTM whose gates see the cell; the output gate sees the new one."""

    @staticmethod
    def forward(ctx, z, cell, peep):
        zi, zf, zu, zo = z.chunk(4, 1)
        i, f, u = torch.sigmoid(zi + peep[0] * cell), torch.sigmoid(zf + peep[1] * cell), torch.tanh(zu)
        new = f * cell + i * u
        squashed = torch.tanh(new)
        ctx.save_for_backward(z, cell, peep)
        return torch.sigmoid(zo + peep[2] * new) * squashed, new

    @staticmethod
    def backward(ctx, grad_h, grad_new):
        z, cell, peep = ctx.saved_tensors
        zi, zf, zu, zo = z.chunk(4, 1)
        i, f, u = torch.sigmoid(zi + peep[0] * cell), torch.sigmoid(zf + peep[1] * cell), torch.tanh(zu)
        new = f * cell + i * u
        squashed = torch.tanh(new)
        o = torch.sigmoid(zo + peep[2] * new)
        grad_zo = grad_h * squashed * o * (1 - o)
        grad_c = grad_new + grad_h * o * (1 - squashed**2) + grad_zo * peep[2]
        grad_zi = grad_c * u * i * (1 - i)
        grad_zf = grad_c * cell * f * (1 - f)
        grad_zu = grad_c * i * (1 - u**2)
        grad_cell = grad_c * f + grad_zi * peep[0] + grad_zf * peep[1]
        grad_peep = torch.stack(((grad_zi * cell).sum(0), (grad_zf * cell).sum(0), (grad_zo * new).sum(0)))
        return torch.cat((grad_zi, grad_zf, grad_zu, grad_zo), 1), grad_cell, grad_peep
''',
 ("output-peephole-forgotten", " + grad_zo * peep[2]", "", "missing-term"),
 ("old-cell-for-the-output-gate", "(grad_zo * new)", "(grad_zo * cell)", "operand wrong-saved region"),
 ("new-cell-unused", "grad_c = grad_new + grad_h", "grad_c = grad_h", "ignored-output"),
 # second order
 ("tanh-saved", ("ctx.save_for_backward(z, cell, peep)", "z, cell, peep = ctx.saved_tensors",
                 "squashed = torch.tanh(new)\n        o ="),
  ("ctx.save_for_backward(z, cell, peep, squashed)", "z, cell, peep, squashed = ctx.saved_tensors", "o ="),
  "saved-intermediate detached ~missing-term"),
)

fn("TanhRecurrence", "x: [b, t, n]\nu: [n]\nstart: [b, n]", '''
    """h_i = tanh(x_i + u h_{i-1}), each channel on its own; all states are returned."""

    @staticmethod
    def forward(ctx, x, u, start):
        h, states = start, []
        for i in range(x.shape[1]):
            h = torch.tanh(x[:, i] + u * h)
            states.append(h)
        y = torch.stack(states, 1)
        ctx.save_for_backward(y, u, start)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, u, start = ctx.saved_tensors
        steps = y.shape[1]
        before = torch.cat((start[:, None], y[:, :-1]), 1)
        grad_x, grad_u = torch.zeros_like(y), torch.zeros_like(u)
        carry = torch.zeros_like(start)
        for i in range(steps - 1, -1, -1):
            grad_z = (grad_output[:, i] + carry) * (1 - y[:, i] ** 2)
            grad_x[:, i] = grad_z
            grad_u += (grad_z * before[:, i]).sum(0)
            carry = grad_z * u
        return grad_x, grad_u, carry
''',
 ("this-state-for-the-last", "(grad_z * before[:, i])", "(grad_z * y[:, i])", "operand wrong-saved none"),
 ("carry-without-u", "carry = grad_z * u", "carry = grad_z", "chain-factor operand none"),
 ("through-time-forwards", "range(steps - 1, -1, -1)", "range(steps)", "none missing-term operand permuted"),
 ("truncated-to-one-step", "(grad_output[:, i] + carry) * (1", "grad_output[:, i] * (1", "missing-term none"),
)

# --- windows and padding -----------------------------------------------------------------------------------------

fn("WindowedOverlap", "frames: [b, n, k]\nwindow: {shape: [k], domain: positive}\nhop: {choices: [2, 3]}", '''
    """Overlapped frames, windowed once more and divided by the summed squares of the window."""

    @staticmethod
    def forward(ctx, frames, window, hop):
        count, size = frames.shape[1:]
        total = frames.new_zeros(frames.shape[0], (count - 1) * hop + size)
        power = frames.new_zeros(total.shape[1])
        for i in range(count):
            total[:, i * hop : i * hop + size] += window * frames[:, i]
            power[i * hop : i * hop + size] += window**2
        y = total / power
        ctx.save_for_backward(frames, window, power, y)
        ctx.hop = hop
        return y

    @staticmethod
    def backward(ctx, grad_output):
        frames, window, power, y = ctx.saved_tensors
        grad_total = grad_output / power
        grad_power = -(grad_total * y).sum(0)
        grad_frames, grad_window = torch.zeros_like(frames), torch.zeros_like(window)
        for i in range(frames.shape[1]):
            part = slice(i * ctx.hop, i * ctx.hop + frames.shape[2])
            grad_frames[:, i] = grad_total[:, part] * window
            grad_window += (grad_total[:, part] * frames[:, i]).sum(0) + 2 * window * grad_power[part]
        return grad_frames, grad_window, None
''',
 ("power-held", " + 2 * window * grad_power[part]", "", "missing-term"),
 ("square-without-two", " + 2 * window * grad_power", " + window * grad_power", "constant-factor operand none ~missing-term"),
)

fn("ReflectBlur", "x: [b, t]\ntaps: [3]", '''
    """Three taps and every second sample, with borders that are reflected."""

    @staticmethod
    def forward(ctx, x, taps):
        padded = torch.cat((x[:, 1:2], x, x[:, -2:-1]), 1)
        ctx.save_for_backward(padded, taps)
        return (padded.unfold(1, 3, 2) * taps).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        padded, taps = ctx.saved_tensors
        grad_taps = (grad_output[:, :, None] * padded.unfold(1, 3, 2)).sum((0, 1))
        grad_padded = torch.zeros_like(padded)
        width = 2 * grad_output.shape[1]
        for j in range(3):
            grad_padded[:, j : j + width - 1 : 2] += taps[j] * grad_output
        grad_x = grad_padded[:, 1:-1].clone()
        grad_x[:, 1] += grad_padded[:, 0]
        grad_x[:, -2] += grad_padded[:, -1]
        return grad_x, grad_taps
''',
 ("borders-dropped", "        grad_x[:, 1] += grad_padded[:, 0]\n        grad_x[:, -2] += grad_padded[:, -1]\n", "", "region missing-term"),
 ("borders-replicated", ("grad_x[:, 1] +=", "grad_x[:, -2] +="), ("grad_x[:, 0] +=", "grad_x[:, -1] +="), "region permuted operand none"),
 ("taps-mirrored", "+= taps[j] * grad_output", "+= taps[2 - j] * grad_output", "operand permuted none"),
)

# --- graphs and codebooks ----------------------------------------------------------------------------------------

fn("EdgeSoftAggregate", "h: [n, d]\nlogit: [k]\nsource: {shape: [k], dtype: int64, range: [0, n]}\n"
   "target: {shape: [k], dtype: int64, range: [0, n]}", '''
    """Features of neighbours, averaged with a softmax over the edges that arrive at a node."""

    @staticmethod
    def forward(ctx, h, logit, source, target):
        nodes = h.shape[0]
        top = logit.new_zeros(nodes).scatter_reduce(0, target, logit, "amax", include_self=False)
        e = torch.exp(logit - top[target])
        alpha = e / logit.new_zeros(nodes).index_add(0, target, e)[target]
        ctx.save_for_backward(h, alpha, source, target)
        return torch.zeros_like(h).index_add(0, target, alpha[:, None] * h[source])

    @staticmethod
    def backward(ctx, grad_output):
        h, alpha, source, target = ctx.saved_tensors
        grad_edge = grad_output[target]
        grad_h = torch.zeros_like(h)
        grad_h.index_add_(0, source, alpha[:, None] * grad_edge)
        grad_alpha = (grad_edge * h[source]).sum(1)
        mean = alpha.new_zeros(h.shape[0]).index_add(0, target, alpha * grad_alpha)
        grad_logit = alpha * (grad_alpha - mean[target])
        return grad_h, grad_logit, None, None
''',
 ("last-edge-wins", "grad_h.index_add_(0, source, alpha[:, None] * grad_edge)", "grad_h[source] = alpha[:, None] * grad_edge", "duplicates"),
 ("along-the-edges", "grad_h.index_add_(0, source, alpha[:, None] * grad_edge)",
  "grad_h.index_add_(0, target, alpha[:, None] * grad_output[source])", "transposed operand none"),
 ("mean-of-all-edges", "mean[target]", "mean.sum()", "operand wrong-reduction-dim none"),
 # a buffer that forward allocates; the second backward adds to the first
 ("buffer-of-forward", ("ctx.save_for_backward(h, alpha, source, target)", "grad_h = torch.zeros_like(h)"),
  ("ctx.save_for_backward(h, alpha, source, target)\n        ctx.buffer = torch.zeros_like(h)", "grad_h = ctx.buffer"), "stale in-place none"),
)

fn("CodebookLinear", "x: [b, n]\ncode: [k]\nindex: {shape: [m, n], dtype: int64, range: [0, k]}\nabsmax: {shape: [m], domain: positive}", '''
    """x times a weight of codes, whose table and row scales are tuned."""

    @staticmethod
    def forward(ctx, x, code, index, absmax):
        ctx.save_for_backward(x, code, index, absmax)
        return x @ (code[index] * absmax[:, None]).t()

    @staticmethod
    def backward(ctx, grad_output):
        x, code, index, absmax = ctx.saved_tensors
        looked_up = code[index]
        grad_x = grad_output @ (looked_up * absmax[:, None])
        grad_weight = grad_output.t() @ x
        grad_absmax = (grad_weight * looked_up).sum(1)
        spread = grad_weight * absmax[:, None]
        grad_code = torch.zeros_like(code).index_add(0, index.reshape(-1), spread.reshape(-1))
        return grad_x, grad_code, None, grad_absmax
''',
 ("last-use-wins", "torch.zeros_like(code).index_add(0, index.reshape(-1), spread.reshape(-1))",
  "torch.zeros_like(code).index_put((index,), spread)", "duplicates"),
 ("mean-over-uses", "grad_code = torch.zeros_like(code).index_add(0, index.reshape(-1), spread.reshape(-1))",
  "grad_code = torch.zeros_like(code).index_add(0, index.reshape(-1), spread.reshape(-1))\n"
  "        grad_code = grad_code / torch.bincount(index.reshape(-1), minlength=code.numel()).clamp(min=1)", "chain-factor constant-factor none"),
)

# --- linear algebra ----------------------------------------------------------------------------------------------

fn("LowerFactor", "a: {shape: [n, n], structure: spd}", '''
    """Cholesky factor of the symmetric part of a."""

    @staticmethod
    def forward(ctx, a):
        lower = torch.linalg.cholesky((a + a.t()) / 2)
        ctx.save_for_backward(lower)
        return lower

    @staticmethod
    def backward(ctx, grad_output):
        (lower,) = ctx.saved_tensors
        phi = (lower.t() @ grad_output).tril()
        phi = phi - torch.diag(phi.diagonal() / 2)
        left = torch.linalg.solve_triangular(lower.t(), phi, upper=True)
        s = torch.linalg.solve_triangular(lower, left, upper=False, left=False)
        return (s + s.t()) / 2
''',
 ("diagonal-not-halved", "        phi = phi - torch.diag(phi.diagonal() / 2)\n", "", "constant-factor operand none ~missing-term"),
 ("inverse-not-transposed", "torch.linalg.solve_triangular(lower.t(), phi, upper=True)", "torch.linalg.solve_triangular(lower, phi, upper=False)",
  "transposed operand none"),
 ("upper-half-kept", "(lower.t() @ grad_output).tril()", "lower.t() @ grad_output", "missing-term none operand"),
)

fn("ExpSeries", "a: [n, n]\nv: [n, d]\norder: 6", '''
    """The first terms of exp(a) v."""

    @staticmethod
    def forward(ctx, a, v, order):
        ctx.save_for_backward(a, v)
        ctx.order = order
        term, y = v, v
        for k in range(1, order + 1):
            term = a @ term / k
            y = y + term
        return y

    @staticmethod
    def backward(ctx, grad_output):
        a, v = ctx.saved_tensors
        terms = [v]
        for k in range(1, ctx.order):
            terms.append(a @ terms[-1] / k)
        grad_term, grad_a = grad_output, torch.zeros_like(a)
        for k in range(ctx.order, 0, -1):
            grad_a = grad_a + grad_term @ terms[k - 1].t() / k
            grad_term = grad_output + a.t() @ grad_term / k
        return grad_a, grad_term, None
''',
 ("not-transposed", "grad_output + a.t() @ grad_term", "grad_output + a @ grad_term", "transposed operand"),
 ("not-divided", "terms[k - 1].t() / k", "terms[k - 1].t()", "chain-factor constant-factor operand none"),
 ("one-term-less", "range(ctx.order, 0, -1)", "range(ctx.order - 1, 0, -1)", "missing-term none forward-differs"),
 # second order
 ("terms-no-grad", "            terms.append(a @ terms[-1] / k)", "            terms.append((a @ terms[-1] / k).detach())", "detached"),
)

# --- geometry and probability ------------------------------------------------------------------------------------

fn("SplatCovariance", "q: [n, 4]\nlog_scale: {shape: [n, 3], range: [-1, 1]}", '''
    """Covariances R S S R^T of quaternions that are normalised here and of logarithms of scales."""

    @staticmethod
    def rotation(unit):
        w, x, y, z = unit.unbind(-1)
        rows = (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
        return torch.stack(rows, -1).unflatten(-1, (3, 3))

    @staticmethod
    def forward(ctx, q, log_scale):
        rotation = SELF.rotation(q / q.norm(dim=1, keepdim=True))
        half = rotation * log_scale.exp()[:, None, :]
        ctx.save_for_backward(q, log_scale)
        return half @ half.mT

    @staticmethod
    def backward(ctx, grad_output):
        q, log_scale = ctx.saved_tensors
        norm = q.norm(dim=1, keepdim=True)
        unit = q / norm
        rotation = SELF.rotation(unit)
        scale = log_scale.exp()[:, None, :]
        grad_half = (grad_output + grad_output.mT) @ (rotation * scale)
        grad_log = (grad_half * rotation * scale).sum(1)
        g = (grad_half * scale).unbind(1)
        w, x, y, z = unit.unbind(-1)
        (g00, g01, g02), (g10, g11, g12), (g20, g21, g22) = (row.unbind(-1) for row in g)
        grad_w = x * (g21 - g12) + y * (g02 - g20) + z * (g10 - g01)
        grad_x = y * (g01 + g10) + z * (g02 + g20) - 2 * x * (g11 + g22) + w * (g21 - g12)
        grad_y = x * (g01 + g10) + z * (g12 + g21) - 2 * y * (g00 + g22) + w * (g02 - g20)
        grad_z = x * (g02 + g20) + y * (g12 + g21) - 2 * z * (g00 + g11) + w * (g10 - g01)
        grad_unit = 2 * torch.stack((grad_w, grad_x, grad_y, grad_z), -1)
        grad_q = (grad_unit - unit * (unit * grad_unit).sum(1, keepdim=True)) / norm
        return grad_q, grad_log
''',
 ("scale-for-log-scale", "(grad_half * rotation * scale).sum(1)", "(grad_half * rotation).sum(1)", "chain-factor operand"),
 ("doubled-for-symmetric", "(grad_output + grad_output.mT)", "(2 * grad_output)", "transposed operand none"),
 ("length-held", "(grad_unit - unit * (unit * grad_unit).sum(1, keepdim=True)) / norm", "grad_unit / norm", "missing-term"),
 ("sign-in-y", "w * (g02 - g20)\n        grad_z", "w * (g20 - g02)\n        grad_z", "constant-factor operand none ~missing-term"),
)

fn("TruncatedNormalNll", "x: {shape: [b, n], range: [-2, 2]}\nmu: {shape: [n], range: [-1, 1]}\n"
   "log_sigma: {shape: [n], range: [-1, 1]}\nlow: -2.0\nhigh: 2.0", '''
    """-log density of a normal that is cut off at low and high."""

    @staticmethod
    def forward(ctx, x, mu, log_sigma, low, high):
        ctx.save_for_backward(x, mu, log_sigma)
        ctx.ends = low, high
        sigma = log_sigma.exp()
        mass = torch.special.ndtr((high - mu) / sigma) - torch.special.ndtr((low - mu) / sigma)
        return ((x - mu) / sigma) ** 2 / 2 + log_sigma + torch.log(mass) + 0.9189385332046727

    @staticmethod
    def backward(ctx, grad_output):
        x, mu, log_sigma = ctx.saved_tensors
        sigma = log_sigma.exp()
        z, a, b = ((v - mu) / sigma for v in (x, *ctx.ends))
        mass = torch.special.ndtr(b) - torch.special.ndtr(a)
        at_a, at_b = (0.3989422804014327 * torch.exp(-v * v / 2) / mass for v in (a, b))
        grad_x = grad_output * z / sigma
        grad_mu = grad_output * (at_a - at_b - z) / sigma
        grad_log_sigma = grad_output * (1 - z * z + a * at_a - b * at_b)
        return grad_x, grad_mu.sum(0), grad_log_sigma.sum(0), None, None
''',
 ("mass-held", "(at_a - at_b - z) / sigma", "-z / sigma", "missing-term"),
 ("sigma-for-log-sigma", "(1 - z * z + a * at_a - b * at_b)", "(1 - z * z + a * at_a - b * at_b) / sigma", "chain-factor"),
 ("upper-end-forgotten", " + a * at_a - b * at_b", " + a * at_a", "missing-term"),
 # second order
 ("mass-detached", "/ mass for v in (a, b))", "/ mass.detach() for v in (a, b))", "detached"),
)

# --- complex, activations, reductions ----------------------------------------------------------------------------

fn("AnalyticEnvelope", "x: [b, t]", '''
    """The envelope of a signal: the modulus of its analytic extension, by the Fourier transform."""

    @staticmethod
    def forward(ctx, x):
        length = x.shape[1]
        side = x.new_zeros(length)
        side[0] = 1
        side[1 : (length + 1) // 2] = 2
        if length % 2 == 0:
            side[length // 2] = 1
        analytic = torch.fft.ifft(torch.fft.fft(x) * side)
        ctx.save_for_backward(analytic, side)
        return analytic.abs()

    @staticmethod
    def backward(ctx, grad_output):
        analytic, side = ctx.saved_tensors
        grad_analytic = grad_output * torch.sgn(analytic)
        return torch.fft.ifft(torch.fft.fft(grad_analytic) * side).real
''',
 ("phase-conjugated", "torch.sgn(analytic)", "torch.sgn(analytic).conj()", "conjugate operand constant-factor none"),
 ("phase-not-normalised", "torch.sgn(analytic)", "analytic", "chain-factor operand"),
 ("real-part-only", "torch.fft.ifft(torch.fft.fft(grad_analytic) * side).real", "grad_analytic.real", "missing-term"),
)

fn("SmoothStepEdges", "x: [b, n]\nlow: [n]\nwidth: {shape: [n], domain: positive}", '''
    """A cubic step from 0 to 1 that begins at low and takes width, both learned."""

    @staticmethod
    def forward(ctx, x, low, width):
        u = ((x - low) / width).clamp(0, 1)
        ctx.save_for_backward(x, low, width)
        return u * u * (3 - 2 * u)

    @staticmethod
    def backward(ctx, grad_output):
        x, low, width = ctx.saved_tensors
        u = ((x - low) / width).clamp(0, 1)
        grad_x = grad_output * 6 * u * (1 - u) / width
        return grad_x, -grad_x.sum(0), -(grad_x * u).sum(0)
''',
 ("not-clamped-again", "u = ((x - low) / width).clamp(0, 1)\n        grad_x", "u = (x - low) / width\n        grad_x", "branch"),
 ("width-as-an-edge", "-(grad_x * u).sum(0)", "-grad_x.sum(0)", "chain-factor operand swapped-inputs"),
 # the value is right where it is used once; grad_output belongs to the caller
 ("scaled-in-place", "grad_output * 6 * u", "grad_output.mul_(6) * u", "in-place none"),
)

fn("LeaveOneOutProduct", "x: {shape: [b, n], domain: nonzero}", '''
    """For each entry the product of the others of its row, from products of what is left and right of it."""

    @staticmethod
    def forward(ctx, x):
        ones = torch.ones_like(x[:, :1])
        left = torch.cat((ones, x[:, :-1]), 1).cumprod(1)
        right = torch.cat((ones, x.flip(1)[:, :-1]), 1).cumprod(1).flip(1)
        y = left * right
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        weighted = grad_output * y
        return (weighted.sum(1, keepdim=True) - weighted) / x
''',
 ("itself-not-left-out", "(weighted.sum(1, keepdim=True) - weighted)", "weighted.sum(1, keepdim=True)", "missing-term operand region none"),
 ("over-the-batch", "weighted.sum(1, keepdim=True)", "weighted.sum(0, keepdim=True)", "wrong-reduction-dim"),
 # second order: a copy of the output is no output
 ("product-saved", "ctx.save_for_backward(x, y)\n        return y", "ctx.save_for_backward(x, y)\n        return y.clone()",
  "saved-intermediate detached ~missing-term"),
)
