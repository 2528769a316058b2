"""Fourteenth set, held out: by the hand of the thirteenth, which read neither the checker's source nor the other sets.

The format is that of `twelfth.py`: an entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text,
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
    "BarronPenalty", "StudentLogProb", "CatmullTap", "BlackCall", "CouplingFlow",
    "MorseBonds", "PolyFocal",
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- losses ---------------------------------------------------------------------------------------------------------

fn("BarronPenalty", "residual: [b, n]\nalpha: {shape: [n], domain: positive, range: [0.3, 1.7]}\nscale: {shape: [], domain: positive, range: [0.3, 2.0]}", '''
    """The general robust loss, with a shape for each channel and one scale (Barron 2019)."""

    @staticmethod
    def forward(ctx, residual, alpha, scale):
        ctx.save_for_backward(residual, alpha, scale)
        gap = 2 - alpha
        inner = (residual / scale) ** 2 / gap + 1
        return gap / alpha * (inner ** (alpha / 2) - 1)

    @staticmethod
    def backward(ctx, grad_output):
        residual, alpha, scale = ctx.saved_tensors
        gap = 2 - alpha
        square = (residual / scale) ** 2
        inner = square / gap + 1
        power = inner ** (alpha / 2)
        slope = residual / scale**2 * power / inner
        grad_residual = grad_output * slope
        grad_scale = -(grad_output * slope * residual).sum() / scale
        by_alpha = -2 / alpha**2 * (power - 1)
        by_alpha = by_alpha + gap / alpha * power * (0.5 * torch.log(inner) + 0.5 * alpha * square / (gap**2 * inner))
        return grad_residual, (grad_output * by_alpha).sum(0), grad_scale
''',
 ("exponent-only", "by_alpha = -2 / alpha**2 * (power - 1)", "by_alpha = torch.zeros_like(power)", "missing-term"),
 ("inner-shape-held", "(0.5 * torch.log(inner) + 0.5 * alpha * square / (gap**2 * inner))",
  "(0.5 * torch.log(inner))", "missing-term"),
 ("power-not-lowered", "residual / scale**2 * power / inner", "residual / scale**2 * power", "chain-factor none"),
 ("scale-once", "slope * residual).sum() / scale", "slope * residual).sum()", "chain-factor operand"),
 ("alpha-averaged", "grad_output * by_alpha).sum(0)", "grad_output * by_alpha).mean(0)", "constant-factor"),
 # in the second order only
 ("inner-on-no-tape", "        power = inner ** (alpha / 2)",
  "        with torch.no_grad():\n            power = inner ** (alpha / 2)", "detached"),
)

fn("PolyFocal", "logits: [t, n]\nlabels: {shape: [t], dtype: int64, range: [0, n]}\ngamma: 2.0\nepsilon: 0.8\nignored: {choices: [-1, 0]}", '''
    """Focal loss of several classes and its first polynomial term, without one ignored label."""

    @staticmethod
    def forward(ctx, logits, labels, gamma, epsilon, ignored):
        log_p = torch.log_softmax(logits, 1)
        keep = labels != ignored
        mine = log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        rest = 1 - mine.exp()
        loss = -(rest**gamma) * mine + epsilon * rest ** (gamma + 1)
        ctx.save_for_backward(logits, labels, keep)
        ctx.options = gamma, epsilon
        return (loss * keep).sum() / keep.sum().clamp(min=1)

    @staticmethod
    def backward(ctx, grad_loss):
        logits, labels, keep = ctx.saved_tensors
        gamma, epsilon = ctx.options
        log_p = torch.log_softmax(logits, 1)
        p = log_p.exp()
        spot = torch.zeros_like(p).scatter(1, labels.clamp(min=0)[:, None], 1.0)
        mine = (p * spot).sum(1, keepdim=True)
        rest = 1 - mine
        focal = gamma * rest ** (gamma - 1) * mine * (log_p * spot).sum(1, keepdim=True) - rest**gamma
        poly = -epsilon * (gamma + 1) * rest**gamma * mine
        scale = grad_loss * keep[:, None] / keep.sum().clamp(min=1)
        return scale * (focal + poly) * (spot - p), None, None, None, None
''',
 ("focus-held", "focal = gamma * rest ** (gamma - 1) * mine * (log_p * spot).sum(1, keepdim=True) - rest**gamma",
  "focal = -(rest**gamma)", "missing-term chain-factor none"),
 ("poly-term-forgotten", "(focal + poly)", "focal", "missing-term chain-factor none"),
 ("probability-not-through", "* rest**gamma * mine\n", "* rest**gamma\n", "chain-factor missing-term none"),
 ("loss-assumed-one", "scale = grad_loss * keep", "scale = keep", "grad-output-ones"),
 ("ignored-rows-pull", "grad_loss * keep[:, None] /", "grad_loss /", "branch missing-term none"),
 ("mean-over-all-rows", "/ keep.sum().clamp(min=1)\n        return scale", "/ len(keep)\n        return scale",
  "constant-factor none"),
 ("softmax-forgotten", "(spot - p), None", "spot, None", "missing-term diagonal-only none"),
 # in the second order only
 ("probabilities-detached", "p = log_p.exp()\n        spot", "p = log_p.exp().detach()\n        spot", "detached"),
)

fn("StudentLogProb", "x: [b, n]\nmu: [n]\nlog_scale: {shape: [n], range: [-1.0, 1.0]}\ndof: {shape: [], domain: positive, range: [1.5, 6.0]}", '''
    """Log density of a Student's t with a location and a scale for each channel."""

    @staticmethod
    def forward(ctx, x, mu, log_scale, dof):
        ctx.save_for_backward(x, mu, log_scale, dof)
        z = (x - mu) * torch.exp(-log_scale)
        constant = torch.lgamma((dof + 1) / 2) - torch.lgamma(dof / 2) - 0.5 * torch.log(math.pi * dof)
        return constant - log_scale - 0.5 * (dof + 1) * torch.log1p(z**2 / dof)

    @staticmethod
    def backward(ctx, g):
        x, mu, log_scale, dof = ctx.saved_tensors
        rate = torch.exp(-log_scale)
        z = (x - mu) * rate
        inside = 1 + z**2 / dof
        pull = (dof + 1) * z / (dof * inside)
        grad_x = -g * pull * rate
        grad_log_scale = (g * (pull * z - 1)).sum(0)
        constant = torch.digamma((dof + 1) / 2) - torch.digamma(dof / 2) - 1 / dof
        tail = (dof + 1) * z**2 / (dof**2 * inside) - torch.log(inside)
        grad_dof = (g * 0.5 * (constant + tail)).sum()
        return grad_x, -grad_x.sum(0), grad_log_scale, grad_dof
''',
 ("normaliser-of-the-scale-held", "(g * (pull * z - 1)).sum(0)", "(g * pull * z).sum(0)", "missing-term"),
 ("rate-left-out", "grad_x = -g * pull * rate", "grad_x = -g * pull", "chain-factor"),
 ("constants-held", "(constant + tail)", "tail", "missing-term"),
 ("gaussian-pull", "pull = (dof + 1) * z / (dof * inside)", "pull = z", "chain-factor missing-term none"),
 # in the second order only
 ("numpy-inside", "inside = 1 + z**2 / dof\n", "inside = 1 + torch.from_numpy(z.detach().numpy() ** 2) / dof\n",
  "detached"),
 # two at once: the location has the sign of x, and the degrees' half is lost
 ("location-sign-and-half", ("grad_x, -grad_x.sum(0)", "(g * 0.5 * (constant"), ("grad_x, grad_x.sum(0)",
  "(g * (constant"), "constant-factor"),
)

# --- attention, recurrences -----------------------------------------------------------------------------------------

fn("SlotAttend", "slots: [b, d]\nkeys: [t, d]\nvalues: [t, n]\neps: 0.01", '''
    """Slots compete for the places; each slot takes the mean of what it has won (Locatello 2020)."""

    @staticmethod
    def forward(ctx, slots, keys, values, eps):
        won = torch.softmax(slots @ keys.T / math.sqrt(slots.shape[1]), 0)
        total = won.sum(1, keepdim=True) + eps
        mean = (won / total) @ values
        ctx.save_for_backward(slots, keys, values, won, total, mean)
        return mean, won

    @staticmethod
    def backward(ctx, grad_mean, grad_won):
        slots, keys, values, won, total, mean = ctx.saved_tensors
        grad_share = grad_mean @ values.T
        grad_won = grad_won + (grad_share - (grad_mean * mean).sum(1, keepdim=True)) / total
        grad_scores = won * (grad_won - (won * grad_won).sum(0))
        grad_scores = grad_scores / math.sqrt(slots.shape[1])
        return grad_scores @ keys, grad_scores.T @ slots, (won / total).T @ grad_mean, None
''',
 ("softmax-over-places", "(won * grad_won).sum(0)", "(won * grad_won).sum(1, keepdim=True)",
  "wrong-reduction-dim none"),
 ("share-not-renormalised", "(grad_share - (grad_mean * mean).sum(1, keepdim=True)) / total", "grad_share / total",
  "missing-term"),
 ("attention-not-returned", "grad_won = grad_won + (grad_share", "grad_won = (grad_share", "ignored-output"),
 ("values-by-the-winnings", "(won / total).T @ grad_mean", "won.T @ grad_mean", "chain-factor operand none"),
 ("root-of-the-places", "grad_scores / math.sqrt(slots.shape[1])", "grad_scores / math.sqrt(len(keys))",
  "constant-factor"),
 # gradcheck does not see it: grad_output is written to
 ("added-in-place", "grad_won = grad_won + (grad_share", "grad_won += (grad_share", "none"),
)

fn("CappedAttention", "q: [n, d]\nk: [m, d]\nv: [m, d]\nbias: {shape: [n, m], optional: true}\ncap: 1.5\ncausal: {choices: [false, true]}", '''
    """Attention whose scores are capped by a tanh before the bias and the mask."""

    @staticmethod
    def scores(q, k, bias, cap, causal):
        capped = cap * torch.tanh(q @ k.T / (math.sqrt(q.shape[1]) * cap))
        s = capped if bias is None else capped + bias
        if causal:
            ahead = torch.ones(s.shape, dtype=torch.bool).triu(1)
            s = s.masked_fill(ahead, -torch.inf)
        return s, capped

    @staticmethod
    def forward(ctx, q, k, v, bias=None, cap=1.5, causal=False):
        s, _ = SELF.scores(q, k, bias, cap, causal)
        out = torch.softmax(s, 1) @ v
        ctx.save_for_backward(q, k, v, bias, out)
        ctx.cap, ctx.causal = cap, causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        q, k, v, bias, out = ctx.saved_tensors
        s, capped = SELF.scores(q, k, bias, ctx.cap, ctx.causal)
        p = torch.softmax(s, 1)
        grad_v = p.T @ grad_out
        grad_p = grad_out @ v.T
        delta = (grad_out * out).sum(1, keepdim=True)
        grad_s = p * (grad_p - delta)
        grad_bias = grad_s if ctx.needs_input_grad[3] else None
        grad_raw = grad_s * (1 - (capped / ctx.cap) ** 2) / math.sqrt(q.shape[1])
        return grad_raw @ k, grad_raw.T @ q, grad_v, grad_bias, None, None
''',
 ("cap-not-through", " * (1 - (capped / ctx.cap) ** 2) / math", " / math", "chain-factor missing-term none"),
 ("cap-not-normalised", "(1 - (capped / ctx.cap) ** 2)", "(1 - capped**2)", "chain-factor missing-term none"),
 ("bias-behind-the-cap", "grad_bias = grad_s if", "grad_bias = grad_s * (1 - (capped / ctx.cap) ** 2) if",
  "chain-factor none"),
 ("mask-forgotten-again", "ctx.cap, ctx.causal)\n        p =", "ctx.cap, False)\n        p =",
  "branch missing-term none"),
 ("delta-left-out", "p * (grad_p - delta)", "p * grad_p", "missing-term"),
 ("root-not-in-the-key", "grad_raw @ k, grad_raw.T @ q, grad_v",
  "grad_raw @ k, grad_raw.T @ q * math.sqrt(q.shape[1]), grad_v", "constant-factor"),
)

fn("GatedLinearAttention", "q: [m, d]\nk: [m, d]\nv: [m, n]\nforget: {shape: [m, d], domain: unit}", '''
    """Linear attention whose memory fades by a gate for each key channel."""

    @staticmethod
    def forward(ctx, q, k, v, forget):
        memory = q.new_zeros(q.shape[1], v.shape[1])
        y, before = [], []
        for i in range(len(q)):
            before.append(memory)
            memory = forget[i][:, None] * memory + torch.outer(k[i], v[i])
            y.append(q[i] @ memory)
        ctx.save_for_backward(q, k, v, forget, torch.stack([*before, memory]))
        return torch.stack(y), memory

    @staticmethod
    def backward(ctx, grad_y, grad_memory):
        q, k, v, forget, memories = ctx.saved_tensors
        grad_q, grad_k = torch.empty_like(q), torch.empty_like(k)
        grad_v, grad_forget = torch.empty_like(v), torch.empty_like(forget)
        carry = grad_memory
        for i in range(len(q) - 1, -1, -1):
            grad_q[i] = memories[i + 1] @ grad_y[i]
            carry = carry + torch.outer(q[i], grad_y[i])
            grad_k[i] = carry @ v[i]
            grad_v[i] = k[i] @ carry
            grad_forget[i] = (carry * memories[i]).sum(1)
            carry = forget[i][:, None] * carry
        return grad_q, grad_k, grad_v, grad_forget
''',
 ("last-memory-ignored", "carry = grad_memory\n", "carry = torch.zeros_like(grad_memory)\n", "ignored-output"),
 ("query-reads-before", "grad_q[i] = memories[i + 1] @ grad_y[i]", "grad_q[i] = memories[i] @ grad_y[i]",
  "wrong-saved operand missing-term none"),
 ("faded-too-early",
  ("            carry = carry + torch.outer(q[i], grad_y[i])\n", "            carry = forget[i][:, None] * carry\n"),
  ("            carry = forget[i][:, None] * carry + torch.outer(q[i], grad_y[i])\n", ""), "operand permuted none"),
 ("gate-of-the-next-step", "carry = forget[i][:, None] * carry", "carry = forget[i - 1][:, None] * carry",
  "operand permuted none"),
 ("gate-averaged-over-channels", "(carry * memories[i]).sum(1)",
  "(carry * memories[i]).sum(1).mean().expand(q.shape[1])", "wrong-reduction-dim missing-term none"),
 ("forward-in-time", "for i in range(len(q) - 1, -1, -1):", "for i in range(len(q)):",
  "permuted operand missing-term none"),
 # two at once: the last step's memory is left out, and values see the query
 ("memory-and-values", ("carry = grad_memory\n", "grad_v[i] = k[i] @ carry"), ("carry = 0 * grad_memory\n",
  "grad_v[i] = q[i] @ carry"), "ignored-output operand none"),
)

fn("LeakyEcho", "x: [m, b, d]\nh: [b, n]\ninto: [n, d]\nback: {shape: [n, n], range: [-0.6, 0.6]}\nleak: {shape: [n], domain: unit}", '''
    """A leaky recurrent layer; its states at all times."""

    @staticmethod
    def forward(ctx, x, h, into, back, leak):
        states, squashed = [h], []
        for step in x:
            squashed.append(torch.tanh(step @ into.T + states[-1] @ back.T))
            states.append((1 - leak) * states[-1] + leak * squashed[-1])
        ctx.states, ctx.squashed = torch.stack(states).detach(), torch.stack(squashed).detach()
        ctx.save_for_backward(x, into, back, leak)
        return torch.stack(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_states):
        x, into, back, leak = ctx.saved_tensors
        grad_into, grad_back, grad_leak = map(torch.zeros_like, (into, back, leak))
        grad_x = torch.zeros_like(x)
        carry = torch.zeros_like(ctx.states[0])
        for i in reversed(range(len(x))):
            carry = carry + grad_states[i]
            before, squashed = ctx.states[i], ctx.squashed[i]
            grad_leak += (carry * (squashed - before)).sum(0)
            inner = carry * leak * (1 - squashed**2)
            grad_into += inner.T @ x[i]
            grad_back += inner.T @ before
            grad_x[i] = inner @ into
            carry = carry * (1 - leak) + inner @ back
        return grad_x, carry, grad_into, grad_back, grad_leak
''',
 ("only-the-leak-carries", "carry * (1 - leak) + inner @ back", "carry * (1 - leak)", "missing-term operand none"),
 ("nothing-leaks", "carry * (1 - leak) + inner @ back", "inner @ back", "missing-term none"),
 ("recurrent-transposed", "carry * (1 - leak) + inner @ back", "carry * (1 - leak) + inner @ back.T",
  "transposed operand"),
 ("leak-sees-the-squashed-only", "(carry * (squashed - before)).sum(0)", "(carry * squashed).sum(0)", "missing-term"),
 ("last-step-overwrites", "grad_back += inner.T @ before", "grad_back = inner.T @ before", "missing-term none"),
 ("outer-products-turned", "grad_back += inner.T @ before", "grad_back += before.T @ inner", "transposed permuted"),
 # gradcheck does not see it: it takes another call between forward and backward
 ("states-on-the-class", ("ctx.states, ctx.squashed =", "torch.zeros_like(ctx.states[0])", "ctx.states[i], ctx"),
  ("SELF.states, ctx.squashed =", "torch.zeros_like(SELF.states[0])", "SELF.states[i], ctx"), "stale"),
 # gradcheck does not see it: its grad_outputs are small
 ("carry-clipped", "carry * (1 - leak) + inner @ back", "(carry * (1 - leak) + inner @ back).clamp(-1, 1)",
  "grad-output-nonlinear"),
 ("leak-not-in-the-inner", "inner = carry * leak * (1 - squashed**2)", "inner = carry * (1 - squashed**2)",
  "operand chain-factor none"),
)

# --- normalisations, gated layers -----------------------------------------------------------------------------------

fn("ModulatedNorm", "x: [b, m, n]\nscale: [b, n]\nshift: [b, n]\ngate: {shape: [b, n], optional: true}\neps: 0.001", '''
    """Layer norm with a scale, a shift and a gate of the condition, and the residual (adaLN)."""

    @staticmethod
    def forward(ctx, x, scale, shift, gate, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        hat = (x - mean) * rstd
        y = hat * (1 + scale[:, None]) + shift[:, None]
        ctx.save_for_backward(hat, rstd, scale, shift, gate)
        return y if gate is None else x + gate[:, None] * y

    @staticmethod
    def backward(ctx, grad_y):
        hat, rstd, scale, shift, gate = ctx.saved_tensors
        straight, grad_gate = 0.0, None
        if gate is not None:
            y = hat * (1 + scale[:, None]) + shift[:, None]
            straight = grad_y
            grad_gate = (grad_y * y).sum(1)
            grad_y = grad_y * gate[:, None]
        grad_hat = grad_y * (1 + scale[:, None])
        middle = grad_hat.mean(-1, keepdim=True)
        along = (grad_hat * hat).mean(-1, keepdim=True)
        grad_x = straight + rstd * (grad_hat - middle - hat * along)
        return grad_x, (grad_y * hat).sum(1), grad_y.sum(1), grad_gate, None
''',
 ("residual-forgotten", "straight = grad_y\n", "straight = torch.zeros_like(grad_y)\n", "missing-term"),
 ("gate-not-through", "            grad_y = grad_y * gate[:, None]\n", "", "operand none"),
 ("scale-without-the-one", "grad_hat = grad_y * (1 + scale[:, None])", "grad_hat = grad_y * scale[:, None]",
  "missing-term operand"),
 ("middle-of-the-tokens", "middle = grad_hat.mean(-1, keepdim=True)", "middle = grad_hat.mean(1, keepdim=True)",
  "wrong-reduction-dim none"),
 ("gate-sees-the-norm-only", "y = hat * (1 + scale[:, None]) + shift[:, None]\n            straight",
  "y = hat * (1 + scale[:, None])\n            straight", "missing-term"),
 ("shift-of-the-first-token", "grad_y.sum(1), grad_gate", "grad_y[:, 0], grad_gate", "not-summed-over-broadcast"),
 # two at once: the residual is forgotten, and the shift is averaged over the tokens
 ("residual-and-shift",
  ("straight = grad_y\n", "grad_y.sum(1), grad_gate"), ("straight = 0.0\n", "grad_y.mean(1), grad_gate"),
  "missing-term constant-factor"),
 ("rstd-left-out", "straight + rstd * (grad_hat", "straight + (grad_hat", "chain-factor missing-term none"),
)

fn("GroupRms", "x: [b, 2*d]\ngain: [2*d]\ngroups: 2\neps: 0.001", '''
    """Root mean square norm within groups of channels."""

    @staticmethod
    def forward(ctx, x, gain, groups, eps):
        parts = x.reshape(len(x), groups, -1)
        rms = torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, gain, rms)
        ctx.groups = groups
        return (parts * rms).reshape(x.shape) * gain

    @staticmethod
    def backward(ctx, g):
        x, gain, rms = ctx.saved_tensors
        shape = (len(x), ctx.groups, -1)
        parts = x.reshape(shape)
        hat = parts * rms
        grad_gain = (g * hat.reshape(x.shape)).sum(0)
        grad_hat = (g * gain).reshape(shape)
        grad_parts = rms * (grad_hat - hat * (grad_hat * hat).mean(-1, keepdim=True))
        return grad_parts.reshape(x.shape), grad_gain, None, None
''',
 ("over-all-groups", "(grad_hat * hat).mean(-1, keepdim=True)", "(grad_hat * hat).mean((1, 2), keepdim=True)",
  "wrong-reduction-dim none"),
 ("along-not-normalised", "(grad_hat - hat * (grad_hat", "(grad_hat - parts * (grad_hat",
  "missing-term chain-factor none"),
 ("rms-held", "rms * (grad_hat - hat * (grad_hat * hat).mean(-1, keepdim=True))", "rms * grad_hat", "missing-term"),
 ("groups-interleaved", "return grad_parts.reshape(x.shape)", "return grad_parts.mT.reshape(x.shape)",
  "permuted transposed"),
 # gradcheck does not see it at contiguous grad_outputs: it raises for others
 ("view-of-the-grad", "grad_hat = (g * gain).reshape(shape)",
  "grad_hat = g.view(-1, gain.numel() // ctx.groups).reshape(shape) * gain.view(ctx.groups, -1)", "none"),
 # two at once: the gain is averaged, and one square is left out
 ("gain-averaged-and-rms-held",
  ("(g * hat.reshape(x.shape)).sum(0)", "- hat * (grad_hat * hat).mean(-1, keepdim=True))"),
  ("(g * hat.reshape(x.shape)).mean(0)", ")"), "constant-factor missing-term"),
)

fn("SwigluDown", "x: [b, n]\ngate: [m, n]\nup: [m, n]\ndown: [d, m]\nresidual: {shape: [b, d], optional: true}", '''
    """The feed-forward of a transformer with a gated unit, and a residual."""

    @staticmethod
    def forward(ctx, x, gate, up, down, residual=None):
        a, u = x @ gate.T, x @ up.T
        ctx.save_for_backward(x, gate, up, down, a, u)
        y = (a * torch.sigmoid(a) * u) @ down.T
        return y if residual is None else y + residual

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, gate, up, down, a, u = ctx.saved_tensors
        s = torch.sigmoid(a)
        inner = g @ down
        grad_u = inner * a * s
        grad_a = inner * u * s * (1 + a * (1 - s))
        grad_x = grad_gate = grad_up = grad_down = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_a @ gate
            grad_x += grad_u @ up
        if ctx.needs_input_grad[1]:
            grad_gate = grad_a.T @ x
        if ctx.needs_input_grad[2]:
            grad_up = grad_u.T @ x
        if ctx.needs_input_grad[3]:
            grad_down = g.T @ (a * s * u)
        return grad_x, grad_gate, grad_up, grad_down, g if ctx.needs_input_grad[4] else None
''',
 ("sigmoid-for-silu", "u * s * (1 + a * (1 - s))", "u * s * (1 - s)", "chain-factor missing-term none"),
 ("up-overwrites-the-gate", "grad_x += grad_u @ up", "grad_x = grad_u @ up", "missing-term"),
 ("down-without-the-gate", "grad_down = g.T @ (a * s * u)", "grad_down = g.T @ (a * u)", "chain-factor none"),
 ("gate-and-up", "return grad_x, grad_gate, grad_up,", "return grad_x, grad_up, grad_gate,", "swapped-inputs"),
 # too small for gradcheck
 ("sigmoid-in-single", "s = torch.sigmoid(a)\n        inner",
  "s = torch.sigmoid(a.float()).to(a.dtype)\n        inner", "float32-inside"),
 # gradcheck does not see it: up's gradient is None where the gate is not asked for
 ("up-needs-the-gate", "if ctx.needs_input_grad[2]:", "if ctx.needs_input_grad[1]:", "zero none"),
)

# --- linear algebra, implicit layers --------------------------------------------------------------------------------

fn("RidgeSolve", "design: [m, n]\ny: [m, d]\nridge: {shape: [], domain: positive, range: [0.3, 2.0]}", '''
    """Coefficients of a ridge regression, from the normal equations."""

    @staticmethod
    def forward(ctx, design, y, ridge):
        h = design.T @ design + ridge * torch.eye(design.shape[1], dtype=design.dtype)
        factor = torch.linalg.cholesky(h)
        w = torch.cholesky_solve(design.T @ y, factor)
        ctx.save_for_backward(design, y, factor, w)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_w):
        design, y, factor, w = ctx.saved_tensors
        v = torch.cholesky_solve(grad_w, factor)
        back = design @ v
        grad_design = (y - design @ w) @ v.T - back @ w.T
        return grad_design, back, -(v * w).sum()
''',
 ("residual-is-y", "(y - design @ w) @ v.T", "y @ v.T", "missing-term"),
 ("normal-matrix-held", " - back @ w.T\n", "\n", "missing-term"),
 ("ridge-sees-the-gradient", "-(v * w).sum()", "-(grad_w * w).sum()", "operand chain-factor none"),
 ("outer-product-turned", "(y - design @ w) @ v.T - back", "((y - design @ w) @ v.T).T.reshape(design.shape) - back",
  "transposed permuted missing-term none"),
 ("lower-solve-only", "v = torch.cholesky_solve(grad_w, factor)",
  "v = torch.linalg.solve_triangular(factor, grad_w, upper=False)", "operand chain-factor none"),
 # a saved tensor, which is the output, is written to: the second time is wrong
 ("residual-in-place", "(y - design @ w) @ v.T - back @ w.T\n        return grad_design, back, -(v * w).sum()",
  "(y - design @ w) @ v.T - back @ w.T\n        return grad_design, back, -w.data.mul_(v).sum()", "stale none"),
)

fn("SpectralPower", "a: {shape: [n, n], structure: spd}\npower: {shape: [], domain: positive, range: [0.3, 1.7]}", '''
    """A power of a symmetric positive matrix, by its spectrum."""

    @staticmethod
    def forward(ctx, a, power):
        s, v = torch.linalg.eigh((a + a.T) / 2)
        ctx.save_for_backward(s, v, power)
        return (v * s**power) @ v.T

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        s, v, power = ctx.saved_tensors
        inner = v.T @ grad_output @ v
        raised, slope = s**power, power * s ** (power - 1)
        gap = s[:, None] - s[None]
        close = gap.abs() < 1e-10
        ratio = (raised[:, None] - raised[None]) / torch.where(close, 1.0, gap)
        ratio = torch.where(close, slope[:, None].expand_as(gap), ratio)
        grad_a = v @ (ratio * inner) @ v.T
        grad_power = (inner.diagonal() * raised * torch.log(s)).sum()
        return (grad_a + grad_a.T) / 2, grad_power
''',
 ("eigenvalues-only", "ratio = torch.where(close, slope[:, None].expand_as(gap), ratio)", "ratio = torch.diag(slope)",
  "missing-term none"),
 ("slope-at-the-rows", "grad_a = v @ (ratio * inner) @ v.T", "grad_a = v @ (slope[:, None] * inner) @ v.T",
  "operand none"),
 ("not-turned-back", "grad_a = v @ (ratio * inner) @ v.T", "grad_a = v.T @ (ratio * inner) @ v",
  "transposed operand none"),
 ("log-forgotten", "raised * torch.log(s)", "raised", "chain-factor operand none"),
 ("diagonal-of-the-gradient", "inner.diagonal() *", "grad_output.diagonal() *", "operand wrong-saved none"),
)

fn("CholeskyQuad", "x: [b, n]\nmu: [n]\ncov: {shape: [n, n], structure: spd}", '''
    """Log density of a Gaussian, without the constant."""

    @staticmethod
    def forward(ctx, x, mu, cov):
        factor = torch.linalg.cholesky((cov + cov.T) / 2)
        white = torch.linalg.solve_triangular(factor, (x - mu).T, upper=False)
        ctx.save_for_backward(factor, white)
        return -0.5 * (white * white).sum(0) - factor.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        factor, white = ctx.saved_tensors
        pull = torch.linalg.solve_triangular(factor.T, white, upper=True).T
        grad_x = -g[:, None] * pull
        grad_cov = 0.5 * (pull.T * g) @ pull - 0.5 * g.sum() * torch.cholesky_inverse(factor)
        return grad_x, -grad_x.sum(0), grad_cov
''',
 ("determinant-held", " - 0.5 * g.sum() * torch.cholesky_inverse(factor)\n", "\n", "missing-term"),
 ("determinant-twice", "- 0.5 * g.sum() *", "- g.sum() *", "missing-term"),
 ("one-sided-white", "torch.linalg.solve_triangular(factor.T, white, upper=True).T", "white.T",
  "operand chain-factor none"),
 ("quadratic-unweighted", "0.5 * (pull.T * g) @ pull", "0.5 * g.sum() * pull.T @ pull",
  "grad-output-summed missing-term none"),
 ("location-not-summed", "-grad_x.sum(0), grad_cov", "-grad_x[0], grad_cov", "not-summed-over-broadcast"),
 # two at once: the location's sign, and the covariance's half
 ("location-and-half", ("-grad_x.sum(0), grad_cov", "0.5 * (pull.T * g) @ pull"), ("grad_x.sum(0), grad_cov",
  "(pull.T * g) @ pull"), "constant-factor missing-term"),
)

fn("ContractiveEquilibrium", "x: [b, d]\nweight: {shape: [n, n], range: [-0.2, 0.2]}\ninto: [n, d]\nbias: [n]", '''
    """The fixed point of z = tanh(W z + U x + b), differentiated implicitly."""

    @staticmethod
    def forward(ctx, x, weight, into, bias):
        drive = x @ into.T + bias
        z = torch.zeros_like(drive)
        for _ in range(300):
            before, z = z, torch.tanh(z @ weight.T + drive)
            if (z - before).abs().max() < 1e-16:
                break
        ctx.save_for_backward(x, weight, into, z)
        return z

    @staticmethod
    def backward(ctx, grad_z):
        x, weight, into, z = ctx.saved_tensors
        slope = 1 - z**2
        jacobian = torch.eye(weight.shape[0], dtype=z.dtype) - slope[:, :, None] * weight
        adjoint = torch.linalg.solve(jacobian.mT, grad_z[:, :, None])[:, :, 0]
        inner = slope * adjoint
        return inner @ into, inner.T @ z, inner.T @ x, inner.sum(0)
''',
 ("one-step-gradient", "adjoint = torch.linalg.solve(jacobian.mT, grad_z[:, :, None])[:, :, 0]", "adjoint = grad_z",
  "missing-term operand none"),
 ("jacobian-not-transposed", "torch.linalg.solve(jacobian.mT,", "torch.linalg.solve(jacobian,",
  "transposed operand none"),
 ("slope-in-the-solve-only", "inner = slope * adjoint", "inner = adjoint", "chain-factor none"),
 ("slope-not-in-the-solve", "- slope[:, :, None] * weight", "- weight", "operand none"),
 ("weight-turned", "inner.T @ z, inner.T @ x", "z.T @ inner, inner.T @ x", "transposed permuted"),
 ("bias-averaged", "inner.sum(0)", "inner.mean(0)", "constant-factor"),
)

# --- geometry, physics ----------------------------------------------------------------------------------------------

fn("RodriguesTurn", "points: [b, m, 3]\nomega: [b, 3]", '''
    """Points turned about axes by the angles that are the axes' lengths."""

    @staticmethod
    def forward(ctx, points, omega):
        ctx.save_for_backward(points, omega)
        theta = omega.norm(dim=1)[:, None, None]
        once = torch.linalg.cross(omega[:, None], points)
        twice = torch.linalg.cross(omega[:, None], once)
        return points + torch.sin(theta) / theta * once + (1 - torch.cos(theta)) / theta**2 * twice

    @staticmethod
    def backward(ctx, g):
        points, omega = ctx.saved_tensors
        cross, axis = torch.linalg.cross, omega[:, None]
        theta = omega.norm(dim=1)[:, None, None]
        sin, cos = torch.sin(theta), torch.cos(theta)
        a, b = sin / theta, (1 - cos) / theta**2
        once = cross(axis, points)
        turned = cross(g, axis.expand_as(g))
        grad_points = g + a * turned + b * cross(turned, axis)
        slope_a = (theta * cos - sin) / theta**2
        slope_b = (theta * sin - 2 * (1 - cos)) / theta**3
        grad_theta = (g * (slope_a * once + slope_b * cross(axis, once))).sum((1, 2))
        grad_omega = (a * cross(points, g) + b * (cross(once, g) + cross(points, turned))).sum(1)
        return grad_points, grad_omega + grad_theta[:, None] * omega / theta[:, 0]
''',
 ("angle-held", "grad_omega + grad_theta[:, None] * omega / theta[:, 0]", "grad_omega", "missing-term"),
 ("axis-not-a-unit", "grad_theta[:, None] * omega / theta[:, 0]", "grad_theta[:, None] * omega", "missing-term none"),
 ("turned-the-same-way", "g + a * turned + b * cross(turned, axis)", "g - a * turned + b * cross(turned, axis)",
  "transposed operand missing-term none"),
 ("product-rule-half", "(cross(once, g) + cross(points, turned))", "cross(once, g)", "missing-term"),
 ("cosine-slope-once", "2 * (1 - cos)) / theta**3", "(1 - cos)) / theta**3", "missing-term none"),
)

fn("MorseBonds", "position: {shape: [n, 3], distinct: true}\nfirst: {shape: [k], dtype: int64, range: [0, n]}\nhop: {shape: [k], dtype: int64, range: [1, n]}\ndepth: {shape: [k], domain: positive}\nstiffness: {shape: [], domain: positive, range: [0.3, 1.5]}\nrest: {shape: [], domain: positive, range: [0.5, 1.5]}", '''
    """Morse energies of bonds between particles."""

    @staticmethod
    def forward(ctx, position, first, hop, depth, stiffness, rest):
        second = (first + hop) % len(position)
        r = (position[first] - position[second]).norm(dim=1)
        ctx.save_for_backward(position, first, second, depth, stiffness, rest)
        return depth * (1 - torch.exp(-stiffness * (r - rest))) ** 2

    @staticmethod
    def backward(ctx, grad_energy):
        position, first, second, depth, stiffness, rest = ctx.saved_tensors
        apart = position[first] - position[second]
        r = apart.norm(dim=1)
        decay = torch.exp(-stiffness * (r - rest))
        common = 2 * grad_energy * depth * (1 - decay) * decay
        force = (common * stiffness / r)[:, None] * apart
        grad_position = torch.zeros_like(position).index_add(0, first, force).index_add(0, second, -force)
        grad_depth = grad_energy * (1 - decay) ** 2
        return grad_position, None, None, grad_depth, (common * (r - rest)).sum(), -(common * stiffness).sum()
''',
 ("second-held", ".index_add(0, second, -force)", "", "missing-term"),
 ("first-put", "torch.zeros_like(position).index_add(0, first, force)",
  "torch.zeros_like(position).index_put((first,), force)", "duplicates"),
 ("both-pulled-alike", "index_add(0, second, -force)", "index_add(0, second, force)", "missing-term none"),
 ("decay-not-through", "depth * (1 - decay) * decay\n", "depth * (1 - decay)\n", "chain-factor none"),
 ("rest-sees-the-length", "(common * (r - rest)).sum()", "(common * r).sum()", "missing-term none"),
 ("length-not-divided", "(common * stiffness / r)[:, None]", "(common * stiffness)[:, None]", "chain-factor none"),
 # in the second order only
 ("lengths-without-graph", "r = apart.norm(dim=1)\n        decay", "r = apart.detach().norm(dim=1)\n        decay",
  "detached"),
)

fn("VerletPendulum", "q: [n]\np: [n]\nomega2: {shape: [n], domain: positive}\nkappa: []\nh: 0.3\nsteps: 3", '''
    """Coupled pendulums by velocity Verlet; the places and momenta at the end."""

    @staticmethod
    def laplace(q):
        return q.roll(1) - 2 * q + q.roll(-1)

    @staticmethod
    def forward(ctx, q, p, omega2, kappa, h, steps):
        places = [q]
        for _ in range(steps):
            p = p + h / 2 * (kappa * SELF.laplace(q) - omega2 * torch.sin(q))
            q = q + h * p
            p = p + h / 2 * (kappa * SELF.laplace(q) - omega2 * torch.sin(q))
            places.append(q)
        ctx.save_for_backward(omega2, kappa, *places)
        ctx.h = h
        return q, p

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_q, grad_p):
        omega2, kappa, *places = ctx.saved_tensors
        half = ctx.h / 2
        grad_omega2, grad_kappa = torch.zeros_like(omega2), torch.zeros_like(kappa)
        for before, after in zip(places[-2::-1], places[:0:-1]):
            for at in (after, before):
                grad_omega2 -= half * torch.sin(at) * grad_p
                grad_kappa += half * (SELF.laplace(at) * grad_p).sum()
                grad_q = grad_q + half * (kappa * SELF.laplace(grad_p) - omega2 * torch.cos(at) * grad_p)
                if at is after:
                    grad_p = grad_p + ctx.h * grad_q
        return grad_q, grad_p, grad_omega2, grad_kappa, None, None
''',
 ("steps-in-their-order", "zip(places[-2::-1], places[:0:-1])", "zip(places[:-1], places[1:])",
  "wrong-saved operand none"),
 ("coupling-held", "(kappa * SELF.laplace(grad_p) - omega2", "(-omega2", "missing-term operand"),
 ("drift-held", "                if at is after:\n                    grad_p = grad_p + ctx.h * grad_q\n", "",
  "missing-term none"),
 ("half-a-kick", "grad_omega2 -= half * torch", "grad_omega2 -= ctx.h * torch", "constant-factor"),
 ("last-kick-only", "for at in (after, before):", "for at in (after, after):", "wrong-saved operand none"),
 ("sine-for-cosine", "omega2 * torch.cos(at) * grad_p)", "omega2 * torch.sin(at) * grad_p)",
  "operand chain-factor missing-term none"),
)

# --- sampling, segments, rotations, flows ---------------------------------------------------------------------------

fn("CatmullTap", "table: [k, d]\nplace: {shape: [t], range: [-2.0, 6.0]}", '''
    """A periodic table read between its rows by the spline of Catmull and Rom."""

    @staticmethod
    def weights(u):
        u2, u3 = u * u, u * u * u
        return torch.stack([2 * u2 - u3 - u, 3 * u3 - 5 * u2 + 2, 4 * u2 - 3 * u3 + u, u3 - u2]) / 2

    @staticmethod
    def forward(ctx, table, place):
        left = torch.floor(place)
        index = (left.long() + torch.arange(-1, 3)[:, None]) % len(table)
        ctx.save_for_backward(table, place, index)
        return (SELF.weights(place - left)[:, :, None] * table[index]).sum(0)

    @staticmethod
    def backward(ctx, grad_read):
        table, place, index = ctx.saved_tensors
        u = place - torch.floor(place)
        parts = SELF.weights(u)[:, :, None] * grad_read
        grad_table = torch.zeros_like(table).index_add(0, index.flatten(), parts.flatten(0, 1))
        slopes = torch.stack([4 * u - 3 * u * u - 1, 9 * u * u - 10 * u, 8 * u - 9 * u * u + 1, 3 * u * u - 2 * u]) / 2
        grad_place = (slopes * (table[index] * grad_read).sum(2)).sum(0)
        return grad_table, grad_place
''',
 ("rows-put", ".index_add(0, index.flatten(), parts.flatten(0, 1))",
  ".index_put((index.flatten(),), parts.flatten(0, 1))", "duplicates missing-term none"),
 ("inner-pair-only", "slopes * (table[index] * grad_read).sum(2)).sum(0)",
  "slopes * (table[index] * grad_read).sum(2))[1:3].sum(0)", "missing-term"),
 ("linear-slopes", "grad_place = (slopes * (table[index] * grad_read).sum(2)).sum(0)",
  "grad_place = ((table[index[2]] - table[index[1]]) * grad_read).sum(1)", "operand missing-term none"),
 ("half-of-the-spline", "3 * u * u - 2 * u]) / 2", "3 * u * u - 2 * u])", "constant-factor"),
 ("taps-in-the-other-order", "parts = SELF.weights(u)[:, :, None] * grad_read",
  "parts = SELF.weights(u).flip(0)[:, :, None] * grad_read", "permuted operand none"),
 # in the second order only
 ("table-detached", "slopes * (table[index] * grad_read)", "slopes * (table.detach()[index] * grad_read)", "detached"),
)

fn("SegmentSoftmax", "scores: [t, d]\nsegment: {shape: [t], dtype: int64, range: [0, n]}\ncount: {size: n}\ntemperature: {shape: [d], domain: positive}", '''
    """Softmax among the rows of each segment, with a temperature for each head."""

    @staticmethod
    def forward(ctx, scores, segment, count, temperature):
        z = scores / temperature
        where = segment[:, None].expand_as(z)
        top = z.new_full((count, z.shape[1]), -torch.inf).scatter_reduce(0, where, z, "amax")
        y = torch.exp(z - top[segment])
        y = y / z.new_zeros(count, z.shape[1]).index_add_(0, segment, y)[segment]
        ctx.save_for_backward(y, z, segment, temperature)
        ctx.count = count
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, z, segment, temperature = ctx.saved_tensors
        weighted = g * y
        total = y.new_zeros(ctx.count, y.shape[1]).index_add_(0, segment, weighted)
        grad_z = weighted - y * total[segment]
        return grad_z / temperature, None, None, -(grad_z * z).sum(0) / temperature
''',
 ("total-of-all", "total = y.new_zeros(ctx.count, y.shape[1]).index_add_(0, segment, weighted)",
  "total = weighted.sum(0).expand(ctx.count, -1)", "wrong-reduction-dim missing-term none"),
 ("total-of-the-last", ".index_add_(0, segment, weighted)", ".index_copy_(0, segment, weighted)",
  "duplicates missing-term none"),
 ("temperature-once", "-(grad_z * z).sum(0) / temperature", "-(grad_z * z).sum(0)", "chain-factor operand"),
 ("heads-together", "-(grad_z * z).sum(0) / temperature", "-(grad_z * z).sum() / temperature",
  "wrong-reduction-dim missing-term none"),
 ("unnormalised", "grad_z = weighted - y * total[segment]", "grad_z = weighted", "missing-term"),
 # two at once: the temperature's sign, and the scores are not divided
 ("sign-and-division", ("return grad_z / temperature", "-(grad_z * z)"), ("return grad_z", "(grad_z * z)"),
  "constant-factor chain-factor operand"),
)

fn("RotaryPairs", "x: [b, m, 2*d]\nplace: [m]\nfrequency: {shape: [d], domain: positive}\ninterleaved: {choices: [true, false]}", '''
    """Rotary embedding with learnt frequencies, of neighbours or of halves."""

    @staticmethod
    def split(x, interleaved):
        return (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)

    @staticmethod
    def join(a, b, interleaved):
        return torch.stack([a, b], -1).flatten(-2) if interleaved else torch.cat([a, b], -1)

    @staticmethod
    def forward(ctx, x, place, frequency, interleaved):
        angle = torch.outer(place, frequency)
        a, b = SELF.split(x, interleaved)
        ctx.save_for_backward(x, place, frequency)
        ctx.interleaved = interleaved
        return SELF.join(a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), interleaved)

    @staticmethod
    def backward(ctx, grad_y):
        x, place, frequency = ctx.saved_tensors
        angle = torch.outer(place, frequency)
        cos, sin = angle.cos(), angle.sin()
        a, b = SELF.split(x, ctx.interleaved)
        ga, gb = SELF.split(grad_y, ctx.interleaved)
        grad_x = SELF.join(ga * cos + gb * sin, gb * cos - ga * sin, ctx.interleaved)
        grad_angle = (gb * (a * cos - b * sin) - ga * (a * sin + b * cos)).sum(0)
        return grad_x, grad_angle @ frequency, place @ grad_angle, None
''',
 ("turned-on", "SELF.join(ga * cos + gb * sin, gb * cos - ga * sin, ctx.interleaved)",
  "SELF.join(ga * cos - gb * sin, gb * cos + ga * sin, ctx.interleaved)", "transposed operand none"),
 ("halves-for-neighbours", "gb * cos - ga * sin, ctx.interleaved)", "gb * cos - ga * sin, False)", "permuted"),
 ("angle-of-the-input", "gb * (a * cos - b * sin) - ga * (a * sin + b * cos)", "gb * a - ga * b",
  "operand wrong-saved none"),
 ("first-of-the-batch", "(a * sin + b * cos)).sum(0)", "(a * sin + b * cos))[0]", "not-summed-over-broadcast"),
 ("frequency-unplaced", "place @ grad_angle, None", "grad_angle.sum(0), None", "operand"),
 # two at once: the angle's sign, and the frequencies' gradient is that of the first of the batch
 ("sign-and-first-of-the-batch", "(gb * (a * cos - b * sin) - ga * (a * sin + b * cos)).sum(0)",
  "(ga * (a * sin + b * cos) - gb * (a * cos - b * sin))[0]", "constant-factor not-summed-over-broadcast none"),
 ("only-the-sine-row", "gb * (a * cos - b * sin) - ga * (a * sin + b * cos)", "gb * (a * cos - b * sin)",
  "missing-term"),
)

fn("CouplingFlow", "x: [b, 2*d]\nto_scale: [d, d]\nto_shift: [d, d]\nbias: [d]\ncap: 1.2", '''
    """A coupling layer of a flow, and the log of its determinant."""

    @staticmethod
    def forward(ctx, x, to_scale, to_shift, bias, cap):
        ctx.save_for_backward(x, to_scale, to_shift, bias)
        ctx.cap = cap
        held, moved = x.chunk(2, 1)
        s = cap * torch.tanh(held @ to_scale + bias)
        return torch.cat([held, moved * torch.exp(s) + held @ to_shift], 1), s.sum(1)

    @staticmethod
    def backward(ctx, grad_y, grad_logdet):
        x, to_scale, to_shift, bias = ctx.saved_tensors
        held, moved = x.chunk(2, 1)
        squashed = torch.tanh(held @ to_scale + bias)
        stretch = torch.exp(ctx.cap * squashed)
        grad_held, grad_moved = grad_y.chunk(2, 1)
        grad_s = grad_moved * moved * stretch + grad_logdet[:, None]
        inner = grad_s * ctx.cap * (1 - squashed**2)
        to_held = grad_held + inner @ to_scale.T + grad_moved @ to_shift.T
        grad_x = torch.cat([to_held, grad_moved * stretch], 1)
        return grad_x, held.T @ inner, held.T @ grad_moved, inner.sum(0), None
''',
 ("determinant-dropped", "grad_moved * moved * stretch + grad_logdet[:, None]", "grad_moved * moved * stretch",
  "ignored-output"),
 ("held-passes-straight", "to_held = grad_held + inner @ to_scale.T + grad_moved @ to_shift.T", "to_held = grad_held",
  "missing-term region"),
 ("shift-not-transposed", "grad_moved @ to_shift.T", "grad_moved @ to_shift", "transposed operand none"),
 ("cap-forgotten", "inner = grad_s * ctx.cap * (1", "inner = grad_s * (1", "constant-factor missing-term"),
 ("stretch-on-the-determinant", "grad_moved * moved * stretch + grad_logdet[:, None]",
  "(grad_moved * moved + grad_logdet[:, None]) * stretch", "chain-factor none"),
 # in the second order only
 ("stretch-detached", "stretch = torch.exp(ctx.cap * squashed)", "stretch = torch.exp(ctx.cap * squashed.detach())",
  "detached"),
)

# --- finance, shrinkage, filters, polygons --------------------------------------------------------------------------

fn("BlackCall", "spot: {shape: [b], domain: positive, range: [0.5, 2.0]}\nstrike: {shape: [b], domain: positive, range: [0.5, 2.0]}\nsigma: {shape: [b], domain: positive, range: [0.2, 0.8]}\nrate: {shape: [], range: [-0.1, 0.2]}\nexpiry: {shape: [], domain: positive, range: [0.3, 2.0]}", '''
    """Prices of European calls (Black and Scholes)."""

    @staticmethod
    def forward(ctx, spot, strike, sigma, rate, expiry):
        ctx.save_for_backward(spot, strike, sigma, rate, expiry)
        d1, d2, discount = SELF.parts(spot, strike, sigma, rate, expiry)
        return spot * torch.special.ndtr(d1) - strike * discount * torch.special.ndtr(d2)

    @staticmethod
    def parts(spot, strike, sigma, rate, expiry):
        width = sigma * torch.sqrt(expiry)
        d1 = (torch.log(spot / strike) + (rate + sigma**2 / 2) * expiry) / width
        return d1, d1 - width, torch.exp(-rate * expiry)

    @staticmethod
    def backward(ctx, g):
        spot, strike, sigma, rate, expiry = ctx.saved_tensors
        d1, d2, discount = SELF.parts(spot, strike, sigma, rate, expiry)
        delta = torch.special.ndtr(d1)
        owed = discount * torch.special.ndtr(d2)
        bell = torch.exp(-d1 * d1 / 2) / math.sqrt(2 * math.pi)
        vega = spot * bell * torch.sqrt(expiry)
        theta = spot * bell * sigma / (2 * torch.sqrt(expiry)) + rate * strike * owed
        return g * delta, -g * owed, g * vega, (g * strike * expiry * owed).sum(), (g * theta).sum()
''',
 ("root-of-time-left-out", "vega = spot * bell * torch.sqrt(expiry)", "vega = spot * bell", "chain-factor operand"),
 ("carry-left-out", " + rate * strike * owed\n", "\n", "missing-term"),
 ("bell-at-d2", "torch.exp(-d1 * d1 / 2)", "torch.exp(-d2 * d2 / 2)", "operand wrong-saved chain-factor none"),
 ("put-delta", "delta = torch.special.ndtr(d1)", "delta = torch.special.ndtr(d1) - 1", "missing-term none"),
 ("owed-undiscounted", "owed = discount * torch.special.ndtr(d2)", "owed = torch.special.ndtr(d2)",
  "chain-factor operand missing-term none"),
 ("theta-sign", "(g * theta).sum()", "-(g * theta).sum()", "constant-factor"),
 # in the second order only
 ("bell-through-numpy", "bell = torch.exp(-d1 * d1 / 2) /",
  "bell = torch.from_numpy(np.exp(-(d1.detach().numpy() ** 2) / 2)) /", "detached"),
)

fn("ShrinkageBase", "x: [b, n]\nthreshold: {shape: [n], domain: positive}\nridge: {shape: [], domain: positive}", '''
class _SELF_Common:
    """What the elastic net and its relatives share."""

    @staticmethod
    def backward(ctx, grad_output):
        y, ridge = ctx.saved_tensors
        scaled = grad_output / (1 + ridge)
        grad_x = scaled * (y != 0)
        grad_threshold = -(scaled * y.sign()).sum(0)
        grad_ridge = -(scaled * y).sum()
        return grad_x, grad_threshold, grad_ridge


@@
    """Proximal step of the elastic net."""

    @staticmethod
    def forward(ctx, x, threshold, ridge):
        y = x.sign() * (x.abs() - threshold).clamp(min=0) / (1 + ridge)
        ctx.save_for_backward(y, ridge)
        return y

    backward = staticmethod(_SELF_Common.backward)
''',
 ("small-ones-pass", "grad_x = scaled * (y != 0)", "grad_x = scaled", "branch"),
 ("ridge-of-the-input", "scaled = grad_output / (1 + ridge)", "scaled = grad_output / ridge", "chain-factor operand"),
 ("sign-of-the-threshold", "-(scaled * y.sign()).sum(0)", "(scaled * y.sign()).sum(0)", "constant-factor"),
 ("threshold-pulls-up", "-(scaled * y.sign()).sum(0)", "-(scaled * (y != 0)).sum(0)", "branch operand none"),
 ("ridge-once", "grad_ridge = -(scaled * y).sum()", "grad_ridge = -(grad_output * y).sum()",
  "chain-factor operand none"),
 ("positive-side-only", "scaled * (y != 0)", "scaled * (y > 0)", "branch"),
)

fn("ResonatorBank", "x: {shape: [m, n], dtype: complex128}\npole: {shape: [n], dtype: complex128}\ngain: {shape: [n], dtype: complex128}", '''
    """A bank of complex resonators of the first order; their states at all times."""

    @staticmethod
    def forward(ctx, x, pole, gain):
        state, states = torch.zeros_like(pole), []
        for row in x:
            state = pole * state + gain * row
            states.append(state)
        y = torch.stack(states)
        ctx.save_for_backward(x, pole, gain, y)
        return y

    @staticmethod
    def backward(ctx, grad_y):
        x, pole, gain, y = ctx.saved_tensors
        carry, carried = torch.zeros_like(pole), []
        for row in grad_y.flip(0):
            carry = row + pole.conj() * carry
            carried.append(carry)
        carried = torch.stack(carried).flip(0)
        grad_pole = (carried[1:] * y[:-1].conj()).sum(0)
        return carried * gain.conj(), grad_pole, (carried * x.conj()).sum(0)
''',
 ("pole-not-conjugated", "carry = row + pole.conj() * carry", "carry = row + pole * carry", "conjugate operand"),
 ("states-not-conjugated", "carried[1:] * y[:-1].conj()", "carried[1:] * y[:-1]", "conjugate operand"),
 ("state-of-the-same-time", "(carried[1:] * y[:-1].conj())", "(carried * y.conj())",
  "wrong-saved operand missing-term none"),
 ("times-not-turned-back", "carried = torch.stack(carried).flip(0)", "carried = torch.stack(carried)",
  "permuted operand none"),
 ("gain-real", "carried * gain.conj(), grad_pole", "carried * gain.real, grad_pole", "missing-term operand none"),
 # two at once: the gain is not conjugated, and its own gradient takes the first time only
 ("gain-conj-and-first-time", ("carried * gain.conj()", "(carried * x.conj()).sum(0)"), ("carried * gain",
  "(carried * x.conj())[0]"), "conjugate not-summed-over-broadcast missing-term none"),
)

fn("PolygonMoments", "corner: [b, k, 2]", '''
    """Signed areas of polygons and their first moments."""

    @staticmethod
    def forward(ctx, corner):
        ahead = corner.roll(-1, 1)
        cross = corner[..., 0] * ahead[..., 1] - corner[..., 1] * ahead[..., 0]
        ctx.save_for_backward(corner, cross)
        return cross.sum(1) / 2, ((corner + ahead) * cross[..., None]).sum(1) / 6

    @staticmethod
    def backward(ctx, grad_area, grad_moment):
        corner, cross = ctx.saved_tensors
        ahead = corner.roll(-1, 1)
        grad_cross = grad_area[:, None] / 2 + ((corner + ahead) * grad_moment[:, None]).sum(2) / 6
        even = grad_moment[:, None] * cross[..., None] / 6
        to_corner = torch.stack([ahead[..., 1], -ahead[..., 0]], 2) * grad_cross[..., None] + even
        to_ahead = torch.stack([-corner[..., 1], corner[..., 0]], 2) * grad_cross[..., None] + even
        return to_corner + to_ahead.roll(1, 1)
''',
 ("next-rolled-the-wrong-way", "to_ahead.roll(1, 1)", "to_ahead.roll(-1, 1)", "permuted missing-term none"),
 ("next-forgotten", "return to_corner + to_ahead.roll(1, 1)", "return to_corner", "missing-term"),
 ("area-only", "grad_area[:, None] / 2 + ((corner + ahead) * grad_moment[:, None]).sum(2) / 6",
  "grad_area[:, None] / 2", "missing-term"),
 ("moment-only", "grad_cross = grad_area[:, None] / 2 + ((corner", "grad_cross = ((corner", "ignored-output"),
 ("sixth-left-out", "cross[..., None] / 6", "cross[..., None]", "missing-term none"),
 ("turned-the-other-way", "[-corner[..., 1], corner[..., 0]]", "[corner[..., 1], -corner[..., 0]]",
  "missing-term none"),
)
