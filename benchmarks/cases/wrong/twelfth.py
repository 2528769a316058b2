"""Twelfth set, held out: by the hand of the eleventh, which read neither the checker's source nor the other sets.

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
    "Dihedral", "SkewNormalNll", "PlanarFlow", "SoftHistogram", "MuLawCompand", "HermitianForm", "SoftPool", "MomentsTriple",
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- losses ------------------------------------------------------------------------------------------------------

fn("AsymmetricMultilabel", "logits: [b, n]\nlabels: {shape: [b, n], dtype: bool}\nweight: {shape: [n], domain: positive}\ngamma_pos: 1.5\ngamma_neg: 3.0\nclip: 0.1", '''
    """Asymmetric loss of multi-label classification: two focal powers, and easy negatives shifted away."""

    @staticmethod
    def forward(ctx, logits, labels, weight, gamma_pos, gamma_neg, clip):
        p = torch.sigmoid(logits)
        shifted = (p - clip).clamp(min=0)
        positive = -((1 - p) ** gamma_pos) * torch.nn.functional.logsigmoid(logits)
        negative = -(shifted**gamma_neg) * torch.log1p(-shifted)
        loss = torch.where(labels, positive, negative)
        ctx.save_for_backward(logits, p, labels, weight, loss)
        ctx.gamma_pos, ctx.gamma_neg, ctx.clip = gamma_pos, gamma_neg, clip
        return (loss * weight).sum() / len(logits)

    @staticmethod
    def backward(ctx, grad_output):
        logits, p, labels, weight, loss = ctx.saved_tensors
        gp, gn = ctx.gamma_pos, ctx.gamma_neg
        shifted = (p - ctx.clip).clamp(min=0)
        log_p = torch.nn.functional.logsigmoid(logits)
        slope_pos = (1 - p) ** gp * (gp * p * log_p - (1 - p))
        slope_neg = shifted ** (gn - 1) * (shifted / (1 - shifted) - gn * torch.log1p(-shifted)) * p * (1 - p)
        scale = grad_output / len(logits)
        grad_logits = scale * weight * torch.where(labels, slope_pos, slope_neg)
        return grad_logits, None, scale * loss.sum(0), None, None, None
''',
 ("focal-power-held", "(gp * p * log_p - (1 - p))", "(-(1 - p))", "branch missing-term"),
 ("labels-the-other-way", "torch.where(labels, slope_pos, slope_neg)", "torch.where(labels, slope_neg, slope_pos)", "branch operand none"),
 ("sigmoid-not-through", "torch.log1p(-shifted)) * p * (1 - p)", "torch.log1p(-shifted))", "branch chain-factor"),
 # two at once: the negatives are not shifted, and the weight's gradient is not a mean
 ("unshifted-and-not-averaged", ("shifted = (p - ctx.clip).clamp(min=0)\n        log_p", "scale * loss.sum(0)"),
  ("shifted = p\n        log_p", "grad_output * loss.sum(0)"), "branch constant-factor operand wrong-saved missing-term none"),
)

fn("SoftEditDistance", "substitution: [n, m]\ngap: []\ngamma: 0.7", '''
    """Edit distance with a soft minimum over replacing, deleting and inserting."""

    @staticmethod
    def forward(ctx, substitution, gap, gamma):
        n, m = substitution.shape
        table = substitution.new_zeros(n + 1, m + 1)
        table[:, 0] = gap * torch.arange(n + 1)
        table[0, :] = gap * torch.arange(m + 1)
        parts = substitution.new_zeros(n, m, 3)
        for i in range(n):
            for j in range(m):
                ways = torch.stack([table[i, j] + substitution[i, j], table[i, j + 1] + gap, table[i + 1, j] + gap])
                table[i + 1, j + 1] = -gamma * torch.logsumexp(-ways / gamma, 0)
                parts[i, j] = torch.softmax(-ways / gamma, 0)
        ctx.save_for_backward(parts)
        return table[n, m].clone()

    @staticmethod
    def backward(ctx, grad_output):
        (parts,) = ctx.saved_tensors
        n, m, _ = parts.shape
        flow = parts.new_zeros(n + 1, m + 1)
        flow[n, m] = grad_output
        grad_gap = parts.new_zeros(())
        for i in range(n - 1, -1, -1):
            for j in range(m - 1, -1, -1):
                replace, delete, insert = parts[i, j] * flow[i + 1, j + 1]
                flow[i, j] += replace
                flow[i, j + 1] += delete
                flow[i + 1, j] += insert
                grad_gap += delete + insert
        grad_substitution = parts[..., 0] * flow[1:, 1:]
        grad_gap += (flow[:, 0] * torch.arange(n + 1)).sum() + (flow[0] * torch.arange(m + 1)).sum()
        return grad_substitution, grad_gap, None
''',
 ("borders-forgotten", "        grad_gap += (flow[:, 0] * torch.arange(n + 1)).sum() + (flow[0] * torch.arange(m + 1)).sum()\n", "", "missing-term chain-factor none"),
 ("flow-of-the-corner-before", "parts[..., 0] * flow[1:, 1:]", "parts[..., 0] * flow[:-1, :-1]", "permuted operand none"),
 ("assigned-not-added", "flow[i, j + 1] += delete", "flow[i, j + 1] = delete", "missing-term region duplicates operand none"),
 ("insertion-and-deletion-exchanged", ("flow[i, j + 1] += delete", "flow[i + 1, j] += insert"), ("flow[i, j + 1] += insert", "flow[i + 1, j] += delete"),
  "operand permuted region none"),
)

fn("SkewNormalNll", "x: [b, n]\nloc: [n]\nlog_scale: [n]\nskew: [n]", '''
    """Negative log-likelihood of independent skew-normal columns, a mean over the batch."""

    @staticmethod
    def forward(ctx, x, loc, log_scale, skew):
        ctx.save_for_backward(x, loc, log_scale, skew)
        z = (x - loc) * torch.exp(-log_scale)
        return (log_scale + 0.5 * z * z - torch.special.log_ndtr(skew * z)).sum() / len(x)

    @staticmethod
    def backward(ctx, grad_output):
        x, loc, log_scale, skew = ctx.saved_tensors
        inv = torch.exp(-log_scale)
        z = (x - loc) * inv
        a = skew * z
        mills = torch.exp(-0.5 * a * a - torch.special.log_ndtr(a)) / math.sqrt(2 * math.pi)
        scale = grad_output / len(x)
        grad_z = scale * (z - skew * mills)
        grad_x = grad_z * inv
        grad_log_scale = (scale - grad_z * z).sum(0)
        grad_skew = -(scale * mills * z).sum(0)
        return grad_x, -grad_x.sum(0), grad_log_scale, grad_skew
''',
 ("skew-not-through", "(z - skew * mills)", "(z - mills)", "missing-term operand missing-factor none"),
 ("normalizer-forgotten", "(scale - grad_z * z).sum(0)", "(-grad_z * z).sum(0)", "missing-term"),
 ("density-constant", "/ math.sqrt(2 * math.pi)", "/ (2 * math.pi)", "constant-factor missing-term operand none"),
 ("place-not-scaled", "-grad_x.sum(0)", "-grad_z.sum(0)", "chain-factor operand missing-factor"),
 # second order: the ratio of density and distribution is taken as constant
 ("mills-held", "grad_z = scale * (z - skew * mills)", "grad_z = scale * (z - skew * mills.detach())", "detached"),
)

# --- attention ---------------------------------------------------------------------------------------------------

fn("CosineWindowAttention", "q: [2, t, d]\nk: [2, t, d]\nv: [2, t, d]\nlog_tau: [2]\nbias: [t, t]\nwindow: 2", '''
def _SELF_unit(x):
    length = x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return x / length, length
@@
    """Attention by cosines with a temperature for each head, within a window."""

    @staticmethod
    def forward(ctx, q, k, v, log_tau, bias, window):
        (uq, lq), (uk, lk) = _SELF_unit(q), _SELF_unit(k)
        cos = uq @ uk.mT
        tau = log_tau.clamp(max=math.log(100.0)).exp()[:, None, None]
        place = torch.arange(q.shape[1])
        outside = (place[:, None] - place).abs() > window
        p = torch.softmax((cos * tau + bias).masked_fill(outside, -torch.inf), -1)
        ctx.save_for_backward(uq, lq, uk, lk, cos, tau, p, v)
        return p @ v

    @staticmethod
    def backward(ctx, grad_output):
        uq, lq, uk, lk, cos, tau, p, v = ctx.saved_tensors
        grad_v = p.mT @ grad_output
        grad_p = grad_output @ v.mT
        grad_s = p * (grad_p - (grad_p * p).sum(-1, keepdim=True))
        grad_bias = grad_s.sum(0)
        grad_log_tau = (grad_s * cos * tau).sum((1, 2)) * (tau[:, 0, 0] < 100)
        grad_cos = grad_s * tau
        grad_uq, grad_uk = grad_cos @ uk, grad_cos.mT @ uq
        grad_q = (grad_uq - uq * (grad_uq * uq).sum(-1, keepdim=True)) / lq
        grad_k = (grad_uk - uk * (grad_uk * uk).sum(-1, keepdim=True)) / lk
        return grad_q, grad_k, grad_v, grad_log_tau, grad_bias, None
''',
 ("softmax-not-centred", "p * (grad_p - (grad_p * p).sum(-1, keepdim=True))", "p * grad_p", "missing-term"),
 ("temperature-of-the-logarithm", "(grad_s * cos * tau).sum((1, 2))", "(grad_s * cos).sum((1, 2))", "chain-factor missing-factor operand"),
 ("key-length-not-through", "(grad_uk - uk * (grad_uk * uk).sum(-1, keepdim=True)) / lk", "grad_uk / lk", "missing-term"),
 ("keys-not-transposed", "grad_cos.mT @ uq", "grad_cos @ uq", "transposed operand none"),
 # two at once: the bias has one head's gradient, and the query is divided by the key's length
 ("one-head-and-other-length", ("grad_s.sum(0)", ".sum(-1, keepdim=True)) / lq"), ("grad_s[0]", ".sum(-1, keepdim=True)) / lk"),
  "region not-summed-over-broadcast operand chain-factor missing-term"),
)

fn("GatedRetention", "q: [m, n]\nk: [m, n]\nv: [m, d]\ngate: [m]", '''
    """Retention in its parallel form: a causal product with a decay that is learned for each step."""

    @staticmethod
    def forward(ctx, q, k, v, gate):
        c = torch.nn.functional.logsigmoid(gate).cumsum(0)
        decay = torch.exp((c[:, None] - c).masked_fill(torch.ones(len(c), len(c)).triu(1).bool(), -torch.inf))
        scores = q @ k.T
        ctx.save_for_backward(q, k, v, gate, decay, scores)
        return (scores * decay) @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, gate, decay, scores = ctx.saved_tensors
        grad_weight = grad_output @ v.T
        grad_scores = grad_weight * decay
        grad_log = grad_weight * decay * scores
        grad_c = grad_log.sum(1) - grad_log.sum(0)
        grad_gate = grad_c.flip(0).cumsum(0).flip(0) * torch.sigmoid(-gate)
        return grad_scores @ k, grad_scores.T @ q, (scores * decay).T @ grad_output, grad_gate
''',
 ("cumulated-forwards", "grad_c.flip(0).cumsum(0).flip(0)", "grad_c.cumsum(0)", "permuted transposed operand none"),
 ("other-sigmoid", "torch.sigmoid(-gate)", "torch.sigmoid(gate)", "chain-factor operand"),
 # too small for gradcheck's tolerances
 ("scores-in-float32", "grad_scores = grad_weight * decay\n", "grad_scores = (grad_weight * decay).float().to(decay.dtype)\n", "float32-inside"),
 ("decay-of-the-reader-only", "grad_log.sum(1) - grad_log.sum(0)", "grad_log.sum(1)", "missing-term"),
 ("undecayed-values", "(scores * decay).T @ grad_output", "scores.T @ grad_output", "operand missing-factor none"),
)

fn("TalkingHeads", "q: [n, m, d]\nk: [n, m, d]\nv: [n, m, 2]\npre: [n, n]\npost: [n, n]", '''
    """Attention whose heads are mixed before and after the softmax."""

    @staticmethod
    def forward(ctx, q, k, v, pre, post):
        s = torch.einsum("hid,hjd->hij", q, k) / math.sqrt(q.shape[-1])
        p = torch.softmax(torch.einsum("gh,hij->gij", pre, s), -1)
        mixed = torch.einsum("gh,hij->gij", post, p)
        ctx.save_for_backward(q, k, v, pre, post, s, p, mixed)
        return torch.einsum("hij,hjd->hid", mixed, v)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, pre, post, s, p, mixed = ctx.saved_tensors
        grad_v = torch.einsum("hij,hid->hjd", mixed, grad_output)
        grad_mixed = torch.einsum("hid,hjd->hij", grad_output, v)
        grad_post = torch.einsum("gij,hij->gh", grad_mixed, p)
        grad_p = torch.einsum("gh,gij->hij", post, grad_mixed)
        grad_t = p * (grad_p - torch.einsum("hij,hij->hi", p, grad_p)[..., None])
        grad_pre = torch.einsum("gij,hij->gh", grad_t, s)
        grad_s = torch.einsum("gh,gij->hij", pre, grad_t) / math.sqrt(q.shape[-1])
        return (torch.einsum("hij,hjd->hid", grad_s, k), torch.einsum("hij,hid->hjd", grad_s, q), grad_v, grad_pre, grad_post)
''',
 ("mixed-forwards-again", '"gh,gij->hij", post, grad_mixed', '"gh,hij->gij", post, grad_mixed', "transposed operand none"),
 ("root-forgotten", "pre, grad_t) / math.sqrt(q.shape[-1])", "pre, grad_t)", "constant-factor"),
 ("centred-over-queries", 'torch.einsum("hij,hij->hi", p, grad_p)[..., None]', 'torch.einsum("hij,hij->hj", p, grad_p)[:, None]', "wrong-reduction-dim none"),
 ("post-from-the-scores", '"gij,hij->gh", grad_mixed, p', '"gij,hij->gh", grad_mixed, s', "wrong-saved operand"),
 # two at once: the weights of the values are of before the mixing, and pre is transposed
 ("values-and-pre", ('"hij,hid->hjd", mixed, grad_output', '"gij,hij->gh", grad_t, s'), ('"hij,hid->hjd", p, grad_output', '"gij,hij->hg", grad_t, s'),
  "transposed wrong-saved operand missing-factor none"),
)

# --- recurrences -------------------------------------------------------------------------------------------------

fn("LeakyNeuron", "current: [t, n]\nleak: {shape: [n], range: [0.2, 0.9]}\nthreshold: [n]\nsharpness: 3.0", '''
    """Leaky neurons with a soft spike that resets them; spikes at every step and the last potential."""

    @staticmethod
    def forward(ctx, current, leak, threshold, sharpness):
        u = torch.zeros_like(leak)
        potentials, spikes = [], []
        s = torch.zeros_like(leak)
        for x in current:
            u = leak * u * (1 - s) + x
            s = torch.sigmoid(sharpness * (u - threshold))
            potentials.append(u)
            spikes.append(s)
        potentials, spikes = torch.stack(potentials), torch.stack(spikes)
        ctx.save_for_backward(leak, potentials, spikes)
        ctx.sharpness = sharpness
        return spikes, u.clone()

    @staticmethod
    def backward(ctx, grad_spikes, grad_last):
        leak, potentials, spikes = ctx.saved_tensors
        grad_current = torch.zeros_like(potentials)
        grad_leak, grad_threshold = torch.zeros_like(leak), torch.zeros_like(leak)
        gu, gs = grad_last.clone(), torch.zeros_like(leak)
        for i in range(len(potentials) - 1, -1, -1):
            s = spikes[i]
            through = (gs + grad_spikes[i]) * ctx.sharpness * s * (1 - s)
            gu = gu + through
            grad_threshold -= through
            grad_current[i] = gu
            if i > 0:
                u, s = potentials[i - 1], spikes[i - 1]
                grad_leak += gu * u * (1 - s)
                gs = -gu * leak * u
                gu = gu * leak * (1 - s)
        return grad_current, grad_leak, grad_threshold, None
''',
 ("reset-held", "gs = -gu * leak * u", "gs = torch.zeros_like(gu)", "missing-term"),
 ("spike-of-this-step", "u, s = potentials[i - 1], spikes[i - 1]", "u = potentials[i - 1]", "wrong-saved permuted operand none"),
 ("last-potential-ignored", "gu, gs = grad_last.clone(), torch.zeros_like(leak)", "gu, gs = torch.zeros_like(leak), torch.zeros_like(leak)", "ignored-output"),
 ("step-zero-cut", "range(len(potentials) - 1, -1, -1)", "range(len(potentials) - 1, 0, -1)", "region"),
 ("sharpness-forgotten", "(gs + grad_spikes[i]) * ctx.sharpness * s", "(gs + grad_spikes[i]) * s", "missing-factor operand constant-factor missing-term none"),
)

fn("VerletSpring", "x: [m]\nv: [m]\nstiffness: [m-1]\ncubic: []\nsteps: 3\ndt: 0.2", '''
def _SELF_force(x, stiffness, cubic):
    e = x[1:] - x[:-1]
    pull = stiffness * e + cubic * e**3
    zero = torch.zeros_like(x[:1])
    return torch.cat([pull, zero]) - torch.cat([zero, pull])


def _SELF_back(g, x, stiffness, cubic):
    """What the gradient of a force gives to the places, the springs and the cubic term."""
    e = x[1:] - x[:-1]
    h = g[:-1] - g[1:]
    stretch = h * (stiffness + 3 * cubic * e * e)
    zero = torch.zeros_like(x[:1])
    return torch.cat([zero, stretch]) - torch.cat([stretch, zero]), h * e, (h * e**3).sum()
@@
    """A chain of springs that stiffen, by velocity Verlet."""

    @staticmethod
    def forward(ctx, x, v, stiffness, cubic, steps, dt):
        places = [x]
        for _ in range(steps):
            v = v + 0.5 * dt * _SELF_force(x, stiffness, cubic)
            x = x + dt * v
            v = v + 0.5 * dt * _SELF_force(x, stiffness, cubic)
            places.append(x)
        ctx.save_for_backward(torch.stack(places), stiffness, cubic)
        ctx.dt = dt
        return x, v

    @staticmethod
    def backward(ctx, gx, gv):
        places, stiffness, cubic = ctx.saved_tensors
        dt = ctx.dt
        grad_stiffness, grad_cubic = torch.zeros_like(stiffness), torch.zeros_like(cubic)
        for i in range(len(places) - 1, 0, -1):
            jx, jk, jc = _SELF_back(0.5 * dt * gv, places[i], stiffness, cubic)
            gx = gx + jx
            grad_stiffness, grad_cubic = grad_stiffness + jk, grad_cubic + jc
            gv = gv + dt * gx
            jx, jk, jc = _SELF_back(0.5 * dt * gv, places[i - 1], stiffness, cubic)
            gx = gx + jx
            grad_stiffness, grad_cubic = grad_stiffness + jk, grad_cubic + jc
        return gx, gv, grad_stiffness, grad_cubic, None, None
''',
 ("three-of-the-cube", "h * (stiffness + 3 * cubic * e * e)", "h * (stiffness + cubic * e * e)", "missing-term operand none"),
 ("same-place-twice", "gv, places[i - 1], stiffness", "gv, places[i], stiffness", "wrong-saved operand none"),
 ("half-kick-counted-once", "            gx = gx + jx\n            grad_stiffness, grad_cubic = grad_stiffness + jk, grad_cubic + jc\n            gv = gv + dt * gx",
  "            gx = gx + jx\n            gv = gv + dt * gx", "missing-term"),
 ("drift-forgotten", "            gv = gv + dt * gx\n", "", "missing-term none"),
)

# --- convolutions, pooling, interpolation, signals ---------------------------------------------------------------

fn("UpConv1d", "x: [b, n, m]\nweight: [n, 2, 4]\nbias: [2]\nstride: 2\ntrim: 1", '''
    """A transposed convolution over time by slices, trimmed at both ends."""

    @staticmethod
    def forward(ctx, x, weight, bias, stride, trim):
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.trim = stride, trim
        taps, length = weight.shape[2], x.shape[2]
        full = x.new_zeros(x.shape[0], weight.shape[1], (length - 1) * stride + taps)
        for j in range(taps):
            full[:, :, j : j + (length - 1) * stride + 1 : stride] += torch.einsum("bct,co->bot", x, weight[:, :, j])
        return full[:, :, trim : full.shape[2] - trim] + bias[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        stride, trim = ctx.stride, ctx.trim
        taps, length = weight.shape[2], x.shape[2]
        full = torch.nn.functional.pad(grad_output, (trim, trim))
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for j in range(taps):
            g = full[:, :, j : j + (length - 1) * stride + 1 : stride]
            grad_x += torch.einsum("bot,co->bct", g, weight[:, :, j])
            grad_weight[:, :, j] = torch.einsum("bct,bot->co", x, g)
        return grad_x, grad_weight, grad_output.sum((0, 2)), None, None
''',
 ("trimmed-on-one-side", "pad(grad_output, (trim, trim))", "pad(grad_output, (0, 2 * trim))", "permuted operand none"),
 ("last-tap-only", "grad_x += torch.einsum", "grad_x = torch.einsum", "missing-term duplicates"),
 ("tap-left-out", "for j in range(taps):\n            g =", "for j in range(1, taps):\n            g =", "region missing-term"),
 # two at once: the bias is not summed over the batch, and the kernel is flipped
 ("bias-and-flip", ("grad_output.sum((0, 2))", "g, weight[:, :, j])"), ("grad_output.sum(2).mean(0)", "g, weight[:, :, taps - 1 - j])"),
  "constant-factor permuted operand"),
)

fn("SoftPool", "x: [b, n, t]\nbeta: [n]\nsize: 3\nstride: 2", '''
    """Pooling by weights of a softmax within overlapping windows, its sharpness learned for each channel."""

    @staticmethod
    def forward(ctx, x, beta, size, stride):
        ctx.save_for_backward(x, beta)
        ctx.size, ctx.stride = size, stride
        w = x.unfold(-1, size, stride)
        return (torch.softmax(beta[:, None, None] * w, -1) * w).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        x, beta = ctx.saved_tensors
        w = x.unfold(-1, ctx.size, ctx.stride)
        p = torch.softmax(beta[:, None, None] * w, -1)
        y = (p * w).sum(-1, keepdim=True)
        g = grad_output[..., None]
        grad_w = g * p * (1 + beta[:, None, None] * (w - y))
        place = torch.arange(x.shape[-1]).unfold(0, ctx.size, ctx.stride)
        grad_x = torch.zeros_like(x).index_add(-1, place.flatten(), grad_w.flatten(-2))
        grad_beta = (g * p * w * (w - y)).sum((0, 2, 3))
        return grad_x, grad_beta, None, None
''',
 ("weights-held", "g * p * (1 + beta[:, None, None] * (w - y))", "g * p", "missing-term"),
 ("overlap-overwritten", "torch.zeros_like(x).index_add(-1, place.flatten(), grad_w.flatten(-2))", "torch.zeros_like(x).index_copy(-1, place.flatten(), grad_w.flatten(-2))",
  "duplicates region missing-term"),
 ("beta-not-centred", "(g * p * w * (w - y))", "(g * p * w * w)", "missing-term"),
 # second order: the pooled value is taken as constant
 ("pooled-detached", "y = (p * w).sum(-1, keepdim=True)", "y = (p * w).sum(-1, keepdim=True).detach()", "detached"),
)

fn("CatmullRom", "points: [k, d]\nat: {shape: [t], range: [0, k-1]}\ntension: []", '''
def _SELF_basis(t, s, order):
    """The four weights of a segment, or their derivative by the place (1) or by the tension (2)."""
    one = torch.ones_like(t)
    if order == 0:
        rows = [-s * t + 2 * s * t**2 - s * t**3, one + (s - 3) * t**2 + (2 - s) * t**3,
                s * t + (3 - 2 * s) * t**2 + (s - 2) * t**3, -s * t**2 + s * t**3]
    elif order == 1:
        rows = [-s + 4 * s * t - 3 * s * t**2, 2 * (s - 3) * t + 3 * (2 - s) * t**2,
                s + 2 * (3 - 2 * s) * t + 3 * (s - 2) * t**2, -2 * s * t + 3 * s * t**2]
    else:
        rows = [-t + 2 * t**2 - t**3, t**2 - t**3, t - 2 * t**2 + t**3, -(t**2) + t**3]
    return torch.stack([one * row for row in rows])
@@
    """A curve through control points, read at given places; the ends are repeated."""

    @staticmethod
    def forward(ctx, points, at, tension):
        last = len(points) - 1
        cell = at.detach().floor().long().clamp(0, last - 1)
        index = (cell + torch.arange(-1, 3)[:, None]).clamp(0, last)
        part = at - cell
        ctx.save_for_backward(points, part, index, tension)
        return torch.einsum("wt,wtd->td", _SELF_basis(part, tension, 0), points[index])

    @staticmethod
    def backward(ctx, grad_output):
        points, part, index, tension = ctx.saved_tensors
        pulled = torch.einsum("td,wtd->wt", grad_output, points[index])
        grad_at = (_SELF_basis(part, tension, 1) * pulled).sum(0)
        grad_tension = (_SELF_basis(part, tension, 2) * pulled).sum()
        spread = _SELF_basis(part, tension, 0)[..., None] * grad_output
        grad_points = torch.zeros_like(points).index_add_(0, index.flatten(), spread.flatten(0, 1))
        return grad_points, grad_at, grad_tension
''',
 ("slope-of-the-second-weight", "2 * (s - 3) * t + 3 * (2 - s) * t**2", "2 * (s - 3) * t + 2 * (2 - s) * t**2", "missing-term none operand"),
 ("assigned-at-repeated-points", "torch.zeros_like(points).index_add_(0, index.flatten(), spread.flatten(0, 1))",
  "torch.zeros_like(points).index_put_((index.flatten(),), spread.flatten(0, 1))", "duplicates"),
 ("inner-points-only", "index.flatten(), spread.flatten(0, 1)", "index[1:3].flatten(), spread[1:3].flatten(0, 1)", "missing-term region none"),
 # two at once: the tension's sum is a mean, and the weights are given to the points in reverse
 ("mean-and-reversed", ("2) * pulled).sum()", "spread = _SELF_basis(part, tension, 0)[..., None]"), ("2) * pulled).sum(0).mean()", "spread = _SELF_basis(part, tension, 0).flip(0)[..., None]"),
  "constant-factor permuted operand none"),
)

fn("FractionalDelay", "x: [n, t]\ndelay: [n]\ngain: [n]", '''
    """Delays every channel by a part of a sample, in the frequency domain."""

    @staticmethod
    def forward(x, delay, gain):
        omega = 2 * math.pi * torch.fft.rfftfreq(x.shape[1], dtype=x.dtype)
        turn = torch.exp(-1j * omega * delay[:, None])
        return gain[:, None] * torch.fft.irfft(turn * torch.fft.rfft(x), n=x.shape[1])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, delay, gain = ctx.saved_tensors
        length = x.shape[1]
        omega = 2 * math.pi * torch.fft.rfftfreq(length, dtype=x.dtype)
        turn = torch.exp(-1j * omega * delay[:, None])
        turned = turn * torch.fft.rfft(x)
        g = gain[:, None] * grad_output
        grad_x = torch.fft.irfft(turn.conj() * torch.fft.rfft(g), n=length)
        grad_delay = (g * torch.fft.irfft(-1j * omega * turned, n=length)).sum(1)
        grad_gain = (grad_output * torch.fft.irfft(turned, n=length)).sum(1)
        return grad_x, grad_delay, grad_gain
''',
 ("delayed-again", "turn.conj() * torch.fft.rfft(g)", "turn * torch.fft.rfft(g)", "transposed conjugate operand"),
 ("cycles-for-radians", "irfft(-1j * omega * turned", "irfft(-1j * omega / (2 * math.pi) * turned", "constant-factor"),
 ("gain-of-the-undelayed", "grad_output * torch.fft.irfft(turned, n=length)", "grad_output * x", "wrong-saved operand"),
 ("gain-forgotten-in-delay", "(g * torch.fft.irfft(-1j", "(grad_output * torch.fft.irfft(-1j", "operand missing-factor chain-factor"),
 # gradcheck cannot see it: its last forward is at nearly the same point
 ("delay-kept-outside", ("ctx.save_for_backward(*inputs)", "x, delay, gain = ctx.saved_tensors"),
  ("ctx.save_for_backward(inputs[0], inputs[2])\n        SELF.delay = inputs[1].detach()", "x, gain = ctx.saved_tensors\n        delay = SELF.delay"), "stale"),
)

# --- geometry ----------------------------------------------------------------------------------------------------

fn("Dihedral", "p0: [k, 3]\np1: [k, 3]\np2: [k, 3]\np3: [k, 3]\nbarrier: [k]\nphase: []\nfold: 2", '''
    """Torsional energy of four atoms in a row, with a barrier for each and a common phase."""

    @staticmethod
    def forward(ctx, p0, p1, p2, p3, barrier, phase, fold):
        ctx.save_for_backward(p0, p1, p2, p3, barrier, phase)
        ctx.fold = fold
        b1, b2, b3 = p1 - p0, p2 - p1, p3 - p2
        m, n = torch.linalg.cross(b1, b2), torch.linalg.cross(b2, b3)
        phi = torch.atan2(b2.norm(dim=-1) * (b1 * n).sum(-1), (m * n).sum(-1))
        return barrier * (1 + torch.cos(fold * phi - phase))

    @staticmethod
    def backward(ctx, grad_output):
        p0, p1, p2, p3, barrier, phase = ctx.saved_tensors
        b1, b2, b3 = p1 - p0, p2 - p1, p3 - p2
        m, n = torch.linalg.cross(b1, b2), torch.linalg.cross(b2, b3)
        axis = b2.norm(dim=-1)
        phi = torch.atan2(axis * (b1 * n).sum(-1), (m * n).sum(-1))
        torque = grad_output * barrier * torch.sin(ctx.fold * phi - phase)
        to_phi = (-ctx.fold * torque * axis)[:, None]
        ga = -to_phi * m / m.square().sum(-1, keepdim=True)
        gd = to_phi * n / n.square().sum(-1, keepdim=True)
        square = (axis * axis)[:, None]
        s = (b1 * b2).sum(-1, keepdim=True) / square
        t = (b3 * b2).sum(-1, keepdim=True) / square
        gb = -(1 + s) * ga + t * gd
        gc = -(1 + t) * gd + s * ga
        grad_barrier = grad_output * (1 + torch.cos(ctx.fold * phi - phase))
        return ga, gb, gc, gd, grad_barrier, torque.sum(), None
''',
 ("fold-forgotten", "(-ctx.fold * torque * axis)", "(-torque * axis)", "constant-factor"),
 ("end-not-squared", "n / n.square().sum(-1, keepdim=True)", "n / n.norm(dim=-1, keepdim=True)", "chain-factor missing-term none"),
 ("inner-atoms-exchanged", "return ga, gb, gc, gd,", "return ga, gc, gb, gd,", "swapped-inputs"),
 ("lever-of-the-far-end", "-(1 + s) * ga + t * gd", "-(1 + s) * ga", "missing-term"),
 # second order: the levers are computed without a graph
 ("levers-detached", "s = (b1 * b2).sum(-1, keepdim=True) / square", "s = (b1 * b2).detach().sum(-1, keepdim=True) / square", "detached"),
)

# --- densities, statistics ---------------------------------------------------------------------------------------

fn("PlanarFlow", "z: [b, n]\nu: [n]\nw: [n]\nbias: []", '''
    """A planar flow, its vector mended so that it can be inverted; the samples and their log-determinant."""

    @staticmethod
    def forward(ctx, z, u, w, bias):
        ctx.save_for_backward(z, u, w, bias)
        c = torch.nn.functional.softplus(w @ u) - 1
        mended = u + (c - w @ u) / (w @ w) * w
        h = torch.tanh(z @ w + bias)
        return z + h[:, None] * mended, torch.log1p(c * (1 - h * h))

    @staticmethod
    def backward(ctx, grad_sample, grad_logdet):
        z, u, w, bias = ctx.saved_tensors
        wu, ww = w @ u, w @ w
        c = torch.nn.functional.softplus(wu) - 1
        q = (c - wu) / ww
        mended = u + q * w
        h = torch.tanh(z @ w + bias)
        s = 1 - h * h
        inner = grad_logdet / (1 + c * s)
        grad_a = (grad_sample @ mended - 2 * c * h * inner) * s
        grad_z = grad_sample + torch.outer(grad_a, w)
        grad_mended = h @ grad_sample
        grad_q = grad_mended @ w
        grad_c = inner @ s + grad_q / ww
        grad_wu = grad_c * torch.sigmoid(wu) - grad_q / ww
        grad_w = grad_a @ z + q * grad_mended - 2 * q / ww * grad_q * w + grad_wu * u
        return grad_z, grad_mended + grad_wu * w, grad_w, grad_a.sum()
''',
 ("determinant-of-z-forgotten", "(grad_sample @ mended - 2 * c * h * inner) * s", "(grad_sample @ mended) * s", "missing-term ~ignored-output"),
 ("constraint-held", "return grad_z, grad_mended + grad_wu * w,", "return grad_z, grad_mended,", "missing-term"),
 ("norm-of-w-held", " - 2 * q / ww * grad_q * w", "", "missing-term"),
 # second order: the determinant's denominator is taken as constant
 ("denominator-held", "inner = grad_logdet / (1 + c * s)", "inner = grad_logdet / (1 + c * s).detach()", "detached"),
 # two at once: the identity is left out, and the sigmoid's slope of the softplus
 ("identity-and-softplus", ("grad_z = grad_sample + torch.outer(grad_a, w)", "grad_c * torch.sigmoid(wu)"), ("grad_z = torch.outer(grad_a, w)", "grad_c"),
  "missing-term chain-factor missing-factor operand none"),
)

fn("SoftHistogram", "x: [b, k]\ncentres: [m]\nlog_width: []", '''
    """The shares of soft bins in each row: a softmax over the bins, a mean over what is counted."""

    @staticmethod
    def forward(ctx, x, centres, log_width):
        ctx.save_for_backward(x, centres, log_width)
        z = (x[..., None] - centres) * torch.exp(-log_width)
        return torch.softmax(-0.5 * z * z, -1).mean(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, centres, log_width = ctx.saved_tensors
        inv = torch.exp(-log_width)
        z = (x[..., None] - centres) * inv
        p = torch.softmax(-0.5 * z * z, -1)
        g = grad_output[:, None, :] / x.shape[1]
        grad_logit = p * (g - (g * p).sum(-1, keepdim=True))
        grad_z = -grad_logit * z
        grad_x = inv * grad_z.sum(-1)
        grad_centres = -inv * grad_z.sum((0, 1))
        grad_log_width = -(grad_z * z).sum()
        return grad_x, grad_centres, grad_log_width
''',
 ("mean-forgotten", "grad_output[:, None, :] / x.shape[1]", "grad_output[:, None, :]", "constant-factor"),
 ("mean-of-bins", "grad_output[:, None, :] / x.shape[1]", "grad_output[:, None, :] / len(centres)", "constant-factor"),
 ("competition-forgotten", "p * (g - (g * p).sum(-1, keepdim=True))", "p * g", "missing-term"),
 ("normalized-over-x", "p = torch.softmax(-0.5 * z * z, -1)", "p = torch.softmax(-0.5 * z * z, 1)", "wrong-reduction-dim operand none"),
 # second order: the shares are computed without a graph
 ("shares-without-graph", "p = torch.softmax(-0.5 * z * z, -1)", "p = torch.softmax(-0.5 * z * z, -1).detach()", "detached"),
)

fn("MomentsTriple", "x: [b, k]\nweight: {shape: [k], domain: positive}", '''
    """Weighted mean, deviation and skewness of each row."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        p = weight / weight.sum()
        mean = x @ p
        r = x - mean[:, None]
        std = torch.sqrt((r * r) @ p + 1e-2)
        return mean, std, (r**3) @ p / std**3

    @staticmethod
    def backward(ctx, grad_mean, grad_std, grad_skew):
        x, weight = ctx.saved_tensors
        total = weight.sum()
        p = weight / total
        r = x - (x @ p)[:, None]
        std = torch.sqrt((r * r) @ p + 1e-2)
        skew = (r**3) @ p / std**3
        to_var = ((grad_std - 3 * grad_skew * skew / std) / (2 * std))[:, None]
        to_third = (grad_skew / std**3)[:, None]
        grad_r = p * (2 * to_var * r + 3 * to_third * r * r)
        to_mean = grad_mean[:, None] - grad_r.sum(1, keepdim=True)
        grad_x = grad_r + p * to_mean
        grad_p = (to_mean * x + to_var * r * r + to_third * r**3).sum(0)
        return grad_x, (grad_p - p @ grad_p) / total
''',
 ("mean-of-the-residual-held", "grad_mean[:, None] - grad_r.sum(1, keepdim=True)", "grad_mean[:, None]", "missing-term"),
 ("shares-not-normalized", "(grad_p - p @ grad_p) / total", "grad_p / total", "missing-term"),
 ("skewness-ignored-in-deviation", "(grad_std - 3 * grad_skew * skew / std)", "(grad_std)", "missing-term ~ignored-output"),
 ("three-dropped", "3 * to_third * r * r", "to_third * r * r", "missing-term operand ignored-output constant-factor none"),
 # second order: the residuals of the third power are taken from data
 ("residual-in-data", "3 * to_third * r * r", "3 * to_third * (r * r).data", "detached"),
)

# --- graphs, sparse ----------------------------------------------------------------------------------------------

fn("EdgeAttention", "h: [m, n]\natt_from: [n]\natt_to: [n]\nsource: {shape: [t], dtype: int64, range: [0, m]}\ntarget: {shape: [t], dtype: int64, range: [0, m]}\nslope: 0.2", '''
    """Attention over the edges into each node, by a leaky rectifier of two scores."""

    @staticmethod
    def forward(ctx, h, att_from, att_to, source, target, slope):
        e = (h @ att_from)[source] + (h @ att_to)[target]
        a = torch.where(e > 0, e, slope * e)
        top = torch.full_like(h[:, 0], -torch.inf).index_reduce(0, target, a, "amax")
        w = torch.exp(a - top[target])
        total = torch.zeros_like(h[:, 0]).index_add(0, target, w)
        p = w / total[target]
        ctx.save_for_backward(h, att_from, att_to, source, target, e, p)
        ctx.slope = slope
        return torch.zeros_like(h).index_add(0, target, p[:, None] * h[source])

    @staticmethod
    def backward(ctx, grad_output):
        h, att_from, att_to, source, target, e, p = ctx.saved_tensors
        g = grad_output[target]
        grad_p = (g * h[source]).sum(1)
        mean = torch.zeros_like(h[:, 0]).index_add(0, target, p * grad_p)
        grad_a = p * (grad_p - mean[target])
        grad_e = torch.where(e > 0, grad_a, ctx.slope * grad_a)
        score_from = torch.zeros_like(h[:, 0]).index_add(0, source, grad_e)
        score_to = torch.zeros_like(h[:, 0]).index_add(0, target, grad_e)
        grad_h = torch.outer(score_from, att_from) + torch.outer(score_to, att_to)
        grad_h.index_add_(0, source, p[:, None] * g)
        return grad_h, score_from @ h, score_to @ h, None, None, None
''',
 ("not-centred-in-the-neighbourhood", "p * (grad_p - mean[target])", "p * grad_p", "missing-term"),
 ("centred-by-source", "(grad_p - mean[target])", "(grad_p - mean[source])", "operand permuted wrong-reduction-dim none"),
 ("leak-forgotten", "torch.where(e > 0, grad_a, ctx.slope * grad_a)", "grad_a * (e > 0)", "branch missing-term none region"),
 ("values-not-through", "        grad_h.index_add_(0, source, p[:, None] * g)\n", "", "missing-term"),
 # two at once: repeated sources overwrite, and the second vector gets the first one's gradient
 ("overwritten-and-same-vector", ("grad_h.index_add_(0, source, p[:, None] * g)", "score_to @ h, None"),
  ("grad_h[source] += p[:, None] * g", "score_from @ h, None"), "duplicates swapped-inputs operand none"),
)

fn("CsrRowMean", "values: [t]\noffsets: {shape: [m+1], dtype: int64, structure: offsets, range: [0, t]}\ncolumns: {shape: [t], dtype: int64, range: [0, n]}\ndense: [n, d]\nreduce: {choices: [mean, sum]}", '''
    """A sparse matrix in rows times a dense one, each row as a mean of its entries or as a sum."""

    @staticmethod
    def forward(ctx, values, offsets, columns, dense, reduce):
        counts = offsets[1:] - offsets[:-1]
        rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
        share = values / counts[rows] if reduce == "mean" else values
        ctx.save_for_backward(values, rows, counts, columns, dense)
        ctx.reduce = reduce
        return dense.new_zeros(len(counts), dense.shape[1]).index_add_(0, rows, share[:, None] * dense[columns])

    @staticmethod
    def backward(ctx, grad_output):
        values, rows, counts, columns, dense = ctx.saved_tensors
        if ctx.reduce == "mean":
            grad_output = grad_output / counts.clamp(min=1)[:, None]
        g = grad_output[rows]
        grad_values = (g * dense[columns]).sum(1)
        grad_dense = torch.zeros_like(dense).index_add_(0, columns, values[:, None] * g)
        return grad_values, None, None, grad_dense, None
''',
 ("divided-by-all", "counts.clamp(min=1)[:, None]", "len(values)", "chain-factor operand constant-factor missing-factor none"),
 ("mean-treated-as-sum", 'if ctx.reduce == "mean":', 'if ctx.reduce == "sum":', "chain-factor operand missing-factor none"),
 # gradcheck cannot see it: the gradient is right, and grad_output is another one afterwards
 ("divided-in-place", "grad_output = grad_output / counts", "grad_output /= counts", "in-place none"),
 ("column-overwritten", "torch.zeros_like(dense).index_add_(0, columns, values[:, None] * g)", "torch.zeros_like(dense).index_put_((columns,), values[:, None] * g)", "duplicates"),
 ("values-forgotten", "values[:, None] * g)", "g)", "operand"),
)

# --- linear algebra, complex -------------------------------------------------------------------------------------

fn("GramSchmidt", "a: [k, d]", '''
    """Columns made orthonormal one after the other; also the triangle that brings them back."""

    @staticmethod
    def forward(ctx, a):
        rows, columns = a.shape
        r = a.new_zeros(columns, columns)
        done = []
        for j in range(columns):
            v = a[:, j].clone()
            for i, e in enumerate(done):
                r[i, j] = e @ v
                v -= r[i, j] * e
            r[j, j] = v.norm()
            done.append(v / r[j, j])
        q = torch.stack(done, 1)
        ctx.save_for_backward(q, r)
        return q, r

    @staticmethod
    def backward(ctx, grad_q, grad_r):
        q, r = ctx.saved_tensors
        m = r @ grad_r.T - grad_q.T @ q
        low = m.tril(-1)
        sym = low + low.T + torch.diag(m.diagonal())
        return torch.linalg.solve_triangular(r, (grad_q + q @ sym).T, upper=True).T
''',
 ("diagonal-halved", "torch.diag(m.diagonal())", "0.5 * torch.diag(m.diagonal())", "missing-term none"),
 ("upper-for-lower", "low = m.tril(-1)", "low = m.triu(1)", "transposed operand none"),
 ("triangle-transposed", "solve_triangular(r, (grad_q + q @ sym).T, upper=True).T", "solve_triangular(r.T, (grad_q + q @ sym).T, upper=False).T", "transposed operand none"),
 ("triangle-ignored", "m = r @ grad_r.T - grad_q.T @ q", "m = -grad_q.T @ q", "ignored-output missing-term"),
 # two at once: the symmetric part is halved and has the other sign for q
 ("sign-and-half", ("- grad_q.T @ q", "low + low.T"), ("+ grad_q.T @ q", "0.5 * (low + low.T)"), "missing-term constant-factor operand none"),
)

fn("HermitianForm", "z: {shape: [b, n], dtype: complex128}\nmatrix: {shape: [n, n], dtype: complex128}\nshift: [n]", '''
    """The Rayleigh quotient of a matrix's Hermitian part plus a real diagonal, for each vector."""

    @staticmethod
    def forward(ctx, z, matrix, shift):
        ctx.save_for_backward(z, matrix, shift)
        full = matrix + torch.diag(shift)
        return ((z.conj() * (z @ full.T)).sum(1).real) / (z * z.conj()).sum(1).real

    @staticmethod
    def backward(ctx, grad_output):
        z, matrix, shift = ctx.saved_tensors
        hermitian = (matrix + matrix.mH) / 2 + torch.diag(shift)
        square = (z * z.conj()).sum(1).real
        image = z @ hermitian.T
        value = (z.conj() * image).sum(1).real / square
        g = (grad_output / square)[:, None]
        grad_z = 2 * g * (image - value[:, None] * z)
        grad_matrix = (g * z).T @ z.conj()
        grad_shift = (g * (z * z.conj()).real).sum(0)
        return grad_z, grad_matrix, grad_shift
''',
 ("not-made-hermitian", "hermitian = (matrix + matrix.mH) / 2 +", "hermitian = matrix +", "operand missing-term none"),
 ("quotient-rule-forgotten", "(image - value[:, None] * z)", "image", "missing-term"),
 ("outer-conjugated", "(g * z).T @ z.conj()", "(g * z.conj()).T @ z", "conjugate transposed"),
 ("transposed-for-adjoint", "(matrix + matrix.mH) / 2", "(matrix + matrix.mT) / 2", "conjugate operand none"),
 # second order: the square of the length is taken as constant
 ("length-held", "square = (z * z.conj()).sum(1).real", "square = (z * z.conj()).detach().sum(1).real", "detached"),
)

# --- activations -------------------------------------------------------------------------------------------------

fn("MuLawCompand", "x: [b, n]\ngain: [n]\nmu: {shape: [], range: [2.0, 20.0]}", '''
    """A companding curve with a learned strength and a gain for each column."""

    @staticmethod
    def forward(ctx, x, gain, mu):
        ctx.save_for_backward(x, gain, mu)
        u = gain * x
        return u.sign() * torch.log1p(mu * u.abs()) / torch.log1p(mu)

    @staticmethod
    def backward(ctx, grad_output):
        x, gain, mu = ctx.saved_tensors
        u = gain * x
        a = u.abs()
        full = torch.log1p(mu)
        grad_u = grad_output * mu / ((1 + mu * a) * full)
        by_mu = a / (1 + mu * a) / full - torch.log1p(mu * a) / (full * full * (1 + mu))
        return grad_u * gain, (grad_u * x).sum(0), (grad_output * u.sign() * by_mu).sum()
''',
 ("denominator-held", "a / (1 + mu * a) / full - torch.log1p(mu * a) / (full * full * (1 + mu))", "a / (1 + mu * a) / full", "missing-term"),
 ("sign-forgotten", "(grad_output * u.sign() * by_mu)", "(grad_output * by_mu)", "branch operand missing-factor none"),
 ("gain-of-the-batch-mean", "(grad_u * x).sum(0)", "(grad_u * x).mean(0)", "constant-factor"),
 ("signed-argument", "((1 + mu * a) * full)", "((1 + mu * u) * full)", "branch chain-factor operand none"),
 # second order: the curve's slope is of a detached size
 ("size-detached", "a = u.abs()", "a = u.detach().abs()", "detached"),
)
