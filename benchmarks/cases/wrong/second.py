"""Held-out set: written after the ladder was frozen, and run once.

An entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text, what stands in its place,
causes that are right). The causes were written down before the first run. `none` says that no hypothesis can
tell it; one with `=` before it was admitted afterwards, because it is literally true at these numbers.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, d: 3, c: 4"
FUNCTIONS = []


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


fn("RMSNorm", "x: [b, m]\nw: [m]", '''
    @staticmethod
    def forward(ctx, x, w):
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, w, r)
        return x * r * w

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        gw = g * w
        dot = (gw * x).mean(-1, keepdim=True)
        dx = r * gw - r ** 3 * x * dot
        return dx, (g * x * r).sum(0)
''',
 ("r-power", "r ** 3 * x", "r ** 2 * x", "missing-term"),
 ("detached-stat", "dx = r * gw - r ** 3 * x * dot", "dx = r * gw", "missing-term"),
 ("sum-for-mean", "(gw * x).mean(-1", "(gw * x).sum(-1", "missing-term"),
 ("weight-in-dw", "(g * x * r).sum(0)", "(gw * x * r).sum(0)", "chain-factor operand"),
)
fn("AdaIN", "x: [b, c, m]\nstyle: [b, c]", '''
    @staticmethod
    def forward(ctx, x, style):
        mu = x.mean(-1, keepdim=True)
        inv = 1 / (x.var(-1, unbiased=True, keepdim=True) + 1e-4).sqrt()
        z = (x - mu) * inv
        ctx.save_for_backward(z, inv, style)
        return z * style[..., None]

    @staticmethod
    def backward(ctx, g):
        z, inv, style = ctx.saved_tensors
        L = z.shape[-1]
        gz = g * style[..., None]
        dx = inv * (gz - gz.mean(-1, keepdim=True) - z * (gz * z).sum(-1, keepdim=True) / (L - 1))
        return dx, (g * z).sum(-1)
''',
 ("biased", "/ (L - 1)", "/ L", "missing-term"),
 ("style-forgotten", "gz = g * style[..., None]", "gz = g", "operand chain-factor"),
 ("style-mean", "(g * z).sum(-1)", "(g * z).mean(-1)", "constant-factor"),
)
fn("LogSoftmaxTemp", "x: [b, n]\nT: {value: 0.7}", '''
    @staticmethod
    def forward(ctx, x, T):
        y = torch.log_softmax(x / T, 1)
        ctx.save_for_backward(y)
        ctx.T = T
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (g - y.exp() * g.sum(1, keepdim=True)) / ctx.T, None
''',
 ("no-T", "keepdim=True)) / ctx.T", "keepdim=True))", "constant-factor"),
 ("T-times", "keepdim=True)) / ctx.T", "keepdim=True)) * ctx.T", "constant-factor"),
 ("softmax-form", "(g - y.exp() * g.sum(1, keepdim=True))", "y.exp() * (g - (g * y.exp()).sum(1, keepdim=True))", "none =chain-factor"),
 ("sum-all", "g.sum(1, keepdim=True)", "g.sum()", "wrong-reduction-dim"),
)
fn("GumbelGate", "a: [b, n]\nu: {shape: [b, n], range: [0.1, 0.9], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, a, u):
        noise = torch.log(u) - torch.log1p(-u)
        y = torch.sigmoid((a + noise) * 1.5)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * 1.5 * y * (1 - y), None
''',
 ("no-scale", "g * 1.5 * y", "g * y", "constant-factor"),
 ("y-squared", "y * (1 - y)", "(1 - y * y)", "chain-factor none"),
)
fn("Softplus2", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(torch.exp(2 * x)) / 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(2 * x)
''',
 ("beta-forgotten", "torch.sigmoid(2 * x)", "torch.sigmoid(x)", "none"),
 ("tanh", "torch.sigmoid(2 * x)", "torch.tanh(2 * x)", "none"),
)
fn("ELU", "x: [b, m]\nalpha: {value: 1.3}", '''
    @staticmethod
    def forward(ctx, x, alpha):
        y = torch.where(x > 0, x, alpha * torch.expm1(x))
        ctx.save_for_backward(x, y)
        ctx.alpha = alpha
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return torch.where(x > 0, g, g * (y + ctx.alpha)), None
''',
 ("no-alpha", "g * (y + ctx.alpha)", "g * (y + 1)", "branch"),
 ("exp-only", "g * (y + ctx.alpha)", "g * x.exp()", "branch"),
 ("linear-side", "torch.where(x > 0, g, g * (y + ctx.alpha))", "g * (y + ctx.alpha)", "branch"),
)
fn("SmoothL1Sum", "p: [b, n]\nt: {shape: [b, n], requires_grad: false}\nbeta: {value: 0.9}", '''
    @staticmethod
    def forward(ctx, p, t, beta):
        d = p - t
        ctx.save_for_backward(d)
        ctx.beta = beta
        return torch.where(d.abs() < beta, 0.5 * d * d / beta, d.abs() - 0.5 * beta).sum()

    @staticmethod
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        return g * torch.where(d.abs() < ctx.beta, d / ctx.beta, d.sign()), None, None
''',
 ("no-beta", "d / ctx.beta, d.sign()", "d, d.sign()", "branch"),
 ("unsigned", "d / ctx.beta, d.sign()", "d / ctx.beta, torch.ones_like(d)", "branch none"),
)
fn("TripletMargin", "a: [b, m]\np: [b, m]\nq: [b, m]", '''
    @staticmethod
    def forward(ctx, a, p, q):
        dp = ((a - p) ** 2).sum(1)
        dn = ((a - q) ** 2).sum(1)
        active = dp - dn + 20.0 > 0
        ctx.save_for_backward(a, p, q, active)
        return (dp - dn + 20.0).clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        a, p, q, active = ctx.saved_tensors
        g = (g * active)[:, None]
        return g * 2 * (q - p), g * 2 * (p - a), g * 2 * (a - q)
''',
 ("anchor-half", "g * 2 * (q - p), g", "g * (q - p), g", "constant-factor"),
 ("anchor-only-p", "g * 2 * (q - p), g", "g * 2 * (a - p), g", "missing-term none operand"),
 ("negative-sign", "g * 2 * (a - q)", "g * 2 * (q - a)", "constant-factor"),
 ("swapped", "(p - a), g * 2 * (a - q)", "(a - q), g * 2 * (p - a)", "swapped-inputs"),
)
fn("InfoNCE", "z: [b, m]\nkeys: [n, m]", '''
    @staticmethod
    def forward(ctx, z, keys):
        s = z @ keys.t() / 0.5
        lse = torch.logsumexp(s, 1)
        ctx.save_for_backward(z, keys, torch.softmax(s, 1))
        return (lse - s[:, 0]).mean()

    @staticmethod
    def backward(ctx, g):
        z, keys, p = ctx.saved_tensors
        ds = p.clone()
        ds[:, 0] -= 1
        ds = g * ds / z.shape[0] / 0.5
        return ds @ keys, ds.t() @ z
''',
 ("temperature", "/ z.shape[0] / 0.5", "/ z.shape[0]", "constant-factor"),
 ("batch", "g * ds / z.shape[0] / 0.5", "g * ds / 0.5", "constant-factor"),
 ("positive-lost", "ds[:, 0] -= 1", "ds[:, 0] -= 0", "missing-term none =region"),
 ("wrong-column", "ds[:, 0] -= 1", "ds[:, 1] -= 1", "none missing-term =region =operand"),
)
fn("FocalTversky", "p: {shape: [b, n], range: [0.2, 0.8]}\ny: {shape: [b, n], range: [0.2, 0.8], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, p, y):
        tp = (p * y).sum()
        fp = (p * (1 - y)).sum()
        fn_ = ((1 - p) * y).sum()
        den = tp + 0.3 * fp + 0.7 * fn_
        ctx.save_for_backward(y, tp, den)
        return 1 - tp / den

    @staticmethod
    def backward(ctx, g):
        y, tp, den = ctx.saved_tensors
        dden = y + 0.3 * (1 - y) - 0.7 * y
        return -g * (y * den - tp * dden) / den ** 2, None
''',
 ("quotient-rule", "(y * den - tp * dden) / den ** 2", "y / den", "missing-term none"),
 ("den-power", "/ den ** 2", "/ den", "chain-factor"),
 ("fn-sign", "- 0.7 * y\n", "+ 0.7 * y\n", "missing-term"),
)
fn("DepthwiseConv", "x: [b, c, k]\nw: [c, 2]", '''
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x[:, :, :-1] * w[:, 0, None] + x[:, :, 1:] * w[:, 1, None]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx = torch.zeros_like(x)
        dx[:, :, :-1] += g * w[:, 0, None]
        dx[:, :, 1:] += g * w[:, 1, None]
        dw = torch.stack([(g * x[:, :, :-1]).sum((0, 2)), (g * x[:, :, 1:]).sum((0, 2))], 1)
        return dx, dw
''',
 ("taps-swapped", "dx[:, :, :-1] += g * w[:, 0, None]\n        dx[:, :, 1:] += g * w[:, 1, None]", "dx[:, :, :-1] += g * w[:, 1, None]\n        dx[:, :, 1:] += g * w[:, 0, None]", "operand"),
 ("overwritten", "dx[:, :, 1:] += g", "dx[:, :, 1:] = g", "duplicates none"),
 ("dw-batch0", "(g * x[:, :, 1:]).sum((0, 2))", "(g * x[:, :, 1:])[0].sum(1)", "region not-summed-over-broadcast none"),
)
fn("Upsample2", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        return x.repeat_interleave(2, 1)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(g.shape[0], -1, 2).sum(-1)
''',
 ("mean", ".sum(-1)", ".mean(-1)", "constant-factor"),
 ("first-only", ".sum(-1)", "[..., 0]", "duplicates region not-summed-over-broadcast"),
 ("chunked", "g.reshape(g.shape[0], -1, 2).sum(-1)", "g.reshape(g.shape[0], 2, -1).sum(1)", "permuted transposed none"),
)
fn("PixelShuffle1d", "x: [b, k, n]", '''
    @staticmethod
    def forward(ctx, x):
        b, c, l = x.shape
        return x.transpose(1, 2).reshape(b, l * c)

    @staticmethod
    def backward(ctx, g):
        b = g.shape[0]
        return g.reshape(b, ctx.l, ctx.c).transpose(1, 2)
'''.replace("b, c, l = x.shape\n", "b, c, l = x.shape\n        ctx.c, ctx.l = c, l\n"),
 ("view-order", "g.reshape(b, ctx.l, ctx.c).transpose(1, 2)", "g.reshape(b, ctx.c, ctx.l)", "transposed permuted"),
)
fn("GatherRows", "x: [n, d]\nidx: {shape: [k], dtype: int64, range: [0, n]}\nw: [k]", '''
    @staticmethod
    def forward(ctx, x, idx, w):
        ctx.save_for_backward(x, idx, w)
        return x[idx] * w[:, None]

    @staticmethod
    def backward(ctx, g):
        x, idx, w = ctx.saved_tensors
        dx = torch.zeros_like(x).index_add(0, idx, g * w[:, None])
        return dx, None, (g * x[idx]).sum(1)
''',
 ("no-weight", "idx, g * w[:, None])", "idx, g)", "operand chain-factor"),
 ("last-wins", "torch.zeros_like(x).index_add(0, idx, g * w[:, None])", "torch.zeros_like(x).index_copy(0, idx, g * w[:, None])", "duplicates"),
 ("dw-unindexed", "(g * x[idx]).sum(1)", "(g * x[:1]).sum(1)", "none"),
)
fn("SegmentSoftmax", "s: [k]\nseg: {shape: [k], dtype: int64, range: [0, 2]}", '''
    @staticmethod
    def forward(ctx, s, seg):
        e = s.exp()
        z = torch.zeros(2, dtype=s.dtype).index_add(0, seg, e)
        y = e / z[seg]
        ctx.save_for_backward(y, seg)
        return y

    @staticmethod
    def backward(ctx, g):
        y, seg = ctx.saved_tensors
        t = torch.zeros(2, dtype=g.dtype).index_add(0, seg, g * y)
        return y * (g - t[seg]), None
''',
 ("global", "t[seg]", "(g * y).sum()", "none wrong-reduction-dim missing-term"),
 ("no-centre", "y * (g - t[seg])", "y * g", "missing-term"),
)
fn("EMAScan", "x: [b, m]\na: {shape: [], range: [0.3, 0.8]}", '''
    @staticmethod
    def forward(ctx, x, a):
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a * h + (1 - a) * x[:, t]
            out.append(h)
        y = torch.stack(out, 1)
        ctx.save_for_backward(x, a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, a, y = ctx.saved_tensors
        dx, da, acc = torch.zeros_like(x), torch.zeros_like(a), torch.zeros_like(x[:, 0])
        for t in reversed(range(x.shape[1])):
            acc = acc + g[:, t]
            dx[:, t] = (1 - a) * acc
            prev = y[:, t - 1] if t > 0 else torch.zeros_like(acc)
            da = da + (acc * (prev - x[:, t])).sum()
            acc = a * acc
        return dx, da
''',
 ("gain", "dx[:, t] = (1 - a) * acc", "dx[:, t] = acc", "constant-factor chain-factor"),
 ("da-no-x", "(prev - x[:, t])", "prev", "none missing-term"),
 ("no-recursion", "acc = a * acc", "acc = 0 * acc", "diagonal-only"),
 ("forward-order", "reversed(range(x.shape[1]))", "range(x.shape[1])", "transposed none"),
)
fn("LinearAttention", "q: [n, d]\nk: [n, d]\nv: [n, m]", '''
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return q @ (k.t() @ v) / q.shape[0]

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        s = 1 / q.shape[0]
        dq = s * g @ (v.t() @ k)
        dk = s * v @ (g.t() @ q)
        dv = s * k @ (q.t() @ g)
        return dq, dk, dv
''',
 ("dk-for-dq", "dq = s * g @ (v.t() @ k)", "dq = s * v @ (g.t() @ q)", "swapped-inputs"),
 ("dv-unscaled", "dv = s * k @", "dv = k @", "constant-factor"),
 ("dv-q-for-k", "dv = s * k @ (q.t() @ g)", "dv = s * q @ (k.t() @ g)", "transposed operand none"),
)
fn("LowRankAdapter", "x: [b, m]\nA: [m, d]\nB: [d, n]\nscale: {value: 2.5}", '''
    @staticmethod
    def forward(ctx, x, A, B, scale):
        ctx.save_for_backward(x, A, B)
        ctx.scale = scale
        return scale * x @ A @ B

    @staticmethod
    def backward(ctx, g):
        x, A, B = ctx.saved_tensors
        g = ctx.scale * g
        return g @ B.t() @ A.t(), x.t() @ (g @ B.t()), (x @ A).t() @ g, None
''',
 ("scale-lost", "g = ctx.scale * g", "g = g * 1.0", "constant-factor"),
 ("dB-no-A", "(x @ A).t() @ g", "x[:, :A.shape[1]].t() @ g", "none"),
)
fn("Mahalanobis", "x: [m]\nL: [m, m]", '''
    @staticmethod
    def forward(ctx, x, L):
        z = L @ x
        ctx.save_for_backward(x, L, z)
        return (z * z).sum().sqrt()

    @staticmethod
    def backward(ctx, g):
        x, L, z = ctx.saved_tensors
        y = (z * z).sum().sqrt()
        return g * L.t() @ z / y, g * torch.outer(z, x) / y
''',
 ("no-root", "g * L.t() @ z / y,", "g * L.t() @ z,", "chain-factor"),
 ("outer-flipped", "torch.outer(z, x)", "torch.outer(x, z)", "transposed"),
 ("L-not-transposed", "g * L.t() @ z", "g * L @ z", "none operand"),
)
fn("Inverse", "A: [d, d]", '''
    @staticmethod
    def forward(ctx, A):
        Y = torch.linalg.inv(A + 4 * torch.eye(A.shape[0], dtype=A.dtype))
        ctx.save_for_backward(Y)
        return Y

    @staticmethod
    def backward(ctx, g):
        (Y,) = ctx.saved_tensors
        return -Y.t() @ g @ Y.t()
''',
 ("sign", "-Y.t() @ g @ Y.t()", "Y.t() @ g @ Y.t()", "constant-factor"),
 ("no-transpose", "-Y.t() @ g @ Y.t()", "-Y @ g @ Y", "transposed operand"),
 ("one-side", "-Y.t() @ g @ Y.t()", "-Y.t() @ Y.t() * g", "none"),
)
fn("TraceExp", "A: [n, n]", '''
    @staticmethod
    def forward(ctx, A):
        E = torch.linalg.matrix_exp(A)
        ctx.save_for_backward(E)
        return E.diagonal().sum()

    @staticmethod
    def backward(ctx, g):
        (E,) = ctx.saved_tensors
        return g * E.t()
''',
 ("not-transposed", "g * E.t()", "g * E", "transposed"),
 ("diag-only", "g * E.t()", "g * torch.diag(E.diagonal())", "region"),
)
fn("QuantileLoss", "x: [b, m]\ny: {shape: [b, m], requires_grad: false}\ntau: {value: 0.8}", '''
    @staticmethod
    def forward(ctx, x, y, tau):
        d = y - x
        ctx.save_for_backward(d)
        ctx.tau = tau
        return torch.maximum(tau * d, (tau - 1) * d)

    @staticmethod
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        return torch.where(d > 0, -ctx.tau * g, (1 - ctx.tau) * g), None, None
''',
 ("mirrored", "torch.where(d > 0, -ctx.tau * g, (1 - ctx.tau) * g)", "torch.where(d > 0, (ctx.tau - 1) * g, ctx.tau * g)", "none branch"),
 ("always", "torch.where(d > 0, -ctx.tau * g, (1 - ctx.tau) * g)", "-ctx.tau * g", "branch"),
)
fn("PowerLaw", "x: {shape: [b, n], range: [0.3, 2.0]}\np: {shape: [n], range: [0.5, 2.5]}", '''
    @staticmethod
    def forward(ctx, x, p):
        y = x ** p
        ctx.save_for_backward(x, p, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, p, y = ctx.saved_tensors
        return g * p * y / x, (g * y * x.log()).sum(0)
''',
 ("no-p", "g * p * y / x", "g * y / x", "chain-factor"),
 ("no-x", "g * p * y / x", "g * p * y", "chain-factor"),
 ("log-y", "y * x.log()", "y * y.log()", "chain-factor operand none"),
 ("unsummed", "(g * y * x.log()).sum(0)", "(g * y * x.log())[-1]", "not-summed-over-broadcast"),
)
fn("ComplexAbs2", "z: {shape: [b, n], dtype: complex128}\nw: {shape: [b, n], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return (z * w.conj()).imag

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return 1j * g * w, -1j * g * z
''',
 ("conj", "1j * g * w,", "(1j * g * w).conj(),", "conjugate"),
 ("real-part", "1j * g * w,", "g * w,", "none"),
)
fn("LRUCell", "lam: {shape: [n], dtype: complex128}\nh: {shape: [b, n], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, lam, h):
        y = lam * h + h ** 2
        ctx.save_for_backward(lam, h)
        return y

    @staticmethod
    def backward(ctx, g):
        lam, h = ctx.saved_tensors
        return (g * h.conj()).sum(0), g * (lam + 2 * h).conj()
''',
 ("h-no-conj", "(g * h.conj()).sum(0)", "(g * h).sum(0)", "conjugate"),
 ("square-half", "g * (lam + 2 * h).conj()", "g * (lam + h).conj()", "none missing-term"),
)
fn("TwoHeads", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp(), x.square().sum(1)

    @staticmethod
    def backward(ctx, g1, g2):
        (x,) = ctx.saved_tensors
        return g1 * x.exp() + 2 * x * g2[:, None]
''',
 ("second-lost", " + 2 * x * g2[:, None]", "", "ignored-output"),
 ("first-uses-x", "g1 * x.exp()", "g1 * x", "chain-factor none"),
 ("g2-summed", "g2[:, None]", "g2.sum()", "grad-output-summed"),
)
fn("StaleBuffer", "x: [b, n]\ny: [b, n]", '''
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.sin(x) * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * torch.cos(x) * y, g * torch.sin(x)
''',
 ("cached", ("ctx.save_for_backward(x, y)", "x, y = ctx.saved_tensors"), ("_cache = __class__.cache = (x.detach().clone(), y.detach().clone())", "x, y = __class__.cache"), "stale detached"),
 ("sign-gout", "g * torch.sin(x)", "g.sign() * torch.sin(x)", "grad-output-nonlinear"),
 ("abs-sin", "g * torch.sin(x)", "g * torch.sin(x).abs()", "branch"),
 ("float32", "g * torch.cos(x) * y,", "(g * torch.cos(x) * y).float().double(),", "float32-inside"),
)
