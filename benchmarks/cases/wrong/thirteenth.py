"""Thirteenth set, for development: by a hand that read neither the checker's source nor the entries of other sets.

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
TWICE_DIFFERENTIABLE = ("MoebiusMap", "KumaraswamyDraw", "SoftTopMean", "TweedieDeviance", "SubstrateRates", "HaarLifting")


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- complex, geometry, physics ------------------------------------------------------------------------------------

fn("MoebiusMap", "z: {shape: [b, n], dtype: complex128}\ncoefficients: {shape: [4], dtype: complex128}", '''
    """(a z + b) / (c z + d) with complex coefficients."""

    @staticmethod
    def forward(ctx, z, coefficients):
        a, b, c, d = coefficients.unbind()
        ctx.save_for_backward(z, coefficients)
        return (a * z + b) / (c * z + d)

    @staticmethod
    def backward(ctx, grad_output):
        z, coefficients = ctx.saved_tensors
        a, b, c, d = coefficients.unbind()
        inverse = 1 / (c * z + d)
        w = (a * z + b) * inverse
        grad_z = grad_coefficients = None
        if ctx.needs_input_grad[0]:
            grad_z = grad_output * ((a * d - b * c) * inverse**2).conj()
        if ctx.needs_input_grad[1]:
            slopes = [z * inverse, inverse, -w * z * inverse, -w * inverse]
            grad_coefficients = torch.stack([(grad_output * s.conj()).sum() for s in slopes])
        return grad_z, grad_coefficients
''',
 ("determinant-outside-conj", "((a * d - b * c) * inverse**2).conj()", "(a * d - b * c) * (inverse**2).conj()", "conjugate operand chain-factor none"),
 ("slopes-not-conjugated", "(grad_output * s.conj()).sum()", "(grad_output * s).sum()", "conjugate"),
 ("denominator-once", "(a * d - b * c) * inverse**2", "(a * d - b * c) * inverse", "chain-factor operand"),
 ("denominator-signs", "-w * z * inverse, -w * inverse", "w * z * inverse, w * inverse", "region"),
 ("poles-swapped", "-w * z * inverse, -w * inverse", "-w * inverse, -w * z * inverse", "permuted region"),
 ("determinant-plus", "(a * d - b * c)", "(a * d + b * c)", "chain-factor operand missing-term none"),
 ("mean-over-points", "(grad_output * s.conj()).sum()", "(grad_output * s.conj()).mean()", "constant-factor"),
)

fn("QuaternionSpin", "v: [b, 3]\nq: [b, 4]", '''
    """Vectors turned by quaternions of any length."""

    @staticmethod
    def forward(ctx, v, q):
        length = q.norm(dim=1, keepdim=True)
        unit = q / length
        w, u = unit[:, :1], unit[:, 1:]
        twice = 2 * torch.linalg.cross(u, v)
        ctx.save_for_backward(v, unit, length)
        return v + w * twice + torch.linalg.cross(u, twice)

    @staticmethod
    def backward(ctx, g):
        v, unit, length = ctx.saved_tensors
        w, u = unit[:, :1], unit[:, 1:]
        cross = torch.linalg.cross
        twice = 2 * cross(u, v)
        back = cross(g, u)
        grad_v = g + 2 * w * back + 2 * cross(back, u)
        grad_w = (g * twice).sum(1, keepdim=True)
        grad_u = 2 * w * cross(v, g) + cross(twice, g) + 2 * cross(v, back)
        grad_unit = torch.cat([grad_w, grad_u], 1)
        along = (grad_unit * unit).sum(1, keepdim=True)
        return grad_v, (grad_unit - along * unit) / length
''',
 ("turned-forward", "back = cross(g, u)\n        grad_v = g + 2 * w * back + 2 * cross(back, u)",
  "back = cross(g, u)\n        grad_v = g - 2 * w * back + 2 * cross(back, u)", "transposed operand missing-term none"),
 ("length-not-fixed", "(grad_unit - along * unit) / length", "grad_unit / length", "missing-term"),
 ("length-not-divided", "(grad_unit - along * unit) / length", "grad_unit - along * unit", "chain-factor operand"),
 ("inner-axis-held", " + 2 * cross(v, back)\n", "\n", "missing-term"),
 ("scalar-part-last", "torch.cat([grad_w, grad_u], 1)\n        along", "torch.cat([grad_u, grad_w], 1)\n        along", "permuted missing-term none"),
 ("scalar-twice", "grad_w = (g * twice)", "grad_w = 2 * (g * twice)", "missing-term region none"),
)

fn("ScreenedCoulomb", "charge: [m]\nposition: {shape: [m, 3], distinct: true}\nkappa: {shape: [], domain: positive, range: [0.2, 2.0]}", '''
    """Energy and potentials of charges in an electrolyte (Debye and Hueckel)."""

    @staticmethod
    def forward(ctx, charge, position, kappa):
        apart = position[:, None] - position[None]
        square = (apart * apart).sum(-1)
        square.fill_diagonal_(1.0)
        r = square.sqrt()
        kernel = torch.exp(-kappa * r) / r
        kernel.fill_diagonal_(0.0)
        potential = kernel @ charge
        ctx.save_for_backward(charge, apart, r, kernel, potential, kappa)
        return 0.5 * (charge * potential).sum(), potential

    @staticmethod
    def backward(ctx, grad_energy, grad_potential):
        charge, apart, r, kernel, potential, kappa = ctx.saved_tensors
        at = 0.5 * grad_energy * charge + grad_potential
        grad_charge = 0.5 * grad_energy * potential + kernel @ at
        pair = at[:, None] * charge[None, :]
        pull = -(pair + pair.T) * kernel * (kappa + 1 / r) / r
        grad_position = (pull[:, :, None] * apart).sum(1)
        grad_kappa = -(pair * kernel * r).sum()
        return grad_charge, grad_position, grad_kappa
''',
 ("energy-only", "at = 0.5 * grad_energy * charge + grad_potential", "at = 0.5 * grad_energy * charge", "ignored-output"),
 ("own-charge-held", "grad_charge = 0.5 * grad_energy * potential + kernel @ at", "grad_charge = kernel @ at", "missing-term constant-factor"),
 ("action-without-reaction", "pull = -(pair + pair.T) * kernel", "pull = -2 * pair * kernel", "missing-term operand none"),
 ("screening-held", "(kappa + 1 / r) / r", "(1 / r) / r", "missing-term operand"),
 ("force-not-a-unit-vector", "(kappa + 1 / r) / r", "(kappa + 1 / r)", "chain-factor none"),
 ("summed-over-receivers", "(pull[:, :, None] * apart).sum(1)", "(pull[:, :, None] * apart).sum(0)", "constant-factor wrong-reduction-dim"),
 # two at once: the range's gradient has the other sign, and the energy's own half is lost
 ("range-sign-and-half", ("grad_kappa = -(pair", "at = 0.5 * grad_energy * charge + grad_potential"),
  ("grad_kappa = (pair", "at = grad_energy * charge + grad_potential"), "constant-factor missing-term operand none"),
)

fn("PinholeLens", "points: {shape: [b, 3], range: [-1.0, 1.0]}\nfocal: [2]\ncentre: [2]\nlens: {shape: [2], range: [-0.3, 0.3]}\ndistance: 3.0", '''
    """Points seen by a camera with radial distortion of two terms."""

    @staticmethod
    def forward(ctx, points, focal, centre, lens, distance):
        depth = points[:, 2:] + distance
        flat = points[:, :2] / depth
        r2 = (flat * flat).sum(1, keepdim=True)
        bend = 1 + lens[0] * r2 + lens[1] * r2 * r2
        ctx.save_for_backward(flat, depth, r2, bend, focal, lens)
        return focal * flat * bend + centre

    @staticmethod
    def backward(ctx, grad_pixel):
        flat, depth, r2, bend, focal, lens = ctx.saved_tensors
        grad_focal = (grad_pixel * flat * bend).sum(0)
        grad_centre = grad_pixel.sum(0)
        scaled = grad_pixel * focal
        grad_bend = (scaled * flat).sum(1, keepdim=True)
        grad_lens = torch.stack([(grad_bend * r2).sum(), (grad_bend * r2 * r2).sum()])
        grad_r2 = grad_bend * (lens[0] + 2 * lens[1] * r2)
        grad_flat = scaled * bend + 2 * flat * grad_r2
        grad_depth = -(grad_flat * flat).sum(1, keepdim=True) / depth
        return torch.cat([grad_flat / depth, grad_depth], 1), grad_focal, grad_centre, grad_lens, None
''',
 ("bend-held", "scaled * bend + 2 * flat * grad_r2", "scaled * bend", "missing-term"),
 ("second-term-once", "lens[0] + 2 * lens[1] * r2", "lens[0] + lens[1] * r2", "missing-term none"),
 ("focal-undistorted", "(grad_pixel * flat * bend).sum(0)", "(grad_pixel * flat).sum(0)", "chain-factor missing-term operand"),
 ("depth-sign", "grad_depth = -(grad_flat", "grad_depth = (grad_flat", "region"),
 ("lens-in-the-other-order", "[(grad_bend * r2).sum(), (grad_bend * r2 * r2).sum()]", "[(grad_bend * r2 * r2).sum(), (grad_bend * r2).sum()]", "permuted"),
 ("centre-and-focal", "grad_focal, grad_centre, grad_lens", "grad_centre, grad_focal, grad_lens", "swapped-inputs"),
)

# --- fused layers, scans -------------------------------------------------------------------------------------------

fn("LoraDense", "x: [b, n]\nweight: [m, n]\ndown: [d, n]\nup: [m, d]\nbias: {shape: [m], optional: true}\nalpha: 5.0", '''
    """A dense layer and its update of low rank, scaled by alpha over the rank."""

    @staticmethod
    def forward(ctx, x, weight, down, up, bias, alpha):
        hidden = x @ down.T
        scale = alpha / down.shape[0]
        y = x @ weight.T + scale * (hidden @ up.T)
        if bias is not None:
            y = y + bias
        ctx.save_for_backward(x, weight, down, up, hidden)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, grad_y):
        x, weight, down, up, hidden = ctx.saved_tensors
        grads = [None] * 6
        inner = grad_y @ up * ctx.scale
        if ctx.needs_input_grad[0]:
            grads[0] = grad_y @ weight + inner @ down
        if ctx.needs_input_grad[1]:
            grads[1] = grad_y.T @ x
        if ctx.needs_input_grad[2]:
            grads[2] = inner.T @ x
        if ctx.needs_input_grad[3]:
            grads[3] = ctx.scale * (grad_y.T @ hidden)
        if ctx.needs_input_grad[4]:
            grads[4] = grad_y.sum(0)
        return tuple(grads)
''',
 ("up-unscaled", "grads[3] = ctx.scale * (grad_y.T @ hidden)", "grads[3] = grad_y.T @ hidden", "constant-factor"),
 ("x-through-the-base-only", "grad_y @ weight + inner @ down", "grad_y @ weight", "missing-term operand"),
 ("scale-on-both", "grads[0] = grad_y @ weight + inner @ down", "grads[0] = ctx.scale * (grad_y @ weight) + inner @ down", "missing-term none"),
 ("scale-without-the-rank", "ctx.scale = scale", "ctx.scale = alpha", "constant-factor missing-term"),
 # gradcheck differentiates every input at once, and does not see it
 ("up-asks-for-the-weight", "if ctx.needs_input_grad[3]:", "if ctx.needs_input_grad[3] and ctx.needs_input_grad[1]:", "zero none"),
 ("bias-averaged", "grads[4] = grad_y.sum(0)", "grads[4] = grad_y.mean(0)", "constant-factor"),
 # two at once: the base does not reach x, and the bias takes one row
 ("base-held-and-one-row", ("grad_y @ weight + inner @ down", "grads[4] = grad_y.sum(0)"), ("inner @ down", "grads[4] = grad_y[0]"),
  "missing-term operand not-summed-over-broadcast none"),
)

fn("SelectiveScan", "x: [m, n]\nstep: {shape: [m, n], range: [0.1, 1.0]}\ndecay: {shape: [n, d], range: [-1.5, -0.2]}\ninto: [m, d]\nout: [m, d]\nskip: [n]", '''
    """A state space whose step, entry and exit depend on the time, as in Mamba."""

    @staticmethod
    def forward(ctx, x, step, decay, into, out, skip):
        h = x.new_zeros(decay.shape)
        states, y = [h], []
        for i in range(x.shape[0]):
            keep = torch.exp(step[i][:, None] * decay)
            h = keep * h + (step[i] * x[i])[:, None] * into[i]
            states.append(h)
            y.append(h @ out[i] + skip * x[i])
        ctx.save_for_backward(x, step, decay, into, out, skip, torch.stack(states))
        return torch.stack(y)

    @staticmethod
    def backward(ctx, g):
        x, step, decay, into, out, skip, states = ctx.saved_tensors
        grad_x, grad_step = g * skip, torch.zeros_like(step)
        grad_into, grad_out = torch.zeros_like(into), torch.zeros_like(out)
        grad_decay, carry = torch.zeros_like(decay), torch.zeros_like(decay)
        for i in reversed(range(x.shape[0])):
            carry = carry + g[i][:, None] * out[i]
            grad_out[i] = g[i] @ states[i + 1]
            keep = torch.exp(step[i][:, None] * decay)
            through = carry * keep * states[i]
            inward = carry @ into[i]
            grad_decay += through * step[i][:, None]
            grad_step[i] = (through * decay).sum(1) + inward * x[i]
            grad_x[i] += inward * step[i]
            grad_into[i] = (step[i] * x[i]) @ carry
            carry = carry * keep
        return grad_x, grad_step, grad_decay, grad_into, grad_out, (g * x).sum(0)
''',
 ("exit-reads-the-state-before", "grad_out[i] = g[i] @ states[i + 1]", "grad_out[i] = g[i] @ states[i]", "wrong-saved operand none"),
 ("decay-reads-the-state-after", "through = carry * keep * states[i]", "through = carry * keep * states[i + 1]", "wrong-saved operand missing-term none"),
 ("step-only-in-the-decay", "(through * decay).sum(1) + inward * x[i]", "(through * decay).sum(1)", "missing-term"),
 ("carry-not-decayed", "            carry = carry * keep\n", "", "missing-term operand region none"),
 ("carry-restarted", "carry = carry + g[i][:, None] * out[i]", "carry = g[i][:, None] * out[i]", "missing-term diagonal-only none"),
 ("skip-forgotten-in-x", "grad_x, grad_step = g * skip, torch", "grad_x, grad_step = torch.zeros_like(x), torch", "missing-term operand"),
 ("step-on-x-forgotten", "grad_x[i] += inward * step[i]", "grad_x[i] += inward", "operand missing-term chain-factor none"),
)

fn("StandardisedDense", "x: [b, n]\nweight: [m, n]\ngain: [m]\neps: 0.001", '''
    """A dense layer whose rows of weights are standardised and then scaled."""

    @staticmethod
    def standardise(weight, eps):
        centred = weight - weight.mean(1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(1, keepdim=True) + eps)
        return centred * rstd, rstd

    @staticmethod
    def forward(ctx, x, weight, gain, eps=1e-3):
        hat, rstd = SELF.standardise(weight, eps)
        ctx.save_for_backward(x, hat, rstd, gain)
        return x @ (gain[:, None] * hat).T

    @staticmethod
    def backward(ctx, grad_y):
        x, hat, rstd, gain = ctx.saved_tensors
        grad_scaled = grad_y.T @ x
        grad_gain = (grad_scaled * hat).sum(1)
        grad_hat = grad_scaled * gain[:, None]
        mean = grad_hat.mean(1, keepdim=True)
        along = (grad_hat * hat).mean(1, keepdim=True)
        grad_weight = rstd * (grad_hat - mean - hat * along)
        return grad_y @ (gain[:, None] * hat), grad_weight, grad_gain, None
''',
 ("mean-held", "(grad_hat - mean - hat * along)", "(grad_hat - hat * along)", "missing-term"),
 ("deviation-held", "(grad_hat - mean - hat * along)", "(grad_hat - mean)", "missing-term"),
 ("mean-of-columns", "mean = grad_hat.mean(1, keepdim=True)", "mean = grad_hat.mean(0, keepdim=True)", "wrong-reduction-dim none"),
 ("along-summed", "along = (grad_hat * hat).mean(1", "along = (grad_hat * hat).sum(1", "missing-term none"),
 ("x-without-the-gain", "return grad_y @ (gain[:, None] * hat)", "return grad_y @ hat", "operand"),
 ("gain-over-the-outputs", "grad_gain = (grad_scaled * hat).sum(1)", "grad_gain = (grad_scaled * hat).mean(1)", "constant-factor"),
 # two at once: the gain is not in the weight's gradient, nor is the deviation
 ("gain-and-deviation", ("grad_hat = grad_scaled * gain[:, None]", "rstd * (grad_hat"), ("grad_hat = grad_scaled", "(grad_hat"), "operand chain-factor none"),
)

# --- probability, losses --------------------------------------------------------------------------------------------

fn("KumaraswamyDraw", "u: {shape: [b, n], domain: unit}\nalpha: {shape: [n], domain: positive, range: [0.4, 3.0]}\nbeta: {shape: [n], domain: positive, range: [0.4, 3.0]}", '''
    """Draws of Kumaraswamy's distribution from uniform ones."""

    @staticmethod
    def forward(ctx, u, alpha, beta):
        ctx.save_for_backward(u, alpha, beta)
        return (1 - (1 - u) ** (1 / beta)) ** (1 / alpha)

    @staticmethod
    def backward(ctx, grad_draw):
        u, alpha, beta = ctx.saved_tensors
        v = (1 - u) ** (1 / beta)
        draw = (1 - v) ** (1 / alpha)
        outer = -grad_draw * draw / (alpha * (1 - v))
        grad_u = -outer * v / (beta * (1 - u))
        grad_alpha = (-grad_draw * draw * torch.log1p(-v) / alpha**2).sum(0)
        grad_beta = (-outer * v * torch.log1p(-u) / beta**2).sum(0)
        return grad_u, grad_alpha, grad_beta
''',
 ("inner-slope-of-beta-left-out", "grad_u = -outer * v / (beta * (1 - u))", "grad_u = -outer * v / (1 - u)", "chain-factor operand"),
 ("log-of-u", "torch.log1p(-u) / beta**2", "torch.log(u) / beta**2", "operand chain-factor none"),
 ("alpha-once", "torch.log1p(-v) / alpha**2", "torch.log1p(-v) / alpha", "chain-factor operand"),
 ("sign-of-beta", "grad_beta = (-outer", "grad_beta = (outer", "constant-factor"),
 # two at once: the sign of alpha's, and u's slope is not divided by beta
 ("alpha-sign-and-beta", ("grad_alpha = (-grad_draw", "(beta * (1 - u))"), ("grad_alpha = (grad_draw", "(1 - u)"),
  "constant-factor chain-factor operand"),
 ("shapes-swapped", "return grad_u, grad_alpha, grad_beta", "return grad_u, grad_beta, grad_alpha", "swapped-inputs"),
 # in the second order only
 ("log-detached", "torch.log1p(-v) / alpha**2", "torch.log1p(-v).detach() / alpha**2", "detached"),
 # in the second order only
 ("draw-recomputed-without-graph", "draw = (1 - v) ** (1 / alpha)", "draw = ((1 - v) ** (1 / alpha)).data", "detached"),
)

fn("SupervisedContrast", "features: [t, n]\nlabels: {shape: [t], dtype: int64, range: [0, 3]}\ntemperature: 0.5", '''
    """Contrastive loss with several positives; rows without one do not count."""

    @staticmethod
    def forward(ctx, features, labels, temperature):
        length = features.norm(dim=1, keepdim=True)
        z = features / length
        self_mask = torch.eye(len(z), dtype=torch.bool)
        logits = (z @ z.T / temperature).masked_fill(self_mask, -torch.inf)
        log_p = torch.log_softmax(logits, 1)
        positive = (labels[:, None] == labels[None]) & ~self_mask
        count = positive.sum(1)
        valid = count > 0
        target = positive / count.clamp(min=1)[:, None].to(z.dtype)
        ctx.save_for_backward(z, length, log_p.exp(), target, valid)
        ctx.temperature = temperature
        return -(target * log_p.masked_fill(self_mask, 0.0)).sum() / valid.sum().clamp(min=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss):
        z, length, p, target, valid = ctx.saved_tensors
        slope = (p - target) * valid[:, None]
        slope = slope * grad_loss / (valid.sum().clamp(min=1) * ctx.temperature)
        grad_z = (slope + slope.T) @ z
        grad_features = (grad_z - z * (grad_z * z).sum(1, keepdim=True)) / length
        return grad_features, None, None
''',
 ("anchors-only", "grad_z = (slope + slope.T) @ z", "grad_z = slope @ z", "missing-term"),
 ("contrasts-only", "grad_z = (slope + slope.T) @ z", "grad_z = slope.T @ z", "missing-term none"),
 ("sphere-forgotten", "(grad_z - z * (grad_z * z).sum(1, keepdim=True)) / length", "grad_z / length", "missing-term"),
 ("temperature-forgotten", "(valid.sum().clamp(min=1) * ctx.temperature)", "valid.sum().clamp(min=1)", "constant-factor"),
 ("mean-over-all", "(valid.sum().clamp(min=1) * ctx.temperature)", "(len(valid) * ctx.temperature)", "constant-factor none"),
 ("lonely-rows-count", "slope = (p - target) * valid[:, None]", "slope = p - target", "branch missing-term none"),
 ("projection-across-rows", "(grad_z * z).sum(1, keepdim=True)", "(grad_z * z).sum(0, keepdim=True)", "wrong-reduction-dim none"),
)

fn("SoftTopMean", "x: [b, n]\nsharpness: {shape: [b], domain: positive}\nmask: {shape: [b, n], dtype: bool, optional: true}", '''
    """Mean of a row, weighted by the softmax of its entries."""

    @staticmethod
    def forward(ctx, x, sharpness, mask=None):
        ctx.save_for_backward(x, sharpness, mask)
        return (SELF.weights(x, sharpness, mask) * x).sum(1)

    @staticmethod
    def weights(x, sharpness, mask):
        scores = sharpness[:, None] * x
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e4)
        return torch.softmax(scores, 1)

    @staticmethod
    def backward(ctx, grad_mean):
        x, sharpness, mask = ctx.saved_tensors
        w = SELF.weights(x, sharpness, mask)
        mean = (w * x).sum(1, keepdim=True)
        off = x - mean
        grad_scores = grad_mean[:, None] * w * off
        grad_x = grad_mean[:, None] * w + sharpness[:, None] * SELF.kept(grad_scores, mask)
        grad_sharpness = (SELF.kept(grad_scores, mask) * x).sum(1)
        return grad_x, grad_sharpness, None

    @staticmethod
    def kept(grad, mask):
        return grad if mask is None else grad * mask
''',
 ("weights-held", "grad_mean[:, None] * w + sharpness[:, None] * SELF.kept(grad_scores, mask)", "grad_mean[:, None] * w", "missing-term"),
 ("not-centred", "off = x - mean", "off = x", "missing-term"),
 ("sharpness-one", " + sharpness[:, None] * SELF", " + SELF", "operand missing-term none"),
 ("mean-unweighted", "mean = (w * x).sum(1, keepdim=True)", "mean = x.mean(1, keepdim=True)", "missing-term operand none"),
 ("through-all-rows", "grad_sharpness = (SELF.kept(grad_scores, mask) * x).sum(1)", "grad_sharpness = (SELF.kept(grad_scores, mask) * x).sum().expand(len(x))", "wrong-reduction-dim missing-term none"),
 # in the second order only
 ("weights-detached", "w = SELF.weights(x, sharpness, mask)\n", "w = SELF.weights(x, sharpness, mask).detach()\n", "detached"),
 # in the second order only
 ("no-grad-mean", "mean = (w * x).sum(1, keepdim=True)", "with torch.no_grad():\n            mean = (w * x).sum(1, keepdim=True)", "detached"),
)

fn("MixtureDensity", "x: [b]\nlogits: [b, k]\nmu: [b, k]\nlog_sigma: {shape: [b, k], range: [-1.0, 1.0]}\nreduction: {choices: [mean, sum, none]}", '''
    """Negative log density under a mixture of Gaussians, as a mixture density network is trained."""

    @staticmethod
    def forward(ctx, x, logits, mu, log_sigma, reduction):
        log_pi = torch.log_softmax(logits, 1)
        score = (x[:, None] - mu) * torch.exp(-log_sigma)
        joint = log_pi - 0.5 * score**2 - log_sigma - 0.5 * math.log(2 * math.pi)
        total = torch.logsumexp(joint, 1)
        ctx.save_for_backward(log_pi.exp(), (joint - total[:, None]).exp(), score, log_sigma)
        ctx.reduction = reduction
        nll = -total
        return nll if reduction == "none" else nll.mean() if reduction == "mean" else nll.sum()

    @staticmethod
    def backward(ctx, grad_output):
        pi, share, score, log_sigma = ctx.saved_tensors
        g = grad_output[:, None] if ctx.reduction == "none" else grad_output
        if ctx.reduction == "mean":
            g = g / len(pi)
        grad_mu = -g * share * score * torch.exp(-log_sigma)
        grad_logits = g * (pi - share)
        grad_log_sigma = g * share * (1 - score**2)
        return -grad_mu.sum(1), grad_logits, grad_mu, grad_log_sigma, None
''',
 ("prior-for-posterior", "grad_mu = -g * share * score", "grad_mu = -g * pi * score", "operand wrong-saved none"),
 ("sigma-not-divided", "score * torch.exp(-log_sigma)\n        grad_logits", "score\n        grad_logits", "chain-factor operand"),
 ("mean-forgotten", "            g = g / len(pi)\n", "            g = g\n", "constant-factor"),
 ("mean-over-components", "g = g / len(pi)", "g = g / pi.numel()", "constant-factor"),
 ("logits-sign", "g * (pi - share)", "g * (share - pi)", "constant-factor"),
 ("normaliser-held", "(1 - score**2)", "(-score**2)", "missing-term"),
 ("softmax-held", "grad_logits = g * (pi - share)", "grad_logits = -g * share", "missing-term"),
)

fn("TweedieDeviance", "eta: [b, n]\ntarget: {shape: [b, n], domain: positive, range: [0.3, 3.0]}\nweight: {shape: [n], domain: positive}\npower: {choices: [1.5, 1.2]}", '''
    """Weighted mean of Tweedie's deviance with a log link."""

    @staticmethod
    def forward(ctx, eta, target, weight, power):
        ctx.save_for_backward(eta, target, weight)
        ctx.power = power
        return (SELF.unit(eta, target, power) * weight).sum() / (weight.sum() * len(eta))

    @staticmethod
    def unit(eta, target, p):
        first = target ** (2 - p) / ((1 - p) * (2 - p))
        return 2 * (first - target * torch.exp((1 - p) * eta) / (1 - p) + torch.exp((2 - p) * eta) / (2 - p))

    @staticmethod
    def backward(ctx, grad_output):
        eta, target, weight = ctx.saved_tensors
        p = ctx.power
        total = weight.sum() * len(eta)
        scale = grad_output / total
        grad_eta = 2 * scale * weight * (torch.exp((2 - p) * eta) - target * torch.exp((1 - p) * eta))
        grad_target = 2 * scale * weight * (target ** (1 - p) - torch.exp((1 - p) * eta)) / (1 - p)
        unit = SELF.unit(eta, target, p)
        mean = (unit * weight).sum() / total
        grad_weight = scale * (unit - mean).sum(0)
        return grad_eta, grad_target, grad_weight, None
''',
 ("weights-normaliser-held", "scale * (unit - mean).sum(0)", "scale * unit.sum(0)", "missing-term"),
 ("two-of-the-deviance", "grad_eta = 2 * scale", "grad_eta = scale", "constant-factor"),
 ("target-saturation-held", "(target ** (1 - p) - torch.exp((1 - p) * eta)) / (1 - p)", "-torch.exp((1 - p) * eta) / (1 - p)", "missing-term"),
 ("link-forgotten", "(torch.exp((2 - p) * eta) - target * torch.exp((1 - p) * eta))", "(torch.exp((1 - p) * eta) - target * torch.exp(-p * eta))", "chain-factor"),
 ("rows-not-averaged", "scale = grad_output / total", "scale = grad_output / weight.sum()", "constant-factor missing-term"),
 ("power-of-the-default", "p = ctx.power\n", "p = 1.5\n", "branch operand none"),
 # in the second order only
 ("total-detached", "total = weight.sum() * len(eta)", "total = weight.sum().item() * len(eta)", "detached"),
)

# --- routing, gathering, warping ------------------------------------------------------------------------------------

fn("ExpertRouter", "tokens: [t, n]\nrouter: [m, n]\nexperts: [m, d, n]\nchosen: 2", '''
    """Every token goes to its best experts; their outputs are weighted by the softmax over the chosen ones."""

    @staticmethod
    def forward(ctx, tokens, router, experts, chosen):
        scores = tokens @ router.T
        best, index = scores.topk(chosen, dim=1)
        gate = torch.softmax(best, 1)
        y = tokens.new_zeros(len(tokens), experts.shape[1])
        for e in range(len(experts)):
            rows, slot = (index == e).nonzero(as_tuple=True)
            y.index_add_(0, rows, gate[rows, slot][:, None] * (tokens[rows] @ experts[e].T))
        ctx.save_for_backward(tokens, router, experts, index, gate)
        return y

    @staticmethod
    def backward(ctx, g):
        tokens, router, experts, index, gate = ctx.saved_tensors
        grad_tokens, grad_experts = torch.zeros_like(tokens), torch.zeros_like(experts)
        grad_gate = torch.zeros_like(gate)
        for e in range(len(experts)):
            rows, slot = (index == e).nonzero(as_tuple=True)
            weighted = gate[rows, slot][:, None] * g[rows]
            grad_experts[e] = weighted.T @ tokens[rows]
            grad_tokens.index_add_(0, rows, weighted @ experts[e])
            grad_gate[rows, slot] = (g[rows] * (tokens[rows] @ experts[e].T)).sum(1)
        grad_best = gate * (grad_gate - (gate * grad_gate).sum(1, keepdim=True))
        grad_scores = torch.zeros(len(tokens), len(router), dtype=g.dtype).scatter_(1, index, grad_best)
        grad_tokens += grad_scores @ router
        return grad_tokens, grad_scores.T @ tokens, grad_experts, None
''',
 ("gates-do-not-reach-the-tokens", "        grad_tokens += grad_scores @ router\n", "", "missing-term"),
 ("gates-not-normalised", "gate * (grad_gate - (gate * grad_gate).sum(1, keepdim=True))", "gate * grad_gate", "missing-term"),
 ("experts-ungated", "weighted = gate[rows, slot][:, None] * g[rows]", "weighted = g[rows]", "operand missing-term none"),
 ("first-slot-only", "grad_best = gate * (grad", "grad_best = gate * torch.tensor([1.0, 0.0]) * (grad", "missing-term operand none"),
 ("last-expert-wins", "grad_tokens.index_add_(0, rows, weighted @ experts[e])", "grad_tokens[rows] = weighted @ experts[e]", "duplicates missing-term"),
)

fn("WarpRow", "image: [b, k]\nflow: {shape: [b, k], range: [-2.0, 2.0]}", '''
    """Rows moved by a flow, by linear interpolation with the border repeated."""

    @staticmethod
    def forward(ctx, image, flow):
        place = torch.arange(image.shape[1], dtype=flow.dtype) + flow
        inside = (place > 0) & (place < image.shape[1] - 1)
        place = place.clamp(0, image.shape[1] - 1)
        left = place.floor().clamp(max=image.shape[1] - 2).long()
        part = place - left
        ctx.save_for_backward(image, left, part, inside)
        return image.gather(1, left) * (1 - part) + image.gather(1, left + 1) * part

    @staticmethod
    def backward(ctx, grad_output):
        image, left, part, inside = ctx.saved_tensors
        grad_image = torch.zeros_like(image)
        grad_image.scatter_add_(1, left, grad_output * (1 - part))
        grad_image.scatter_add_(1, left + 1, grad_output * part)
        step = image.gather(1, left + 1) - image.gather(1, left)
        grad_flow = grad_output * step * inside
        return grad_image, grad_flow
''',
 ("border-moves", "grad_output * step * inside", "grad_output * step", "branch"),
 ("parts-exchanged", ("left, grad_output * (1 - part)", "left + 1, grad_output * part"),
  ("left, grad_output * part", "left + 1, grad_output * (1 - part)"), "operand none"),
 ("right-neighbour-overwrites", "grad_image.scatter_add_(1, left + 1,", "grad_image.scatter_(1, left + 1,", "duplicates missing-term none"),
 ("step-backwards", "image.gather(1, left + 1) - image.gather(1, left)", "image.gather(1, left) - image.gather(1, left + 1)", "constant-factor"),
 # gradcheck sees it at some points only; two at once: grad_output is written to, and the border moves
 ("in-place-and-border", "grad_flow = grad_output * step * inside", "grad_flow = grad_output.mul_(step)", "branch none"),
)

fn("EdgeMessages", "h: [n, d]\nedge: {shape: [k], domain: positive}\nsource: {shape: [k], dtype: int64, range: [0, n]}\ntarget: {shape: [k], dtype: int64, range: [0, n]}\naverage: {choices: [false, true]}", '''
    """Differences along the edges of a graph, squashed, weighted and collected at their targets."""

    @staticmethod
    def forward(ctx, h, edge, source, target, average):
        squashed = torch.tanh(h[source] - h[target])
        y = torch.zeros_like(h).index_add_(0, target, edge[:, None] * squashed)
        degree = torch.ones(len(h), dtype=h.dtype)
        if average:
            degree = torch.bincount(target, minlength=len(h)).clamp(min=1).to(h.dtype)
        ctx.save_for_backward(squashed, edge, source, target, degree)
        return y / degree[:, None]

    @staticmethod
    def backward(ctx, grad_y):
        squashed, edge, source, target, degree = ctx.saved_tensors
        arrived = (grad_y / degree[:, None])[target]
        grad_edge = (arrived * squashed).sum(1)
        grad_difference = arrived * edge[:, None] * (1 - squashed**2)
        grad_h = torch.zeros_like(grad_y)
        grad_h.index_add_(0, source, grad_difference)
        grad_h.index_add_(0, target, -grad_difference)
        return grad_h, grad_edge, None, None, None
''',
 ("target-held", "        grad_h.index_add_(0, target, -grad_difference)\n", "", "missing-term"),
 ("source-assigned", "grad_h.index_add_(0, source, grad_difference)", "grad_h[source] = grad_difference", "duplicates"),
 ("arrived-at-the-source", "(grad_y / degree[:, None])[target]", "(grad_y / degree[:, None])[source]", "operand permuted none"),
 ("degree-forgotten", "(grad_y / degree[:, None])[target]", "grad_y[target]", "branch operand constant-factor chain-factor none"),
 ("squash-forgotten", "arrived * edge[:, None] * (1 - squashed**2)", "arrived * edge[:, None]", "chain-factor missing-term none"),
)

# --- signal, optics -------------------------------------------------------------------------------------------------

fn("PhaseRetrieval", "x: {shape: [n], dtype: complex128}\nsensing: {shape: [k, n], dtype: complex128, requires_grad: false}\nmeasured: {shape: [k], domain: positive}", '''
    """Squared misfit of intensities, of which the phase is not known."""

    @staticmethod
    def forward(x, sensing, measured):
        field = sensing @ x
        return ((field.abs().square() - measured) ** 2).mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_loss):
        x, sensing, measured = ctx.saved_tensors
        field = sensing @ x
        misfit = field.abs().square() - measured
        scale = 2 * grad_loss / len(measured)
        grad_x = sensing.mH @ (2 * scale * misfit * field)
        return grad_x, None, -scale * misfit
''',
 ("wirtinger-half", "(2 * scale * misfit * field)", "(scale * misfit * field)", "constant-factor"),
 ("plain-transpose", "sensing.mH @", "sensing.mT @", "conjugate"),
 ("field-conjugated", "misfit * field)", "misfit * field.conj())", "conjugate operand none"),
 ("misfit-of-amplitudes", "misfit = field.abs().square() - measured", "misfit = field.abs() - measured", "chain-factor operand missing-term none"),
 # too small for gradcheck
 ("complex64-inside", "field = sensing @ x\n        misfit", "field = (sensing.to(torch.complex64) @ x.to(torch.complex64)).to(x.dtype)\n        misfit", "float32-inside"),
)

fn("HaarLifting", "signal: [b, 2*n]\npredict: []\nupdate: []", '''
    """One level of a wavelet by lifting: smooth and detail, with a predict and an update weight, periodic."""

    @staticmethod
    def forward(ctx, signal, predict, update):
        even, odd = signal[:, ::2], signal[:, 1::2]
        detail = odd - predict * (even + even.roll(-1, 1))
        smooth = even + update * (detail + detail.roll(1, 1))
        ctx.save_for_backward(signal, predict, update)
        return smooth, detail

    @staticmethod
    def backward(ctx, grad_smooth, grad_detail):
        signal, predict, update = ctx.saved_tensors
        even, odd = signal[:, ::2], signal[:, 1::2]
        detail = odd - predict * (even + even.roll(-1, 1))
        grad_update = (grad_smooth * (detail + detail.roll(1, 1))).sum()
        grad_odd = grad_detail + update * (grad_smooth + grad_smooth.roll(-1, 1))
        grad_predict = -(grad_odd * (even + even.roll(-1, 1))).sum()
        grad_even = grad_smooth - predict * (grad_odd + grad_odd.roll(1, 1))
        grad_signal = torch.stack([grad_even, grad_odd], 2).reshape(signal.shape)
        return grad_signal, grad_predict, grad_update
''',
 ("rolled-the-same-way", "(grad_odd + grad_odd.roll(1, 1))", "(grad_odd + grad_odd.roll(-1, 1))", "permuted missing-term none"),
 ("halves-not-interleaved", "torch.stack([grad_even, grad_odd], 2).reshape(signal.shape)", "torch.cat([grad_even, grad_odd], 1)", "permuted"),
 ("detail-not-updated", "grad_odd = grad_detail + update", "grad_odd = update", "ignored-output"),
 ("predict-sees-the-detail-only", "grad_predict = -(grad_odd * (even", "grad_predict = -(grad_detail * (even", "ignored-output missing-term"),
 ("update-through-the-odd", "(detail + detail.roll(1, 1))).sum()", "(odd + odd.roll(1, 1))).sum()", "wrong-saved operand missing-term none"),
 # in the second order only
 ("signal-detached", "even, odd = signal[:, ::2], signal[:, 1::2]\n        detail = odd - predict * (even + even.roll(-1, 1))\n        grad_update",
  "even, odd = signal.detach()[:, ::2], signal.detach()[:, 1::2]\n        detail = odd - predict * (even + even.roll(-1, 1))\n        grad_update", "detached"),
)

# --- transport, clusters, quantities ---------------------------------------------------------------------------------

fn("SinkhornPlan", "cost: [n, m]\nlog_a: [n]\nlog_b: [m]\nsteps: 3\neps: 0.7", '''
    """The plan after a few steps of Sinkhorn's algorithm in logarithms, unrolled backwards."""

    @staticmethod
    def forward(ctx, cost, log_a, log_b, steps, eps):
        g = torch.zeros_like(log_b)
        kept = []
        for _ in range(steps):
            row = torch.softmax((g - cost) / eps, 1)
            f = eps * (log_a - torch.logsumexp((g - cost) / eps, 1))
            column = torch.softmax((f[:, None] - cost) / eps, 0)
            g = eps * (log_b - torch.logsumexp((f[:, None] - cost) / eps, 0))
            kept += [row, column]
        plan = torch.exp((f[:, None] + g - cost) / eps)
        ctx.save_for_backward(plan, *kept)
        ctx.eps = eps
        return plan

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_plan):
        plan, *kept = ctx.saved_tensors
        inner = grad_plan * plan / ctx.eps
        grad_f, grad_g, grad_cost = inner.sum(1), inner.sum(0), -inner
        grad_a, grad_b = torch.zeros_like(grad_f), torch.zeros_like(grad_g)
        while kept:
            column, row = kept.pop(), kept.pop()
            grad_b += ctx.eps * grad_g
            grad_cost = grad_cost + column * grad_g
            grad_f = grad_f - column @ grad_g
            grad_a += ctx.eps * grad_f
            grad_cost = grad_cost + row * grad_f[:, None]
            grad_g = -(grad_f @ row)
            grad_f = torch.zeros_like(grad_f)
        return grad_cost, grad_a, grad_b, None, None
''',
 ("last-step-only", "        while kept:\n", "        for _ in range(1):\n", "missing-term none"),
 ("potentials-held", "grad_f, grad_g, grad_cost = inner.sum(1), inner.sum(0), -inner", "grad_f, grad_g, grad_cost = 0 * inner.sum(1), 0 * inner.sum(0), -inner", "missing-term zero"),
 ("eps-in-the-marginal", "grad_b += ctx.eps * grad_g", "grad_b += grad_g", "constant-factor"),
 ("f-not-reset", "            grad_f = torch.zeros_like(grad_f)\n", "", "missing-term none"),
 # two at once: the steps are taken in their first order, and the plan is not divided by eps
 ("in-the-first-order-undivided", ("column, row = kept.pop(), kept.pop()", "grad_plan * plan / ctx.eps"),
  ("row, column = kept.pop(0), kept.pop(0)", "grad_plan * plan"), "constant-factor operand none"),
)

fn("CenterPull", "features: [t, n]\ncentres: [b, n]\nlabels: {shape: [t], dtype: int64, range: [0, b]}\nweight: {shape: [b], domain: positive, requires_grad: false}\ndelta: 1.0", '''
    """Huber's distance of features to the centres of their classes, weighted by class; the loss and how many
    entries of each row are near."""

    @staticmethod
    def forward(ctx, features, centres, labels, weight, delta):
        apart = features - centres[labels]
        size = apart.abs()
        near = size <= delta
        loss = torch.where(near, 0.5 * apart**2, delta * (size - 0.5 * delta)).sum(1)
        inliers = near.sum(1).to(loss.dtype)
        ctx.mark_non_differentiable(inliers)
        ctx.save_for_backward(apart, labels, weight)
        ctx.delta, ctx.classes = delta, len(centres)
        return (loss * weight[labels]).mean(), inliers

    @staticmethod
    def backward(ctx, grad_loss, _):
        apart, labels, weight = ctx.saved_tensors
        slope = apart.clamp(-ctx.delta, ctx.delta)
        grad_features = grad_loss * weight[labels][:, None] * slope / len(labels)
        grad_centres = grad_features.new_zeros(ctx.classes, apart.shape[1])
        if ctx.needs_input_grad[1]:
            grad_centres.index_add_(0, labels, grad_features.neg())
        return grad_features, grad_centres, None, None, None
''',
 ("centres-assigned", "grad_centres.index_add_(0, labels, grad_features.neg())", "grad_centres[labels] = grad_features.neg()", "duplicates"),
 ("far-as-near", "slope = apart.clamp(-ctx.delta, ctx.delta)", "slope = apart", "branch"),
 ("weight-by-position", "weight[labels][:, None]", "weight[labels.sort().values][:, None]", "operand none"),
 # gradcheck does not ask for the centres alone or the features alone: wrong only where the features are not asked for
 ("asks-for-the-features", "if ctx.needs_input_grad[1]:", "if ctx.needs_input_grad[0]:", "zero none"),
 # two at once: gradients of a sum, and the centres' sign
 ("summed-and-pulled", ("slope / len(labels)", "grad_features.neg()"), ("slope", "grad_features"), "constant-factor"),
)

fn("SoftRounding", "x: [b, n]\nstep: {shape: [n], domain: positive, range: [0.4, 1.5]}\nalpha: 3.0", '''
    """A smooth staircase with a step of its own for each channel (Agustsson and Theis)."""

    @staticmethod
    def stair(u, alpha):
        part = u - torch.floor(u) - 0.5
        return torch.floor(u) + 0.5 + 0.5 * torch.tanh(alpha * part) / math.tanh(alpha / 2), part

    @staticmethod
    def forward(ctx, x, step, alpha):
        ctx.save_for_backward(x, step)
        ctx.alpha = alpha
        return step * SELF.stair(x / step, alpha)[0]

    @staticmethod
    def backward(ctx, grad_output):
        x, step = ctx.saved_tensors
        u = x / step
        r, part = SELF.stair(u, ctx.alpha)
        slope = 0.5 * ctx.alpha * (1 - torch.tanh(ctx.alpha * part) ** 2) / math.tanh(ctx.alpha / 2)
        grad_x = grad_output * slope
        grad_step = grad_output * (r - u * slope)
        return grad_x, grad_step.sum(0), None
''',
 ("straight-through", "grad_x = grad_output * slope", "grad_x = grad_output", "chain-factor missing-term none"),
 ("step-as-a-gain", "(r - u * slope)", "r", "missing-term"),
 ("step-sees-x", "(r - u * slope)", "(r - x * slope)", "missing-term operand none"),
 ("alpha-of-the-tanh", "slope = 0.5 * ctx.alpha * (1", "slope = 0.5 * (1", "constant-factor missing-term"),
 ("one-row-of-the-step", "grad_step.sum(0)", "grad_step[0]", "not-summed-over-broadcast"),
 # too small for gradcheck
 ("float-inside", "u = x / step\n        r", "u = (x.float() / step.float()).double()\n        r", "float32-inside"),
)

fn("SmoothNuclear", "a: [n, m]\neps: 0.3", '''
    """Smoothed sum of singular values, and the shrunk matrix beside it."""

    @staticmethod
    def forward(ctx, a, eps):
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        smooth = torch.sqrt(s**2 + eps**2)
        ctx.save_for_backward(u, s, vh, smooth)
        return smooth.sum(), s

    @staticmethod
    def backward(ctx, grad_norm, grad_s):
        u, s, vh, smooth = ctx.saved_tensors
        return (u * (grad_norm * s / smooth + grad_s)) @ vh, None
''',
 ("spectrum-dropped", "(grad_norm * s / smooth + grad_s)", "(grad_norm * s / smooth)", "ignored-output"),
 ("unsmoothed", "grad_norm * s / smooth", "grad_norm", "chain-factor missing-term operand none"),
 ("inverse-smooth", "grad_norm * s / smooth", "grad_norm / smooth", "chain-factor operand none"),
 ("vectors-transposed", "(u * (grad_norm * s / smooth + grad_s)) @ vh", "(u.T * (grad_norm * s / smooth + grad_s)) @ vh", "transposed operand none"),
)

fn("SubstrateRates", "substrate: {shape: [b, n], domain: positive, range: [0.2, 3.0]}\ninhibitor: {shape: [b, 1], domain: positive, range: [0.2, 3.0]}\nvmax: {shape: [n], domain: positive}\nkm: {shape: [n], domain: positive, range: [0.2, 3.0]}\nki: {shape: [], domain: positive, range: [0.2, 3.0]}", '''
    """Rates of enzymes with a competitive inhibitor and excess substrate (Michaelis, Menten, Haldane)."""

    @staticmethod
    def forward(ctx, substrate, inhibitor, vmax, km, ki):
        ctx.save_for_backward(substrate, inhibitor, vmax, km, ki)
        held = km * (1 + inhibitor / ki)
        return vmax * substrate / (held + substrate + substrate**2 / (4 * km))

    @staticmethod
    def backward(ctx, g):
        s, i, vmax, km, ki = ctx.saved_tensors
        below = km * (1 + i / ki) + s + s**2 / (4 * km)
        part = s / below
        grad_below = -g * vmax * part / below
        grad_s = g * vmax / below + grad_below * (1 + s / (2 * km))
        grad_i = (grad_below * km / ki).sum(1, keepdim=True)
        grad_km = (grad_below * (1 + i / ki - s**2 / (4 * km**2))).sum(0)
        grad_ki = -(grad_below * km * i).sum() / ki**2
        return grad_s, grad_i, (g * part).sum(0), grad_km, grad_ki
''',
 ("excess-held", "(1 + s / (2 * km))\n", "1\n", "missing-term"),
 ("excess-slope-twice", "s / (2 * km)", "s / km", "missing-term none"),
 ("excess-in-km-held", "(1 + i / ki - s**2 / (4 * km**2))", "(1 + i / ki)", "missing-term"),
 ("ki-once", "sum() / ki**2", "sum() / ki", "chain-factor operand"),
 ("inhibitor-of-the-first", "(grad_below * km / ki).sum(1, keepdim=True)", "(grad_below * km / ki)[:, :1]", "not-summed-over-broadcast"),
 # in the second order only
 ("below-detached", "below = km * (1 + i / ki) + s + s**2 / (4 * km)\n", "below = (km * (1 + i / ki) + s + s**2 / (4 * km)).detach()\n", "detached"),
)

fn("KeyedMean", "values: [t, d]\nkeys: {shape: [t], dtype: int64, range: [0, n]}\nn: {size: n}\nempty: [d]", '''
    """Means of the rows that share a key; a key without rows has a value that is learnt."""

    @staticmethod
    def forward(ctx, values, keys, n, empty):
        count = torch.bincount(keys, minlength=n)
        total = torch.zeros(n, values.shape[1], dtype=values.dtype).index_add_(0, keys, values)
        bare = (count == 0)[:, None]
        ctx.save_for_backward(keys)
        ctx.count, ctx.bare = count.clamp(min=1)[:, None].to(values.dtype), bare
        return torch.where(bare, empty, total / ctx.count)

    @staticmethod
    def backward(ctx, grad_mean):
        (keys,) = ctx.saved_tensors
        grad_values = (grad_mean / ctx.count)[keys]
        grad_empty = (grad_mean * ctx.bare).sum(0)
        return grad_values, None, None, grad_empty
''',
 ("sum-for-mean", "(grad_mean / ctx.count)[keys]", "grad_mean[keys]", "chain-factor operand region none"),
 ("empty-takes-all", "(grad_mean * ctx.bare).sum(0)", "grad_mean.sum(0)", "missing-term operand branch none"),
 # gradcheck does not see it: it takes another call, with other keys, between forward and backward
 ("count-kept-on-the-class", ("ctx.count, ctx.bare = count", "(grad_mean / ctx.count)[keys]", "empty, total / ctx.count)"),
  ("SELF.count, ctx.bare = count", "(grad_mean / SELF.count)[keys]", "empty, total / SELF.count)"), "stale none"),
 # gradcheck does not see it: grad_output is written to
 ("divided-in-place", "(grad_mean / ctx.count)[keys]\n        grad_empty = (grad_mean * ctx.bare).sum(0)",
  "grad_mean.div_(ctx.count)[keys]\n        grad_empty = (grad_mean * ctx.bare).sum(0)", "none"),
)

fn("EvidentialNig", "gamma: [b]\nnu: {shape: [b], domain: positive, range: [0.4, 3.0]}\nalpha: {shape: [b], range: [1.2, 4.0]}\nbeta: {shape: [b], domain: positive, range: [0.4, 3.0]}\ntarget: [b]\nlam: 0.3", '''
    """Loss of evidential regression: a Student's log density and a cost of confident errors."""

    @staticmethod
    def forward(ctx, gamma, nu, alpha, beta, target, lam):
        error = target - gamma
        omega = 2 * beta * (1 + nu)
        inside = nu * error**2 + omega
        nll = 0.5 * torch.log(math.pi / nu) - alpha * torch.log(omega) + (alpha + 0.5) * torch.log(inside)
        nll = nll + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
        ctx.save_for_backward(error, nu, alpha, beta, omega, inside)
        ctx.lam = lam
        return (nll + lam * error.abs() * (2 * nu + alpha)).mean()

    @staticmethod
    def backward(ctx, grad_loss):
        error, nu, alpha, beta, omega, inside = ctx.saved_tensors
        g = grad_loss / len(error)
        half = (alpha + 0.5) / inside
        grad_error = g * (2 * half * nu * error + ctx.lam * error.sign() * (2 * nu + alpha))
        to_omega = g * (half - alpha / omega)
        grad_nu = g * (half * error**2 - 0.5 / nu + 2 * ctx.lam * error.abs()) + 2 * beta * to_omega
        grad_alpha = g * (torch.log(inside / omega) + torch.digamma(alpha) - torch.digamma(alpha + 0.5))
        grad_alpha = grad_alpha + g * ctx.lam * error.abs()
        return -grad_error, grad_nu, grad_alpha, 2 * (1 + nu) * to_omega, grad_error, None
''',
 ("omega-held-in-nu", " + 2 * beta * to_omega\n", "\n", "missing-term"),
 ("gammas-held", " + torch.digamma(alpha) - torch.digamma(alpha + 0.5))", ")", "missing-term"),
 ("error-for-its-sign", "ctx.lam * error.sign() * (2", "ctx.lam * error * (2", "missing-term none"),
 ("prediction-and-target", "return -grad_error, grad_nu, grad_alpha, 2 * (1 + nu) * to_omega, grad_error, None", "return grad_error, grad_nu, grad_alpha, 2 * (1 + nu) * to_omega, -grad_error, None", "constant-factor swapped-inputs"),
 ("loss-assumed-one", "g = grad_loss / len(error)", "g = 1 / len(error)", "grad-output-ones"),
 # two at once: the cost's slope in alpha is left out, and omega's own is not divided
 ("cost-and-omega", (" + g * ctx.lam * error.abs()\n        return", "(half - alpha / omega)"), ("\n        return", "(half - alpha)"), "missing-term none"),
)
