"""Second held-out set: written by another hand that did not know the hypotheses, and run once.

An entry is (name, inputs of a spec, body of a class, bugs); a bug is (name, text, what stands in its place,
causes). The causes were written down before the first run: a word alone is the cause that is right, one with
`~` before it is coarser but true, `none` says that there may be no hypothesis for it, and one with `=` was
admitted afterwards, because it is literally true at these numbers.
"""

SIZES = "b: 3, n: 4, m: 5, k: 6, t: 7, h: 2, d: 3"
FUNCTIONS = []


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


fn("AddRMSNorm", "x: [b, m]\nres: [b, m]\nw: [m]", '''
    @staticmethod
    def forward(ctx, x, res, w):
        s = x + res
        r = torch.rsqrt((s * s).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(s, r, w, x)
        return s * r * (1 + w), s

    @staticmethod
    def backward(ctx, gy, gs):
        s, r, w, x = ctx.saved_tensors
        gw = gy * (1 + w)
        ds = r * gw - r ** 3 * s * (gw * s).mean(-1, keepdim=True) + gs
        return ds, ds, (gy * s * r).sum(0)
''',
 ("residual-ignored", "keepdim=True) + gs", "keepdim=True)", "ignored-output"),
 ("offset-forgotten", "gw = gy * (1 + w)", "gw = gy * w", "missing-term chain-factor none =operand"),
 ("before-the-sum", "(gy * s * r)", "(gy * x * r)", "wrong-saved operand none"),
 ("once", "return ds, ds,", "return ds - gs, ds,", "ignored-output"),
)
fn("PackedGeglu", "x: [b, 2*n]", '''
    @staticmethod
    def forward(ctx, x):
        a, u = x.chunk(2, dim=-1)
        cdf = 0.5 * (1 + torch.erf(a / math.sqrt(2)))
        ctx.save_for_backward(a, u, cdf)
        return a * cdf * u

    @staticmethod
    def backward(ctx, g):
        a, u, cdf = ctx.saved_tensors
        pdf = torch.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
        da = g * u * (cdf + a * pdf)
        du = g * a * cdf
        return torch.cat((da, du), dim=-1)
''',
 ("halves-swapped", "torch.cat((da, du)", "torch.cat((du, da)", "permuted"),
 ("interleaved", "torch.cat((da, du), dim=-1)", "torch.stack((da, du), dim=-1).flatten(-2)", "permuted"),
 ("density-forgotten", "(cdf + a * pdf)", "cdf", "missing-term none ~region ~chain-factor"),
 ("density-wrong-width", "math.sqrt(2 * math.pi)", "(2 * math.pi)", "none missing-term ~region"),
)
fn("RotaryHalf", "x: [b, t, 2*n]\nangle: {shape: [t, n], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, x, angle):
        cos, sin = angle.cos(), angle.sin()
        lo, hi = x.chunk(2, -1)
        ctx.save_for_backward(cos, sin)
        return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), -1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        lo, hi = g.chunk(2, -1)
        return torch.cat((lo * cos + hi * sin, hi * cos - lo * sin), -1), None
''',
 ("not-inverted", "(lo * cos + hi * sin, hi * cos - lo * sin)", "(lo * cos - hi * sin, hi * cos + lo * sin)", "transposed operand"),
 ("one-sign", "hi * cos - lo * sin)", "hi * cos + lo * sin)", "none ~region =missing-term"),
 ("cos-only", "(lo * cos + hi * sin, hi * cos - lo * sin)", "(lo * cos, hi * cos)", "missing-term diagonal-only"),
)
fn("SmoothedCrossEntropyZ", "x: [b, m]\ntarget: {shape: [b], dtype: int64, range: [0, m]}\neps: 0.2\nz: 0.05", '''
    @staticmethod
    def forward(ctx, x, target, eps, z):
        lse = torch.logsumexp(x, 1)
        picked = x.gather(1, target[:, None])[:, 0]
        ctx.save_for_backward(x, target, lse)
        ctx.eps, ctx.z = eps, z
        return (lse - (1 - eps) * picked - eps * x.mean(1) + z * lse * lse).mean()

    @staticmethod
    def backward(ctx, g):
        x, target, lse = ctx.saved_tensors
        p = torch.exp(x - lse[:, None])
        dx = p * (1 + 2 * ctx.z * lse)[:, None] - ctx.eps / x.shape[1]
        dx = dx.scatter_add(1, target[:, None], torch.full_like(dx[:, :1], ctx.eps - 1))
        return g * dx / x.shape[0], None, None, None
''',
 ("no-batch-mean", "g * dx / x.shape[0]", "g * dx", "constant-factor"),
 ("z-forgotten", " * (1 + 2 * ctx.z * lse)[:, None]", "", "missing-term none"),
 ("others-only", "ctx.eps / x.shape[1]", "ctx.eps / (x.shape[1] - 1)", "missing-term none"),
 ("mean-of-all", "g * dx / x.shape[0]", "g * dx / x.numel()", "constant-factor"),
 ("hard-target", "ctx.eps - 1)", "-1.0)", "none missing-term ~branch"),
 ("loss-is-last", "return g * dx / x.shape[0]", "return dx / x.shape[0]", "grad-output-ones"),
)
fn("LinearTanhGelu", "x: [b, n]\nw: [m, n]\nbias: [m]", '''
    @staticmethod
    def forward(ctx, x, w, bias):
        a = x @ w.t() + bias
        u = torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3))
        ctx.save_for_backward(x, w, a, u)
        return 0.5 * a * (1 + u)

    @staticmethod
    def backward(ctx, g):
        x, w, a, u = ctx.saved_tensors
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * a * a)
        da = g * (0.5 * (1 + u) + 0.5 * a * (1 - u * u) * inner)
        return da @ w, da.t() @ x, da.sum(0)
''',
 ("cube-derivative", "1 + 3 * 0.044715", "1 + 0.044715", "none chain-factor missing-term"),
 ("before-activation", "da.t() @ x, da.sum(0)", "g.t() @ x, da.sum(0)", "chain-factor none"),
 ("bias-mean", "da.sum(0)", "da.mean(0)", "constant-factor"),
 ("bias-first-row", "da.sum(0)", "da[0].clone()", "not-summed-over-broadcast ~missing-term ~region"),
)
fn("CausalDepthwise", "x: [b, n, t]\nw: [n, 3]", '''
    @staticmethod
    def forward(ctx, x, w):
        L = x.shape[-1]
        p = torch.nn.functional.pad(x, (2, 0))
        ctx.save_for_backward(x, w)
        return sum(w[:, j:j + 1] * p[..., j:j + L] for j in range(3))

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        L = x.shape[-1]
        q = torch.nn.functional.pad(g, (0, 2))
        dx = sum(w[:, j:j + 1] * q[..., 2 - j:2 - j + L] for j in range(3))
        p = torch.nn.functional.pad(x, (2, 0))
        dw = torch.stack([(g * p[..., j:j + L]).sum((0, 2)) for j in range(3)], -1)
        return dx, dw
''',
 ("causal-again", ("(g, (0, 2))", "q[..., 2 - j:2 - j + L]"), ("(g, (2, 0))", "q[..., j:j + L]"), "transposed"),
 ("unflipped", "q[..., 2 - j:2 - j + L]", "q[..., j:j + L]", "operand permuted"),
 ("pad-other-side", "p = torch.nn.functional.pad(x, (2, 0))\n        dw", "p = torch.nn.functional.pad(x, (1, 1))\n        dw", "none permuted ~operand"),
 ("last-tap", "dx = sum(w[:, j:j + 1] * q[..., 2 - j:2 - j + L] for j in range(3))", "dx = w[:, 2:] * g", "missing-term diagonal-only ~region"),
 ("stale-input", ("ctx.save_for_backward(x, w)", "x, w = ctx.saved_tensors"), ("ctx.save_for_backward(w)\n        __class__.kept = x.detach().clone()", "(w,) = ctx.saved_tensors\n        x = __class__.kept"), "stale"),
)
fn("SoftcapAttention", "q: [n, d]\nkey: [m, d]\nv: [m, h]\ncap: 1.5", '''
    @staticmethod
    def forward(ctx, q, key, v, cap):
        scale = q.shape[-1] ** -0.5
        u = torch.tanh(q @ key.t() * scale / cap)
        p = torch.softmax(cap * u, -1)
        ctx.save_for_backward(q, key, v, u, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, key, v, u, p = ctx.saved_tensors
        dv = p.t() @ g
        dp = g @ v.t()
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        ds = ds * (1 - u * u)
        return ds @ key * ctx.scale, ds.t() @ q * ctx.scale, dv, None
''',
 ("cap-forgotten", "        ds = ds * (1 - u * u)\n", "", "chain-factor none"),
 ("no-correction", "(dp - (p * dp).sum(-1, keepdim=True))", "dp", "missing-term"),
 ("key-unscaled", "ds.t() @ q * ctx.scale", "ds.t() @ q", "constant-factor"),
 ("correction-other-dim", "(p * dp).sum(-1, keepdim=True)", "(p * dp).sum(0, keepdim=True)", "none missing-term wrong-reduction-dim"),
)
fn("GroupedScores", "q: [h*d, n, k]\nkey: [h, m, k]", '''
    @staticmethod
    def forward(ctx, q, key):
        group = q.shape[0] // key.shape[0]
        ctx.save_for_backward(q, key)
        return q @ key.repeat_interleave(group, 0).transpose(1, 2) / math.sqrt(q.shape[-1])

    @staticmethod
    def backward(ctx, g):
        q, key = ctx.saved_tensors
        heads = key.shape[0]
        group = q.shape[0] // heads
        g = g / math.sqrt(q.shape[-1])
        dq = g @ key.repeat_interleave(group, 0)
        dk = (g.transpose(1, 2) @ q).unflatten(0, (heads, group)).sum(1)
        return dq, dk
''',
 ("group-mean", ".sum(1)", ".mean(1)", "constant-factor"),
 ("group-first", ".sum(1)", "[:, 0]", "missing-term not-summed-over-broadcast none ~region =duplicates"),
 ("repeat-for-interleave", "dq = g @ key.repeat_interleave(group, 0)", "dq = g @ key.repeat(group, 1, 1)", "none ~operand ~permuted ~region"),
 ("groups-crossed", ".unflatten(0, (heads, group)).sum(1)", ".unflatten(0, (group, heads)).sum(0)", "none permuted ~region"),
)
fn("AlibiSoftmax", "s: [h, n, m]\nslope: {shape: [h], domain: positive}", '''
    @staticmethod
    def forward(ctx, s, slope):
        i = torch.arange(s.shape[1], device=s.device)[:, None]
        j = torch.arange(s.shape[2], device=s.device)
        distance = (i - j).abs().to(s.dtype)
        p = torch.softmax(s - slope[:, None, None] * distance, -1)
        ctx.save_for_backward(p, distance)
        return p

    @staticmethod
    def backward(ctx, g):
        p, distance = ctx.saved_tensors
        ds = p * (g - (g * p).sum(-1, keepdim=True))
        return ds, -(ds * distance).sum((1, 2))
''',
 ("slope-sign", "-(ds * distance)", "(ds * distance)", "constant-factor"),
 ("slope-without-softmax", "-(ds * distance)", "-(g * p * distance)", "missing-term none"),
 ("columns", "(g * p).sum(-1, keepdim=True)", "(g * p).sum(-2, keepdim=True)", "wrong-reduction-dim missing-term none"),
 ("slope-last-query", ".sum((1, 2))", ".sum(2)[:, -1]", "not-summed-over-broadcast missing-term none ~region"),
)
fn("WeightedScatter", "x: [k, m]\nw: [k]\nindex: {shape: [k], dtype: int64, range: [0, n]}\nsize: {size: n}", '''
    @staticmethod
    def forward(ctx, x, w, index, size):
        ctx.save_for_backward(x, w, index)
        return x.new_zeros(size, x.shape[1]).index_add(0, index, x * w[:, None])

    @staticmethod
    def backward(ctx, g):
        x, w, index = ctx.saved_tensors
        picked = g.index_select(0, index)
        dw = (picked * x).sum(1)
        return picked * w[:, None], dw, None, None
''',
 ("unweighted", "picked * w[:, None]", "picked", "operand chain-factor"),
 ("weight-mean", "(picked * x).sum(1)", "(picked * x).mean(1)", "constant-factor"),
 ("weighted-twice", "(picked * x).sum(1)", "(picked * x).sum(1) * w", "chain-factor operand"),
)
fn("PaddedBag", "weight: [m, d]\nindex: {shape: [b, k], dtype: int64, range: [0, m]}", '''
    @staticmethod
    def forward(ctx, weight, index):
        kept = (index != 0).to(weight.dtype)
        share = kept / kept.sum(1, keepdim=True).clamp(min=1)
        ctx.save_for_backward(index, share)
        ctx.rows = weight.shape[0]
        return (weight[index] * share[..., None]).sum(1)

    @staticmethod
    def backward(ctx, g):
        index, share = ctx.saved_tensors
        spread = (share[..., None] * g[:, None]).flatten(0, 1)
        dw = g.new_zeros(ctx.rows, g.shape[1]).index_add(0, index.flatten(), spread)
        return dw, None
''',
 ("assigned", "dw = g.new_zeros(ctx.rows, g.shape[1]).index_add(0, index.flatten(), spread)", "dw = g.new_zeros(ctx.rows, g.shape[1])\n        dw[index.flatten()] = spread", "duplicates"),
 ("count-with-padding", "(share[..., None] * g[:, None])", "((share > 0).to(g.dtype)[..., None] / index.shape[1] * g[:, None])", "none chain-factor constant-factor ~region"),
 ("padding-not-masked", "(share[..., None] * g[:, None])", "(share.amax(1, keepdim=True).expand_as(share)[..., None] * g[:, None])", "region none"),
)
fn("PowerPool", "x: [b, 3*n]", '''
    @staticmethod
    def forward(ctx, x):
        a = x.unflatten(1, (-1, 3))
        y = (a.abs() ** 3).mean(-1) ** (1 / 3)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        scaled = (g / (y * y))[..., None]
        return (scaled * a * a * a.sign() / 3).flatten(1)
''',
 ("unsigned", "a * a * a.sign()", "a * a", "branch chain-factor"),
 ("sum-for-mean", " / 3).flatten", ").flatten", "constant-factor"),
 ("output-power", "(g / (y * y))", "(g / y)", "chain-factor"),
 ("ungrouped", "(scaled * a * a * a.sign() / 3).flatten(1)", "(scaled * a * a * a.sign() / 3).transpose(1, 2).flatten(1)", "permuted"),
)
fn("BilinearSample", "image: [n, m]\nuv: {shape: [k, 2], range: [0.05, 0.95]}", '''
    @staticmethod
    def forward(ctx, image, uv):
        H, W = image.shape
        y, x = uv[:, 0] * (H - 1), uv[:, 1] * (W - 1)
        i, j = y.floor().long().clamp(0, H - 2), x.floor().long().clamp(0, W - 2)
        fy, fx = y - i, x - j
        ctx.save_for_backward(image, i, j, fy, fx)
        top = image[i, j] * (1 - fx) + image[i, j + 1] * fx
        low = image[i + 1, j] * (1 - fx) + image[i + 1, j + 1] * fx
        return top * (1 - fy) + low * fy

    @staticmethod
    def backward(ctx, g):
        image, i, j, fy, fx = ctx.saved_tensors
        H, W = image.shape
        d = torch.zeros_like(image)
        for a, wy in ((0, 1 - fy), (1, fy)):
            for c, wx in ((0, 1 - fx), (1, fx)):
                d.index_put_((i + a, j + c), g * wy * wx, accumulate=True)
        dy = (image[i + 1, j] - image[i, j]) * (1 - fx) + (image[i + 1, j + 1] - image[i, j + 1]) * fx
        dx = (image[i, j + 1] - image[i, j]) * (1 - fy) + (image[i + 1, j + 1] - image[i + 1, j]) * fy
        return d, torch.stack((g * dy * (H - 1), g * dx * (W - 1)), 1)
''',
 ("pixels", "g * dx * (W - 1)", "g * dx", "region constant-factor =missing-term"),
 ("width-for-size", "g * dx * (W - 1)", "g * dx * W", "region constant-factor =missing-term"),
 ("not-accumulated", "d.index_put_((i + a, j + c), g * wy * wx, accumulate=True)", "d[i + a, j + c] = g * wy * wx", "duplicates none"),
 ("nearest-edge", "(image[i, j + 1] - image[i, j]) * (1 - fy) + (image[i + 1, j + 1] - image[i + 1, j]) * fy", "image[i, j + 1] - image[i, j]", "none missing-term ~region =wrong-saved"),
 ("axes-swapped", "torch.stack((g * dy * (H - 1), g * dx * (W - 1)), 1)", "torch.stack((g * dx * (W - 1), g * dy * (H - 1)), 1)", "permuted"),
)
fn("GatedScan", "a: {shape: [b, t], range: [-0.9, 0.9]}\nx: [b, t]\ns: [b]", '''
    @staticmethod
    def forward(ctx, a, x, s):
        states = [s]
        for i in range(x.shape[1]):
            states.append(a[:, i] * states[-1] + x[:, i])
        states = torch.stack(states, 1)
        ctx.save_for_backward(a, states)
        return states[:, 1:].clone()

    @staticmethod
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        carry = torch.zeros_like(g[:, 0])
        dx = torch.empty_like(g)
        for i in range(g.shape[1] - 1, -1, -1):
            dx[:, i] = g[:, i] + carry
            carry = a[:, i] * dx[:, i]
        return dx * states[:, :-1], dx, carry
''',
 ("no-carry", "dx[:, i] = g[:, i] + carry", "dx[:, i] = g[:, i]", "missing-term diagonal-only ~region ~not-summed-over-broadcast"),
 ("state-after", "dx * states[:, :-1]", "dx * states[:, 1:]", "wrong-saved chain-factor none =operand"),
 ("gate-before", "carry = a[:, i] * dx", "carry = a[:, i - 1] * dx", "operand permuted none =wrong-saved"),
 ("start-ungated", "return dx * states[:, :-1], dx, carry", "return dx * states[:, :-1], dx, dx[:, 0]", "chain-factor operand none"),
)
fn("SelectiveScan", "x: [b, m]\ndelta: [b, m]\nout: [b, m]", '''
    @staticmethod
    def forward(ctx, x, delta, out):
        step = torch.nn.functional.softplus(delta)
        keep = torch.exp(-step)
        h, states = torch.zeros_like(x[:, 0]), []
        for i in range(x.shape[1]):
            states.append(h)
            h = keep[:, i] * h + step[:, i] * x[:, i]
        states = torch.stack([*states, h], 1)
        ctx.save_for_backward(x, delta, out, step, keep, states)
        return states[:, 1:] * out

    @staticmethod
    def backward(ctx, g):
        x, delta, out, step, keep, states = ctx.saved_tensors
        dh = g * out
        carry = torch.zeros_like(dh[:, 0])
        total = torch.empty_like(dh)
        for i in range(dh.shape[1] - 1, -1, -1):
            total[:, i] = dh[:, i] + carry
            carry = keep[:, i] * total[:, i]
        dstep = total * x - total * keep * states[:, :-1]
        return total * step, dstep * torch.sigmoid(delta), g * states[:, 1:]
''',
 ("softplus-forgotten", "dstep * torch.sigmoid(delta)", "dstep", "chain-factor"),
 ("decay-forgotten", "total * x - total * keep * states[:, :-1]", "total * x", "missing-term none ~region"),
 ("shifted-states", "g * states[:, 1:]", "g * states[:, :-1]", "wrong-saved none chain-factor"),
 ("delta-for-step", "return total * step,", "return total * delta,", "chain-factor none"),
)
fn("Whiten", "A: {shape: [n, n], structure: spd}\nx: [n, h]", '''
    @staticmethod
    def forward(ctx, A, x):
        L = torch.linalg.cholesky(A)
        y = torch.linalg.solve_triangular(L, x, upper=False)
        ctx.save_for_backward(L, y)
        return y

    @staticmethod
    def backward(ctx, g):
        L, y = ctx.saved_tensors
        gx = torch.linalg.solve_triangular(L.mT, g, upper=True)
        P = (L.mT @ -(gx @ y.mT)).tril()
        P = P - 0.5 * torch.diag(P.diagonal())
        S = torch.linalg.solve_triangular(L.mT, P + P.mT, upper=True)
        return 0.5 * torch.linalg.solve_triangular(L.mT, S.mT, upper=True).mT, gx
''',
 ("diagonal-whole", "        P = P - 0.5 * torch.diag(P.diagonal())\n", "", "missing-term none"),
 ("untransposed-solve", "gx = torch.linalg.solve_triangular(L.mT, g, upper=True)", "gx = torch.linalg.solve_triangular(L, g, upper=False)", "transposed none"),
 ("half-forgotten", "return 0.5 * torch", "return torch", "constant-factor"),
)
fn("RidgeSolve", "A: [k, d]\ny: [k]\nlam: {shape: [], domain: positive}", '''
    @staticmethod
    def forward(ctx, A, y, lam):
        M = A.mT @ A + lam * torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
        x = torch.linalg.solve(M, A.mT @ y)
        ctx.save_for_backward(A, y, M, x)
        return x

    @staticmethod
    def backward(ctx, g):
        A, y, M, x = ctx.saved_tensors
        z = torch.linalg.solve(M, g)
        dA = torch.outer(y - A @ x, z) - torch.outer(A @ z, x)
        return dA, A @ z, -(z * x).sum()
''',
 ("residual-forgotten", "torch.outer(y - A @ x, z) - torch.outer(A @ z, x)", "-torch.outer(A @ z, x)", "missing-term"),
 ("target-for-residual", "torch.outer(y - A @ x, z)", "torch.outer(y, z)", "missing-term none"),
 ("penalty-sign", "-(z * x).sum()", "(z * x).sum()", "constant-factor"),
 ("unsolved", "return dA, A @ z,", "return dA, A @ g,", "none operand =chain-factor"),
)
fn("SymmetricSqrt", "A: {shape: [d, d], structure: spd}", '''
    @staticmethod
    def forward(ctx, A):
        lam, V = torch.linalg.eigh(A)
        root = lam.sqrt()
        ctx.save_for_backward(root, V)
        return (V * root) @ V.mT

    @staticmethod
    def backward(ctx, g):
        root, V = ctx.saved_tensors
        inner = V.mT @ g @ V
        inner = inner / (root[:, None] + root)
        dA = V @ inner @ V.mT
        return 0.5 * (dA + dA.mT)
''',
 ("eigenvectors-frozen", "inner = inner / (root[:, None] + root)", "inner = torch.diag(inner.diagonal() / (2 * root))", "missing-term none"),
 ("basis-swapped", "inner = V.mT @ g @ V\n", "inner = V @ g @ V.mT\n", "none operand"),
 ("scalar-rule", "/ (root[:, None] + root)", "/ (2 * root)", "none missing-term"),
 ("twice", "0.5 * (dA + dA.mT)", "dA + dA.mT", "constant-factor"),
)
fn("MatrixExponential", "A: [d, d]", '''
    @staticmethod
    def forward(ctx, A):
        Y = torch.linalg.matrix_exp(A)
        ctx.save_for_backward(A, Y)
        return Y

    @staticmethod
    def backward(ctx, g):
        A, Y = ctx.saved_tensors
        n = A.shape[0]
        T = A.mT
        block = torch.cat((torch.cat((T, g), 1), torch.cat((torch.zeros_like(T), T), 1)), 0)
        return torch.linalg.matrix_exp(block)[:n, n:]
''',
 ("untransposed", "T = A.mT", "T = A", "transposed operand"),
 ("as-if-commuting", "return torch.linalg.matrix_exp(block)[:n, n:]", "return Y.mT @ g", "none chain-factor"),
 ("entrywise", "return torch.linalg.matrix_exp(block)[:n, n:]", "return g * Y", "none"),
)
fn("Sparsemax", "x: [b, m]", '''
    @staticmethod
    def forward(ctx, x):
        s = x.sort(-1, descending=True).values
        c = s.cumsum(-1) - 1
        rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        size = (rank * s > c).sum(-1, keepdim=True)
        y = (x - c.gather(-1, size - 1) / size).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        on = (y > 0).to(g.dtype)
        mean = (g * on).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)
        return on * (g - mean)
''',
 ("mean-of-all", "(g * on).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)", "g.mean(-1, keepdim=True)", "none missing-term branch"),
 ("relu-only", "on * (g - mean)", "on * g", "missing-term diagonal-only"),
 ("wrong-count", "/ on.sum(-1, keepdim=True)", "/ y.shape[-1]", "missing-term none =chain-factor"),
 ("support-forgotten", "on * (g - mean)", "g - mean", "branch none"),
)
fn("HeunStep", "x: [b, n]\nW: [n, n]\ndt: 0.3", '''
    @staticmethod
    def forward(ctx, x, W, dt):
        k1 = torch.tanh(x @ W)
        z = x + dt * k1
        k2 = torch.tanh(z @ W)
        ctx.save_for_backward(x, W, k1, z, k2)
        ctx.dt = dt
        return x + 0.5 * dt * (k1 + k2)

    @staticmethod
    def backward(ctx, g):
        x, W, k1, z, k2 = ctx.saved_tensors
        d2 = 0.5 * ctx.dt * g * (1 - k2 * k2)
        dz = d2 @ W.t()
        d1 = (0.5 * ctx.dt * g + ctx.dt * dz) * (1 - k1 * k1)
        dx = g + dz + d1 @ W.t()
        return dx, x.t() @ d1 + z.t() @ d2, None
''',
 ("identity-forgotten", "dx = g + dz", "dx = dz", "missing-term"),
 ("stages-apart", "(0.5 * ctx.dt * g + ctx.dt * dz)", "(0.5 * ctx.dt * g)", "missing-term none"),
 ("last-stage-weight", "x.t() @ d1 + z.t() @ d2", "x.t() @ d1", "missing-term none"),
 ("same-input", "z.t() @ d2", "x.t() @ d2", "none missing-term wrong-saved =operand"),
)
fn("QuaternionRotate", "q: [m, 4]\nv: [m, 3]", '''
    @staticmethod
    def forward(ctx, q, v):
        norm = q.norm(dim=-1, keepdim=True)
        u = q / norm
        w, r = u[:, :1], u[:, 1:]
        c = torch.linalg.cross(r, v)
        ctx.save_for_backward(u, norm, v, c)
        return v + 2 * (w * c + torch.linalg.cross(r, c))

    @staticmethod
    def backward(ctx, g):
        u, norm, v, c = ctx.saved_tensors
        w, r = u[:, :1], u[:, 1:]
        gc = 2 * (w * g + torch.linalg.cross(g, r))
        dw = 2 * (g * c).sum(-1, keepdim=True)
        dr = 2 * torch.linalg.cross(c, g) + torch.linalg.cross(v, gc)
        dv = g + torch.linalg.cross(gc, r)
        du = torch.cat((dw, dr), -1)
        dq = (du - u * (du * u).sum(-1, keepdim=True)) / norm
        return dq, dv
''',
 ("projection-forgotten", "(du - u * (du * u).sum(-1, keepdim=True)) / norm", "du / norm", "missing-term"),
 ("norm-forgotten", "(du * u).sum(-1, keepdim=True)) / norm", "(du * u).sum(-1, keepdim=True))", "chain-factor"),
 ("rotated-forwards", "dv = g + torch.linalg.cross(gc, r)", "dv = g + 2 * (w * torch.linalg.cross(r, g) + torch.linalg.cross(r, torch.linalg.cross(r, g)))", "transposed operand"),
 ("one-of-two", "2 * torch.linalg.cross(c, g) + torch.linalg.cross(v, gc)", "torch.linalg.cross(v, gc)", "missing-term none ~region"),
)
fn("CapsuleDistance", "p: [m, 3]\na: [3]\nc: [3]\nr: {shape: [], domain: positive}", '''
    @staticmethod
    def forward(ctx, p, a, c, r):
        ba = c - a
        s = ((p - a) @ ba / (ba @ ba)).clamp(0, 1)
        e = p - a - s[:, None] * ba
        dist = e.norm(dim=-1)
        ctx.save_for_backward(e, dist, s)
        return dist - r

    @staticmethod
    def backward(ctx, g):
        e, dist, s = ctx.saved_tensors
        normal = e * (g / dist)[:, None]
        da = -((1 - s)[:, None] * normal).sum(0)
        dc = -(s[:, None] * normal).sum(0)
        return normal, da, dc, -g.sum()
''',
 ("ends-swapped", "return normal, da, dc,", "return normal, dc, da,", "swapped-inputs"),
 ("unnormalised", "(g / dist)[:, None]", "g[:, None]", "chain-factor"),
 ("radius-mean", "-g.sum()", "-g.mean()", "constant-factor"),
 ("radius-sign", "-g.sum()", "g.sum()", "constant-factor"),
 ("grad-output-mean", "e * (g / dist)[:, None]", "e * (g.mean() / dist)[:, None]", "grad-output-summed none"),
)
fn("TukeyBiweight", "r: [b, k]\nc: 1.2", '''
    @staticmethod
    def forward(ctx, r, c):
        u = 1 - (r / c) ** 2
        ctx.save_for_backward(r)
        ctx.c = c
        return torch.where(r.abs() <= c, c * c / 6 * (1 - u ** 3), torch.full_like(r, c * c / 6))

    @staticmethod
    def backward(ctx, g):
        (r,) = ctx.saved_tensors
        u = 1 - (r / ctx.c) ** 2
        return g * torch.where(r.abs() <= ctx.c, r * u ** 2, torch.zeros_like(r)), None
''',
 ("one-sided", "torch.where(r.abs() <= ctx.c,", "torch.where(r <= ctx.c,", "branch"),
 ("unbounded", "torch.where(r.abs() <= ctx.c, r * u ** 2, torch.zeros_like(r))", "r * u ** 2", "branch"),
 ("huber-tail", "torch.zeros_like(r))", "ctx.c * r.sign())", "branch"),
 ("unsquared", "r * u ** 2,", "r * u,", "chain-factor branch none"),
)
fn("ContrastiveMargin", "a: [k, d]\nc: [k, d]\nsame: {shape: [k], dtype: bool}\nmargin: 2.5", '''
    @staticmethod
    def forward(ctx, a, c, same, margin):
        diff = a - c
        dist = (diff * diff).sum(1).sqrt()
        gap = (margin - dist).clamp(min=0)
        ctx.save_for_backward(diff, dist, gap, same)
        return torch.where(same, dist * dist, gap * gap).mean()

    @staticmethod
    def backward(ctx, g):
        diff, dist, gap, same = ctx.saved_tensors
        slope = torch.where(same, 2 * dist, -2 * gap)
        da = g / dist.shape[0] * (slope / dist)[:, None] * diff
        return da, -da, None, None
''',
 ("both-plus", "return da, -da,", "return da, da,", "constant-factor ~swapped-inputs"),
 ("margin-sign", "-2 * gap)", "2 * gap)", "branch none ~chain-factor =missing-term"),
 ("sum", "g / dist.shape[0]", "g", "constant-factor"),
 ("direction-unnormalised", "(slope / dist)[:, None]", "slope[:, None]", "chain-factor"),
)
fn("SoftSort", "x: {shape: [m], distinct: true}\ntau: 0.7", '''
    @staticmethod
    def forward(ctx, x, tau):
        s, order = x.sort(descending=True)
        p = torch.softmax(-(s[:, None] - x).pow(2) / tau, -1)
        ctx.save_for_backward(x, s, order, p)
        ctx.tau = tau
        return p @ x

    @staticmethod
    def backward(ctx, g):
        x, s, order, p = ctx.saved_tensors
        dp = torch.outer(g, x)
        dlogit = p * (dp - (p * dp).sum(-1, keepdim=True))
        ddiff = -2 * (s[:, None] - x) * dlogit / ctx.tau
        dx = p.t() @ g - ddiff.sum(0)
        return dx.index_add(0, order, ddiff.sum(1)), None
''',
 ("sorted-frozen", "dx.index_add(0, order, ddiff.sum(1))", "dx", "missing-term none"),
 ("not-unsorted", "dx.index_add(0, order, ddiff.sum(1))", "dx + ddiff.sum(1)", "none missing-term ~permuted"),
 ("permutation-frozen", "p.t() @ g - ddiff.sum(0)\n        return dx.index_add(0, order, ddiff.sum(1))", "p.t() @ g\n        return dx", "missing-term none"),
 ("values-frozen", "dx = p.t() @ g - ddiff.sum(0)", "dx = -ddiff.sum(0)", "missing-term none"),
)
fn("UniformSpline", "u: {shape: [k], range: [0.05, 0.95]}\nctrl: [m, h]", '''
    @staticmethod
    def forward(ctx, u, ctrl):
        spans = ctrl.shape[0] - 2
        cell = (u * spans).floor().long().clamp(0, spans - 1)
        f = u * spans - cell
        basis = torch.stack((0.5 * (1 - f) ** 2, 0.5 + f - f * f, 0.5 * f * f), 1)
        index = cell[:, None] + torch.arange(3, device=u.device)
        ctx.save_for_backward(ctrl, f, basis, index)
        return (basis[..., None] * ctrl[index]).sum(1)

    @staticmethod
    def backward(ctx, g):
        ctrl, f, basis, index = ctx.saved_tensors
        spans = ctrl.shape[0] - 2
        slope = torch.stack((f - 1, 1 - 2 * f, f), 1) * spans
        du = ((slope[..., None] * ctrl[index]).sum(1) * g).sum(1)
        spread = (basis[..., None] * g[:, None]).flatten(0, 1)
        return du, torch.zeros_like(ctrl).index_add(0, index.flatten(), spread)
''',
 ("span-forgotten", "f), 1) * spans", "f), 1)", "constant-factor =chain-factor"),
 ("one-slope-wrong", "1 - 2 * f, f)", "1 - f, f)", "none missing-term"),
 ("control-off-by-one", "index.flatten(), spread)", "(index.flatten() + 1) % ctrl.shape[0], spread)", "permuted"),
 ("slope-for-basis", "spread = (basis[..., None]", "spread = (slope[..., None] / spans", "none"),
)
fn("FFTConvolution", "x: [b, t]\nw: [t]", '''
    @staticmethod
    def forward(ctx, x, w):
        fx, fw = torch.fft.rfft(x), torch.fft.rfft(w)
        ctx.save_for_backward(fx, fw)
        ctx.length = x.shape[-1]
        return torch.fft.irfft(fx * fw, n=ctx.length)

    @staticmethod
    def backward(ctx, g):
        fx, fw = ctx.saved_tensors
        fg = torch.fft.rfft(g)
        dx = torch.fft.irfft(fg * fw.conj(), n=ctx.length)
        dw = torch.fft.irfft((fg * fx.conj()).sum(0), n=ctx.length)
        return dx, dw
''',
 ("no-conj", "fg * fw.conj()", "fg * fw", "transposed operand permuted"),
 ("conj-of-the-other", "fg * fx.conj()", "fg.conj() * fx", "permuted"),
 ("orthonormal", "(fg * fx.conj()).sum(0), n=ctx.length)", "(fg * fx.conj()).sum(0), n=ctx.length, norm=\"ortho\")", "constant-factor"),
 ("magnitude", "fg * fw.conj()", "fg * fw.abs()", "none =operand"),
)
fn("DropoutAdd", "x: [n, m]\nres: [n, m]\nkeep: {shape: [n, m], dtype: bool}\np: 0.25", '''
    @staticmethod
    def forward(ctx, x, res, keep, p):
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - p)
        return res + x * keep * ctx.scale

    @staticmethod
    def backward(ctx, g):
        (keep,) = ctx.saved_tensors
        return g * keep * ctx.scale, g, None, None
''',
 ("unscaled", "return g * keep * ctx.scale, g", "return g * keep, g", "constant-factor"),
 ("mask-forgotten", "return g * keep * ctx.scale, g", "return g * ctx.scale, g", "operand branch none ~region =chain-factor"),
 ("residual-masked", "return g * keep * ctx.scale, g", "return g * keep * ctx.scale, g * keep", "branch chain-factor none ~region"),
 ("mask-inverted", "return g * keep * ctx.scale, g", "return g * ~keep * ctx.scale, g", "operand none ~branch"),
)
fn("GumbelSoftmax", "x: [b, n]\nu: {shape: [b, n], range: [0.1, 0.9], requires_grad: false}\ntau: 0.6", '''
    @staticmethod
    def forward(ctx, x, u, tau):
        y = torch.softmax((x - torch.log(-torch.log(u))) / tau, -1)
        ctx.save_for_backward(y)
        ctx.tau = tau
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)) / ctx.tau, None, None
''',
 ("no-tau", "keepdim=True)) / ctx.tau", "keepdim=True))", "constant-factor"),
 ("log-form", "y * (g - (g * y).sum(-1, keepdim=True))", "(g - y * g.sum(-1, keepdim=True))", "chain-factor none"),
 ("noise-from-scratch", "        (y,) = ctx.saved_tensors\n        return y * (g", "        (y,) = ctx.saved_tensors\n        y = torch.softmax(y / ctx.tau, -1)\n        return y * (g", "none wrong-saved"),
)
fn("BatchNormRelu", "x: [k, n]\nw: [n]\nbias: [n]", '''
    @staticmethod
    def forward(ctx, x, w, bias):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        inv = torch.rsqrt(var + 1e-3)
        xh = (x - mean) * inv
        y = xh * w + bias
        ctx.save_for_backward(x - mean, xh, inv, w, y > 0)
        return y.clamp(min=0), var

    @staticmethod
    def backward(ctx, gy, gvar):
        centred, xh, inv, w, on = ctx.saved_tensors
        N = xh.shape[0]
        g = gy * on
        gx = g * w
        dx = inv * (gx - gx.mean(0) - xh * (gx * xh).mean(0)) + 2 / N * centred * gvar
        return dx, (g * xh).sum(0), g.sum(0)
''',
 ("statistics-ignored", " + 2 / N * centred * gvar", "", "ignored-output"),
 ("relu-forgotten", "g = gy * on", "g = gy", "branch none =chain-factor"),
 ("eval-mode", "inv * (gx - gx.mean(0) - xh * (gx * xh).mean(0))", "inv * gx", "missing-term diagonal-only"),
 ("unbiased", "2 / N * centred", "2 / (N - 1) * centred", "constant-factor none ~region"),
 ("scale-without-relu", "(g * xh).sum(0)", "(gy * xh).sum(0)", "branch none =chain-factor"),
)
fn("WeightStandardize", "v: [m, k]\ngain: [m]", '''
    @staticmethod
    def forward(ctx, v, gain):
        centred = v - v.mean(1, keepdim=True)
        std = centred.pow(2).mean(1, keepdim=True).sqrt()
        ctx.save_for_backward(centred, std, gain)
        return gain[:, None] * centred / (std + 0.05)

    @staticmethod
    def backward(ctx, g):
        centred, std, gain = ctx.saved_tensors
        r = 1 / (std + 0.05)
        gv = g * gain[:, None]
        unit = centred / std.clamp(min=1e-30)
        dv = r * (gv - r * unit * (gv * centred).mean(1, keepdim=True))
        dv = dv - dv.mean(1, keepdim=True)
        return dv, (g * centred * r).sum(1)
''',
 ("eps-in-the-root", "r = 1 / (std + 0.05)", "r = torch.rsqrt(std * std + 0.05)", "none chain-factor"),
 ("mean-forgotten", "        dv = dv - dv.mean(1, keepdim=True)\n", "", "missing-term"),
 ("scale-frozen", "r * (gv - r * unit * (gv * centred).mean(1, keepdim=True))", "r * gv", "missing-term"),
 ("gain-rows", "(g * centred * r).sum(1)", "(g * centred * r).sum(1) / g.shape[1]", "constant-factor"),
)
fn("GaussianKL", "mu: [b, m]\nlogvar: [b, m]\nprior: [m]\nprior_logvar: [m]", '''
    @staticmethod
    def forward(ctx, mu, logvar, prior, prior_logvar):
        diff = mu - prior
        inv = torch.exp(-prior_logvar)
        ratio = torch.exp(logvar) * inv
        ctx.save_for_backward(diff, inv, ratio)
        return 0.5 * (prior_logvar - logvar + ratio + diff * diff * inv - 1).sum(1)

    @staticmethod
    def backward(ctx, g):
        diff, inv, ratio = ctx.saved_tensors
        g = g[:, None]
        dmu = g * diff * inv
        dlv = 0.5 * g * (ratio - 1)
        dplv = 0.5 * g * (1 - ratio - diff * diff * inv)
        return dmu, dlv, -dmu.sum(0), dplv.sum(0)
''',
 ("prior-sign", "-dmu.sum(0)", "dmu.sum(0)", "constant-factor"),
 ("distance-forgotten", "(1 - ratio - diff * diff * inv)", "(1 - ratio)", "missing-term none"),
 ("entropy-forgotten", "0.5 * g * (ratio - 1)", "0.5 * g * ratio", "missing-term none"),
 ("unit-prior", "dmu = g * diff * inv", "dmu = g * diff", "chain-factor operand"),
 ("prior-one-row", "-dmu.sum(0)", "-dmu[0]", "not-summed-over-broadcast ~missing-term ~region"),
)
fn("StudentNLL", "x: [b, m]\nloc: [m]\nlog_scale: [m]\nnu: 3.5", '''
    @staticmethod
    def forward(ctx, x, loc, log_scale, nu):
        z = (x - loc) * torch.exp(-log_scale)
        ctx.save_for_backward(z, log_scale)
        ctx.nu = nu
        return (nu + 1) / 2 * torch.log1p(z * z / nu) + log_scale

    @staticmethod
    def backward(ctx, g):
        z, log_scale = ctx.saved_tensors
        weight = (ctx.nu + 1) / (ctx.nu + z * z)
        dx = g * weight * z * torch.exp(-log_scale)
        return dx, -dx.sum(0), (g * (1 - weight * z * z)).sum(0), None
''',
 ("gaussian-tails", "weight = (ctx.nu + 1) / (ctx.nu + z * z)", "weight = torch.ones_like(z)", "none chain-factor"),
 ("degrees", "(ctx.nu + 1) / (ctx.nu + z * z)", "ctx.nu / (ctx.nu + z * z)", "constant-factor missing-term none"),
 ("normaliser-forgotten", "(1 - weight * z * z)", "(-weight * z * z)", "missing-term"),
 ("scale-forgotten", "dx = g * weight * z * torch.exp(-log_scale)", "dx = g * weight * z", "chain-factor"),
 ("clipped", "weight * z * torch.exp(-log_scale)\n", "weight * z * torch.exp(-log_scale)\n        dx = dx.clamp(-0.1, 0.1)\n", "grad-output-nonlinear"),
)
fn("KalmanMean", "mean: [n]\nP: {shape: [n, n], structure: spd}\nH: [n]\ny: []\nr: 0.5", '''
    @staticmethod
    def forward(ctx, mean, P, H, y, r):
        PH = P @ H
        S = H @ PH + r
        e = y - H @ mean
        ctx.save_for_backward(mean, P, H, PH, S, e)
        return mean + PH / S * e

    @staticmethod
    def backward(ctx, g):
        mean, P, H, PH, S, e = ctx.saved_tensors
        de = (g @ PH) / S
        dPH = g * e / S
        dS = -(g @ PH) * e / (S * S)
        dP = torch.outer(dPH, H) + dS * torch.outer(H, H)
        dH = P.mT @ dPH + 2 * dS * PH - de * mean
        return g - de * H, dP, dH, de, None
''',
 ("gain-only", "torch.outer(dPH, H) + dS * torch.outer(H, H)", "torch.outer(dPH, H)", "missing-term"),
 ("quadratic-once", "2 * dS * PH", "dS * PH", "missing-term"),
 ("no-feedback", "return g - de * H,", "return g.clone(),", "missing-term diagonal-only"),
 ("innovation-sign", "- de * mean", "+ de * mean", "missing-term"),
)
fn("VolumeRender", "sigma: {shape: [b, m], domain: positive}\nrgb: [b, m, h]\ndelta: {shape: [m], range: [0.1, 0.6], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, sigma, rgb, delta):
        tau = sigma * delta
        after = torch.exp(-tau.cumsum(1))
        before = after * torch.exp(tau)
        weight = before - after
        ctx.save_for_backward(rgb, delta, after, weight)
        return (weight[..., None] * rgb).sum(1)

    @staticmethod
    def backward(ctx, g):
        rgb, delta, after, weight = ctx.saved_tensors
        value = (rgb * g[:, None]).sum(-1)
        behind = (weight * value).flip(1).cumsum(1).flip(1) - weight * value
        dsigma = delta * (after * value - behind)
        return dsigma, weight[..., None] * g[:, None], None
''',
 ("occlusion-forgotten", "(after * value - behind)", "(after * value)", "missing-term none ~region =chain-factor"),
 ("itself-behind", ".flip(1).cumsum(1).flip(1) - weight * value", ".flip(1).cumsum(1).flip(1)", "missing-term none =chain-factor"),
 ("step-forgotten", "dsigma = delta * (", "dsigma = (", "operand chain-factor constant-factor"),
 ("in-front", "(weight * value).flip(1).cumsum(1).flip(1)", "(weight * value).cumsum(1)", "none =permuted"),
 ("colour-unweighted", "weight[..., None] * g[:, None], None", "after[..., None] * g[:, None], None", "none chain-factor =wrong-saved"),
 ("density-only", "weight[..., None] * g[:, None], None", "torch.zeros_like(rgb), None", "zero"),
)
fn("Splat", "mu: [n, 2]\nsharp: {shape: [n], domain: positive}\ncolour: [n]\npixel: {shape: [k, 2], requires_grad: false}", '''
    @staticmethod
    def forward(ctx, mu, sharp, colour, pixel):
        diff = pixel[:, None] - mu
        q = (diff * diff).sum(-1)
        e = torch.exp(-0.5 * sharp * q)
        ctx.save_for_backward(diff, q, e, sharp, colour)
        return e @ colour

    @staticmethod
    def backward(ctx, g):
        diff, q, e, sharp, colour = ctx.saved_tensors
        de = g[:, None] * colour * e
        dmu = ((de * sharp)[..., None] * diff).sum(0)
        dsharp = -0.5 * (de * q).sum(0)
        return dmu, dsharp, (g[:, None] * e).sum(0), None
''',
 ("sharp-forgotten", "((de * sharp)[..., None] * diff)", "(de[..., None] * diff)", "chain-factor operand"),
 ("half-forgotten", "-0.5 * (de * q)", "-(de * q)", "constant-factor"),
 ("mean-sign", "((de * sharp)[..., None] * diff)", "(-(de * sharp)[..., None] * diff)", "constant-factor"),
 ("kernel-forgotten", "((de * sharp)[..., None] * diff)", "((g[:, None] * colour * sharp)[..., None] * diff)", "none =chain-factor"),
)
fn("ComplexUnit", "z: {shape: [b, n], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, z):
        r = torch.rsqrt(z.real ** 2 + z.imag ** 2 + 0.1)
        ctx.save_for_backward(z, r)
        return z * r

    @staticmethod
    def backward(ctx, g):
        z, r = ctx.saved_tensors
        along = (z.conj() * g).real
        return r * g - r ** 3 * z * along
''',
 ("no-conj", "(z.conj() * g).real", "(z * g).real", "conjugate none missing-term"),
 ("not-real", "(z.conj() * g).real", "(z.conj() * g)", "none missing-term"),
 ("modulus-frozen", "r * g - r ** 3 * z * along", "r * g", "missing-term"),
)
fn("ComplexFIR", "x: {shape: [b, t], dtype: complex128}\nw: {shape: [2], dtype: complex128}", '''
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return w[0] * x[:, 1:] + w[1] * x[:, :-1]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx = torch.zeros_like(x)
        dx[:, 1:] += g * w[0].conj()
        dx[:, :-1] += g * w[1].conj()
        dw = torch.stack(((g * x[:, 1:].conj()).sum(), (g * x[:, :-1].conj()).sum()))
        return dx, dw
''',
 ("taps-unconjugated", ("g * w[0].conj()", "g * w[1].conj()"), ("g * w[0]", "g * w[1]"), "conjugate operand"),
 ("overwritten", "dx[:, :-1] += g", "dx[:, :-1] = g", "missing-term duplicates none ~region"),
 ("input-unconjugated", ("(g * x[:, 1:].conj())", "(g * x[:, :-1].conj())"), ("(g * x[:, 1:])", "(g * x[:, :-1])"), "conjugate operand"),
)
fn("FourierFeatures", "x: [b, n]\nB: [n, m]", '''
    @staticmethod
    def forward(ctx, x, B):
        phase = 2 * math.pi * (x @ B)
        s, c = phase.sin(), phase.cos()
        ctx.save_for_backward(x, B, s, c)
        return torch.cat((s, c), -1)

    @staticmethod
    def backward(ctx, g):
        x, B, s, c = ctx.saved_tensors
        gs, gc = g.chunk(2, -1)
        dphase = 2 * math.pi * (gs * c - gc * s)
        return dphase @ B.t(), x.t() @ dphase
''',
 ("no-two-pi", "dphase = 2 * math.pi * (", "dphase = (", "constant-factor"),
 ("cosine-sign", "(gs * c - gc * s)", "(gs * c + gc * s)", "region =missing-term"),
 ("cosine-ignored", "(gs * c - gc * s)", "(gs * c)", "region missing-term"),
 ("phases-swapped", "(gs * c - gc * s)", "(gs * s - gc * c)", "none =chain-factor"),
)
fn("RowQuantile", "x: {shape: [b, m], distinct: true}\nq: 0.3", '''
    @staticmethod
    def forward(ctx, x, q):
        s, order = x.sort(1)
        at = q * (x.shape[1] - 1)
        lo = int(at)
        f = at - lo
        ctx.save_for_backward(order)
        ctx.lo, ctx.f = lo, f
        return s[:, lo] * (1 - f) + s[:, lo + 1] * f

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        sorted_grad = g.new_zeros(order.shape)
        sorted_grad[:, ctx.lo] = g * (1 - ctx.f)
        sorted_grad[:, ctx.lo + 1] = g * ctx.f
        return torch.zeros_like(sorted_grad).scatter(1, order, sorted_grad), None
''',
 ("not-unsorted", "torch.zeros_like(sorted_grad).scatter(1, order, sorted_grad)", "sorted_grad", "permuted none"),
 ("sorted-again", "torch.zeros_like(sorted_grad).scatter(1, order, sorted_grad)", "sorted_grad.gather(1, order)", "permuted none"),
 ("weights-swapped", "ctx.lo, ctx.f = lo, f", "ctx.lo, ctx.f = lo, 1 - f", "permuted none"),
 ("lower-only", "        sorted_grad[:, ctx.lo + 1] = g * ctx.f\n", "", "missing-term none ~branch ~region"),
)
fn("SortedDistance", "x: {shape: [b, m], distinct: true}\ny: {shape: [b, m], distinct: true}", '''
    @staticmethod
    def forward(ctx, x, y):
        xs, ix = x.sort(1)
        ys, iy = y.sort(1)
        diff = xs - ys
        ctx.save_for_backward(diff, ix, iy)
        return (diff * diff).mean(1)

    @staticmethod
    def backward(ctx, g):
        diff, ix, iy = ctx.saved_tensors
        d = 2 * diff * g[:, None] / diff.shape[1]
        dx = torch.zeros_like(d).scatter(1, ix, d)
        dy = torch.zeros_like(d).scatter(1, iy, -d)
        return dx, dy
''',
 ("first-order", "scatter(1, iy, -d)", "scatter(1, ix, -d)", "permuted none swapped-inputs"),
 ("minus-forgotten", "scatter(1, iy, -d)", "scatter(1, iy, d)", "constant-factor"),
 ("two-forgotten", "d = 2 * diff * g", "d = diff * g", "constant-factor"),
 ("batch-mean", "/ diff.shape[1]", "/ diff.numel()", "constant-factor"),
)
fn("Torque", "arm: [m, 3]\nforce: [m, 3]", '''
    @staticmethod
    def forward(ctx, arm, force):
        ctx.save_for_backward(arm, force)
        return torch.linalg.cross(arm, force)

    @staticmethod
    def backward(ctx, g):
        arm, force = ctx.saved_tensors
        return torch.linalg.cross(force, g), torch.linalg.cross(g, arm)
''',
 ("order", "torch.linalg.cross(g, arm)", "torch.linalg.cross(arm, g)", "constant-factor transposed operand"),
 ("returned-swapped", "torch.linalg.cross(force, g), torch.linalg.cross(g, arm)", "torch.linalg.cross(g, arm), torch.linalg.cross(force, g)", "swapped-inputs"),
 ("same-vector", "torch.linalg.cross(force, g), torch", "torch.linalg.cross(arm, g), torch", "operand ~swapped-inputs"),
)
fn("SoftCoulomb", "x: [m, 3]\ncharge: [m]", '''
    @staticmethod
    def forward(ctx, x, charge):
        diff = x[:, None] - x
        r = ((diff * diff).sum(-1) + 0.25).sqrt()
        off = 1 - torch.eye(x.shape[0], dtype=x.dtype, device=x.device)
        pot = (off / r) @ charge
        ctx.save_for_backward(diff, r, off, charge, pot)
        return 0.5 * charge @ pot

    @staticmethod
    def backward(ctx, g):
        diff, r, off, charge, pot = ctx.saved_tensors
        pair = off * torch.outer(charge, charge) / r ** 3
        dx = -g * (pair[..., None] * diff).sum(1)
        return dx, g * pot
''',
 ("half-kept", "return dx, g * pot", "return dx, 0.5 * g * pot", "constant-factor"),
 ("counted-twice", "dx = -g * (", "dx = -2 * g * (", "constant-factor"),
 ("force-sign", "(pair[..., None] * diff).sum(1)", "(pair[..., None] * diff).sum(0)", "constant-factor"),
 ("distance-power", "/ r ** 3", "/ r ** 2", "none chain-factor"),
)
