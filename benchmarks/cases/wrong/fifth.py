"""Fifth set, held out: written by another hand, which knew neither the hypotheses nor the other sets' Functions.

An entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text, what stands in its place,
causes). The causes were written down before the first run: a word alone is the cause that is right, one with `~`
before it is coarser but true, `none` says that there may be no hypothesis for it, and one with `=` was admitted
afterwards, because it is literally true at these numbers. `SELF` stands for the name of the class; what is above
`@@` is written above the class. One mistake was written anew after the run, since its backward raised
(`Leapfrog`, place-saved).
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, t: 7, d: 3"
FUNCTIONS = []
TWICE_DIFFERENTIABLE = (
    "Snake", "Charbonnier", "ArdKernel", "LinearSoftplus", "LogCosh", "SoftGravity", "UnitRows", "Leapfrog"
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


# --- activations -------------------------------------------------------------------------------------------------

fn("Snake", "x: [b, n]\na: {shape: [n], domain: positive}", '''
    """x + sin(a x)^2 / a with a frequency for each channel."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x + torch.sin(a * x) ** 2 / a

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        double = torch.sin(2 * a * x)
        grad_x = grad_output * (1 + double)
        grad_a = grad_output * (x * double / a - torch.sin(a * x) ** 2 / a**2)
        return grad_x, grad_a.sum(0)
''',
 ("no-identity", "(1 + double)", "double", "missing-term"),
 ("no-quotient-rule", " - torch.sin(a * x) ** 2 / a**2", "", "missing-term"),
 ("mean-over-batch", "grad_a.sum(0)", "grad_a.mean(0)", "constant-factor"),
 # second order: the slope is cut from the graph
 ("slope-detached", "torch.sin(2 * a * x)", "torch.sin(2 * a.detach() * x.detach())", "detached"),
 # second order: an intermediate is kept and used as if it were a constant
 ("sine-saved", ("ctx.save_for_backward(x, a)\n", "x, a = ctx.saved_tensors\n        double = torch.sin(2 * a * x)"),
  ("ctx.save_for_backward(x, a, torch.sin(2 * a * x))\n", "x, a, double = ctx.saved_tensors"),
  "detached saved-intermediate ~missing-term"),
)

fn("HardSwishBias", "x: {shape: [b, n], range: [-5, 5]}\nbias: [n]", '''
    @staticmethod
    def forward(ctx, x, bias):
        z = x + bias
        ctx.save_for_backward(z)
        return z * torch.clamp(z + 3, 0, 6) / 6

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        inner = (2 * z + 3) / 6
        slope = torch.where(z <= -3, torch.zeros_like(z), torch.where(z >= 3, torch.ones_like(z), inner))
        grad_z = grad_output * slope
        return grad_z, grad_z.sum(0)
''',
 ("threshold-at-one", "z >= 3,", "z >= 1,", "branch"),
 ("half-of-product-rule", "(2 * z + 3) / 6", "(z + 3) / 6", "missing-term branch"),
 ("bias-not-saved", "ctx.save_for_backward(z)", "ctx.save_for_backward(x)", "wrong-saved operand none"),
 ("clamped-end-zero", "torch.ones_like(z), inner", "torch.zeros_like(z), inner", "branch"),
)

fn("LinearSoftplus", "x: [b, n]\nweight: [m, n]\nbias: [m]", '''
    """softplus(2 (x W^T + b)) / 2, fused; the pre-activation is computed anew in backward."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        z = torch.addmm(bias, x, weight.t())
        return torch.nn.functional.softplus(2 * z) / 2

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, bias = ctx.saved_tensors
        slope = torch.sigmoid(2 * (x @ weight.t() + bias))
        grad_z = grad_output * slope
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_z @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = grad_z.t() @ x
        if ctx.needs_input_grad[2]:
            grad_bias = grad_z.sum(0)
        return grad_x, grad_weight, grad_bias
''',
 ("beta-not-in-slope", "torch.sigmoid(2 * (x @ weight.t() + bias))", "torch.sigmoid(x @ weight.t() + bias)", "operand wrong-saved none"),
 ("bias-forgotten-in-recompute", "(x @ weight.t() + bias)", "(x @ weight.t())", "operand missing-term none =chain-factor"),
 ("wrong-input-asked", "if ctx.needs_input_grad[2]", "if ctx.needs_input_grad[1]", "none needs-input-grad"),
 # second order: sigma kept by forward
 ("slope-saved", ("ctx.save_for_backward(x, weight, bias)\n        z = torch.addmm(bias, x, weight.t())",
                  "x, weight, bias = ctx.saved_tensors\n        slope = torch.sigmoid(2 * (x @ weight.t() + bias))"),
  ("z = torch.addmm(bias, x, weight.t())\n        ctx.save_for_backward(x, weight, torch.sigmoid(2 * z))",
   "x, weight, slope = ctx.saved_tensors"), "detached saved-intermediate"),
 # second order
 ("recompute-under-no-grad", "slope = torch.sigmoid(2 * (x @ weight.t() + bias))",
  "with torch.no_grad():\n            slope = torch.sigmoid(2 * (x @ weight.t() + bias))", "detached"),
)

# --- normalisations ----------------------------------------------------------------------------------------------

fn("WeightedStandardize", "x: [b, n]\nw: {shape: [b], domain: positive}", '''
    """Columns standardised by a weighted mean and variance."""

    @staticmethod
    def forward(ctx, x, w):
        total = w.sum()
        p = (w / total)[:, None]
        mean = (p * x).sum(0)
        c = x - mean
        r = torch.rsqrt((p * c * c).sum(0) + 1e-3)
        ctx.save_for_backward(x, c, p, r, total)
        return c * r

    @staticmethod
    def backward(ctx, g):
        x, c, p, r, total = ctx.saved_tensors
        dvar = -0.5 * (g * c).sum(0) * r**3
        dc = g * r + 2 * p * c * dvar
        dmean = -dc.sum(0)
        dx = dc + p * dmean
        dp = (c * c * dvar + x * dmean).sum(1)
        dw = (dp - (dp * p[:, 0]).sum()) / total
        return dx, dw
''',
 ("mean-unweighted", "dx = dc + p * dmean", "dx = dc + dmean / x.shape[0]", "operand missing-term none =chain-factor"),
 ("variance-constant", " + 2 * p * c * dvar", "", "missing-term"),
 ("weights-not-renormalised", "dw = (dp - (dp * p[:, 0]).sum()) / total", "dw = dp / total", "missing-term"),
 ("square-of-root", "r**3", "r**2", "none chain-factor missing-term"),
 ("mean-constant", "dx = dc + p * dmean", "dx = dc", "missing-term"),
)

fn("LocalResponse", "x: [b, k]", '''
    """Local response normalisation across three neighbouring channels."""

    @staticmethod
    def window(v):
        return torch.nn.functional.pad(v, (1, 1)).unfold(1, 3, 1).sum(-1)

    @staticmethod
    def forward(ctx, x):
        s = 1 + 0.5 * SELF.window(x * x)
        ctx.save_for_backward(x, s)
        return x * s**-0.75

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        across = SELF.window(g * x * s**-1.75)
        return g * s**-0.75 - 0.75 * x * across
''',
 ("own-channel-only", "SELF.window(g * x * s**-1.75)", "g * x * s**-1.75", "diagonal-only missing-term"),
 ("exponent-forgotten", "- 0.75 * x * across", "- x * across", "missing-term none"),
 ("exponent-not-lowered", "s**-1.75", "s**-0.75", "none missing-term =chain-factor"),
 ("sign-of-second", "- 0.75 * x", "+ 0.75 * x", "missing-term"),
)

fn("GroupRms", "x: [b, 2*n]\nweight: [2*n]", '''
    """Each half of the features divided by its own root mean square."""

    @staticmethod
    def forward(ctx, x, weight):
        grouped = x.view(x.shape[0], 2, -1)
        r = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + 1e-2)
        normed = (grouped * r).view_as(x)
        ctx.save_for_backward(normed, r, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, grad_output):
        normed, r, weight = ctx.saved_tensors
        shape = (normed.shape[0], 2, -1)
        inner = (grad_output * weight).view(shape)
        hat = normed.view(shape)
        projection = (inner * hat).mean(-1, keepdim=True)
        grad_x = r * (inner - hat * projection)
        grad_weight = (grad_output * normed).sum(0)
        return grad_x.reshape(normed.shape), grad_weight
''',
 ("mean-over-both-groups", "(inner * hat).mean(-1, keepdim=True)", "(inner * hat).mean((-2, -1), keepdim=True)", "wrong-reduction-dim none missing-term"),
 ("sum-in-projection", "(inner * hat).mean(-1, keepdim=True)", "(inner * hat).sum(-1, keepdim=True)", "missing-term none"),
 ("weight-forgotten", "inner = (grad_output * weight)", "inner = grad_output", "operand chain-factor"),
 ("weight-grad-of-raw", "(grad_output * normed).sum(0)", "(grad_output * normed / r.mean()).sum(0)", "none =chain-factor"),
)

fn("UnitRows", "x: [b, n]", '''
    """x / |x|, row by row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm(dim=1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=1, keepdim=True)
        y = x / norm
        return (grad_output - y * (y * grad_output).sum(1, keepdim=True)) / norm
''',
 # second order: an intermediate kept by forward
 ("norm-saved", ("ctx.save_for_backward(x)\n        return x / x.norm(dim=1, keepdim=True)",
                 "(x,) = ctx.saved_tensors\n        norm = x.norm(dim=1, keepdim=True)"),
  ("norm = x.norm(dim=1, keepdim=True)\n        ctx.save_for_backward(x, norm)\n        return x / norm",
   "x, norm = ctx.saved_tensors"), "detached saved-intermediate"),
 # second order
 ("direction-data", "y = x / norm", "y = (x / norm).data", "detached"),
 ("sum-over-batch", ".sum(1, keepdim=True)) / norm", ".sum(0, keepdim=True)) / norm", "wrong-reduction-dim"),
 ("squared-norm", ".sum(1, keepdim=True)) / norm", ".sum(1, keepdim=True)) / norm**2", "chain-factor"),
)

# --- losses ------------------------------------------------------------------------------------------------------

fn("Charbonnier", "pred: [b, m]\ntarget: [b, m]", '''
    @staticmethod
    def forward(ctx, pred, target):
        ctx.save_for_backward(pred, target)
        return torch.sqrt((pred - target) ** 2 + 0.25).mean()

    @staticmethod
    def backward(ctx, grad_output):
        pred, target = ctx.saved_tensors
        diff = pred - target
        grad = grad_output * diff / torch.sqrt(diff**2 + 0.25) / pred.numel()
        return grad, -grad
''',
 ("mean-over-batch-only", "/ pred.numel()", "/ pred.shape[0]", "constant-factor"),
 ("target-sign", "return grad, -grad", "return grad, grad", "constant-factor"),
 ("epsilon-not-squared", "diff**2 + 0.25", "diff**2 + 0.5", "none operand"),
 ("incoming-ignored", "grad_output * diff", "diff", "grad-output-ones"),
 # second order
 ("root-saved", ("ctx.save_for_backward(pred, target)\n        return torch.sqrt((pred - target) ** 2 + 0.25).mean()",
                 "pred, target = ctx.saved_tensors", "/ torch.sqrt(diff**2 + 0.25) /"),
  ("root = torch.sqrt((pred - target) ** 2 + 0.25)\n        ctx.save_for_backward(pred, target, root)\n        return root.mean()",
   "pred, target, root = ctx.saved_tensors", "/ root /"), "detached saved-intermediate"),
)

fn("SmoothedBce", "logits: [b, m]\ntarget: {shape: [b, m], range: [0, 1], requires_grad: false}\npos_weight: {shape: [m], domain: positive}", '''
    """Binary cross-entropy with smoothed labels and a weight for positives, mean over everything."""

    @staticmethod
    def forward(ctx, logits, target, pos_weight):
        smooth = target * 0.8 + 0.1
        ctx.save_for_backward(logits, smooth, pos_weight)
        scale = 1 + (pos_weight - 1) * smooth
        loss = (1 - smooth) * logits + scale * torch.nn.functional.softplus(-logits)
        return loss.mean()

    @staticmethod
    def backward(ctx, g):
        logits, smooth, pos_weight = ctx.saved_tensors
        scale = 1 + (pos_weight - 1) * smooth
        g = g / logits.numel()
        grad_logits = g * ((1 - smooth) - scale * torch.sigmoid(-logits))
        grad_weight = (g * smooth * torch.nn.functional.softplus(-logits)).sum(0)
        return grad_logits, None, grad_weight
''',
 ("smoothing-forgotten", "ctx.save_for_backward(logits, smooth, pos_weight)", "ctx.save_for_backward(logits, target, pos_weight)", "wrong-saved operand none"),
 ("positives-unweighted", "scale * torch.sigmoid(-logits)", "torch.sigmoid(-logits)", "operand missing-term"),
 ("mean-over-classes", "g = g / logits.numel()", "g = g / logits.shape[1]", "constant-factor"),
 ("weight-not-reduced", "softplus(-logits)).sum(0)", "softplus(-logits))[0]", "not-summed-over-broadcast"),
)

fn("PlackettLuce", "scores: [b, k]", '''
    """Negative log-likelihood of the given order: sum_i logsumexp(s[i:]) - s_i."""

    @staticmethod
    def forward(ctx, scores):
        tails = torch.logcumsumexp(scores.flip(1), 1).flip(1)
        ctx.save_for_backward(scores, tails)
        return (tails - scores).sum(1)

    @staticmethod
    def backward(ctx, g):
        scores, tails = ctx.saved_tensors
        stages = torch.cumsum(torch.exp(-tails), 1)
        grad = torch.exp(scores) * stages - 1
        return g[:, None] * grad
''',
 ("own-stage-only", "torch.cumsum(torch.exp(-tails), 1)", "torch.exp(-tails)", "missing-term diagonal-only"),
 ("later-stages", "torch.cumsum(torch.exp(-tails), 1)", "torch.cumsum(torch.exp(-tails).flip(1), 1).flip(1)", "transposed permuted none"),
 ("chosen-not-subtracted", " * stages - 1", " * stages", "missing-term"),
 ("first-tail-everywhere", "torch.cumsum(torch.exp(-tails), 1)", "torch.exp(-tails[:, :1])", "none region missing-term"),
)

# --- recursions --------------------------------------------------------------------------------------------------

fn("ChainPartition", "emit: [t, n]\ntrans: [n, n]", '''
    """log Z of a linear chain, by the forward and the backward recursion."""

    @staticmethod
    def forward(ctx, emit, trans):
        alphas = [emit[0]]
        for e in emit[1:]:
            alphas.append(e + torch.logsumexp(alphas[-1][:, None] + trans, 0))
        log_z = torch.logsumexp(alphas[-1], 0)
        ctx.save_for_backward(emit, trans, torch.stack(alphas), log_z)
        return log_z

    @staticmethod
    def backward(ctx, g):
        emit, trans, alphas, log_z = ctx.saved_tensors
        steps = emit.shape[0]
        beta = torch.zeros_like(emit[0])
        grad_emit, grad_trans = torch.zeros_like(emit), torch.zeros_like(trans)
        for s in range(steps - 1, 0, -1):
            grad_emit[s] = torch.exp(alphas[s] + beta - log_z)
            pair = alphas[s - 1][:, None] + trans + emit[s] + beta
            grad_trans += torch.exp(pair - log_z)
            beta = torch.logsumexp(trans + emit[s] + beta, 1)
        grad_emit[0] = torch.exp(alphas[0] + beta - log_z)
        return g * grad_emit, g * grad_trans
''',
 ("pairs-assigned", "grad_trans += torch.exp(pair - log_z)", "grad_trans = torch.exp(pair - log_z)", "none missing-term not-summed-over-broadcast =duplicates"),
 ("first-left-out", "        grad_emit[0] = torch.exp(alphas[0] + beta - log_z)\n", "", "region"),
 ("emission-not-in-beta", "torch.logsumexp(trans + emit[s] + beta, 1)", "torch.logsumexp(trans + beta, 1)", "none missing-term operand"),
 ("transition-transposed", "torch.logsumexp(trans + emit[s] + beta, 1)", "torch.logsumexp(trans.t() + emit[s] + beta, 1)", "none transposed operand"),
)

fn("SoftDtw", "cost: {shape: [n, m], range: [0.2, 2]}", '''
    """Soft dynamic time warping (gamma 0.5) of a matrix of costs."""

    @staticmethod
    def forward(ctx, cost):
        rows, cols = cost.shape
        r = cost.new_full((rows + 1, cols + 1), math.inf)
        r[0, 0] = 0
        for i in range(rows):
            for j in range(cols):
                before = torch.stack((r[i, j], r[i, j + 1], r[i + 1, j]))
                r[i + 1, j + 1] = cost[i, j] - 0.5 * torch.logsumexp(-before / 0.5, 0)
        ctx.save_for_backward(cost, r)
        return r[-1, -1].clone()

    @staticmethod
    def backward(ctx, g):
        cost, r = ctx.saved_tensors
        rows, cols = cost.shape
        e = torch.zeros_like(cost)
        e[-1, -1] = 1
        for i in range(rows - 1, -1, -1):
            for j in range(cols - 1, -1, -1):
                for di, dj in ((1, 0), (0, 1), (1, 1)):
                    if i + di < rows and j + dj < cols:
                        after = r[i + di + 1, j + dj + 1] - cost[i + di, j + dj] - r[i + 1, j + 1]
                        e[i, j] += e[i + di, j + dj] * torch.exp(after / 0.5)
        return g * e
''',
 ("no-diagonal-move", "((1, 0), (0, 1), (1, 1))", "((1, 0), (0, 1))", "none missing-term"),
 ("gamma-hard-coded", "torch.exp(after / 0.5)", "torch.exp(after)", "none operand"),
 ("cost-of-own-cell", "- cost[i + di, j + dj] -", "- cost[i, j] -", "none operand"),
 ("end-not-seeded-by-g", "return g * e", "return e", "grad-output-ones"),
)

fn("Biquad", "x: [b, t]\nc: {shape: [4], range: [-0.6, 0.6]}", '''
    """y[t] = c0 x[t] + c1 x[t-1] - c2 y[t-1] - c3 y[t-2]."""

    @staticmethod
    def forward(ctx, x, c):
        y = []
        zero = torch.zeros_like(x[:, 0])
        for s in range(x.shape[1]):
            x1 = x[:, s - 1] if s > 0 else zero
            y1 = y[s - 1] if s > 0 else zero
            y2 = y[s - 2] if s > 1 else zero
            y.append(c[0] * x[:, s] + c[1] * x1 - c[2] * y1 - c[3] * y2)
        y = torch.stack(y, 1)
        ctx.save_for_backward(x, y, c)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y, c = ctx.saved_tensors
        v = torch.zeros_like(g)
        length = g.shape[1]
        for s in range(length - 1, -1, -1):
            v[:, s] = g[:, s]
            if s + 1 < length:
                v[:, s] -= c[2] * v[:, s + 1]
            if s + 2 < length:
                v[:, s] -= c[3] * v[:, s + 2]
        grad_x = c[0] * v
        grad_x[:, :-1] += c[1] * v[:, 1:]
        grad_c = torch.stack((
            (v * x).sum(),
            (v[:, 1:] * x[:, :-1]).sum(),
            -(v[:, 1:] * y[:, :-1]).sum(),
            -(v[:, 2:] * y[:, :-2]).sum(),
        ))
        return grad_x, grad_c
''',
 ("second-tap-forgotten", "v[:, s] -= c[3] * v[:, s + 2]", "pass", "missing-term operand none"),
 ("feedback-sign", "-(v[:, 1:] * y[:, :-1]).sum()", "(v[:, 1:] * y[:, :-1]).sum()", "region"),
 ("input-tap-earlier", "grad_x[:, :-1] += c[1] * v[:, 1:]", "grad_x[:, 1:] += c[1] * v[:, :-1]", "none permuted transposed missing-term"),
 ("g-instead-of-state", "(v * x).sum(),", "(g * x).sum(),", "none region missing-term"),
)

fn("CumulativeMean", "x: [b, t]", '''
    @staticmethod
    def forward(ctx, x):
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        ctx.save_for_backward(count)
        return x.cumsum(1) / count

    @staticmethod
    def backward(ctx, g):
        (count,) = ctx.saved_tensors
        return (g / count).flip(1).cumsum(1).flip(1)
''',
 ("not-reversed", "(g / count).flip(1).cumsum(1).flip(1)", "(g / count).cumsum(1)", "permuted transposed none"),
 ("divided-afterwards", "(g / count).flip(1).cumsum(1).flip(1)", "g.flip(1).cumsum(1).flip(1) / count", "none transposed operand chain-factor"),
 ("count-of-all", "(g / count)", "(g / count[-1])", "none operand chain-factor"),
)

fn("Elman", "x: [t, n]\nw: [d, n]\nu: [d, d]\nb: [d]", '''
    """A tanh recurrence over a sequence, with backpropagation through time."""

    @staticmethod
    def forward(ctx, x, w, u, b):
        h = x.new_zeros(u.shape[0])
        states = []
        for step in x:
            h = torch.tanh(w @ step + u @ h + b)
            states.append(h)
        states = torch.stack(states)
        ctx.save_for_backward(x, w, u, states)
        return states

    @staticmethod
    def backward(ctx, g):
        x, w, u, states = ctx.saved_tensors
        dx, dw, du = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(u)
        db = x.new_zeros(u.shape[0])
        carry = torch.zeros_like(db)
        for s in range(x.shape[0] - 1, -1, -1):
            a = (g[s] + carry) * (1 - states[s] ** 2)
            dx[s] = w.t() @ a
            dw += torch.outer(a, x[s])
            if s > 0:
                du += torch.outer(a, states[s - 1])
            db += a
            carry = u.t() @ a
        return dx, dw, du, db
''',
 ("recurrent-not-transposed", "carry = u.t() @ a", "carry = u @ a", "transposed operand"),
 ("bias-of-first-step-only", "db += a", "db = a", "none missing-term not-summed-over-broadcast =duplicates"),
 ("same-state", "torch.outer(a, states[s - 1])", "torch.outer(a, states[s])", "none operand"),
 ("truncated", "a = (g[s] + carry) *", "a = g[s] *", "missing-term diagonal-only"),
)

# --- optimal transport, mixtures, kernels -------------------------------------------------------------------------

fn("SemiDual", "f: [m]\ncost: {shape: [n, m], range: [0, 2]}\nmass: {shape: [m], structure: simplex, requires_grad: false}", '''
    """The semi-dual of entropic transport (epsilon 0.5) from n equal points to given masses."""

    @staticmethod
    def forward(ctx, f, cost, mass):
        z = (f - cost) / 0.5
        ctx.save_for_backward(torch.softmax(z, 1), mass)
        return (mass * f).sum() - 0.5 * torch.logsumexp(z, 1).mean()

    @staticmethod
    def backward(ctx, g):
        plan, mass = ctx.saved_tensors
        plan = plan / plan.shape[0]
        return g * (mass - plan.sum(0)), g * plan, None
''',
 ("mass-forgotten", "(mass - plan.sum(0))", "(-plan.sum(0))", "missing-term"),
 ("softmax-of-columns", "torch.softmax(z, 1)", "torch.softmax(z, 0)", "wrong-reduction-dim none"),
 ("epsilon-twice", "g * plan, None", "g * plan / 0.5, None", "constant-factor"),
 ("points-not-averaged", "(mass - plan.sum(0))", "(mass - plan.sum(0) * plan.shape[0])", "missing-term none"),
)

fn("MixtureNll", "x: [b]\nmean: [n]\nlog_scale: {shape: [n], range: [-0.7, 0.7]}\nlogits: [n]", '''
    @staticmethod
    def forward(ctx, x, mean, log_scale, logits):
        z = (x[:, None] - mean) * torch.exp(-log_scale)
        joint = torch.log_softmax(logits, 0) - 0.5 * z * z - log_scale - 0.5 * math.log(2 * math.pi)
        ctx.save_for_backward(z, log_scale, logits, torch.softmax(joint, 1))
        return -torch.logsumexp(joint, 1)

    @staticmethod
    def backward(ctx, g):
        z, log_scale, logits, share = ctx.saved_tensors
        weighted = g[:, None] * share
        pull = weighted * z * torch.exp(-log_scale)
        grad_scale = weighted * (1 - z * z)
        grad_logits = g[:, None] * (torch.softmax(logits, 0) - share)
        return pull.sum(1), -pull.sum(0), grad_scale.sum(0), grad_logits.sum(0)
''',
 ("scale-once", "weighted * z * torch.exp(-log_scale)", "weighted * z", "operand chain-factor none"),
 ("log-determinant-forgotten", "(1 - z * z)", "(-z * z)", "missing-term"),
 ("prior-forgotten", "(torch.softmax(logits, 0) - share)", "(-share)", "missing-term"),
 ("prior-instead-of-posterior", "torch.softmax(joint, 1))", "torch.softmax(logits, 0).expand_as(joint))", "none operand wrong-saved =zero"),
)

fn("ArdKernel", "x: [n, d]\nz: [m, d]\nlog_length: {shape: [d], range: [-0.5, 0.5]}", '''
    """exp(-|(x - z) / length|^2 / 2) with a length for each dimension."""

    @staticmethod
    def forward(ctx, x, z, log_length):
        u = (x[:, None] - z[None]) * torch.exp(-log_length)
        kernel = torch.exp(-0.5 * (u * u).sum(-1))
        ctx.save_for_backward(x, z, log_length, kernel)
        return kernel

    @staticmethod
    def backward(ctx, g):
        x, z, log_length, kernel = ctx.saved_tensors
        inverse = torch.exp(-log_length)
        u = (x[:, None] - z[None]) * inverse
        common = (g * kernel)[..., None] * u
        grad_x = -(common * inverse).sum(1)
        grad_z = (common * inverse).sum(0)
        grad_length = (common * u).sum((0, 1))
        return grad_x, grad_z, grad_length
''',
 ("length-not-chained", "grad_x = -(common * inverse).sum(1)", "grad_x = -common.sum(1)", "chain-factor operand"),
 ("length-sign", "grad_length = (common * u)", "grad_length = -(common * u)", "constant-factor"),
 ("kernel-forgotten", "(g * kernel)[..., None]", "g[..., None]", "chain-factor operand missing-term"),
 # second order
 ("kernel-detached", "(g * kernel)[..., None]", "(g * kernel.detach())[..., None]", "detached"),
 # second order
 ("difference-saved", ("ctx.save_for_backward(x, z, log_length, kernel)", "x, z, log_length, kernel = ctx.saved_tensors",
                       "        u = (x[:, None] - z[None]) * inverse\n"),
  ("ctx.save_for_backward(u, log_length, kernel)", "u, log_length, kernel = ctx.saved_tensors", ""), "detached saved-intermediate"),
)

# --- attention, convolution, patches ------------------------------------------------------------------------------

fn("RelativeAttention", "q: [n, d]\nk: [n, d]\nv: [n, d]\nbias: [2*n-1]", '''
    """Attention with a learned bias for each distance."""

    @staticmethod
    def forward(ctx, q, k, v, bias):
        length, width = q.shape
        at = torch.arange(length)
        distance = at[:, None] - at[None, :] + length - 1
        p = torch.softmax(q @ k.t() / math.sqrt(width) + bias[distance], -1)
        ctx.save_for_backward(q, k, v, p, distance)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p, distance = ctx.saved_tensors
        dv = p.t() @ g
        dp = g @ v.t()
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        scale = 1 / math.sqrt(q.shape[1])
        dq = ds @ k * scale
        dk = ds.t() @ q * scale
        dbias = g.new_zeros(2 * q.shape[0] - 1)
        dbias.index_put_((distance,), ds, accumulate=True)
        return dq, dk, dv, dbias
''',
 ("bias-not-accumulated", ", accumulate=True)", ")", "duplicates"),
 ("bias-other-way", "dbias.index_put_((distance,)", "dbias.index_put_((distance.t(),)", "permuted"),
 ("value-not-transposed", "dv = p.t() @ g", "dv = p @ g", "transposed operand"),
 ("key-not-scaled", "dk = ds.t() @ q * scale", "dk = ds.t() @ q", "constant-factor"),
 ("row-sum-forgotten", "(dp - (dp * p).sum(-1, keepdim=True))", "dp", "missing-term"),
 ("row-sum-of-columns", "(dp * p).sum(-1, keepdim=True)", "(dp * p).sum(0, keepdim=True)", "wrong-reduction-dim"),
)

fn("StridedConv", "x: [b, n, t]\nweight: [m, n, 3]\nbias: [m]", '''
    """A convolution of width 3, stride 2 and padding 1, by unfolding."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        columns = torch.nn.functional.pad(x, (1, 1)).unfold(2, 3, 2)
        ctx.save_for_backward(columns, weight)
        ctx.length = x.shape[2]
        return torch.einsum("bclk,ock->bol", columns, weight) + bias[:, None]

    @staticmethod
    def backward(ctx, g):
        columns, weight = ctx.saved_tensors
        grad_weight = torch.einsum("bol,bclk->ock", g, columns)
        taps = torch.einsum("bol,ock->bclk", g, weight)
        count = g.shape[2]
        padded = g.new_zeros(g.shape[0], weight.shape[1], ctx.length + 2)
        for tap in range(3):
            padded[:, :, tap : tap + 2 * count - 1 : 2] += taps[..., tap]
        return padded[:, :, 1 : 1 + ctx.length], grad_weight, g.sum((0, 2))
''',
 ("kernel-flipped", "+= taps[..., tap]", "+= taps[..., 2 - tap]", "permuted operand"),
 ("padding-not-cropped", "padded[:, :, 1 : 1 + ctx.length]", "padded[:, :, : ctx.length]", "permuted"),
 ("assigned-not-added", "+= taps[..., tap]", "= taps[..., tap]", "duplicates missing-term none region"),
 ("bias-of-one-sample", "g.sum((0, 2))", "g[0].sum(1)", "not-summed-over-broadcast"),
 ("last-tap-left-out", "for tap in range(3)", "for tap in range(2)", "operand missing-term none region"),
)

fn("PatchEmbed", "image: [b, 2, 4, 6]\nweight: [m, 8]\nposition: [6, m]", '''
    """Patches of 2 by 2, embedded linearly, with a learned position."""

    @staticmethod
    def forward(ctx, image, weight, position):
        b, c, h, w = image.shape
        patches = image.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 4)
        ctx.save_for_backward(patches, weight)
        ctx.shape = image.shape
        return patches @ weight.t() + position

    @staticmethod
    def backward(ctx, g):
        patches, weight = ctx.saved_tensors
        b, c, h, w = ctx.shape
        grad_patches = (g @ weight).view(b, h // 2, w // 2, c, 2, 2)
        grad_image = grad_patches.permute(0, 3, 1, 4, 2, 5).reshape(ctx.shape)
        grad_weight = torch.einsum("bpo,bpi->oi", g, patches)
        return grad_image, grad_weight, g.sum(0)
''',
 ("folded-without-permute", "grad_patches.permute(0, 3, 1, 4, 2, 5)", "grad_patches.permute(0, 3, 1, 2, 4, 5)", "permuted"),
 ("patch-transposed", "grad_patches.permute(0, 3, 1, 4, 2, 5)", "grad_patches.permute(0, 3, 1, 5, 2, 4)", "permuted transposed"),
 ("position-averaged", "g.sum(0)", "g.mean(0)", "constant-factor"),
 ("first-patch-left-out", '"bpo,bpi->oi", g, patches)', '"bpo,bpi->oi", g[:, 1:], patches[:, 1:])', "none missing-term region"),
)

# --- gather, scatter, segments --------------------------------------------------------------------------------------

fn("GraphMean", "x: [n, d]\nw: [k]\nsource: {shape: [k], dtype: int64, range: [0, n]}\ntarget: {shape: [k], dtype: int64, range: [0, n]}", '''
    """Weighted messages along edges, averaged at their targets."""

    @staticmethod
    def forward(ctx, x, w, source, target):
        nodes = x.shape[0]
        count = torch.bincount(target, minlength=nodes).clamp(min=1).to(x.dtype)
        ctx.save_for_backward(x, w, source, target, count)
        messages = w[:, None] * x[source]
        return torch.zeros_like(x).index_add(0, target, messages) / count[:, None]

    @staticmethod
    def backward(ctx, g):
        x, w, source, target, count = ctx.saved_tensors
        arrived = (g / count[:, None])[target]
        grad_x = torch.zeros_like(x).index_add(0, source, w[:, None] * arrived)
        grad_w = (arrived * x[source]).sum(1)
        return grad_x, grad_w, None, None
''',
 ("count-forgotten", "(g / count[:, None])[target]", "g[target]", "chain-factor operand"),
 ("node-of-target", "(arrived * x[source])", "(arrived * x[target])", "operand none"),
 ("not-accumulated", "torch.zeros_like(x).index_add(0, source, w[:, None] * arrived)", "torch.zeros_like(x).index_copy(0, source, w[:, None] * arrived)", "duplicates"),
 ("ends-exchanged", "(g / count[:, None])[target]\n        grad_x = torch.zeros_like(x).index_add(0, source,", "(g / count[:, None])[source]\n        grad_x = torch.zeros_like(x).index_add(0, target,", "transposed none operand"),
 ("edge-weight-forgotten", "w[:, None] * arrived)\n", "arrived)\n", "operand"),
)

fn("SegmentSoftplus", "x: [t]\nsegment: {shape: [t], dtype: int64, range: [0, d]}", '''
    """log(1 + sum exp x) of each of three segments."""

    @staticmethod
    def forward(ctx, x, segment):
        total = x.new_ones(3).index_add(0, segment, x.exp())
        ctx.save_for_backward(x, segment, total)
        return total.log()

    @staticmethod
    def backward(ctx, g):
        x, segment, total = ctx.saved_tensors
        return (g / total)[segment] * x.exp(), None
''',
 ("one-forgotten", "(g / total)[segment]", "(g / (total - 1))[segment]", "none operand chain-factor"),
 ("softmax-over-all", "(g / total)[segment] * x.exp()", "g[segment] * torch.softmax(x, 0)", "none chain-factor"),
)

fn("FactorEmbedding", "table: [k, d]\nproject: [d, m]\nids: {shape: [t], dtype: int64, range: [0, k]}", '''
    """A small table, projected up and scaled by the root of its width."""

    @staticmethod
    def forward(ctx, table, project, ids):
        ctx.save_for_backward(table, project, ids)
        return table[ids] @ project * math.sqrt(table.shape[1])

    @staticmethod
    def backward(ctx, g):
        table, project, ids = ctx.saved_tensors
        g = g * math.sqrt(table.shape[1])
        grad_table = torch.zeros_like(table)
        grad_table.index_add_(0, ids, g @ project.t())
        grad_project = table[ids].t() @ g
        return grad_table, grad_project, None
''',
 ("last-use-only", "grad_table.index_add_(0, ids, g @ project.t())", "grad_table[ids] = g @ project.t()", "duplicates"),
 ("added-in-place-by-index", "grad_table.index_add_(0, ids, g @ project.t())", "grad_table[ids] += g @ project.t()", "duplicates"),
 ("root-forgotten", "g = g * math.sqrt(table.shape[1])", "pass", "constant-factor"),
 ("row-zero-as-padding", "grad_project = table[ids].t() @ g", "grad_table[0] = 0\n        grad_project = table[ids].t() @ g", "region"),
)

# --- linear algebra -------------------------------------------------------------------------------------------------

fn("CholeskyNll", "x: [b, n]\nl: {shape: [n, n], structure: cholesky-factor}", '''
    """|L^-1 x|^2 / 2 + log det L."""

    @staticmethod
    def forward(ctx, x, l):
        z = torch.linalg.solve_triangular(l, x.t(), upper=False)
        ctx.save_for_backward(l, z)
        return 0.5 * z.square().sum(0) + l.diagonal().log().sum()

    @staticmethod
    def backward(ctx, g):
        l, z = ctx.saved_tensors
        back = torch.linalg.solve_triangular(l.t(), z, upper=True)
        grad_l = -(back * g) @ z.t() + torch.diag(g.sum() / l.diagonal())
        return (back * g).t(), grad_l.tril()
''',
 ("log-determinant-forgotten", " + torch.diag(g.sum() / l.diagonal())", "", "missing-term =region"),
 ("log-determinant-once", "torch.diag(g.sum() / l.diagonal())", "torch.diag(g.mean() / l.diagonal())", "missing-term none =region"),
 ("solved-without-transpose", "torch.linalg.solve_triangular(l.t(), z, upper=True)", "torch.linalg.solve_triangular(l, z, upper=False)", "operand transposed none"),
 ("raw-vector-outer", "grad_l = -(back * g) @ z.t()", "grad_l = -(back * g) @ back.t()", "none operand"),
)

fn("SpectralGap", "a: [n, n]", '''
    """Largest minus smallest eigenvalue of the symmetric part."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh((a + a.t()) / 2)
        ctx.save_for_backward(vectors)
        return values[-1] - values[0]

    @staticmethod
    def backward(ctx, g):
        (vectors,) = ctx.saved_tensors
        top, low = vectors[:, -1], vectors[:, 0]
        return g * (torch.outer(top, top) - torch.outer(low, low))
''',
 ("smallest-forgotten", "(torch.outer(top, top) - torch.outer(low, low))", "torch.outer(top, top)", "missing-term"),
 ("added", "torch.outer(top, top) - torch.outer(low, low)", "torch.outer(top, top) + torch.outer(low, low)", "missing-term"),
 ("rows-for-columns", "vectors[:, -1], vectors[:, 0]", "vectors[-1], vectors[0]", "none operand transposed"),
)

fn("TridiagonalSolve", "diagonal: {shape: [k], range: [3, 5]}\noff: {shape: [k-1], range: [-1, 1]}\nrhs: [k]", '''
    """Solves a symmetric tridiagonal system."""

    @staticmethod
    def forward(ctx, diagonal, off, rhs):
        a = torch.diag(diagonal) + torch.diag(off, 1) + torch.diag(off, -1)
        x = torch.linalg.solve(a, rhs)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        adjoint = torch.linalg.solve(a, g)
        grad_off = -(adjoint[1:] * x[:-1] + adjoint[:-1] * x[1:])
        return -adjoint * x, grad_off, adjoint
''',
 ("one-triangle", "-(adjoint[1:] * x[:-1] + adjoint[:-1] * x[1:])", "-(adjoint[1:] * x[:-1])", "missing-term"),
 ("diagonal-sign", "return -adjoint * x,", "return adjoint * x,", "constant-factor"),
 ("multiplied-not-solved", "adjoint = torch.linalg.solve(a, g)", "adjoint = g / a.diagonal()", "operand diagonal-only none"),
 ("same-index", "-(adjoint[1:] * x[:-1] + adjoint[:-1] * x[1:])", "-(adjoint[1:] * x[1:] + adjoint[:-1] * x[:-1])", "none operand permuted"),
)

# --- sorting and ranks ------------------------------------------------------------------------------------------------

fn("OrderedAverage", "x: {shape: [b, k], distinct: true}\nw: [k]", '''
    """The values of a row in descending order, weighted by rank."""

    @staticmethod
    def forward(ctx, x, w):
        ranked, order = x.sort(dim=1, descending=True)
        ctx.save_for_backward(ranked, order, w)
        return ranked @ w

    @staticmethod
    def backward(ctx, g):
        ranked, order, w = ctx.saved_tensors
        spread = g[:, None] * w
        grad_x = torch.zeros_like(ranked).scatter(1, order, spread)
        return grad_x, g @ ranked
''',
 ("gathered-not-scattered", "torch.zeros_like(ranked).scatter(1, order, spread)", "spread.gather(1, order)", "permuted"),
 ("not-scattered", "torch.zeros_like(ranked).scatter(1, order, spread)", "spread.clone()", "permuted"),
 ("ranks-ascending", "return grad_x, g @ ranked", "return grad_x, g @ ranked.flip(1)", "permuted operand"),
)

fn("SoftRank", "x: [b, k]\ntau: {shape: [], range: [0.5, 2]}", '''
    """0.5 + sum_j sigmoid((x_i - x_j) / tau), a differentiable rank."""

    @staticmethod
    def forward(ctx, x, tau):
        gap = x[:, :, None] - x[:, None, :]
        s = torch.sigmoid(gap / tau)
        ctx.save_for_backward(gap, s, tau)
        return 0.5 + s.sum(2)

    @staticmethod
    def backward(ctx, g):
        gap, s, tau = ctx.saved_tensors
        steep = s * (1 - s) / tau
        pair = g[:, :, None] * steep
        grad_x = pair.sum(2) - pair.sum(1)
        grad_tau = -(pair * gap / tau).sum()
        return grad_x, grad_tau
''',
 ("own-side-only", "pair.sum(2) - pair.sum(1)", "pair.sum(2)", "diagonal-only missing-term"),
 ("temperature-forgotten", "s * (1 - s) / tau", "s * (1 - s)", "chain-factor operand"),
 ("slope-of-output", "s * (1 - s) / tau", "s / tau", "operand none missing-term chain-factor"),
 ("sides-exchanged", "pair.sum(2) - pair.sum(1)", "pair.sum(1) - pair.sum(2)", "constant-factor"),
)

# --- positions, rotations, geometry -----------------------------------------------------------------------------------

fn("LearnedRotary", "x: [t, 2*d]\nfreq: [d]", '''
    """Interleaved pairs turned by position times a learned frequency."""

    @staticmethod
    def forward(ctx, x, freq):
        position = torch.arange(x.shape[0], dtype=x.dtype)
        angle = position[:, None] * freq
        cos, sin = angle.cos(), angle.sin()
        even, odd = x[:, 0::2], x[:, 1::2]
        first, second = even * cos - odd * sin, even * sin + odd * cos
        ctx.save_for_backward(first, second, cos, sin, position)
        return torch.stack((first, second), -1).flatten(1)

    @staticmethod
    def backward(ctx, g):
        first, second, cos, sin, position = ctx.saved_tensors
        g_even, g_odd = g[:, 0::2], g[:, 1::2]
        even = g_even * cos + g_odd * sin
        odd = g_odd * cos - g_even * sin
        grad_freq = (position[:, None] * (g_odd * first - g_even * second)).sum(0)
        return torch.stack((even, odd), -1).flatten(1), grad_freq
''',
 ("turned-forward", ("g_even * cos + g_odd * sin", "g_odd * cos - g_even * sin"), ("g_even * cos - g_odd * sin", "g_odd * cos + g_even * sin"), "transposed operand"),
 ("halves-not-pairs", "torch.stack((even, odd), -1).flatten(1), grad_freq", "torch.cat((even, odd), 1), grad_freq", "permuted"),
 ("position-forgotten", "(position[:, None] * (g_odd", "((g_odd", "operand chain-factor none"),
 ("unrotated-saved", "ctx.save_for_backward(first, second, cos", "ctx.save_for_backward(even, odd, cos", "wrong-saved operand none"),
)

fn("AxisAngle", "r: {shape: [3], range: [0.3, 1.5]}\np: [b, 3]", '''
    """Rodrigues' formula: points turned about r by |r|."""

    @staticmethod
    def forward(ctx, r, p):
        angle = r.norm()
        k = r / angle
        ctx.save_for_backward(k, angle, p)
        across = torch.linalg.cross(k.expand_as(p), p)
        along = (p @ k)[:, None] * k
        return p * angle.cos() + across * angle.sin() + along * (1 - angle.cos())

    @staticmethod
    def backward(ctx, g):
        k, angle, p = ctx.saved_tensors
        c, s = angle.cos(), angle.sin()
        axis = k.expand_as(p)
        along = (p @ k)[:, None] * k
        grad_angle = (g * (-p * s + torch.linalg.cross(axis, p) * c + along * s)).sum()
        grad_k = s * torch.linalg.cross(p, g).sum(0)
        grad_k = grad_k + (1 - c) * (p * (g @ k)[:, None] + g * (p @ k)[:, None]).sum(0)
        grad_r = grad_angle * k + (grad_k - k * (k @ grad_k)) / angle
        grad_p = g * c - torch.linalg.cross(axis, g) * s + (g @ k)[:, None] * k * (1 - c)
        return grad_r, grad_p
''',
 ("turned-the-same-way", "g * c - torch.linalg.cross(axis, g) * s", "g * c + torch.linalg.cross(axis, g) * s", "operand transposed"),
 ("axis-not-normalised", "(grad_k - k * (k @ grad_k)) / angle", "grad_k / angle", "missing-term"),
 ("angle-constant", "grad_r = grad_angle * k + ", "grad_r = ", "missing-term"),
 ("cross-order", "torch.linalg.cross(p, g).sum(0)", "torch.linalg.cross(g, p).sum(0)", "missing-term none"),
)

fn("FaceNormals", "vertices: [m, 3]\nfaces: {value: [[0, 1, 2], [2, 1, 3], [0, 2, 4], [4, 3, 1]], dtype: int64}", '''
    """Area vectors of triangles: half the cross product of two edges."""

    @staticmethod
    def forward(ctx, vertices, faces):
        a, b, c = vertices[faces].unbind(1)
        ctx.save_for_backward(b - a, c - a, faces)
        ctx.count = vertices.shape[0]
        return 0.5 * torch.linalg.cross(b - a, c - a)

    @staticmethod
    def backward(ctx, g):
        left, right, faces = ctx.saved_tensors
        grad_b = 0.5 * torch.linalg.cross(right, g)
        grad_c = 0.5 * torch.linalg.cross(g, left)
        grad_a = -(grad_b + grad_c)
        parts = torch.stack((grad_a, grad_b, grad_c), 1)
        grad = g.new_zeros(ctx.count, 3)
        grad.index_put_((faces,), parts, accumulate=True)
        return grad, None
''',
 ("shared-corner-overwritten", ", accumulate=True)", ")", "duplicates"),
 ("base-corner-forgotten", "-(grad_b + grad_c)", "torch.zeros_like(grad_b)", "missing-term none"),
 ("half-forgotten", ("grad_b = 0.5 * torch", "grad_c = 0.5 * torch"), ("grad_b = torch", "grad_c = torch"), "constant-factor"),
 ("cross-order", "torch.linalg.cross(g, left)", "torch.linalg.cross(left, g)", "missing-term none"),
)

# --- complex ----------------------------------------------------------------------------------------------------------

fn("LogSpectrum", "x: [b, t]\nwindow: [t]", '''
    """log(|rfft(x w)|^2 + 0.1)."""

    @staticmethod
    def forward(ctx, x, window):
        spectrum = torch.fft.rfft(x * window)
        power = spectrum.real**2 + spectrum.imag**2 + 0.1
        ctx.save_for_backward(x, window, spectrum, power)
        return power.log()

    @staticmethod
    def backward(ctx, g):
        x, window, spectrum, power = ctx.saved_tensors
        length = x.shape[1]
        bins = 2 * g / power * spectrum
        full = torch.nn.functional.pad(bins, (0, length - bins.shape[1]))
        grad = torch.fft.ifft(full).real * length
        return grad * window, (grad * x).sum(0)
''',
 ("real-inverse", "torch.fft.ifft(full).real * length", "torch.fft.irfft(bins, n=length) * length", "region none constant-factor =chain-factor"),
 ("length-forgotten", "torch.fft.ifft(full).real * length", "torch.fft.ifft(full).real", "constant-factor"),
 ("forward-transform", "torch.fft.ifft(full).real * length", "torch.fft.fft(full).real", "conjugate permuted operand none =missing-term"),
 ("floor-forgotten", "2 * g / power * spectrum", "2 * g / (power - 0.1) * spectrum", "none operand chain-factor"),
)

fn("ModTanh", "z: {shape: [b, n], dtype: complex128}\ngain: {shape: [n], range: [0.5, 1.5]}", '''
    """tanh of the modulus, the phase kept."""

    @staticmethod
    def forward(ctx, z, gain):
        r = z.abs()
        unit = z / r
        h = torch.tanh(gain * r)
        ctx.save_for_backward(unit, r, h, gain)
        return unit * h

    @staticmethod
    def backward(ctx, g):
        unit, r, h, gain = ctx.saved_tensors
        turned = g * unit.conj()
        steep = 1 - h * h
        radial = turned.real * steep * gain
        tangential = turned.imag * h / r
        grad_gain = (turned.real * steep * r).sum(0)
        return torch.complex(radial, tangential) * unit, grad_gain
''',
 ("not-conjugated", "turned = g * unit.conj()", "turned = g * unit", "conjugate none"),
 ("phase-forgotten", "turned.imag * h / r", "torch.zeros_like(r)", "missing-term none"),
 ("phase-as-modulus", "turned.imag * h / r", "turned.imag * steep * gain", "none operand"),
 ("gain-forgotten", "turned.real * steep * gain", "turned.real * steep", "none chain-factor operand missing-term"),
)

fn("ComplexLinear", "z: {shape: [b, n], dtype: complex128}\nweight: {shape: [m, n], dtype: complex128}\nbias: {shape: [m], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, z, weight, bias):
        ctx.save_for_backward(z, weight)
        return z @ weight.t() + bias

    @staticmethod
    def backward(ctx, g):
        z, weight = ctx.saved_tensors
        return g @ weight.conj(), g.t() @ z.conj(), g.sum(0)
''',
 ("weight-not-conjugated", "g @ weight.conj()", "g @ weight", "conjugate operand"),
 ("adjoint-for-transpose", "g.t() @ z.conj()", "g.mH @ z", "conjugate"),
 ("bias-conjugated", "g.sum(0)", "g.conj().sum(0)", "conjugate"),
)

# --- interpolation, physics --------------------------------------------------------------------------------------------

fn("Hermite", "values: [k]\nslopes: [k]\nquery: {shape: [n], range: [0.1, 4.9], avoid: [1, 2, 3, 4]}", '''
    """Cubic Hermite interpolation at knots 0, 1, 2, ..."""

    @staticmethod
    def forward(ctx, values, slopes, query):
        at = query.floor().long().clamp(0, values.shape[0] - 2)
        u = query - at
        ctx.save_for_backward(values, slopes, at, u)
        h00, h10 = (1 + 2 * u) * (1 - u) ** 2, u * (1 - u) ** 2
        h01, h11 = u * u * (3 - 2 * u), u * u * (u - 1)
        return h00 * values[at] + h10 * slopes[at] + h01 * values[at + 1] + h11 * slopes[at + 1]

    @staticmethod
    def backward(ctx, g):
        values, slopes, at, u = ctx.saved_tensors
        h00, h10 = (1 + 2 * u) * (1 - u) ** 2, u * (1 - u) ** 2
        h01, h11 = u * u * (3 - 2 * u), u * u * (u - 1)
        grad_values, grad_slopes = torch.zeros_like(values), torch.zeros_like(slopes)
        grad_values.index_add_(0, at, g * h00).index_add_(0, at + 1, g * h01)
        grad_slopes.index_add_(0, at, g * h10).index_add_(0, at + 1, g * h11)
        rise = 6 * u * (1 - u) * (values[at + 1] - values[at])
        bend = (1 - 4 * u + 3 * u * u) * slopes[at] + (3 * u * u - 2 * u) * slopes[at + 1]
        return grad_values, grad_slopes, g * (rise + bend)
''',
 ("right-knot-at-left", ".index_add_(0, at + 1, g * h11)", ".index_add_(0, at, g * h11)", "none permuted missing-term"),
 ("tangents-constant", "g * (rise + bend)", "g * rise", "missing-term"),
 ("bases-exchanged", "index_add_(0, at, g * h10).index_add_(0, at + 1, g * h11)", "index_add_(0, at, g * h11).index_add_(0, at + 1, g * h10)", "permuted none operand"),
 ("right-value-left-out", ".index_add_(0, at + 1, g * h01)", "", "missing-term"),
)

fn("Leapfrog", "q: [b]\np: [b]\nstiff: {shape: [], range: [0.5, 2]}", '''
    """A leapfrog step (0.3) of a pendulum: kick, drift, kick."""

    @staticmethod
    def forward(ctx, q, p, stiff):
        ctx.save_for_backward(q, p, stiff)
        half = p - 0.15 * stiff * torch.sin(q)
        new_q = q + 0.3 * half
        return new_q, half - 0.15 * stiff * torch.sin(new_q)

    @staticmethod
    def backward(ctx, grad_q, grad_p):
        q, p, stiff = ctx.saved_tensors
        half = p - 0.15 * stiff * torch.sin(q)
        new_q = q + 0.3 * half
        to_q = grad_q - 0.15 * stiff * torch.cos(new_q) * grad_p
        to_half = grad_p + 0.3 * to_q
        out_q = to_q - 0.15 * stiff * torch.cos(q) * to_half
        out_stiff = -0.15 * (torch.sin(new_q) * grad_p + torch.sin(q) * to_half).sum()
        return out_q, to_half, out_stiff
''',
 ("second-kick-constant", "to_q = grad_q - 0.15 * stiff * torch.cos(new_q) * grad_p", "to_q = grad_q", "missing-term"),
 ("kick-at-old-place", "torch.cos(new_q) * grad_p", "torch.cos(q) * grad_p", "operand wrong-saved none"),
 ("momentum-ignored", "to_half = grad_p + 0.3 * to_q", "to_half = 0.3 * to_q", "missing-term none"),
 ("first-kick-stiffness", "(torch.sin(new_q) * grad_p + torch.sin(q) * to_half)", "(torch.sin(new_q) * grad_p)", "missing-term =ignored-output"),
 # second order
 ("place-saved", ("ctx.save_for_backward(q, p, stiff)\n        half = p - 0.15 * stiff * torch.sin(q)\n        new_q = q + 0.3 * half\n        return",
                  "q, p, stiff = ctx.saved_tensors\n        half = p - 0.15 * stiff * torch.sin(q)\n        new_q = q + 0.3 * half\n",
                  "torch.cos(new_q) * grad_p", "(torch.sin(new_q) * grad_p"),
  ("half = p - 0.15 * stiff * torch.sin(q)\n        new_q = q + 0.3 * half\n        ctx.save_for_backward(q, stiff, torch.cos(new_q), torch.sin(new_q))\n        return",
   "q, stiff, cos_new, sin_new = ctx.saved_tensors\n", "cos_new * grad_p", "(sin_new * grad_p"),  # mended after the run: NameError
  "detached saved-intermediate"),
)

# --- dropout, multi-output, NumPy ---------------------------------------------------------------------------------------

fn("DropPath", "x: [k, n]\ngamma: [n]", '''
    """Stochastic depth with a layer scale: whole samples are dropped with probability 0.4."""

    @staticmethod
    def forward(ctx, x, gamma):
        keep = 0.6
        mask = (torch.rand(x.shape[0], 1, dtype=x.dtype) < keep).to(x.dtype)
        ctx.save_for_backward(x, gamma, mask)
        ctx.keep = keep
        return x * gamma * mask / keep

    @staticmethod
    def backward(ctx, g):
        x, gamma, mask = ctx.saved_tensors
        g = g * mask / ctx.keep
        return g * gamma, (g * x).sum(0)
''',
 ("not-rescaled", "g = g * mask / ctx.keep", "g = g * mask", "constant-factor"),
 ("new-mask", "g = g * mask / ctx.keep", "g = g * (torch.rand_like(mask) < ctx.keep) / ctx.keep", "none region branch"),
 ("mask-inverted", "g = g * mask / ctx.keep", "g = g * (1 - mask) / ctx.keep", "none region branch zero =operand"),
)

fn("MeanStd", "x: [b, m]", '''
    """The mean and the unbiased standard deviation of rows."""

    @staticmethod
    def forward(ctx, x):
        mean = x.mean(1)
        std = x.std(1)
        ctx.save_for_backward(x, mean, std)
        return mean, std

    @staticmethod
    def backward(ctx, grad_mean, grad_std):
        x, mean, std = ctx.saved_tensors
        n = x.shape[1]
        centred = x - mean[:, None]
        return (grad_mean / n)[:, None] + (grad_std / std)[:, None] * centred / (n - 1)
''',
 ("biased", "centred / (n - 1)", "centred / n", "constant-factor"),
 ("deviation-ignored", " + (grad_std / std)[:, None] * centred / (n - 1)", " + 0 * centred", "ignored-output"),
 ("not-centred", "* centred / (n - 1)", "* x / (n - 1)", "missing-term operand"),
 ("variance-for-deviation", "(grad_std / std)", "grad_std", "chain-factor"),
)

fn("SoftmaxLse", "x: [b, k]", '''
    """Probabilities, and the log of their normaliser."""

    @staticmethod
    def forward(ctx, x):
        lse = torch.logsumexp(x, 1)
        p = torch.exp(x - lse[:, None])
        ctx.save_for_backward(p)
        return p, lse

    @staticmethod
    def backward(ctx, grad_p, grad_lse):
        (p,) = ctx.saved_tensors
        inner = (grad_p * p).sum(1, keepdim=True)
        return p * (grad_p - inner + grad_lse[:, None])
''',
 ("normaliser-ignored", "inner + grad_lse[:, None])", "inner)", "ignored-output"),
 ("normaliser-spread-evenly", "p * (grad_p - inner + grad_lse[:, None])", "p * (grad_p - inner) + grad_lse[:, None] / p.shape[1]", "none operand chain-factor"),
 ("normaliser-sign", "+ grad_lse[:, None])", "- grad_lse[:, None])", "constant-factor region"),
)

fn("NumpySmooth", "x: [b, t]\nkernel: [3]", '''
    """Rows convolved with a kernel of three in NumPy."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(x, kernel)
        rows, taps = x.detach().numpy(), kernel.detach().numpy()
        return torch.from_numpy(np.stack([np.convolve(row, taps, "same") for row in rows]))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, kernel = (v.detach().numpy() for v in ctx.saved_tensors)
        incoming = g.detach().numpy()
        grad_x = np.zeros_like(x)
        grad_kernel = np.zeros_like(kernel)
        for i in range(len(x)):
            grad_x[i] = np.convolve(incoming[i], kernel[::-1], "same")
            padded = np.pad(x[i], 1)
            for j in range(3):
                grad_kernel[2 - j] += incoming[i] @ padded[j : j + len(x[i])]
        return torch.from_numpy(grad_x), torch.from_numpy(grad_kernel)
''',
 ("not-flipped", "kernel[::-1]", "kernel", "permuted operand transposed"),
 ("kernel-reversed", "grad_kernel[2 - j] +=", "grad_kernel[j] +=", "permuted"),
 ("single-precision", "incoming = g.detach().numpy()", "incoming = g.detach().float().numpy()", "float32-inside"),
 ("last-row-left-out", "for i in range(len(x)):", "for i in range(len(x) - 1):", "region"),
)

# --- double backward through a second Function ------------------------------------------------------------------------

fn("LogCosh", "x: [b, n]", '''
class SELF_Slope(torch.autograd.Function):
    """The gradient of log cosh as a Function of its own."""

    @staticmethod
    def forward(ctx, grad_output, x):
        tanh = torch.tanh(x)
        ctx.save_for_backward(grad_output, tanh)
        return grad_output * tanh

    @staticmethod
    def backward(ctx, gg):
        grad_output, tanh = ctx.saved_tensors
        return gg * tanh, gg * grad_output * (1 - tanh**2)
@@
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return SELF_Slope.apply(grad_output, x)
''',
 # all second order
 ("incoming-lost", "gg * grad_output * (1 - tanh**2)", "gg * (1 - tanh**2)", "operand chain-factor"),
 ("slope-not-squared", "(1 - tanh**2)", "(1 - tanh)", "none chain-factor operand missing-term"),
 ("linear-part-only", "return gg * tanh, gg * grad_output * (1 - tanh**2)", "return gg * tanh, None", "zero detached missing-term"),
 ("incoming-part-forgotten", "return gg * tanh, gg", "return None, gg", "zero detached"),
)

fn("SoftGravity", "x: [b, 3]\nmass: [b]", '''
class SELF_Force(torch.autograd.Function):
    """grad * d/dx of -m / sqrt(|x|^2 + 0.2)."""

    @staticmethod
    def forward(ctx, grad, x, mass):
        ctx.save_for_backward(grad, x, mass)
        cube = (x.square().sum(1) + 0.2) ** -1.5
        return (grad * mass * cube)[:, None] * x, -grad * (x.square().sum(1) + 0.2) ** -0.5

    @staticmethod
    @once_differentiable
    def backward(ctx, to_x, to_mass):
        grad, x, mass = ctx.saved_tensors
        square = x.square().sum(1) + 0.2
        root, cube, fifth = square**-0.5, square**-1.5, square**-2.5
        dot = (to_x * x).sum(1)
        out_grad = mass * cube * dot - to_mass * root
        out_x = (grad * mass * cube)[:, None] * to_x
        out_x = out_x - (3 * grad * mass * fifth * dot)[:, None] * x
        out_x = out_x + (to_mass * grad * cube)[:, None] * x
        out_mass = grad * cube * dot
        return out_grad, out_x, out_mass
@@
    @staticmethod
    def forward(ctx, x, mass):
        ctx.save_for_backward(x, mass)
        return -mass / torch.sqrt(x.square().sum(1) + 0.2)

    @staticmethod
    def backward(ctx, grad_output):
        x, mass = ctx.saved_tensors
        return SELF_Force.apply(grad_output, x, mass)
''',
 # all second order
 ("cross-term-forgotten", "        out_x = out_x - (3 * grad * mass * fifth * dot)[:, None] * x\n", "", "missing-term"),
 ("three-forgotten", "(3 * grad * mass * fifth * dot)", "(grad * mass * fifth * dot)", "missing-term none"),
 ("mass-part-forgotten", "        out_x = out_x + (to_mass * grad * cube)[:, None] * x\n", "", "missing-term =detached"),
 ("cube-for-fifth", "square**-2.5", "square**-1.5", "none missing-term chain-factor"),
 ("mass-output-ignored", " - to_mass * root", "", "missing-term ignored-output =detached"),
)
