"""Fifteenth set, held out: by another hand, which read neither the checker's source nor the entries of the other sets.

The format is that of `fourteenth.py`: an entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text,
what stands in its place, causes). The causes were written down with the entries; the author never ran the checker. A
word alone is a cause that is right, one with `~` before it is coarser but true, `none` says that there may be no
hypothesis for it. `SELF` stands for the name of the class; what is above `@@` is written above the class. Each backward
has one mistake, and torch's gradcheck sees all of them; a comment says where it needs a call before.
"""

SIZES = "b: 3, n: 4, m: 5, t: 6, d: 2"
FUNCTIONS = []
TWICE_DIFFERENTIABLE = ("Mish", "HornerPolynomial")


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- layers of transformers -----------------------------------------------------------------------------------------

fn("GatedRMSNorm", "x: [b, n]\ngate: [b, n]\nweight: [n]\neps: 0.01", '''
    """RMS normalisation of what a SiLU gate lets through, as in Mamba 2."""

    @staticmethod
    def forward(ctx, x, gate, weight, eps):
        ctx.save_for_backward(x, gate, weight)
        ctx.eps = eps
        passed = x * gate * torch.sigmoid(gate)
        return passed * torch.rsqrt(passed.square().mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, gate, weight = ctx.saved_tensors
        sig = torch.sigmoid(gate)
        passed = x * gate * sig
        rstd = torch.rsqrt(passed.square().mean(-1, keepdim=True) + ctx.eps)
        normed = passed * rstd
        grad_weight = (grad_output * normed).sum(0)
        grad_normed = grad_output * weight
        along = (grad_normed * normed).mean(-1, keepdim=True)
        grad_passed = rstd * (grad_normed - normed * along)
        grad_x = grad_passed * gate * sig
        grad_gate = grad_passed * x * (sig + gate * sig * (1 - sig))
        return grad_x, grad_gate, grad_weight, None
''',
 ("rms-held", "(grad_normed - normed * along)", "grad_normed", "missing-term diagonal-only"),
 ("rms-along-the-batch", "normed).mean(-1, keepdim=True)", "normed).mean(0, keepdim=True)",
  "wrong-reduction-dim missing-term none"),
 ("sigmoid-held", "(sig + gate * sig * (1 - sig))", "sig", "missing-term chain-factor none"),
 ("eps-outside-the-root", "rstd = torch.rsqrt(passed.square().mean(-1, keepdim=True) + ctx.eps)",
  "rstd = 1 / (passed.square().mean(-1, keepdim=True).sqrt() + ctx.eps)", "operand chain-factor none"),
)

fn("SwiGLU", "x: [b, n]\nw_gate: [m, n]\nw_up: [m, n]", '''
    """The gated half of a feed-forward block."""

    @staticmethod
    def forward(ctx, x, w_gate, w_up):
        a = x @ w_gate.t()
        u = x @ w_up.t()
        ctx.save_for_backward(x, w_gate, w_up, a, u)
        return a * torch.sigmoid(a) * u

    @staticmethod
    def backward(ctx, grad_output):
        x, w_gate, w_up, a, u = ctx.saved_tensors
        s = torch.sigmoid(a)
        grad_a = grad_output * u * s * (1 + a * (1 - s))
        grad_u = grad_output * a * s
        grad_x = grad_a @ w_gate + grad_u @ w_up
        return grad_x, grad_a.t() @ x, grad_u.t() @ x
''',
 ("weights-exchanged", "grad_a.t() @ x, grad_u.t() @ x", "grad_u.t() @ x, grad_a.t() @ x", "swapped-inputs"),
 ("x-through-the-gate-only", "grad_a @ w_gate + grad_u @ w_up", "grad_a @ w_gate", "missing-term"),
)

fn("RotaryHalves", "x: [t, 2*d]\nbase: 50.0\noffset: {choices: [0, 3]}", '''
    """Rotary embedding of the two halves of the channels."""

    @staticmethod
    def forward(ctx, x, base, offset):
        half = x.shape[1] // 2
        rate = base ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
        place = torch.arange(x.shape[0], dtype=x.dtype, device=x.device) + offset
        angle = place[:, None] * rate
        ctx.save_for_backward(angle.cos(), angle.sin())
        first, second = x.chunk(2, 1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], 1)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        g_first, g_second = grad_output.chunk(2, 1)
        grad_first = g_first * cos + g_second * sin
        grad_second = g_second * cos - g_first * sin
        return torch.cat([grad_first, grad_second], 1), None, None
''',
 ("turned-onwards", ("g_first * cos + g_second * sin", "g_second * cos - g_first * sin"),
  ("g_first * cos - g_second * sin", "g_second * cos + g_first * sin"), "transposed operand"),
 ("joined-in-the-other-order", "torch.cat([grad_first, grad_second], 1)", "torch.cat([grad_second, grad_first], 1)",
  "permuted"),
)

fn("SlidingWindowAttention", "q: [t, d]\nk: [t, d]\nv: [t, n]\nwindow: 3", '''
    """Causal attention to the last few keys."""

    @staticmethod
    def forward(ctx, q, k, v, window):
        place = torch.arange(len(q), device=q.device)
        back = place[:, None] - place
        hidden = (back < 0) | (back >= window)
        scores = (q @ k.t() / math.sqrt(q.shape[1])).masked_fill(hidden, -math.inf)
        ctx.save_for_backward(q, k, v)
        ctx.window = window
        return torch.softmax(scores, -1) @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[1])
        place = torch.arange(len(q), device=q.device)
        back = place[:, None] - place
        hidden = (back < 0) | (back >= ctx.window)
        p = torch.softmax((q @ k.t() * scale).masked_fill(hidden, -math.inf), -1)
        grad_v = p.t() @ grad_output
        grad_p = grad_output @ v.t()
        grad_scores = p * (grad_p - (p * grad_p).sum(-1, keepdim=True))
        return grad_scores @ k * scale, grad_scores.t() @ q * scale, grad_v, None
''',
 ("window-one-wider", "(back >= ctx.window)", "(back > ctx.window)", "operand branch region none"),
 ("scale-of-the-keys", "grad_scores.t() @ q * scale", "grad_scores.t() @ q", "constant-factor"),
)

fn("CausalLinearAttention", "q: [t, d]\nk: [t, d]\nv: [t, n]", '''
    """Linear attention by a running sum of outer products."""

    @staticmethod
    def forward(ctx, q, k, v):
        state = (k[:, :, None] * v[:, None, :]).cumsum(0)
        ctx.save_for_backward(q, k, v)
        return torch.einsum("td,tdn->tn", q, state)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        state = (k[:, :, None] * v[:, None, :]).cumsum(0)
        grad_q = torch.einsum("tn,tdn->td", grad_output, state)
        outer = q[:, :, None] * grad_output[:, None, :]
        grad_state = outer.flip(0).cumsum(0).flip(0)
        grad_k = torch.einsum("tdn,tn->td", grad_state, v)
        grad_v = torch.einsum("tdn,td->tn", grad_state, k)
        return grad_q, grad_k, grad_v
''',
 ("summed-forwards", "outer.flip(0).cumsum(0).flip(0)", "outer.cumsum(0)",
  "transposed permuted operand missing-term none"),
 ("state-before-the-step", "torch.einsum(\"tn,tdn->td\", grad_output, state)",
  "torch.einsum(\"tn,tdn->td\", grad_output, state - k[:, :, None] * v[:, None, :])",
  "wrong-saved operand missing-term none"),
)

fn("GatedDeltaRule", "q: [t, d]\nk: [t, d]\nv: [t, n]\nalpha: {shape: [t], domain: unit}\nbeta: {shape: [t], domain: unit}", '''
    """A fast-weight memory that decays, erases along the key, and writes."""

    @staticmethod
    def forward(ctx, q, k, v, alpha, beta):
        state = q.new_zeros(q.shape[1], v.shape[1])
        before, outputs = [], []
        for i in range(len(q)):
            before.append(state)
            erased = state - beta[i] * torch.outer(k[i], k[i] @ state)
            state = alpha[i] * erased + beta[i] * torch.outer(k[i], v[i])
            outputs.append(q[i] @ state)
        ctx.save_for_backward(q, k, v, alpha, beta, torch.stack(before))
        return torch.stack(outputs)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v, alpha, beta, before = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_alpha, grad_beta = torch.zeros_like(alpha), torch.zeros_like(beta)
        carry = torch.zeros_like(before[0])
        for i in reversed(range(len(q))):
            old = before[i]
            read = k[i] @ old
            erased = old - beta[i] * torch.outer(k[i], read)
            state = alpha[i] * erased + beta[i] * torch.outer(k[i], v[i])
            grad_q[i] = state @ grad_output[i]
            carry = carry + torch.outer(q[i], grad_output[i])
            grad_alpha[i] = (carry * erased).sum()
            grad_erased = alpha[i] * carry
            grad_beta[i] = k[i] @ carry @ v[i] - k[i] @ grad_erased @ read
            grad_v[i] = beta[i] * (k[i] @ carry)
            grad_k[i] = beta[i] * (carry @ v[i] - grad_erased @ read - old @ (k[i] @ grad_erased))
            carry = grad_erased - beta[i] * torch.outer(k[i], k[i] @ grad_erased)
        return grad_q, grad_k, grad_v, grad_alpha, grad_beta
''',
 ("erasing-not-carried", "carry = grad_erased - beta[i] * torch.outer(k[i], k[i] @ grad_erased)",
  "carry = grad_erased", "missing-term"),
 ("read-key-held", " - old @ (k[i] @ grad_erased))", ")", "missing-term"),
 ("alpha-on-the-old-state", "(carry * erased).sum()", "(carry * old).sum()",
  "wrong-saved operand missing-term"),
)

fn("TopKMixture", "logits: {shape: [b, m], distinct: true}\nexperts: [b, m, d]\nk: 2", '''
    """The outputs of the best experts, weighted by a softmax over them alone."""

    @staticmethod
    def forward(ctx, logits, experts, k):
        top, index = logits.topk(k, dim=1)
        weight = torch.softmax(top, 1)
        wide = index[:, :, None].expand(-1, -1, experts.shape[2])
        chosen = experts.gather(1, wide)
        ctx.save_for_backward(weight, index, chosen)
        ctx.shapes = logits.shape, experts.shape
        return (weight[:, :, None] * chosen).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        weight, index, chosen = ctx.saved_tensors
        shape_logits, shape_experts = ctx.shapes
        wide = index[:, :, None].expand(-1, -1, shape_experts[2])
        spread = weight[:, :, None] * grad_output[:, None, :]
        grad_experts = grad_output.new_zeros(shape_experts).scatter(1, wide, spread)
        grad_weight = (chosen * grad_output[:, None, :]).sum(2)
        grad_top = weight * (grad_weight - (weight * grad_weight).sum(1, keepdim=True))
        grad_logits = grad_output.new_zeros(shape_logits).scatter(1, index, grad_top)
        return grad_logits, grad_experts, None
''',
 ("normaliser-held", "(grad_weight - (weight * grad_weight).sum(1, keepdim=True))", "grad_weight", "missing-term"),
 ("first-columns", "grad_logits = grad_output.new_zeros(shape_logits).scatter(1, index, grad_top)",
  "grad_logits = grad_output.new_zeros(shape_logits)\n        grad_logits[:, : grad_top.shape[1]] = grad_top",
  "permuted operand region none"),
)

# --- losses ---------------------------------------------------------------------------------------------------------

fn("SigmoidFocal", "logits: [b, n]\nlabels: {shape: [b, n], dtype: int64, range: [0, 2]}\nalpha: 0.25\ngamma: 2.0", '''
    """Focal loss of independent binary labels."""

    @staticmethod
    def forward(ctx, logits, labels, alpha, gamma):
        side = 2 * labels.to(logits.dtype) - 1
        log_p = torch.nn.functional.logsigmoid(side * logits)
        weight = torch.where(labels == 1, alpha, 1 - alpha).to(logits.dtype)
        ctx.save_for_backward(logits, labels)
        ctx.options = alpha, gamma
        return (-weight * (1 - log_p.exp()) ** gamma * log_p).mean()

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        alpha, gamma = ctx.options
        side = 2 * labels.to(logits.dtype) - 1
        log_p = torch.nn.functional.logsigmoid(side * logits)
        p = log_p.exp()
        weight = torch.where(labels == 1, alpha, 1 - alpha).to(logits.dtype)
        slope = weight * side * (1 - p) ** gamma * (gamma * p * log_p - (1 - p))
        return grad_output * slope / logits.numel(), None, None, None
''',
 ("alpha-for-both", "weight * side * (1 - p) ** gamma", "alpha * side * (1 - p) ** gamma",
  "branch operand chain-factor none"),
 ("sum-for-mean", "grad_output * slope / logits.numel()", "grad_output * slope", "constant-factor"),
)

fn("InfoNCE", "anchors: [b, n]\npositives: [b, n]\ntemperature: {shape: [], domain: positive, range: [0.4, 2.0]}", '''
    """Contrastive loss with the other rows of the batch as negatives, and a learned temperature."""

    @staticmethod
    def forward(ctx, anchors, positives, temperature):
        logits = anchors @ positives.t() / temperature
        log_p = torch.log_softmax(logits, 1)
        ctx.save_for_backward(anchors, positives, temperature, logits)
        return -log_p.diagonal().mean()

    @staticmethod
    def backward(ctx, grad_output):
        anchors, positives, temperature, logits = ctx.saved_tensors
        pull = torch.softmax(logits, 1) - torch.eye(len(logits), dtype=logits.dtype, device=logits.device)
        grad_logits = grad_output * pull / len(logits)
        grad_anchors = grad_logits @ positives / temperature
        grad_positives = grad_logits.t() @ anchors / temperature
        grad_temperature = -(grad_logits * logits).sum() / temperature
        return grad_anchors, grad_positives, grad_temperature
''',
 ("positives-not-transposed", "grad_logits.t() @ anchors", "grad_logits @ anchors", "transposed operand none"),
 ("softmax-over-anchors", "torch.softmax(logits, 1) -", "torch.softmax(logits, 0) -", "wrong-reduction-dim operand none"),
)

fn("PinballLoss", "prediction: [b, m]\ntarget: [b]\nquantiles: {shape: [m], range: [0.1, 0.9]}", '''
    """Quantile loss of several quantiles at once."""

    @staticmethod
    def forward(ctx, prediction, target, quantiles):
        error = target[:, None] - prediction
        ctx.save_for_backward(error, quantiles)
        return torch.maximum(quantiles * error, (quantiles - 1) * error)

    @staticmethod
    def backward(ctx, grad_output):
        error, quantiles = ctx.saved_tensors
        slope = torch.where(error > 0, quantiles, quantiles - 1)
        grad_error = grad_output * slope
        grad_quantiles = (grad_output * error).sum(0)
        return -grad_error, grad_error.sum(1), grad_quantiles
''',
 ("over-as-under", "torch.where(error > 0, quantiles, quantiles - 1)", "torch.where(error > 0, quantiles, 1 - quantiles)",
  "branch region"),
 ("first-quantile-only", "grad_error.sum(1)", "grad_error[:, 0]", "not-summed-over-broadcast missing-term ~region"),
)

fn("SmoothedCrossEntropy", "logits: [t, n]\nlabels: {shape: [t], dtype: int64, range: [0, n]}\nsmoothing: 0.2", '''
    """Cross entropy with smoothed labels, averaged over the rows."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing):
        log_p = torch.log_softmax(logits, 1)
        picked = log_p.gather(1, labels[:, None])[:, 0]
        ctx.save_for_backward(log_p, labels)
        ctx.smoothing = smoothing
        return -((1 - smoothing) * picked + smoothing * log_p.mean(1)).mean()

    @staticmethod
    def backward(ctx, grad_output):
        log_p, labels = ctx.saved_tensors
        rows, classes = log_p.shape
        target = torch.full_like(log_p, ctx.smoothing / classes)
        target.scatter_add_(1, labels[:, None], torch.full_like(log_p[:, :1], 1 - ctx.smoothing))
        return grad_output * (log_p.exp() - target) / rows, None, None
''',
 ("labels-not-smoothed", "ctx.smoothing / classes)", "0.0)", "missing-term operand none"),
 ("last-loss-assumed", "grad_output * (log_p.exp() - target)", "(log_p.exp() - target)", "grad-output-ones"),
)

# --- normalisations -------------------------------------------------------------------------------------------------

fn("GroupNormPlain", "x: [b, 4, n]\nweight: [4]\nbias: [4]\ngroups: 2\neps: 0.001", '''
    """Group normalisation of channels, with a scale and a shift for each channel."""

    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        parts = x.reshape(x.shape[0], groups, -1)
        centred = parts - parts.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        normed = (centred * rstd).reshape(x.shape)
        ctx.save_for_backward(normed, rstd, weight)
        ctx.groups = groups
        return normed * weight[:, None] + bias[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        normed, rstd, weight = ctx.saved_tensors
        shape = normed.shape
        grad_weight = (grad_output * normed).sum((0, 2))
        grad_bias = grad_output.sum((0, 2))
        parts = (grad_output * weight[:, None]).reshape(shape[0], ctx.groups, -1)
        units = normed.reshape(parts.shape)
        level = parts.mean(-1, keepdim=True)
        along = (parts * units).mean(-1, keepdim=True)
        grad_x = rstd * (parts - level - units * along)
        return grad_x.reshape(shape), grad_weight, grad_bias, None, None
''',
 ("mean-held", "(parts - level - units * along)", "(parts - units * along)", "missing-term"),
 ("level-over-all-groups", "level = parts.mean(-1, keepdim=True)", "level = parts.mean((1, 2), keepdim=True)",
  "wrong-reduction-dim missing-term none"),
 ("scale-not-applied", "(grad_output * weight[:, None]).reshape", "grad_output.reshape",
  "missing-factor chain-factor operand none"),
)

fn("StandardisedLinear", "x: [b, n]\nweight: [m, n]\ngain: [m]\neps: 0.05", '''
    """A linear layer whose rows of weights are standardised first."""

    @staticmethod
    def forward(ctx, x, weight, gain, eps):
        centred = weight - weight.mean(1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(1, keepdim=True) + eps)
        unit = centred * rstd / math.sqrt(weight.shape[1])
        ctx.save_for_backward(x, unit, rstd, gain)
        return x @ (unit * gain[:, None]).t()

    @staticmethod
    def backward(ctx, grad_output):
        x, unit, rstd, gain = ctx.saved_tensors
        fan_in = unit.shape[1]
        grad_x = grad_output @ (unit * gain[:, None])
        grad_rows = grad_output.t() @ x
        grad_gain = (grad_rows * unit).sum(1)
        grad_unit = grad_rows * gain[:, None]
        inner = grad_unit - grad_unit.mean(1, keepdim=True) - unit * (grad_unit * unit).sum(1, keepdim=True)
        return grad_x, inner * rstd / math.sqrt(fan_in), grad_gain, None
''',
 ("fan-in-forgotten", "inner * rstd / math.sqrt(fan_in)", "inner * rstd", "constant-factor"),
 ("gain-averaged", "(grad_rows * unit).sum(1)", "(grad_rows * unit).mean(1)", "constant-factor"),
)

# --- activations and distances --------------------------------------------------------------------------------------

fn("Mish", "x: [b, n]", '''
    """The input times the tanh of its softplus."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(torch.nn.functional.softplus(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        bend = torch.tanh(torch.nn.functional.softplus(x))
        slope = (1 - bend * bend) * torch.sigmoid(x)
        return grad_output * (bend + x * slope)
''',
 ("square-forgotten", "(1 - bend * bend)", "(1 - bend)", "operand chain-factor missing-term none"),
)

fn("TangentSoftplus", "x: [b, n]\nbeta: {shape: [n], domain: positive, range: [0.5, 2.0]}\nthreshold: 1.0", '''
    """Softplus with a sharpness for each channel, beyond a threshold its tangent."""

    @staticmethod
    def forward(ctx, x, beta, threshold):
        z = x * beta
        low = z.clamp(max=threshold)
        y = (torch.nn.functional.softplus(low) + torch.sigmoid(low) * (z - low)) / beta
        ctx.save_for_backward(x, beta, y)
        ctx.threshold = threshold
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, beta, y = ctx.saved_tensors
        slope = torch.sigmoid((x * beta).clamp(max=ctx.threshold))
        grad_beta = (grad_output * (x * slope - y) / beta).sum(0)
        return grad_output * slope, grad_beta, None
''',
 ("threshold-forgotten", "torch.sigmoid((x * beta).clamp(max=ctx.threshold))", "torch.sigmoid(x * beta)",
  "branch region"),
 ("division-held", "(x * slope - y) / beta", "x * slope / beta", "missing-term"),
)

fn("CosineRows", "x: [b, n]\ny: [b, n]\neps: 0.001", '''
    """Cosine of the angle between rows."""

    @staticmethod
    def forward(ctx, x, y, eps):
        ctx.save_for_backward(x, y)
        ctx.eps = eps
        length_x = (x.square().sum(1) + eps).sqrt()
        length_y = (y.square().sum(1) + eps).sqrt()
        return (x * y).sum(1) / (length_x * length_y)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        square_x = x.square().sum(1, keepdim=True) + ctx.eps
        square_y = y.square().sum(1, keepdim=True) + ctx.eps
        both = (square_x * square_y).sqrt()
        cosine = (x * y).sum(1, keepdim=True) / both
        g = grad_output[:, None]
        grad_x = g * (y / both - cosine * x / square_x)
        grad_y = g * (x / both - cosine * y / square_y)
        return grad_x, grad_y, None
''',
 ("length-held", "g * (y / both - cosine * x / square_x)", "g * y / both", "missing-term"),
 ("length-of-the-other", "cosine * y / square_y", "cosine * y / square_x", "operand missing-term none"),
)

fn("FactorDistance", "x: [b, n]\ncentre: [n]\nfactor: [n, n]\neps: 0.01", '''
    """Mahalanobis distance to a centre, by a factor of the precision."""

    @staticmethod
    def forward(ctx, x, centre, factor, eps):
        z = (x - centre) @ factor
        distance = (z.square().sum(1) + eps).sqrt()
        ctx.save_for_backward(x, centre, factor, z, distance)
        return distance

    @staticmethod
    def backward(ctx, grad_output):
        x, centre, factor, z, distance = ctx.saved_tensors
        grad_z = (grad_output / distance)[:, None] * z
        grad_x = grad_z @ factor.t()
        grad_factor = (x - centre).t() @ grad_z
        return grad_x, -grad_x.sum(0), grad_factor, None
''',
 ("factor-not-transposed", "grad_z @ factor.t()", "grad_z @ factor", "transposed operand"),
 ("centre-sign", "-grad_x.sum(0)", "grad_x.sum(0)", "constant-factor"),
 ("not-centred", "(x - centre).t() @ grad_z", "x.t() @ grad_z", "operand missing-term none"),
)

# --- linear algebra -------------------------------------------------------------------------------------------------

fn("LowerSolve", "a: {shape: [n, n], structure: triangular}\nright: [n, d]", '''
    """The solution of a lower triangular system."""

    @staticmethod
    def forward(ctx, a, right):
        lower = a.tril()
        solution = torch.linalg.solve_triangular(lower, right, upper=False)
        ctx.save_for_backward(lower, right, solution)
        return solution

    @staticmethod
    def backward(ctx, grad_output):
        lower, right, solution = ctx.saved_tensors
        grad_right = torch.linalg.solve_triangular(lower.t(), grad_output, upper=True)
        grad_a = -(grad_right @ solution.t()).tril()
        return grad_a, grad_right
''',
 ("right-side-for-solution", "grad_right @ solution.t()", "grad_right @ right.t()", "wrong-saved operand"),
 ("outer-transposed", "grad_right @ solution.t()", "solution @ grad_right.t()", "transposed operand none"),
)

fn("GaussianProcessNLL", "kernel: {shape: [n, n], structure: spd}\ny: [n]", '''
    """The negative log likelihood of observations under a covariance, without its constant."""

    @staticmethod
    def forward(ctx, kernel, y):
        chol = torch.linalg.cholesky(kernel)
        alpha = torch.cholesky_solve(y[:, None], chol)[:, 0]
        ctx.save_for_backward(chol, alpha)
        return 0.5 * (y @ alpha) + chol.diagonal().log().sum()

    @staticmethod
    def backward(ctx, grad_output):
        chol, alpha = ctx.saved_tensors
        inverse = torch.cholesky_inverse(chol)
        grad_kernel = 0.5 * grad_output * (inverse - torch.outer(alpha, alpha))
        return grad_kernel, grad_output * alpha
''',
 ("log-determinant-held", "(inverse - torch.outer(alpha, alpha))", "(-torch.outer(alpha, alpha))", "missing-term"),
 ("half-of-the-data", "grad_output * alpha\n", "0.5 * grad_output * alpha\n", "constant-factor"),
)

fn("BilinearForms", "left: [b, n]\nforms: [m, n, n]\nright: [b, n]\nbias: [m]", '''
    """Several bilinear forms of two vectors, with a bias."""

    @staticmethod
    def forward(ctx, left, forms, right, bias):
        ctx.save_for_backward(left, forms, right)
        return torch.einsum("bi,oij,bj->bo", left, forms, right) + bias

    @staticmethod
    def backward(ctx, grad_output):
        left, forms, right = ctx.saved_tensors
        grad_left = torch.einsum("bo,oij,bj->bi", grad_output, forms, right)
        grad_right = torch.einsum("bo,oij,bi->bj", grad_output, forms, left)
        grad_forms = torch.einsum("bo,bi,bj->oij", grad_output, left, right)
        return grad_left, grad_forms, grad_right, grad_output.sum(0)
''',
 ("sides-exchanged", "return grad_left, grad_forms, grad_right,", "return grad_right, grad_forms, grad_left,",
  "swapped-inputs"),
 ("form-transposed", "\"bo,oij,bj->bi\"", "\"bo,oji,bj->bi\"", "transposed operand permuted"),
 ("first-sample-of-the-bias", "grad_output.sum(0)", "grad_output[0]", "not-summed-over-broadcast missing-term ~region"),
)

# --- sequences ------------------------------------------------------------------------------------------------------

fn("CausalFIR", "x: [b, t]\ntaps: [n]", '''
    """A causal filter: each output from the last few inputs."""

    @staticmethod
    def forward(ctx, x, taps):
        ctx.save_for_backward(x, taps)
        y = torch.zeros_like(x)
        for j in range(min(len(taps), x.shape[1])):
            y[:, j:] += taps[j] * x[:, : x.shape[1] - j]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, taps = ctx.saved_tensors
        length = x.shape[1]
        grad_x, grad_taps = torch.zeros_like(x), torch.zeros_like(taps)
        for j in range(min(len(taps), length)):
            grad_x[:, : length - j] += taps[j] * grad_output[:, j:]
            grad_taps[j] = (grad_output[:, j:] * x[:, : length - j]).sum()
        return grad_x, grad_taps
''',
 ("shifted-forwards", "grad_x[:, : length - j] += taps[j] * grad_output[:, j:]",
  "grad_x[:, j:] += taps[j] * grad_output[:, : length - j]", "transposed permuted operand"),
 ("last-tap-left-out", "        for j in range(min(len(taps), length)):\n            grad_x",
  "        for j in range(min(len(taps) - 1, length)):\n            grad_x", "missing-term region"),
)

fn("WeightedSegmentSum", "x: [t, n]\nweight: [t]\nsegment: {shape: [t], dtype: int64, range: [0, b]}\ncount: {size: b}", '''
    """Weighted rows, summed by segment."""

    @staticmethod
    def forward(ctx, x, weight, segment, count):
        ctx.save_for_backward(x, weight, segment)
        return x.new_zeros(count, x.shape[1]).index_add(0, segment, x * weight[:, None])

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, segment = ctx.saved_tensors
        rows = grad_output[segment]
        return rows * weight[:, None], (rows * x).sum(1), None, None
''',
 ("weight-forgotten", "rows * weight[:, None], ", "rows, ", "missing-factor chain-factor operand"),
 ("segments-taken-as-sorted", "grad_output[segment]", "grad_output[segment.sort().values]", "permuted operand none"),
)

fn("CumulativeProduct", "x: {shape: [b, t], domain: nonzero}", '''
    """Running products along the rows, of values that are not zero."""

    @staticmethod
    def forward(ctx, x):
        y = torch.cumprod(x, 1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        weighed = grad_output * y
        return weighed.flip(1).cumsum(1).flip(1) / x
''',
 ("summed-forwards", "weighed.flip(1).cumsum(1).flip(1)", "weighed.cumsum(1)", "operand permuted transposed none"),
 ("later-ones-forgotten", "weighed.flip(1).cumsum(1).flip(1) / x", "weighed / x", "diagonal-only missing-term"),
)

fn("MovingAverage", "x: [t, n]\ndecay: {shape: [n], domain: unit}\nstart: [n]", '''
SELF_PAST = {}
@@
    """An exponential moving average with a decay for each channel."""

    @staticmethod
    def forward(ctx, x, decay, start):
        state, before = start, []
        for i in range(len(x)):
            before.append(state)
            state = decay * state + (1 - decay) * x[i]
        past = torch.stack(before)
        ctx.save_for_backward(x, decay, past)
        return torch.cat([past[1:], state[None]])

    @staticmethod
    def backward(ctx, grad_output):
        x, decay, past = ctx.saved_tensors
        grad_x, grad_decay = torch.zeros_like(x), torch.zeros_like(decay)
        carry = torch.zeros_like(decay)
        for i in reversed(range(len(x))):
            carry = carry + grad_output[i]
            grad_x[i] = carry * (1 - decay)
            grad_decay += carry * (past[i] - x[i])
            carry = carry * decay
        return grad_x, grad_decay, carry
''',
 # gradcheck sees it after a call with other inputs
 ("first-call-kept", ("        past = torch.stack(before)\n        ctx.save_for_backward(x, decay, past)",
                      "x, decay, past = ctx.saved_tensors"),
  ("        past = torch.stack(before)\n        ctx.save_for_backward(x, decay)\n"
   "        ctx.past = SELF_PAST.setdefault(tuple(x.shape), past.detach())",
   "(x, decay), past = ctx.saved_tensors, ctx.past"), "stale ~wrong-saved"),
 ("decay-assigned", "grad_decay += carry", "grad_decay = carry", "missing-term duplicates none"),
)

fn("MaskedMeanPool", "x: [b, t, n]\nlengths: {shape: [b], dtype: int64, range: [1, t+1]}", '''
    """The mean over the valid steps of each sequence."""

    @staticmethod
    def forward(ctx, x, lengths):
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        ctx.save_for_backward(lengths)
        ctx.steps = x.shape[1]
        return (x * valid[:, :, None]).sum(1) / lengths[:, None]

    @staticmethod
    def backward(ctx, grad_output):
        (lengths,) = ctx.saved_tensors
        valid = torch.arange(ctx.steps, device=lengths.device) < lengths[:, None]
        share = grad_output / lengths[:, None]
        return share[:, None, :] * valid[:, :, None], None
''',
 ("one-step-too-many", "< lengths[:, None]\n        share", "<= lengths[:, None]\n        share",
  "operand region branch none"),
 ("divided-by-all-steps", "grad_output / lengths[:, None]", "grad_output / ctx.steps",
  "operand chain-factor constant-factor none"),
)

# --- complex numbers and polynomials --------------------------------------------------------------------------------

fn("ComplexGate", "x: {shape: [b, n], dtype: complex128}\nw: {shape: [n], dtype: complex128}", '''
    """Complex channels times a complex weight."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output * w.conj(), (grad_output * x.conj()).sum(0)
''',
 ("x-unconjugated", "grad_output * w.conj()", "grad_output * w", "conjugate"),
)

fn("ComplexModulus", "z: {shape: [b, n], dtype: complex128}\nscale: [n]\neps: 0.01", '''
    """The smoothed modulus of complex numbers, scaled by channel."""

    @staticmethod
    def forward(ctx, z, scale, eps):
        modulus = (z.real.square() + z.imag.square() + eps).sqrt()
        ctx.save_for_backward(z, scale, modulus)
        return modulus * scale

    @staticmethod
    def backward(ctx, grad_output):
        z, scale, modulus = ctx.saved_tensors
        grad_z = grad_output * scale * z / modulus
        return grad_z, (grad_output * modulus).sum(0), None
''',
 ("direction-conjugated", "grad_output * scale * z / modulus", "grad_output * scale * z.conj() / modulus", "conjugate"),
)

fn("HornerPolynomial", "coefficients: [m]\nx: [b, n]", '''
    """A polynomial with its constant first, by Horner's rule."""

    @staticmethod
    def forward(ctx, coefficients, x):
        ctx.save_for_backward(coefficients, x)
        y = torch.zeros_like(x)
        for c in coefficients.flip(0):
            y = y * x + c
        return y

    @staticmethod
    def backward(ctx, grad_output):
        coefficients, x = ctx.saved_tensors
        slope = torch.zeros_like(x)
        for power in range(len(coefficients) - 1, 0, -1):
            slope = slope * x + power * coefficients[power]
        powers = [x**power for power in range(len(coefficients))]
        grad_coefficients = torch.stack([(grad_output * each).sum() for each in powers])
        return grad_coefficients, grad_output * slope
''',
 ("highest-power-left-out", "range(len(coefficients) - 1, 0, -1)", "range(len(coefficients) - 2, 0, -1)",
  "missing-term operand"),
 ("exponents-forgotten", "power * coefficients[power]", "coefficients[power]", "operand missing-factor missing-term none"),
 ("coefficients-from-the-top", "return grad_coefficients, grad", "return grad_coefficients.flip(0), grad", "permuted"),
)
