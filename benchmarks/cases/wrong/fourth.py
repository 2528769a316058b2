"""Third held-out set: written by the hand that improved the hypotheses, after they were frozen, and run once.

The Functions are none of the other sets' and none of those that the hypotheses were improved on; but who wrote
them knew the hypotheses. An entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text, what
stands in its place, causes). The causes were written down before the first run: a word alone is the cause that is
right, one with `~` before it is coarser but true, `none` says that there may be no hypothesis for it, and one
with `=` was admitted afterwards, because it is literally true at these numbers.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, t: 7, d: 3"
FUNCTIONS = []
TWICE_DIFFERENTIABLE = ("SincTwice", "HyperbolaTwice", "GateTwice")


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


fn("LargestSquares", "x: {shape: [b, k], distinct: true}", '''
    @staticmethod
    def forward(ctx, x):
        top, at = torch.topk(x, 3, dim=1)
        ctx.save_for_backward(top, at)
        ctx.length = x.shape[1]
        return top * top

    @staticmethod
    def backward(ctx, g):
        top, at = ctx.saved_tensors
        dx = g.new_zeros(g.shape[0], ctx.length)
        return dx.scatter(1, at, 2 * top * g)
''',
 ("in-front", "dx.scatter(1, at, 2 * top * g)", "torch.nn.functional.pad(2 * top * g, (0, ctx.length - 3))", "permuted"),
 ("reversed", "dx.scatter(1, at, 2 * top * g)", "dx.scatter(1, at.flip(1), 2 * top * g)", "permuted"),
 ("next-place", "dx.scatter(1, at, 2 * top * g)", "dx.scatter(1, (at + 1) % ctx.length, 2 * top * g)", "permuted"),
 ("slope-only", "2 * top * g)", "g)", "chain-factor"),
)
fn("HaarStep", "x: [b, 2*n]", '''
    @staticmethod
    def forward(ctx, x):
        even, odd = x[:, 0::2], x[:, 1::2]
        return torch.cat((even + odd, even - odd), 1) / math.sqrt(2)

    @staticmethod
    def backward(ctx, g):
        low, high = g.chunk(2, 1)
        pair = torch.stack((low + high, low - high), -1) / math.sqrt(2)
        return pair.flatten(1)
''',
 ("not-interleaved", "torch.stack((low + high, low - high), -1)", "torch.stack((low + high, low - high), 1)", "permuted"),
 ("difference-sign", "low - high), -1)", "high - low), -1)", "region missing-term"),
 ("unscaled", ", -1) / math.sqrt(2)", ", -1)", "constant-factor"),
 ("low-pass-only", "(low + high, low - high)", "(low, low)", "missing-term region"),
)
fn("Horner", "x: [b, n]\nc: [m]", '''
    @staticmethod
    def forward(ctx, x, c):
        y = torch.zeros_like(x)
        for k in range(c.shape[0] - 1, -1, -1):
            y = y * x + c[k]
        ctx.save_for_backward(x, c)
        return y

    @staticmethod
    def backward(ctx, g):
        x, c = ctx.saved_tensors
        slope, dc = torch.zeros_like(x), torch.zeros_like(c)
        for k in range(c.shape[0] - 1, 0, -1):
            slope = slope * x + k * c[k]
        for k in range(c.shape[0]):
            dc[k] = (g * x ** k).sum()
        return g * slope, dc
''',
 ("exponent-forgotten", "slope * x + k * c[k]", "slope * x + c[k]", "none missing-term"),
 ("one-power-more", "dc[k] = (g * x ** k)", "dc[k] = (g * x ** (k + 1))", "permuted none operand chain-factor"),
 ("opposite-order", "dc[k] = (g * x ** k)", "dc[-1 - k] = (g * x ** k)", "permuted"),
 ("constant-left-out", "for k in range(c.shape[0]):", "for k in range(1, c.shape[0]):", "region"),
)
fn("RationalUnit", "x: [b, n]\np: []\nq: []", '''
    @staticmethod
    def forward(ctx, x, p, q):
        top = x + p * x * x
        low = 1 + q * q * x * x
        ctx.save_for_backward(x, p, q, top, low)
        return top / low

    @staticmethod
    def backward(ctx, g):
        x, p, q, top, low = ctx.saved_tensors
        dtop, dlow = g / low, -g * top / low ** 2
        dx = dtop * (1 + 2 * p * x) + dlow * 2 * q * q * x
        return dx, (dtop * x * x).sum(), (dlow * 2 * q * x * x).sum()
''',
 ("denominator-once", "top / low ** 2", "top / low", "missing-term chain-factor"),
 ("denominator-constant", " + dlow * 2 * q * q * x", "", "missing-term"),
 ("quotient-sign", "dlow = g / low, -g *", "dlow = g / low, g *", "missing-term constant-factor"),
 ("inner-factor", "(dlow * 2 * q * x * x)", "(dlow * 2 * x * x)", "operand chain-factor"),
)
fn("PoissonLoss", "rate: [b, m]\ncount: {shape: [b, m], range: [0, 5], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, rate, count):
        ctx.save_for_backward(rate, count)
        return (torch.exp(rate) - count * rate).mean()

    @staticmethod
    def backward(ctx, g):
        rate, count = ctx.saved_tensors
        return g * (torch.exp(rate) - count) / rate.numel(), None
''',
 ("rows-only", "/ rate.numel()", "/ rate.shape[0]", "constant-factor"),
 ("rate-itself", "(torch.exp(rate) - count)", "(rate - count)", "missing-term chain-factor none operand"),
 ("count-forgotten", "(torch.exp(rate) - count)", "torch.exp(rate)", "missing-term"),
)
fn("CrossLayer", "x: [b, n]\nfirst: [b, n]\nw: [n]", '''
    @staticmethod
    def forward(ctx, x, first, w):
        s = (x * w).sum(1, keepdim=True)
        ctx.save_for_backward(x, first, w, s)
        return first * s + x

    @staticmethod
    def backward(ctx, g):
        x, first, w, s = ctx.saved_tensors
        ds = (g * first).sum(1, keepdim=True)
        return ds * w + g, g * s, (ds * x).sum(0)
''',
 ("skip-forgotten", "return ds * w + g, g", "return ds * w, g", "missing-term"),
 ("skip-only", "return ds * w + g, g", "return g.clone(), g", "missing-term diagonal-only"),
 ("summed-over-batch", "ds = (g * first).sum(1, keepdim=True)", "ds = (g * first).sum(0, keepdim=True)", "wrong-reduction-dim"),
 ("last-for-first", "ds = (g * first)", "ds = (g * x)", "operand"),
)
fn("PairInteractions", "x: [b, n]\nv: [n, d]", '''
    @staticmethod
    def forward(ctx, x, v):
        s = x @ v
        ctx.save_for_backward(x, v, s)
        return 0.5 * (s * s - (x * x) @ (v * v)).sum(1)

    @staticmethod
    def backward(ctx, g):
        x, v, s = ctx.saved_tensors
        g = g[:, None]
        dx = g * (s @ v.mT - x * (v * v).sum(1))
        return dx, (x * g).mT @ s - (x * x * g).sum(0)[:, None] * v
''',
 ("own-square-kept", "(s @ v.mT - x * (v * v).sum(1))", "(s @ v.mT)", "missing-term"),
 ("half-again", "dx = g * (s", "dx = 0.5 * g * (s", "constant-factor"),
 ("batch-mean", "- (x * x * g).sum(0)", "- (x * x * g).mean(0)", "missing-term"),
)
fn("KroneckerApply", "a: [m, n]\nc: [d, k]\nx: [n, k]", '''
    @staticmethod
    def forward(ctx, a, c, x):
        ctx.save_for_backward(a, c, x)
        return a @ x @ c.mT

    @staticmethod
    def backward(ctx, g):
        a, c, x = ctx.saved_tensors
        return g @ c @ x.mT, g.mT @ a @ x, a.mT @ g @ c
''',
 ("middle-reshaped", "g @ c @ x.mT", "g @ c @ x.reshape(x.shape[::-1])", "operand"),
 ("sign", "g.mT @ a @ x,", "-g.mT @ a @ x,", "constant-factor"),
 ("result-reshaped", "g.mT @ a @ x,", "(a @ x).mT.matmul(g).reshape(c.shape),", "transposed permuted"),
)
fn("Householder", "x: [b, n]\nv: [n]", '''
    @staticmethod
    def forward(ctx, x, v):
        s = v @ v
        along = x @ v
        ctx.save_for_backward(x, v, s, along)
        return x - 2 * along[:, None] * v / s

    @staticmethod
    def backward(ctx, g):
        x, v, s, along = ctx.saved_tensors
        gv = g @ v
        dx = g - 2 * gv[:, None] * v / s
        dv = -2 / s * (gv @ x + along @ g) + 4 / s ** 2 * (gv @ along) * v
        return dx, dv
''',
 ("length-constant", " + 4 / s ** 2 * (gv @ along) * v", "", "missing-term"),
 ("one-of-two", "(gv @ x + along @ g)", "(gv @ x)", "missing-term"),
 ("length-once", "4 / s ** 2", "4 / s", "missing-term chain-factor"),
 ("unreflected", "dx = g - 2 * gv[:, None] * v / s", "dx = g.clone()", "missing-term diagonal-only"),
)
fn("CayleyMap", "w: [n, n]", '''
    @staticmethod
    def forward(ctx, w):
        a = w - w.mT
        eye = torch.eye(w.shape[0], dtype=w.dtype, device=w.device)
        inv = torch.linalg.inv(eye + a)
        q = inv @ (eye - a)
        ctx.save_for_backward(inv, q)
        return q

    @staticmethod
    def backward(ctx, g):
        inv, q = ctx.saved_tensors
        da = -inv.mT @ g @ (q.mT + torch.eye(q.shape[0], dtype=q.dtype, device=q.device))
        return da - da.mT
''',
 ("inverse-untransposed", "da = -inv.mT @ g", "da = -inv @ g", "transposed operand"),
 ("not-antisymmetric", "return da - da.mT", "return da", "missing-term"),
 ("inverse-frozen", "(q.mT + torch.eye(q.shape[0], dtype=q.dtype, device=q.device))", "torch.eye(q.shape[0], dtype=q.dtype, device=q.device)", "missing-term"),
 ("sign", "da = -inv.mT", "da = inv.mT", "constant-factor"),
)
fn("FactorLogDet", "x: [n, m]", '''
    @staticmethod
    def forward(ctx, x):
        a = x @ x.mT + torch.eye(x.shape[0], dtype=x.dtype, device=x.device)
        low = torch.linalg.cholesky(a)
        ctx.save_for_backward(x, low)
        return 2 * torch.log(torch.diagonal(low)).sum()

    @staticmethod
    def backward(ctx, g):
        x, low = ctx.saved_tensors
        return 2 * g * torch.cholesky_solve(x, low)
''',
 ("two-dropped", "2 * g * torch", "g * torch", "constant-factor"),
 ("half-solved", "torch.cholesky_solve(x, low)", "torch.linalg.solve_triangular(low, x, upper=False)", "none operand missing-term"),
 ("unsolved", "torch.cholesky_solve(x, low)", "x", "none chain-factor missing-term operand"),
)
fn("PolarToComplex", "r: [b, n]\nphase: [b, n]", '''
    @staticmethod
    def forward(ctx, r, phase):
        unit = torch.polar(torch.ones_like(phase), phase)
        ctx.save_for_backward(r, unit)
        return r * unit

    @staticmethod
    def backward(ctx, g):
        r, unit = ctx.saved_tensors
        turned = g * unit.conj()
        return turned.real, r * turned.imag
''',
 ("unconjugated", "g * unit.conj()", "g * unit", "conjugate"),
 ("phase-sign", "r * turned.imag", "-r * turned.imag", "constant-factor"),
 ("radius-forgotten", "r * turned.imag", "turned.imag", "operand chain-factor"),
 ("parts-exchanged", "return turned.real, r * turned.imag", "return turned.imag, r * turned.real", "none"),
)
fn("Moebius", "z: {shape: [m], dtype: complex128}\na: {shape: [], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, z, a):
        low = 3 + z * 0.2
        ctx.save_for_backward(z, a, low)
        return (a * z + 1) / low

    @staticmethod
    def backward(ctx, g):
        z, a, low = ctx.saved_tensors
        slope = a / low - 0.2 * (a * z + 1) / low ** 2
        return g * slope.conj(), (g * (z / low).conj()).sum()
''',
 ("unconjugated", "g * slope.conj()", "g * slope", "conjugate"),
 ("gradient-conjugated", "g * slope.conj()", "g.conj() * slope", "conjugate"),
 ("real-slope", "g * slope.conj()", "g * slope.real", "none missing-term operand"),
 ("cast", "return g * slope.conj(),", "return (g * slope.conj()).real.to(g.dtype),", "missing-term"),
)
fn("SmoothVariation", "x: [n, m]", '''
    @staticmethod
    def forward(ctx, x):
        down, right = torch.roll(x, -1, 0) - x, torch.roll(x, -1, 1) - x
        size = torch.sqrt(down ** 2 + right ** 2 + 0.01)
        ctx.save_for_backward(down, right, size)
        return size.sum()

    @staticmethod
    def backward(ctx, g):
        down, right, size = ctx.saved_tensors
        p, q = down / size, right / size
        return g * (torch.roll(p, 1, 0) - p + torch.roll(q, 1, 1) - q)
''',
 ("same-way", "torch.roll(p, 1, 0) - p", "torch.roll(p, -1, 0) - p", "permuted missing-term"),
 ("other-dim", "torch.roll(q, 1, 1) - q", "torch.roll(q, 1, 0) - q", "permuted wrong-reduction-dim missing-term"),
 ("centre-forgotten", "torch.roll(q, 1, 1) - q)", "torch.roll(q, 1, 1))", "missing-term"),
 ("unnormalised", "p, q = down / size, right / size", "p, q = down, right", "chain-factor"),
)
fn("EntropyOfRows", "x: [b, m]", '''
    @staticmethod
    def forward(ctx, x):
        p = torch.softmax(x, 1)
        logp = torch.log_softmax(x, 1)
        h = -(p * logp).sum(1)
        ctx.save_for_backward(p, logp, h)
        return h

    @staticmethod
    def backward(ctx, g):
        p, logp, h = ctx.saved_tensors
        return -g[:, None] * p * (logp + h[:, None])
''',
 ("sign", "return -g[:, None]", "return g[:, None]", "constant-factor"),
 ("entropy-forgotten", "(logp + h[:, None])", "logp", "missing-term"),
 ("probability-forgotten", "-g[:, None] * p * (", "-g[:, None] * (", "chain-factor"),
)
fn("CumulativeDistance", "p: [b, m]\nq: [b, m]", '''
    @staticmethod
    def forward(ctx, p, q):
        c = torch.cumsum(p - q, 1)
        ctx.save_for_backward(c)
        return (c * c).sum(1)

    @staticmethod
    def backward(ctx, g):
        (c,) = ctx.saved_tensors
        d = 2 * c * g[:, None]
        dp = d.flip(1).cumsum(1).flip(1)
        return dp, -dp
''',
 ("forward-again", "d.flip(1).cumsum(1).flip(1)", "d.cumsum(1)", "permuted transposed"),
 ("without-itself", "dp = d.flip(1).cumsum(1).flip(1)", "dp = d.flip(1).cumsum(1).flip(1) - d", "permuted missing-term"),
 ("same-sign", "return dp, -dp", "return dp, dp.clone()", "constant-factor"),
 ("no-sum", "dp = d.flip(1).cumsum(1).flip(1)", "dp = d", "chain-factor missing-term diagonal-only"),
)
fn("DebiasedAverage", "x: [b, t]\nbeta: {shape: [], range: [0.2, 0.8]}", '''
    @staticmethod
    def forward(ctx, x, beta):
        h, states = torch.zeros_like(x[:, 0]), []
        for k in range(x.shape[1]):
            states.append(h)
            h = beta * h + (1 - beta) * x[:, k]
        ctx.save_for_backward(x, beta, torch.stack(states, 1))
        return h * h

    @staticmethod
    def backward(ctx, g):
        x, beta, states = ctx.saved_tensors
        last = beta * states[:, -1] + (1 - beta) * x[:, -1]
        dh, dx, dbeta = 2 * last * g, torch.zeros_like(x), 0.0
        for k in reversed(range(x.shape[1])):
            dx[:, k] = dh * (1 - beta)
            dbeta = dbeta + (dh * (states[:, k] - x[:, k])).sum()
            dh = dh * beta
        return dx, dbeta
''',
 ("input-forgotten", "(states[:, k] - x[:, k])", "states[:, k]", "missing-term"),
 ("no-decay", "            dh = dh * beta\n", "", "chain-factor missing-term operand"),
 ("weight-beta", "dx[:, k] = dh * (1 - beta)", "dx[:, k] = dh * beta", "operand constant-factor chain-factor"),
 ("last-step-only", "dbeta = dbeta + (dh", "dbeta = (dh", "none missing-term"),
)
fn("AngularMargin", "x: [b, n]\nw: [m, n]", '''
    @staticmethod
    def forward(ctx, x, w):
        rx, rw = x.norm(dim=1, keepdim=True), w.norm(dim=1, keepdim=True)
        u, v = x / rx, w / rw
        cos = u @ v.mT
        ctx.save_for_backward(u, v, rx, rw)
        return 4 * cos

    @staticmethod
    def backward(ctx, g):
        u, v, rx, rw = ctx.saved_tensors
        du, dv = 4 * g @ v, 4 * g.mT @ u
        dx = (du - u * (du * u).sum(1, keepdim=True)) / rx
        dw = (dv - v * (dv * v).sum(1, keepdim=True)) / rw
        return dx, dw
''',
 ("no-projection", "dx = (du - u * (du * u).sum(1, keepdim=True)) / rx", "dx = du / rx", "missing-term"),
 ("norm-forgotten", "(dv * v).sum(1, keepdim=True)) / rw", "(dv * v).sum(1, keepdim=True))", "chain-factor"),
 ("norms-exchanged", "dx = (du - u * (du * u).sum(1, keepdim=True)) / rx", "dx = (du - u * (du * u).sum(1, keepdim=True)) / rw.mean()", "chain-factor none"),
 ("projected-on-all", "v * (dv * v).sum(1, keepdim=True)", "v * (dv * v).sum()", "wrong-reduction-dim"),
)
fn("BandLimit", "x: [b, t]\nw: [t]", '''
    @staticmethod
    def forward(ctx, x, w):
        f = torch.fft.fft(x)
        ctx.save_for_backward(w, f)
        return torch.fft.ifft(f * w).real

    @staticmethod
    def backward(ctx, g):
        w, f = ctx.saved_tensors
        q = torch.fft.fft(g)
        return torch.fft.ifft(q * w).real, (q * f.conj()).real.sum(0) / w.shape[0]
''',
 ("length-forgotten", ".sum(0) / w.shape[0]", ".sum(0)", "constant-factor"),
 ("unconjugated", "(q * f.conj())", "(q * f)", "conjugate operand none permuted"),
 ("phase-lost", "(q * f.conj())", "(q * f.abs())", "operand none"),
)
fn("GatedMax", "x: {shape: [b, m], distinct: true}\ngate: [b]", '''
    @staticmethod
    def forward(ctx, x, gate):
        top, at = x.max(1)
        s = torch.sigmoid(gate)
        ctx.save_for_backward(top, at, s)
        ctx.shape = x.shape
        return top * s

    @staticmethod
    def backward(ctx, g):
        top, at, s = ctx.saved_tensors
        dx = g.new_zeros(ctx.shape)
        dx.scatter_(1, at[:, None], (g * s)[:, None])
        return dx, g * top * s * (1 - s)
''',
 ("everywhere", "dx.scatter_(1, at[:, None], (g * s)[:, None])", "dx += (g * s)[:, None]", "none missing-term"),
 ("neighbour", "dx.scatter_(1, at[:, None],", "dx.scatter_(1, (at[:, None] + 1) % ctx.shape[1],", "permuted"),
 ("gate-slope", "s * (1 - s)", "s", "chain-factor"),
 ("gate-forgotten", "(g * s)[:, None])", "g[:, None])", "chain-factor operand"),
)
fn("SincTwice", "x: {shape: [b, n], range: [0.3, 2]}", '''
    @staticmethod
    def forward(ctx, x):
        y = torch.sin(x) / x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (torch.cos(x) - y) / x
''',
 ("output-detached", "(torch.cos(x) - y)", "(torch.cos(x) - y.detach())", "detached"),
 ("slope-kept", ("ctx.save_for_backward(x, y)", "x, y = ctx.saved_tensors\n        return g * (torch.cos(x) - y) / x"), ("ctx.save_for_backward(x)\n        ctx.slope = torch.cos(x) - y", "(x,) = ctx.saved_tensors\n        return g * ctx.slope / x"), "detached"),
 ("under-no-grad", "return g * (torch.cos(x) - y) / x", "with torch.no_grad():\n            c = torch.cos(x)\n        return g * (c - y) / x", "detached"),
)
fn("HyperbolaTwice", "x: [b, n]\nw: [n]", '''
    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, g):
            r = torch.sqrt(x * x + 1)
            ctx.save_for_backward(x, w, g, r)
            return g * w * x / r

        @staticmethod
        def backward(ctx, a):
            x, w, g, r = ctx.saved_tensors
            return a * g * w / r ** 3, (a * g * x / r).sum(0), a * w * x / r

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sqrt(x * x + 1) * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return __class__.Slope.apply(x, w, g), (g * torch.sqrt(x * x + 1)).sum(0)
''',
 ("root-not-cubed", "a * g * w / r ** 3,", "a * g * w / r,", "chain-factor"),
 ("weight-mean", "(a * g * x / r).sum(0)", "(a * g * x / r).mean(0)", "constant-factor"),
 ("grad-forgotten", "return a * g * w / r ** 3,", "return a * w / r ** 3,", "operand chain-factor"),
 ("sign", "(a * g * x / r).sum(0), a * w * x / r", "(a * g * x / r).sum(0), -a * w * x / r", "constant-factor"),
)
fn("GateTwice", "x: [b, n]\ny: [b, n]", '''
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        s = torch.sigmoid(y)
        return g * s, g * x * s * (1 - s)
''',
 ("gate-data", "return g * s, g * x * s * (1 - s)", "return g * s, g * x * s.data * (1 - s)", "detached"),
 ("input-detached", "g * x * s * (1 - s)", "g * x.detach() * s * (1 - s)", "detached"),
)
