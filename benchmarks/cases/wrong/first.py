"""Development set: the ladder of hypotheses was improved on it.

An entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text, what stands in its place,
causes that are right). The causes were written down before the first run. `none` says that no hypothesis can
tell it; one with `=` before it was admitted afterwards, because it is literally true at these numbers.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, d: 2, c: 4"
FUNCTIONS = []


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


fn("LayerNorm", "x: [b, n]\nweight: [n]\nbias: [n]", '''
    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, rstd, weight)
        return xhat * weight + bias

    @staticmethod
    def backward(ctx, g):
        xhat, rstd, weight = ctx.saved_tensors
        wg = weight * g
        c1 = (wg * xhat).mean(-1, keepdim=True)
        c2 = wg.mean(-1, keepdim=True)
        dx = (wg - xhat * c1 - c2) * rstd
        dw = (g * xhat).sum(0)
        db = g.sum(0)
        return dx, dw, db
''',
 ("no-c2", "- xhat * c1 - c2", "- xhat * c1", "missing-term"),
 ("no-c1", "wg - xhat * c1 - c2", "wg - c2", "missing-term"),
 ("no-rstd", "- c2) * rstd", "- c2)", "chain-factor"),
 ("no-weight", "wg = weight * g", "wg = g", "operand chain-factor"),
 ("dw-mean", "(g * xhat).sum(0)", "(g * xhat).mean(0)", "constant-factor"),
 ("wrong-dim", "c1 = (wg * xhat).mean(-1, keepdim=True)", "c1 = (wg * xhat).mean(0, keepdim=True)", "wrong-reduction-dim missing-term"),
)
fn("BatchNormTrain", "x: [k, n]\nweight: [n]", '''
    @staticmethod
    def forward(ctx, x, weight):
        mu = x.mean(0)
        var = ((x - mu) ** 2).mean(0)
        inv = 1.0 / torch.sqrt(var + 1e-3)
        xh = (x - mu) * inv
        ctx.save_for_backward(xh, inv, weight)
        return weight * xh

    @staticmethod
    def backward(ctx, g):
        xh, inv, weight = ctx.saved_tensors
        n = g.shape[0]
        gw = g * weight
        dx = inv / n * (n * gw - gw.sum(0) - xh * (gw * xh).sum(0))
        return dx, (g * xh).sum(0)
''',
 ("n-minus-1", "inv / n * (n * gw", "inv / (n - 1) * (n * gw", "constant-factor"),
 ("eval-mode", "inv / n * (n * gw - gw.sum(0) - xh * (gw * xh).sum(0))", "gw * inv", "missing-term diagonal-only"),
 ("plus", "- xh * (gw", "+ xh * (gw", "missing-term"),
 ("unsummed-weight", "(g * xh).sum(0)", "(g * xh)[0]", "not-summed-over-broadcast"),
)
fn("GroupNorm", "x: [b, c, m]", '''
    @staticmethod
    def forward(ctx, x):
        B, C, L = x.shape
        xg = x.reshape(B, 2, -1)
        mean = xg.mean(-1, keepdim=True)
        inv = (xg.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        xhat = (xg - mean) * inv
        ctx.save_for_backward(xhat, inv)
        return xhat.reshape(B, C, L)

    @staticmethod
    def backward(ctx, g):
        xhat, inv = ctx.saved_tensors
        gg = g.reshape(xhat.shape)
        s1 = gg.mean(-1, keepdim=True)
        s2 = (gg * xhat).mean(-1, keepdim=True)
        dx = inv * (gg - s1 - xhat * s2)
        return dx.reshape(g.shape)
''',
 ("sum-not-mean", "s2 = (gg * xhat).mean(-1, keepdim=True)", "s2 = (gg * xhat).sum(-1, keepdim=True)", "missing-term"),
 ("inv-squared", "dx = inv * (gg", "dx = inv ** 2 * (gg", "chain-factor"),
)
fn("InstanceNormScale", "x: [d, b, k]\ngamma: [b]", '''
    @staticmethod
    def forward(ctx, x, gamma):
        mu = x.mean(2, keepdim=True)
        sd = (x.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        z = (x - mu) / sd
        ctx.save_for_backward(z, sd, gamma)
        return z * gamma[None, :, None]

    @staticmethod
    def backward(ctx, grad):
        z, sd, gamma = ctx.saved_tensors
        dz = grad * gamma[None, :, None]
        dx = (dz - dz.mean(2, keepdim=True) - z * (dz * z).mean(2, keepdim=True)) / sd
        dgamma = (grad * z).sum((0, 2))
        return dx, dgamma
''',
 ("dgamma-mean", ".sum((0, 2))", ".mean((0, 2))", "constant-factor"),
 ("times-sd", "keepdim=True)) / sd", "keepdim=True)) * sd", "chain-factor"),
)
fn("L2Normalize", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        norm = x.pow(2).sum(1, keepdim=True).sqrt()
        y = x / norm
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, g):
        y, norm = ctx.saved_tensors
        return (g - y * (g * y).sum(1, keepdim=True)) / norm
''',
 ("no-projection", "(g - y * (g * y).sum(1, keepdim=True)) / norm", "g / norm", "missing-term"),
 ("no-norm", ".sum(1, keepdim=True)) / norm", ".sum(1, keepdim=True))", "chain-factor"),
 ("norm-dim0", "(g * y).sum(1, keepdim=True)", "(g * y).sum(0, keepdim=True)", "wrong-reduction-dim missing-term"),
)
fn("WeightNorm", "v: [m, n]\ng: [m]", '''
    @staticmethod
    def forward(ctx, v, g):
        norm = v.norm(dim=1, keepdim=True)
        ctx.save_for_backward(v, g, norm)
        return v * (g[:, None] / norm)

    @staticmethod
    def backward(ctx, gw):
        v, g, norm = ctx.saved_tensors
        dg = (gw * v / norm).sum(1)
        dv = g[:, None] / norm * gw - (g * dg)[:, None] / norm ** 2 * v
        return dv, dg
''',
 ("norm-power", "/ norm ** 2 * v", "/ norm * v", "missing-term"),
 ("no-g", "dv = g[:, None] / norm * gw - (g * dg)", "dv = 1 / norm * gw - (dg)", "operand chain-factor"),
)
fn("SpectralScale", "w: [n, m]\nu: [n]\nv: [m]", '''
    @staticmethod
    def forward(ctx, w, u, v):
        sigma = u @ w @ v
        ctx.save_for_backward(w, u, v, sigma)
        return w / (1 + sigma ** 2)

    @staticmethod
    def backward(ctx, g):
        w, u, v, sigma = ctx.saved_tensors
        s = 1 + sigma ** 2
        dsig = -(g * w).sum() * 2 * sigma / s ** 2
        dw = g / s + dsig * torch.outer(u, v)
        du = dsig * (w @ v)
        dv = dsig * (w.t() @ u)
        return dw, du, dv
''',
 ("outer-missing", "dw = g / s + dsig * torch.outer(u, v)", "dw = g / s", "missing-term diagonal-only"),
 ("du-factor2", "du = dsig * (w @ v)", "du = dsig / 2 * (w @ v)", "constant-factor"),
 ("dv-sign", "dv = dsig * (w.t() @ u)", "dv = -dsig * (w.t() @ u)", "constant-factor"),
)
fn("Attention", "q: [n, d]\nk: [m, d]\nv: [m, b]", '''
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.t() * scale, -1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dv = p.t() @ do
        dp = do @ v.t()
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        dq = ds @ k * ctx.scale
        dk = ds.t() @ q * ctx.scale
        return dq, dk, dv
''',
 ("dk-no-scale", "dk = ds.t() @ q * ctx.scale", "dk = ds.t() @ q", "constant-factor"),
 ("no-delta", "ds = p * (dp - (dp * p).sum(-1, keepdim=True))", "ds = p * dp", "missing-term none"),
 ("delta-dim", "(dp * p).sum(-1, keepdim=True)", "(dp * p).sum(0, keepdim=True)", "wrong-reduction-dim none"),
)
fn("CausalSoftmax", "s: [n, n]", '''
    @staticmethod
    def forward(ctx, s):
        mask = torch.ones_like(s).tril().bool()
        p = torch.softmax(s.masked_fill(~mask, float("-inf")), -1)
        ctx.save_for_backward(p, mask)
        return p

    @staticmethod
    def backward(ctx, g):
        p, mask = ctx.saved_tensors
        gs = p * (g - (g * p).sum(-1, keepdim=True))
        return gs.masked_fill(~mask, 0.0)
''',
 ("mask-transposed", "masked_fill(~mask, 0.0)", "masked_fill(~mask.t(), 0.0)", "region branch none"),
 ("p-one-minus-p", "gs = p * (g - (g * p).sum(-1, keepdim=True))", "gs = p * (1 - p) * g", "diagonal-only"),
)
fn("Conv1d", "x: [d, b, k]\nw: [n, b, d]", '''
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.nn.functional.conv1d(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        K = w.shape[2]
        L = g.shape[2]
        dx = torch.zeros_like(x)
        dw = torch.zeros_like(w)
        for j in range(K):
            dx[:, :, j:j + L] += torch.einsum("nol,oc->ncl", g, w[:, :, j])
            dw[:, :, j] = torch.einsum("nol,ncl->oc", g, x[:, :, j:j + L])
        return dx, dw
''',
 ("not-flipped", 'g, w[:, :, j])', 'g, w[:, :, K - 1 - j])', "operand"),
 ("overwrite", "dx[:, :, j:j + L] +=", "dx[:, :, j:j + L] =", "duplicates region none"),
 ("dw-flipped", "dw[:, :, j] =", "dw[:, :, K - 1 - j] =", "permuted"),
)
fn("AvgPool", "x: [b, k]", '''
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.reshape(x.shape[0], -1, x.shape[1]).unfold(2, 3, 1).mean(-1).squeeze(1)

    @staticmethod
    def backward(ctx, g):
        dx = g.new_zeros(ctx.shape)
        for i in range(g.shape[1]):
            dx[:, i:i + 3] += g[:, i:i + 1] / 3
        return dx
''',
 ("no-div", "g[:, i:i + 1] / 3", "g[:, i:i + 1]", "constant-factor"),
 ("off-by-one", "range(g.shape[1])", "range(g.shape[1] - 1)", "region"),
 ("overwrite", "] += g", "] = g.expand(-1, 1)*1.0 if False else g", "duplicates region none"),
)
fn("MaxPool2", "x: [b, k]", '''
    @staticmethod
    def forward(ctx, x):
        v, idx = x.reshape(x.shape[0], -1, 2).max(-1) if x.shape[1] % 2 == 0 else x[:, :-1].reshape(x.shape[0], -1, 2).max(-1)
        ctx.save_for_backward(idx)
        ctx.shape = x.shape
        return v

    @staticmethod
    def backward(ctx, g):
        (idx,) = ctx.saved_tensors
        dx = g.new_zeros(ctx.shape)
        cols = torch.arange(g.shape[1]) * 2 + idx
        dx.scatter_(1, cols, g)
        return dx
''',
 ("min-index", "* 2 + idx", "* 2 + (1 - idx)", "permuted none =operand"),
 ("always-first", "* 2 + idx", "* 2 + 0 * idx", "region branch none"),
)
fn("LinearInterp", "table: [k]\nt: {shape: [b], range: [0.6, 1.9]}", '''
    @staticmethod
    def forward(ctx, table, t):
        i = t.floor().long()
        w = t - i
        ctx.save_for_backward(table, i, w)
        return table[i] * (1 - w) + table[i + 1] * w

    @staticmethod
    def backward(ctx, g):
        table, i, w = ctx.saved_tensors
        dtab = torch.zeros_like(table)
        dtab.index_add_(0, i, g * (1 - w))
        dtab.index_add_(0, i + 1, g * w)
        dt = g * (table[i + 1] - table[i])
        return dtab, dt
''',
 ("weights-swapped", "dtab.index_add_(0, i, g * (1 - w))\n        dtab.index_add_(0, i + 1, g * w)", "dtab.index_add_(0, i, g * w)\n        dtab.index_add_(0, i + 1, g * (1 - w))", "none operand"),
 ("dt-sign", "(table[i + 1] - table[i])", "(table[i] - table[i + 1])", "constant-factor"),
 ("assign", "dtab.index_add_(0, i + 1, g * w)", "dtab[i + 1] = g * w", "duplicates none"),
)
fn("EmbeddingSum", "table: [n, d]\nidx: {shape: [k], dtype: int64, range: [0, n]}", '''
    @staticmethod
    def forward(ctx, table, idx):
        ctx.save_for_backward(idx)
        ctx.shape = table.shape
        return 1.5 * table[idx]

    @staticmethod
    def backward(ctx, g):
        (idx,) = ctx.saved_tensors
        out = g.new_zeros(ctx.shape)
        out.index_add_(0, idx, 1.5 * g)
        return out, None
''',
 ("assign", "out.index_add_(0, idx, 1.5 * g)", "out[idx] = 1.5 * g", "duplicates"),
 ("assign-add", "out.index_add_(0, idx, 1.5 * g)", "out[idx] += 1.5 * g", "duplicates"),
)
fn("SegmentMean", "x: [k, d]\nseg: {shape: [k], dtype: int64, range: [0, 3]}", '''
    @staticmethod
    def forward(ctx, x, seg):
        out = x.new_zeros(3, x.shape[1]).index_add(0, seg, x)
        cnt = torch.bincount(seg, minlength=3).clamp(min=1).to(x.dtype)
        ctx.save_for_backward(seg, cnt)
        return out / cnt[:, None]

    @staticmethod
    def backward(ctx, g):
        seg, cnt = ctx.saved_tensors
        return (g / cnt[:, None])[seg], None
''',
 ("forgot-count", "(g / cnt[:, None])[seg]", "g[seg]", "chain-factor none"),
 ("all-count", "(g / cnt[:, None])[seg]", "g[seg] / len(seg)", "none chain-factor"),
)
fn("CrossEntropyIgnore", "logits: [k, n]\ntarget: {shape: [k], dtype: int64, range: [0, n]}", '''
    @staticmethod
    def forward(ctx, logits, target):
        keep = target != 0
        logp = torch.log_softmax(logits, -1)
        count = keep.sum().clamp(min=1)
        ctx.save_for_backward(logp, target, keep)
        ctx.count = count
        nll = -logp.gather(1, target[:, None]).squeeze(1)
        return (nll * keep).sum() / count

    @staticmethod
    def backward(ctx, g):
        logp, target, keep = ctx.saved_tensors
        d = logp.exp()
        d[torch.arange(len(target)), target] -= 1
        d = d * keep[:, None]
        return g * d / ctx.count, None
''',
 ("no-count", "g * d / ctx.count", "g * d", "none chain-factor"),
 ("divides-by-n", "g * d / ctx.count", "g * d / len(target)", "none chain-factor"),
 ("keep-lost", "d = d * keep[:, None]", "d = d * 1.0", "none region branch"),
 ("no-exp", "d = logp.exp()", "d = logp.clone()", "none"),
)
fn("LabelSmoothing", "logits: [b, n]\ntarget: {shape: [b], dtype: int64, range: [0, n]}\neps: {value: 0.1}", '''
    @staticmethod
    def forward(ctx, logits, target, eps):
        logp = torch.log_softmax(logits, -1)
        n = logits.shape[-1]
        q = torch.full_like(logp, eps / n)
        q.scatter_add_(1, target[:, None], torch.full_like(logp[:, :1], 1 - eps))
        ctx.save_for_backward(logp, q)
        return -(q * logp).sum(-1)

    @staticmethod
    def backward(ctx, g):
        logp, q = ctx.saved_tensors
        return g[:, None] * (logp.exp() - q), None, None
''',
 ("sign", "(logp.exp() - q)", "(q - logp.exp())", "constant-factor"),
 ("g-sum", "g[:, None] * (", "g.sum() * (", "none grad-output-summed"),
 ("one-hot", "(logp.exp() - q)", "(logp.exp() - (q > 0.5).to(q))", "none missing-term"),
)
fn("FocalLoss", "x: [b, n]\ny: {shape: [b, n], range: [0.1, 0.9], requires_grad: false}\ngamma: {value: 2.0}", '''
    @staticmethod
    def forward(ctx, x, y, gamma):
        p = torch.sigmoid(x)
        ctx.save_for_backward(p, y)
        ctx.gamma = gamma
        return -y * (1 - p) ** gamma * torch.log(p)

    @staticmethod
    def backward(ctx, g):
        p, y = ctx.saved_tensors
        gam = ctx.gamma
        d = -y * (1 - p) ** gam * (1 / p) + y * gam * (1 - p) ** (gam - 1) * torch.log(p)
        return g * d * p * (1 - p), None, None
''',
 ("no-log-term", " + y * gam * (1 - p) ** (gam - 1) * torch.log(p)", "", "none missing-term"),
 ("no-chain", "g * d * p * (1 - p)", "g * d", "chain-factor"),
 ("half-chain", "g * d * p * (1 - p)", "g * d * p", "chain-factor"),
)
fn("DiceLoss", "p: {shape: [b, n], range: [0.1, 0.9]}\nt: {shape: [b, n], range: [0.1, 0.9], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, p, t):
        inter = (p * t).sum(1)
        union = p.sum(1) + t.sum(1)
        ctx.save_for_backward(t, inter, union)
        return 1 - 2 * inter / union

    @staticmethod
    def backward(ctx, g):
        t, inter, union = ctx.saved_tensors
        dp = -2 * (t * union[:, None] - inter[:, None]) / (union ** 2)[:, None]
        return g[:, None] * dp, None
''',
 ("no-union-term", "(t * union[:, None] - inter[:, None])", "(t * union[:, None])", "missing-term"),
 ("union-power", "(union ** 2)", "(union)", "chain-factor"),
)
fn("KLDiv", "mu: [b, n]\nlogvar: [b, n]", '''
    @staticmethod
    def forward(ctx, mu, logvar):
        ctx.save_for_backward(mu, logvar)
        return -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()

    @staticmethod
    def backward(ctx, g):
        mu, logvar = ctx.saved_tensors
        b = mu.shape[0]
        return g * mu / b, g * 0.5 * (logvar.exp() - 1) / b
''',
 ("no-batch", "g * mu / b", "g * mu", "constant-factor"),
 ("half-missing", "g * 0.5 * (logvar", "g * (logvar", "constant-factor"),
 ("no-minus-1", "(logvar.exp() - 1)", "logvar.exp()", "none missing-term wrong-saved chain-factor"),
)
fn("Huber", "x: [b, n]\ny: [b, n]\ndelta: {value: 0.8}", '''
    @staticmethod
    def forward(ctx, x, y, delta):
        r = x - y
        ctx.save_for_backward(r)
        ctx.delta = delta
        a = r.abs()
        return torch.where(a < delta, 0.5 * r * r, delta * (a - 0.5 * delta)).mean()

    @staticmethod
    def backward(ctx, g):
        (r,) = ctx.saved_tensors
        d = torch.where(r.abs() < ctx.delta, r, ctx.delta * r.sign())
        d = g * d / r.numel()
        return d, -d, None
''',
 ("no-delta", "ctx.delta * r.sign())", "r.sign())", "branch"),
 ("same-sign", "return d, -d, None", "return d, d, None", "constant-factor"),
 ("always-r", "torch.where(r.abs() < ctx.delta, r, ctx.delta * r.sign())", "r.clone()", "branch"),
)
fn("CosineSim", "a: [b, n]\nb_: [b, n]", '''
    @staticmethod
    def forward(ctx, a, b_):
        na, nb = a.norm(dim=1), b_.norm(dim=1)
        c = (a * b_).sum(1) / (na * nb)
        ctx.save_for_backward(a, b_, na, nb, c)
        return c

    @staticmethod
    def backward(ctx, g):
        a, b_, na, nb, c = ctx.saved_tensors
        s = (g / (na * nb))[:, None]
        ga = s * b_ - (g * c / na ** 2)[:, None] * a
        gb = s * a - (g * c / nb ** 2)[:, None] * b_
        return ga, gb
''',
 ("na-for-nb", "gb = s * a - (g * c / nb ** 2)", "gb = s * a - (g * c / na ** 2)", "missing-term none"),
 ("swap", "return ga, gb", "return gb, ga", "swapped-inputs"),
 ("no-second", "ga = s * b_ - (g * c / na ** 2)[:, None] * a", "ga = s * b_", "missing-term"),
)
fn("LSTMCell", "i: [b, n]\nf: [b, n]\no: [b, n]\nz: [b, n]\nc: [b, n]", '''
    @staticmethod
    def forward(ctx, i, f, o, z, c):
        si, sf, so = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
        tz = torch.tanh(z)
        c2 = sf * c + si * tz
        tc = torch.tanh(c2)
        ctx.save_for_backward(si, sf, so, tz, tc, c)
        return so * tc, c2

    @staticmethod
    def backward(ctx, gh, gc):
        si, sf, so, tz, tc, c = ctx.saved_tensors
        dc = gc + gh * so * (1 - tc * tc)
        di = dc * tz * si * (1 - si)
        df = dc * c * sf * (1 - sf)
        do = gh * tc * so * (1 - so)
        dz = dc * si * (1 - tz * tz)
        return di, df, do, dz, dc * sf
''',
 ("forgot-gc", "dc = gc + gh", "dc = gh", "ignored-output"),
 ("tc-not-squared", "(1 - tc * tc)", "(1 - tc)", "chain-factor"),
 ("no-tanh-deriv", "dc = gc + gh * so * (1 - tc * tc)", "dc = gc + gh * so", "chain-factor"),
 ("df-uses-i", "df = dc * c * sf * (1 - sf)", "df = dc * c * si * (1 - si)", "none operand chain-factor"),
)
fn("GRUCell", "r: [b, n]\nz: [b, n]\nhn: [b, n]\nh: [b, n]", '''
    @staticmethod
    def forward(ctx, r, z, hn, h):
        sr, sz = torch.sigmoid(r), torch.sigmoid(z)
        nn_ = torch.tanh(sr * hn)
        ctx.save_for_backward(sr, sz, nn_, hn, h)
        return (1 - sz) * nn_ + sz * h

    @staticmethod
    def backward(ctx, g):
        sr, sz, nn_, hn, h = ctx.saved_tensors
        dn = g * (1 - sz) * (1 - nn_ ** 2)
        dz = g * (h - nn_) * sz * (1 - sz)
        dr = dn * hn * sr * (1 - sr)
        return dr, dz, dn * sr, g * sz
''',
 ("dh-1-z", "dn * sr, g * sz", "dn * sr, g * (1 - sz)", "operand chain-factor none"),
 ("dz-h", "g * (h - nn_) * sz", "g * h * sz", "none chain-factor missing-term"),
 ("swap-rz", "return dr, dz,", "return dz, dr,", "swapped-inputs"),
)
fn("GeluErf", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / 2 ** 0.5))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / 2 ** 0.5))
        pdf = torch.exp(-0.5 * x * x) / (2 * math.pi) ** 0.5
        return g * (cdf + x * pdf)
''',
 ("no-x", "cdf + x * pdf", "cdf + pdf", "none"),
 ("cdf-only", "g * (cdf + x * pdf)", "g * cdf", "none"),
 ("tanh-constant", "(2 * math.pi) ** 0.5", "(2 * 3.14) ** 0.5", "none"),
)
fn("Mish", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(torch.nn.functional.softplus(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = torch.tanh(torch.nn.functional.softplus(x))
        return g * (t + x * (1 - t * t) * torch.sigmoid(x))
''',
 ("no-sigmoid", "(1 - t * t) * torch.sigmoid(x))", "(1 - t * t))", "none"),
)
fn("SwiGLU", "a: [b, n]\nb_: [b, n]", '''
    @staticmethod
    def forward(ctx, a, b_):
        ctx.save_for_backward(a, b_)
        return a * torch.sigmoid(a) * b_

    @staticmethod
    def backward(ctx, g):
        a, b_ = ctx.saved_tensors
        s = torch.sigmoid(a)
        da = g * b_ * (s * (1 + a * (1 - s)))
        db = g * a * s
        return da, db
''',
 ("silu-detached", "(s * (1 + a * (1 - s)))", "s", "none"),
 ("db-no-a", "db = g * a * s", "db = g * s", "chain-factor operand"),
)
fn("RoPE", "x: [b, n, k]\ncos: {shape: [n, b], requires_grad: false}\nsin: {shape: [n, b], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        h = x.shape[-1] // 2
        x1, x2 = x[..., :h], x[..., h:2 * h]
        c, s = cos[:, :1], sin[:, :1]
        return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        h = g.shape[-1] // 2
        g1, g2 = g[..., :h], g[..., h:]
        c, s = cos[:, :1], sin[:, :1]
        return torch.cat([g1 * c + g2 * s, g2 * c - g1 * s], -1), None, None
''',
 ("same-rotation", "[g1 * c + g2 * s, g2 * c - g1 * s]", "[g1 * c - g2 * s, g2 * c + g1 * s]", "transposed operand none"),
)
fn("SegmentedScan", "a: {shape: [k], range: [0.2, 0.9]}\nx: [k]", '''
    @staticmethod
    def forward(ctx, a, x):
        h = torch.zeros_like(x[0])
        hs = []
        for t in range(len(x)):
            h = a[t] * h + x[t]
            hs.append(h)
        hs = torch.stack(hs)
        ctx.save_for_backward(a, hs)
        return hs

    @staticmethod
    def backward(ctx, g):
        a, hs = ctx.saved_tensors
        da, dx = torch.zeros_like(a), torch.zeros_like(g)
        acc = torch.zeros_like(g[0])
        for t in reversed(range(len(g))):
            acc = acc + g[t]
            dx[t] = acc
            if t > 0:
                da[t] = acc * hs[t - 1]
            acc = acc * a[t]
        return da, dx
''',
 ("a-shifted", "da[t] = acc * hs[t - 1]", "da[t] = acc * hs[t]", "chain-factor none"),
 ("no-carry", "acc = acc * a[t]", "acc = acc * 0", "diagonal-only none missing-term"),
 ("decay-index", "acc = acc * a[t]", "acc = acc * a[t - 1]", "operand none"),
 ("no-decay", "acc = acc * a[t]", "acc = acc * 1", "operand none"),
)
fn("Cumsum", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(1).cumsum(1).flip(1)
''',
 ("not-reversed", "g.flip(1).cumsum(1).flip(1)", "g.cumsum(1)", "transposed permuted"),
 ("exclusive", "g.flip(1).cumsum(1).flip(1)", "g.flip(1).cumsum(1).flip(1) - g", "diagonal-only missing-term"),
)
fn("Cumprod", "x: {shape: [b, n], range: [0.4, 1.6]}", '''
    @staticmethod
    def forward(ctx, x):
        y = x.cumprod(1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y).flip(1).cumsum(1).flip(1) / x
''',
 ("no-div", ".flip(1) / x", ".flip(1)", "chain-factor"),
 ("g-only", "(g * y).flip(1).cumsum(1).flip(1) / x", "g * y / x", "diagonal-only"),
)
fn("LogCumsumExp", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        y = torch.logcumsumexp(x, 1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return x.exp() * (g * (-y).exp()).flip(1).cumsum(1).flip(1)
''',
 ("no-exp-x", "x.exp() * (g", "(g", "chain-factor"),
 ("y-sign", "(-y).exp()", "y.exp()", "chain-factor"),
)
fn("SortTopK", "x: [b, k]", '''
    @staticmethod
    def forward(ctx, x):
        v, i = x.topk(2, 1)
        ctx.save_for_backward(i)
        ctx.n = x.shape[1]
        return v

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        out = g.new_zeros(g.shape[0], ctx.n)
        return out.scatter(1, i, g)
''',
 ("first-k", "out.scatter(1, i, g)", "torch.cat([g, out[:, 2:]], 1)", "none permuted"),
 ("flipped", "out.scatter(1, i, g)", "out.scatter(1, i.flip(1), g)", "permuted"),
)
fn("MaskedMean", "x: [b, k]\nmask: {shape: [b, k], dtype: bool}", '''
    @staticmethod
    def forward(ctx, x, mask):
        m = mask.to(x.dtype)
        m[:, 0] = 1
        n = m.sum(1)
        ctx.save_for_backward(m, n)
        return (x * m).sum(1) / n

    @staticmethod
    def backward(ctx, g):
        m, n = ctx.saved_tensors
        return (g / n)[:, None] * m, None
''',
 ("inverted", "[:, None] * m", "[:, None] * (1 - m)", "none"),
 ("divides-all", "(g / n)[:, None] * m", "(g / m.shape[1])[:, None] * m", "none chain-factor"),
 ("no-mask", "(g / n)[:, None] * m", "(g / n)[:, None].expand_as(m).clone()", "none"),
)
fn("PairwiseDist", "x: [n, d]\ny: [m, d]", '''
    @staticmethod
    def forward(ctx, x, y):
        diff = x[:, None] - y[None]
        dist = (diff ** 2).sum(-1).sqrt()
        ctx.save_for_backward(diff, dist)
        return dist

    @staticmethod
    def backward(ctx, g):
        diff, dist = ctx.saved_tensors
        t = (g / dist)[..., None] * diff
        return t.sum(1), -t.sum(0)
''',
 ("y-sign", "-t.sum(0)", "t.sum(0)", "constant-factor"),
 ("squared-form", "(g / dist)[..., None]", "(2 * g)[..., None]", "chain-factor"),
)
fn("Sinkhorn", "C: [n, m]", '''
    @staticmethod
    def forward(ctx, C):
        K = torch.exp(-C)
        P = K / K.sum(1, keepdim=True)
        Q = P / P.sum(0, keepdim=True)
        ctx.save_for_backward(P, Q)
        return Q

    @staticmethod
    def backward(ctx, g):
        P, Q = ctx.saved_tensors
        s0 = P.sum(0, keepdim=True)
        dP = (g - (g * Q).sum(0, keepdim=True)) / s0
        dlogK = P * (dP - (dP * P).sum(1, keepdim=True))
        return -dlogK
''',
 ("sign", "return -dlogK", "return dlogK", "constant-factor"),
 ("first-only", "dP = (g - (g * Q).sum(0, keepdim=True)) / s0", "dP = g / s0", "none missing-term"),
)
fn("ImplicitFixedPoint", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        z = torch.zeros_like(x)
        for _ in range(80):
            z = torch.tanh(0.5 * z + x)
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        d = 1 - z ** 2
        return g * d / (1 - 0.5 * d)
''',
 ("one-step", "g * d / (1 - 0.5 * d)", "g * d", "none chain-factor"),
 ("plus", "(1 - 0.5 * d)", "(1 + 0.5 * d)", "none"),
)
fn("LinearSolve", "A: {shape: [n, n], structure: spd}\nb_: [n]", '''
    @staticmethod
    def forward(ctx, A, b_):
        x = torch.linalg.solve(A, b_)
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx, g):
        A, x = ctx.saved_tensors
        db = torch.linalg.solve(A.t(), g)
        return -torch.outer(db, x), db
''',
 ("sign", "-torch.outer(db, x)", "torch.outer(db, x)", "constant-factor"),
 ("multiplies", "db = torch.linalg.solve(A.t(), g)\n        return -torch.outer(db, x), db", "db = torch.linalg.solve(A.t(), g)\n        return -torch.outer(db, x), A @ g", "none operand"),
)
fn("GeneralSolve", "A: [n, n]\nB: [n, m]", '''
    @staticmethod
    def forward(ctx, A, B):
        M = A + 4 * torch.eye(A.shape[0], dtype=A.dtype)
        X = torch.linalg.solve(M, B)
        ctx.save_for_backward(M, X)
        return X

    @staticmethod
    def backward(ctx, g):
        M, X = ctx.saved_tensors
        dB = torch.linalg.solve(M.t(), g)
        return -dB @ X.t(), dB
''',
 ("no-transpose", "torch.linalg.solve(M.t(), g)", "torch.linalg.solve(M, g)", "operand =transposed"),
 ("outer-transposed", "-dB @ X.t()", "-X @ dB.t()", "transposed"),
)
fn("LogDet", "A: [n, n]", '''
    @staticmethod
    def forward(ctx, A):
        M = A @ A.t() + torch.eye(A.shape[0], dtype=A.dtype)
        ctx.save_for_backward(A, M)
        return torch.logdet(M)

    @staticmethod
    def backward(ctx, g):
        A, M = ctx.saved_tensors
        return g * 2 * torch.linalg.inv(M) @ A
''',
 ("no-2", "g * 2 * torch", "g * torch", "constant-factor"),
 ("no-inverse", "torch.linalg.inv(M) @ A", "M @ A", "none"),
 ("right-side", "torch.linalg.inv(M) @ A", "A @ torch.linalg.inv(M)", "none"),
)
fn("CholeskySolveQuad", "L: [n, n]\nv: [n]", '''
    @staticmethod
    def forward(ctx, L, v):
        T = L.tril(-1) + torch.eye(L.shape[0], dtype=L.dtype)
        w = torch.linalg.solve_triangular(T, v[:, None], upper=False).squeeze(1)
        ctx.save_for_backward(T, w)
        return (w * w).sum()

    @staticmethod
    def backward(ctx, g):
        T, w = ctx.saved_tensors
        dv = torch.linalg.solve_triangular(T.t(), 2 * g * w[:, None], upper=True).squeeze(1)
        return -torch.outer(dv, w).tril(-1), dv
''',
 ("tril0", ".tril(-1), dv", ".tril(), dv", "none region"),
 ("no-solve", "dv = torch.linalg.solve_triangular(T.t(), 2 * g * w[:, None], upper=True).squeeze(1)", "dv = 2 * g * w", "none operand"),
)
fn("FakeQuantClamp", "x: [b, k]\nscale: {shape: [1], range: [0.3, 0.6]}", '''
    @staticmethod
    def forward(ctx, x, scale):
        z = x / scale
        ctx.save_for_backward(x, scale)
        return z.clamp(-2.0, 1.5) * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        z = x / scale
        inside = (z > -2.0) & (z < 1.5)
        dscale = torch.where(z <= -2.0, -2.0 * g, torch.where(z >= 1.5, 1.5 * g, 0 * g)).sum().reshape(1)
        return g * inside, dscale
''',
 ("bound", "(z < 1.5)\n", "(z < 2.0)\n", "branch none"),
 ("dscale-lower", "torch.where(z <= -2.0, -2.0 * g,", "torch.where(z <= -2.0, 2.0 * g,", "branch none region"),
 ("dscale-inside", "1.5 * g, 0 * g))", "1.5 * g, z * g))", "branch none"),
 ("pass-through", "g * inside", "g * 1.0", "branch"),
)
fn("MoERouter", "x: [b, n]\nlogits: [b, d]\nw0: [n]\nw1: [n]", '''
    @staticmethod
    def forward(ctx, x, logits, w0, w1):
        p = torch.softmax(logits, -1)
        e0, e1 = x * w0, torch.tanh(x * w1)
        ctx.save_for_backward(x, p, w0, w1, e0, e1)
        return p[:, :1] * e0 + p[:, 1:2] * e1

    @staticmethod
    def backward(ctx, g):
        x, p, w0, w1, e0, e1 = ctx.saved_tensors
        p0, p1 = p[:, :1], p[:, 1:2]
        t = 1 - e1 ** 2
        dx = g * p0 * w0 + g * p1 * t * w1
        gp = torch.zeros_like(p)
        gp[:, 0] = (g * e0).sum(1)
        gp[:, 1] = (g * e1).sum(1)
        dl = p * (gp - (gp * p).sum(1, keepdim=True))
        dw0 = (g * p0 * x).sum(0)
        dw1 = (g * p1 * t * x).sum(0)
        return dx, dl, dw0, dw1
''',
 ("router-detached", "return dx, dl,", "return dx, torch.zeros_like(dl),", "zero"),
 ("dx-one-expert", "dx = g * p0 * w0 + g * p1 * t * w1", "dx = g * p1 * t * w1", "none operand missing-term"),
 ("dw1-no-gate", "dw1 = (g * p1 * t * x).sum(0)", "dw1 = (g * t * x).sum(0)", "chain-factor none"),
 ("gp-swapped", "gp[:, 0] = (g * e0).sum(1)\n        gp[:, 1] = (g * e1).sum(1)", "gp[:, 0] = (g * e1).sum(1)\n        gp[:, 1] = (g * e0).sum(1)", "permuted constant-factor none"),
)
fn("BesselLike", "x: {shape: [b, n], range: [0.5, 3.0]}", '''
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.bessel_j0(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -torch.special.bessel_j1(x) * g
''',
 ("sign", "-torch.special.bessel_j1(x) * g", "torch.special.bessel_j1(x) * g", "constant-factor"),
)
fn("LambertW", "x: {shape: [b, n], range: [0.3, 2.5]}", '''
    @staticmethod
    def forward(ctx, x):
        w = torch.log1p(x)
        for _ in range(40):
            e = torch.exp(w)
            w = w - (w * e - x) / (e * (w + 1))
        ctx.save_for_backward(x, w)
        return w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w / (x * (1 + w))
''',
 ("inverted", "g * w / (x * (1 + w))", "g / (w * (1 + w))", "none chain-factor"),
 ("no-plus", "(x * (1 + w))", "x", "none chain-factor"),
)
fn("ComplexMul", "a: {shape: [b, n], dtype: complex128}\nb_: {shape: [n], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, a, b_):
        ctx.save_for_backward(a, b_)
        return a * b_

    @staticmethod
    def backward(ctx, g):
        a, b_ = ctx.saved_tensors
        return g * b_.conj(), (g * a.conj()).sum(0)
''',
 ("no-conj", "g * b_.conj()", "g * b_", "conjugate"),
 ("conj-all", "(g * a.conj()).sum(0)", "(g * a.conj()).sum(0).conj()", "conjugate none"),
)
fn("SpectralFilter", "x: [b, k]\nw: {shape: [k], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, x, w):
        X = torch.fft.fft(x, dim=-1)
        ctx.save_for_backward(X, w)
        return torch.fft.ifft(X * w, dim=-1).real

    @staticmethod
    def backward(ctx, g):
        X, w = ctx.saved_tensors
        G = torch.fft.fft(g, dim=-1) / g.shape[-1]
        dX = G * w.conj()
        dx = torch.fft.ifft(dX, dim=-1).real * g.shape[-1]
        dw = (G * X.conj()).sum(0)
        return dx, dw
''',
 ("no-conj-w", "dX = G * w.conj()", "dX = G * w", "conjugate operand none =transposed"),
 ("dw-no-conj", "(G * X.conj())", "(G * X)", "conjugate none"),
 ("norm", "torch.fft.ifft(dX, dim=-1).real * g.shape[-1]", "torch.fft.ifft(dX, dim=-1).real", "constant-factor"),
)
fn("BilinearForm", "x: [b, n]\nW: [n, m]\ny: [b, m]", '''
    @staticmethod
    def forward(ctx, x, W, y):
        ctx.save_for_backward(x, W, y)
        return torch.einsum("bn,nm,bm->b", x, W, y)

    @staticmethod
    def backward(ctx, g):
        x, W, y = ctx.saved_tensors
        gx = g[:, None] * (y @ W.t())
        gW = torch.einsum("b,bn,bm->nm", g, x, y)
        gy = g[:, None] * (x @ W)
        return gx, gW, gy
''',
 ("gW-no-g", '"b,bn,bm->nm", g, x, y', '"b,bn,bm->nm", torch.ones_like(g), x, y', "grad-output-ones"),
 ("gx-gsum", "gx = g[:, None] * (y", "gx = g.mean() * (y", "none grad-output-summed"),
)
fn("Dropout", "x: [b, n]\nmask: {shape: [b, n], dtype: bool}\np: {value: 0.25}", '''
    @staticmethod
    def forward(ctx, x, mask, p):
        ctx.save_for_backward(mask)
        ctx.p = p
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask / (1 - ctx.p), None, None
''',
 ("no-rescale", "g * mask / (1 - ctx.p)", "g * mask", "constant-factor"),
 ("rescale-p", "/ (1 - ctx.p), None", "/ ctx.p, None", "constant-factor"),
)
fn("ClassState", "x: [b, n]", '''
    @staticmethod
    def forward(ctx, x):
        y = torch.sin(x)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.cos(x)
''',
 ("stale", ("ctx.save_for_backward(x)", "(x,) = ctx.saved_tensors"), ("__class__.kept = x.detach().clone()", "x = __class__.kept"), "stale =detached"),
 ("detached", "return g * torch.cos(x)", "return g * torch.cos(x).detach()", "detached"),
 ("numpy", "return g * torch.cos(x)", "return g * torch.from_numpy(__import__('numpy').cos(x.detach().numpy()))", "detached"),
 ("clamped", "return g * torch.cos(x)", "return (g * torch.cos(x)).clamp(-1, 1)", "grad-output-nonlinear none"),
)
