"""Eighth set, held out: the other half of what the hand of the seventh wrote, in the same hours.

The causes were written before the first run.
"""

SIZES = (
    "b2: 2, b3: 3, b4: 4, c3: 3, c4: 4, d2: 2, d3: 3, d4: 4, e2: 2, e7: 7, f2: 2, h2: 2, h4: 4, "
    "i2: 2, i3: 3, j3: 3, k2: 2, k3: 3, l12: 12, l2: 2, l5: 5, m2: 2, m3: 3, m4: 4, m7: 7, n2: 2, "
    "n3: 3, n4: 4, n5: 5, n6: 6, o2: 2, r2: 2, r3: 3, s4: 4, t4: 4, t8: 8, w5: 5"
)
FUNCTIONS = []
TWICE_DIFFERENTIABLE = (
    'SigmoidFocal',
    'CoxPartialLikelihood',
    'PoincareExpMap0',
    'LiftingStep53',
    'DCT2',
    'LogCumSumExp',
    'KroneckerLinear',
    'LowRankAdapter',
    'GraphMeanAggregate',
    'PermutedGather',
    'UpsampleLinear1d',
    'StackAffine',
    'ClampedLogSigmaGaussian',
    'GradientPenaltyNorm',
)


def fn(name, spec, source, *bugs):
    FUNCTIONS.append((name, spec, source, bugs))


fn('SigmoidFocal', """logits: [b3, c4]
target: {shape: [b3, c4], structure: one-hot, requires_grad: false}
alpha: 0.25
gamma: {choices: [2.0, 3.0]}
reduction: {choices: [mean, sum, none]}""", '''
import torch.nn.functional as F
@@
    """Focal loss with alpha and a positive weight per class, reduced as asked."""

    @staticmethod
    def forward(ctx, logits, target, alpha, gamma, reduction):
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        pt = p * target + (1 - p) * (1 - target)
        at = alpha * target + (1 - alpha) * (1 - target)
        loss = at * (1 - pt).pow(gamma) * ce
        ctx.save_for_backward(logits, target)
        ctx.alpha, ctx.gamma, ctx.reduction = alpha, gamma, reduction
        if reduction == "mean":
            return loss.mean()
        return loss.sum() if reduction == "sum" else loss

    @staticmethod
    def backward(ctx, grad_output):
        logits, target = ctx.saved_tensors
        sign = 2 * target - 1
        pt = torch.sigmoid(sign * logits)
        at = ctx.alpha * target + (1 - ctx.alpha) * (1 - target)
        log_pt = F.logsigmoid(sign * logits)
        grad = at * sign * (1 - pt).pow(ctx.gamma) * (ctx.gamma * pt * log_pt - (1 - pt))
        if ctx.reduction == "mean":
            grad = grad / logits.numel()
        return grad_output * grad, None, None, None, None
''',
    # reduction sum is divided by the number of entries, too
    ("focal-sum-as-mean", 'if ctx.reduction == "mean":\n            grad', 'if ctx.reduction != "none":\n            grad', 'constant-factor'),
    # the modulating factor is taken as a constant (its derivative's term is missing)
    ("focal-frozen-weight", '(ctx.gamma * pt * log_pt - (1 - pt))', '-(1 - pt)', 'missing-term'),
)

fn('MarginRanking', """anchor: [b4, d3]
positive: [b4, d3]
negatives: [n3, d3]
margin: {choices: [0.5, 1.5]}""", '''
import torch.nn.functional as F
@@
    """Triplet loss with the hardest negative of the batch."""

    @staticmethod
    def forward(ctx, anchor, positive, negatives, margin):
        dp = (anchor - positive).norm(dim=1)
        dn, hardest = torch.cdist(anchor, negatives).min(1)
        loss = F.relu(dp - dn + margin)
        ctx.save_for_backward(anchor, positive, negatives, hardest, dp, dn)
        ctx.margin = margin
        return loss.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        anchor, positive, negatives, hardest, dp, dn = ctx.saved_tensors
        active = (dp - dn + ctx.margin > 0).to(anchor.dtype) / len(anchor) * grad_output
        up = (anchor - positive) / dp[:, None] * active[:, None]
        un = (anchor - negatives[hardest]) / dn[:, None] * active[:, None]
        grad_negatives = torch.zeros_like(negatives).index_add(0, hardest, un)
        return up - un, -up, grad_negatives, None
''',
    # triplets that satisfy the margin get a gradient, too
    ("margin-all-active", '(dp - dn + ctx.margin > 0).to(anchor.dtype)', 'torch.ones_like(dp)', 'branch region'),
    # derivative of the squared distance instead of the distance (positive side)
    ("margin-squared", 'up = (anchor - positive) / dp[:, None] * active[:, None]', 'up = 2 * (anchor - positive) * active[:, None]', 'constant-factor chain-factor operand missing-factor none'),
)

fn('CoxPartialLikelihood', """risk: [n5]
event: {shape: [n5], dtype: bool}""", '''
    """Negative log partial likelihood; rows are sorted by time, latest first."""

    @staticmethod
    def forward(ctx, risk, event):
        lse = torch.logcumsumexp(risk, 0)
        e = event.to(risk.dtype)
        total = e.sum().clamp(min=1)
        ctx.save_for_backward(risk, e, total)
        return ((lse - risk) * e).sum() / total

    @staticmethod
    def backward(ctx, grad_output):
        risk, e, total = ctx.saved_tensors
        lse = torch.logcumsumexp(risk, 0)
        later = (e * torch.exp(-lse)).flip(0).cumsum(0).flip(0)
        return grad_output * (risk.exp() * later - e) / total, None
''',
    # the cumulative sum runs forwards instead of backwards
    ("cox-forward-sum", '(e * torch.exp(-lse)).flip(0).cumsum(0).flip(0)', '(e * torch.exp(-lse)).cumsum(0)', 'permuted operand region transposed none'),
    # censored rows count as events in the risk sets
    ("cox-censored", '(e * torch.exp(-lse)).flip(0)', 'torch.exp(-lse).flip(0)', 'operand branch region missing-term none'),
)

fn('SoftDTW', """D: {shape: [n3, m4], domain: positive}
gamma: {choices: [1.0, 0.3]}""", '''
import torch.nn.functional as F
@@
    """Soft dynamic time warping of a cost matrix."""

    @staticmethod
    def forward(ctx, D, gamma):
        n, m = D.shape
        R = D.new_full((n + 2, m + 2), math.inf)
        R[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                r = torch.stack((R[i - 1, j - 1], R[i - 1, j], R[i, j - 1]))
                R[i, j] = D[i - 1, j - 1] - gamma * torch.logsumexp(-r / gamma, 0)
        ctx.save_for_backward(D, R)
        ctx.gamma = gamma
        return R[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        n, m = D.shape
        gamma = ctx.gamma
        R = R.clone()
        R[:, -1] = -math.inf
        R[-1, :] = -math.inf
        R[-1, -1] = R[-2, -2]
        padded = F.pad(D, (1, 1, 1, 1))
        E = torch.zeros_like(R)
        E[-1, -1] = 1
        for j in range(m, 0, -1):
            for i in range(n, 0, -1):
                a = torch.exp((R[i + 1, j] - R[i, j] - padded[i + 1, j]) / gamma)
                b = torch.exp((R[i, j + 1] - R[i, j] - padded[i, j + 1]) / gamma)
                c = torch.exp((R[i + 1, j + 1] - R[i, j] - padded[i + 1, j + 1]) / gamma)
                E[i, j] = E[i + 1, j] * a + E[i, j + 1] * b + E[i + 1, j + 1] * c
        return grad_output * E[1:-1, 1:-1], None
''',
    # the diagonal move's weight lacks 1/gamma (only wrong where gamma is not 1)
    ("soft-d-t-w-no-gamma", 'c = torch.exp((R[i + 1, j + 1] - R[i, j] - padded[i + 1, j + 1]) / gamma)', 'c = torch.exp(R[i + 1, j + 1] - R[i, j] - padded[i + 1, j + 1])', 'operand branch missing-term none'),
    # weights of the moves down and right are exchanged
    ("soft-d-t-w-path", 'E[i, j] = E[i + 1, j] * a + E[i, j + 1] * b + E[i + 1, j + 1] * c', 'E[i, j] = E[i + 1, j] * b + E[i, j + 1] * a + E[i + 1, j + 1] * c', 'operand permuted transposed none'),
)

fn('SpectralConvergence', """x: [b2, l12]
y: {shape: [b2, l12], requires_grad: false}
window: {shape: [w5], domain: positive, requires_grad: false}
hop: {choices: [2, 3]}""", '''
import torch.nn.functional as F
@@
    """Relative error of STFT magnitudes, || |X| - |Y| ||_F / || |Y| ||_F, for x only."""

    @staticmethod
    def stft(x, window, hop):
        frames = x.unfold(-1, window.shape[0], hop) * window
        return torch.fft.rfft(frames)

    @staticmethod
    def forward(ctx, x, y, window, hop):
        X, Y = SELF.stft(x, window, hop), SELF.stft(y, window, hop)
        difference = X.abs() - Y.abs()
        ctx.save_for_backward(x, y, window)
        ctx.hop = hop
        return difference.norm() / Y.abs().norm()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y, window = ctx.saved_tensors
        n, hop = window.shape[0], ctx.hop
        X, Y = SELF.stft(x, window, hop), SELF.stft(y, window, hop)
        difference = X.abs() - Y.abs()
        g = difference / (difference.norm() * Y.abs().norm()) * torch.sgn(X)
        full = F.pad(g, (0, n - g.shape[-1]))
        frames = torch.fft.ifft(full, dim=-1).real * n * window
        grad = torch.zeros_like(x)
        for i in range(frames.shape[-2]):
            grad[..., i * hop : i * hop + n] += frames[..., i, :]
        return grad_output * grad, None, None, None
''',
    # irfft counts the middle frequencies twice
    ("spectral-hermitian", 'full = F.pad(g, (0, n - g.shape[-1]))\n        frames = torch.fft.ifft(full, dim=-1).real * n * window', 'frames = torch.fft.irfft(g, n=n) * n * window', 'constant-factor missing-term operand none'),
    # overlapping frames overwrite instead of adding
    ("spectral-no-overlap", '] += frames[..., i, :]', '] = frames[..., i, :]', 'duplicates region missing-term none'),
)

fn('WKV', """w: [c3]
u: [c3]
k: [t4, c3]
v: [t4, c3]""", '''
    """RWKV-4: weighted mean of past v by exp(k), decay w per channel, bonus u of the present token."""

    @staticmethod
    def forward(ctx, w, u, k, v):
        decay = torch.exp(-torch.exp(w))
        a, b = torch.zeros_like(k[0]), torch.zeros_like(k[0])
        out, tops, bottoms = [], [], []
        for t in range(k.shape[0]):
            e = torch.exp(u + k[t])
            tops.append(a)
            bottoms.append(b)
            out.append((a + e * v[t]) / (b + e))
            a = decay * a + torch.exp(k[t]) * v[t]
            b = decay * b + torch.exp(k[t])
        out = torch.stack(out)
        ctx.save_for_backward(w, u, k, v, out, torch.stack(tops), torch.stack(bottoms))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        w, u, k, v, out, tops, bottoms = ctx.saved_tensors
        decay = torch.exp(-torch.exp(w))
        grad_u, grad_decay = torch.zeros_like(u), torch.zeros_like(w)
        grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
        ga, gb = torch.zeros_like(k[0]), torch.zeros_like(k[0])
        for t in range(k.shape[0] - 1, -1, -1):
            grad_decay += ga * tops[t] + gb * bottoms[t]
            ek = torch.exp(k[t])
            grad_k[t] = ek * (ga * v[t] + gb)
            grad_v[t] = ek * ga
            e = torch.exp(u + k[t])
            share = grad_output[t] / (bottoms[t] + e)
            ge = share * (v[t] - out[t]) * e
            grad_u += ge
            grad_k[t] += ge
            grad_v[t] += share * e
            ga = decay * ga + share
            gb = decay * gb - share * out[t]
        return grad_decay * decay * -torch.exp(w), grad_u, grad_k, grad_v
''',
    # the bonus u is left out in backward
    ("w-k-v-bonus-decay", 'e = torch.exp(u + k[t])\n            share', 'e = torch.exp(k[t])\n            share', 'operand missing-term none'),
    # decay's own factor is missing in the chain to w
    ("w-k-v-decay-chain", 'return grad_decay * decay * -torch.exp(w),', 'return grad_decay * -torch.exp(w),', 'missing-factor chain-factor operand constant-factor'),
    # sign of the denominator's adjoint
    ("w-k-v-denominator", 'gb = decay * gb - share * out[t]', 'gb = decay * gb + share * out[t]', 'missing-term operand constant-factor'),
)

fn('DeltaRule', """q: [t4, d3]
k: [t4, d3]
v: [t4, e2]
beta: {shape: [t4], domain: unit}
state: [d3, e2]""", '''
    """S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T; o_t = S_t^T q_t; returns the outputs and the last state."""

    @staticmethod
    def forward(ctx, q, k, v, beta, state):
        states, out = [], []
        for t in range(q.shape[0]):
            states.append(state)
            error = v[t] - state.t() @ k[t]
            state = state + beta[t] * torch.outer(k[t], error)
            out.append(state.t() @ q[t])
        ctx.save_for_backward(q, k, v, beta, torch.stack([*states, state]))
        return torch.stack(out), state.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_state):
        q, k, v, beta, states = ctx.saved_tensors
        gq, gk, gv, gbeta = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(beta)
        G = grad_state.clone()
        for t in range(q.shape[0] - 1, -1, -1):
            before, after = states[t], states[t + 1]
            gq[t] = after @ grad_out[t]
            G = G + torch.outer(q[t], grad_out[t])
            error = v[t] - before.t() @ k[t]
            inner = G.t() @ k[t]
            gbeta[t] = inner.dot(error)
            gv[t] = beta[t] * inner
            gk[t] = beta[t] * (G @ error - before @ inner)
            G = G - beta[t] * torch.outer(k[t], inner)
        return gq, gk, gv, gbeta, G
''',
    # the error is computed with the state after the step
    ("delta-rule-after", 'error = v[t] - before.t() @ k[t]\n            inner', 'error = v[t] - after.t() @ k[t]\n            inner', 'wrong-saved operand'),
    # the correction of the carried adjoint (the identity minus beta k k^T) is missing
    ("delta-rule-state", '            G = G - beta[t] * torch.outer(k[t], inner)\n', '', 'missing-term'),
    # the gradient of the last state is ignored
    ("delta-rule-last", 'G = grad_state.clone()', 'G = torch.zeros_like(grad_state)', 'ignored-output missing-term'),
)

fn('GRUCell', """x: [b2, i3]
h: [b2, h2]
w_ih: [3*h2, i3]
w_hh: [3*h2, h2]
bias: [3*h2]""", '''
    @staticmethod
    def forward(ctx, x, h, w_ih, w_hh, bias):
        gi, gh = x @ w_ih.t() + bias, h @ w_hh.t()
        ir, iz, inn = gi.chunk(3, 1)
        hr, hz, hn = gh.chunk(3, 1)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        n = torch.tanh(inn + r * hn)
        ctx.save_for_backward(x, h, w_ih, w_hh, r, z, n, hn)
        return (1 - z) * n + z * h

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, h, w_ih, w_hh, r, z, n, hn = ctx.saved_tensors
        dn = g * (1 - z) * (1 - n * n)
        dz = g * (h - n) * z * (1 - z)
        dr = dn * hn * r * (1 - r)
        di = torch.cat((dr, dz, dn), 1)
        dh = torch.cat((dr, dz, dn * r), 1)
        return di @ w_ih, g * z + dh @ w_hh, di.t() @ x, dh.t() @ h, di.sum(0)
''',
    # the reset gate is left out of the hidden candidate's gradient
    ("g-r-u-reset", 'dh = torch.cat((dr, dz, dn * r), 1)', 'dh = torch.cat((dr, dz, dn), 1)', 'missing-factor chain-factor operand'),
    # the direct path z*h is missing in h's gradient
    ("g-r-u-no-skip", 'g * z + dh @ w_hh', 'dh @ w_hh', 'missing-term'),
    # sign of the update gate's gradient
    ("g-r-u-update-sign", 'dz = g * (h - n)', 'dz = g * (n - h)', 'constant-factor missing-term operand'),
)

fn('AlphaComposite', """alpha: {shape: [r3, s4], range: [0, 0.95]}
color: [r3, s4, c3]
background: [c3]""", '''
    """Front to back: color = sum_i T_i a_i c_i + T_n background; also gives the transmittance left."""

    @staticmethod
    def forward(ctx, alpha, color, background):
        T = alpha.new_ones(alpha.shape[0])
        out = color.new_zeros(color.shape[0], color.shape[2])
        for i in range(alpha.shape[1]):
            out = out + (T * alpha[:, i])[:, None] * color[:, i]
            T = T * (1 - alpha[:, i])
        ctx.save_for_backward(alpha, color, background, T)
        return out + T[:, None] * background, T

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_color, grad_T):
        alpha, color, background, T = ctx.saved_tensors
        grad_alpha, grad_c = torch.zeros_like(alpha), torch.zeros_like(color)
        behind = background.expand(len(alpha), -1)
        left = torch.ones_like(T)
        final = T
        for i in range(alpha.shape[1] - 1, -1, -1):
            T = T / (1 - alpha[:, i])
            grad_c[:, i] = (T * alpha[:, i])[:, None] * grad_color
            grad_alpha[:, i] = T * (grad_color * (color[:, i] - behind)).sum(1) - grad_T * T * left
            behind = alpha[:, i, None] * color[:, i] + (1 - alpha[:, i, None]) * behind
            left = left * (1 - alpha[:, i])
        return grad_alpha, grad_c, (final[:, None] * grad_color).sum(0)
''',
    # the gradient of the transmittance output is ignored
    ("composite-transmittance", ' - grad_T * T * left', '', 'ignored-output missing-term'),
    # what lies behind is not subtracted
    ("composite-behind", '(color[:, i] - behind)', 'color[:, i]', 'missing-term'),
)

fn('ProjectGaussians', """mean: {concat: [{shape: [n3, 2]}, {shape: [n3, 1], range: [1, 4]}]}
cov: [n3, 3, 3]
focal: {choices: [1.5, 3.0]}""", '''
    """Means and covariances of camera-space Gaussians to the image by the local affine approximation."""

    @staticmethod
    def jacobian(mean, f):
        x, y, z = mean.unbind(-1)
        zero = torch.zeros_like(z)
        return torch.stack((torch.stack((f / z, zero, -f * x / z**2), -1), torch.stack((zero, f / z, -f * y / z**2), -1)), -2)

    @staticmethod
    def forward(ctx, mean, cov, focal):
        J = SELF.jacobian(mean, focal)
        ctx.save_for_backward(mean, cov)
        ctx.focal = focal
        return focal * mean[..., :2] / mean[..., 2:], J @ cov @ J.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_mean2, grad_cov2):
        mean, cov = ctx.saved_tensors
        f = ctx.focal
        x, y, z = mean.unbind(-1)
        J = SELF.jacobian(mean, f)
        grad_cov = J.mT @ grad_cov2 @ J
        grad_J = grad_cov2 @ J @ cov.mT + grad_cov2.mT @ J @ cov
        gu, gv = grad_mean2.unbind(-1)
        gx = gu * f / z - grad_J[..., 0, 2] * f / z**2
        gy = gv * f / z - grad_J[..., 1, 2] * f / z**2
        gz = -f * (gu * x + gv * y) / z**2
        gz = gz - f / z**2 * (grad_J[..., 0, 0] + grad_J[..., 1, 1])
        gz = gz + 2 * f / z**3 * (grad_J[..., 0, 2] * x + grad_J[..., 1, 2] * y)
        return torch.stack((gx, gy, gz), -1), grad_cov, None
''',
    # the covariance's dependence on depth through the Jacobian is missing in z
    ("project-fixed-jacobian", '        gz = gz - f / z**2 * (grad_J[..., 0, 0] + grad_J[..., 1, 1])\n        gz = gz + 2 * f / z**3 * (grad_J[..., 0, 2] * x + grad_J[..., 1, 2] * y)\n', '', 'missing-term'),
    # symmetry of the covariance and its gradient is assumed
    ("project-symmetric-cov", 'grad_J = grad_cov2 @ J @ cov.mT + grad_cov2.mT @ J @ cov', 'grad_J = 2 * grad_cov2 @ J @ cov', 'transposed operand none'),
)

fn('SO3Exp', """w: {shape: [n3, 3], special: [0.0]}""", '''
    """Rotation matrices of rotation vectors [n, 3]; a series near zero."""

    @staticmethod
    def coefficients(w):
        t2 = (w * w).sum(-1)
        small = t2 < 1e-4
        safe = torch.where(small, torch.ones_like(t2), t2)
        t = safe.sqrt()
        a = torch.where(small, 1 - t2 / 6 + t2**2 / 120 - t2**3 / 5040, t.sin() / t)
        b = torch.where(small, 0.5 - t2 / 24 + t2**2 / 720 - t2**3 / 40320, (1 - t.cos()) / safe)
        c = torch.where(small, 1 / 6 - t2 / 120 + t2**2 / 5040, (t - t.sin()) / (safe * t))
        return a, b, c

    @staticmethod
    def hat(w):
        x, y, z = w.unbind(-1)
        o = torch.zeros_like(x)
        return torch.stack((o, -z, y, z, o, -x, -y, x, o), -1).view(*w.shape, 3)

    @staticmethod
    def forward(ctx, w):
        a, b, _ = SELF.coefficients(w)
        K = SELF.hat(w)
        R = torch.eye(3, dtype=w.dtype, device=w.device) + a[:, None, None] * K + b[:, None, None] * (K @ K)
        ctx.save_for_backward(w, R)
        return R

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        w, R = ctx.saved_tensors
        M = R.mT @ G
        tangent = torch.stack((M[:, 2, 1] - M[:, 1, 2], M[:, 0, 2] - M[:, 2, 0], M[:, 1, 0] - M[:, 0, 1]), -1)
        _, b, c = SELF.coefficients(w)
        K = SELF.hat(w)
        right = torch.eye(3, dtype=w.dtype, device=w.device) - b[:, None, None] * K + c[:, None, None] * (K @ K)
        return (right.mT @ tangent.unsqueeze(-1)).squeeze(-1)
''',
    # left instead of right Jacobian
    ("s-o3-left-jacobian", '- b[:, None, None] * K + c', '+ b[:, None, None] * K + c', 'transposed missing-term operand none'),
    # the Jacobian is taken as the identity (right only at zero)
    ("s-o3-small-only", 'right = torch.eye(3, dtype=w.dtype, device=w.device) - b[:, None, None] * K + c[:, None, None] * (K @ K)', 'right = torch.eye(3, dtype=w.dtype, device=w.device).expand_as(K)', 'missing-term operand none'),
)

fn('LorentzDistance', """x: [n3, d4]
y: [n3, d4]
curvature: {choices: [1.0, 0.5]}""", '''
    """Distance on the hyperboloid of points given by their space parts."""

    @staticmethod
    def forward(ctx, x, y, curvature):
        x0, y0 = (1 / curvature + x.square().sum(-1)).sqrt(), (1 / curvature + y.square().sum(-1)).sqrt()
        inner = curvature * (x0 * y0 - (x * y).sum(-1))
        ctx.save_for_backward(x, y, x0, y0, inner)
        ctx.curvature = curvature
        return torch.acosh(inner) / curvature**0.5

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, x0, y0, inner = ctx.saved_tensors
        slope = (g * ctx.curvature**0.5 / (inner.square() - 1).sqrt())[:, None]
        grad_x = slope * (x * (y0 / x0)[:, None] - y)
        grad_y = slope * (y * (x0 / y0)[:, None] - x)
        return grad_x, grad_y, None
''',
    # ratio of time components missing
    ("lorentz-euclid", 'slope * (x * (y0 / x0)[:, None] - y)', 'slope * (x - y)', 'missing-factor operand missing-term'),
    # factor sqrt(curvature), visible where it is not one
    ("lorentz-curvature", 'g * ctx.curvature**0.5 /', 'g /', 'constant-factor missing-factor'),
)

fn('PoincareExpMap0', """v: {shape: [n3, d4], domain: nonzero}
c: {shape: [], domain: positive}""", '''
    """tanh(sqrt(c)|v|) v / (sqrt(c)|v|)."""

    @staticmethod
    def forward(ctx, v, c):
        ctx.save_for_backward(v, c)
        n = c.sqrt() * v.norm(dim=-1, keepdim=True)
        return torch.tanh(n) / n * v

    @staticmethod
    def backward(ctx, g):
        v, c = ctx.saved_tensors
        s = c.sqrt()
        n = s * v.norm(dim=-1, keepdim=True)
        th = torch.tanh(n)
        f = th / n
        df = (1 - th * th - f) / n
        along = (g * v).sum(-1, keepdim=True)
        grad_v = f * g + along * df * c * v / n
        grad_c = (along * df * n).sum() / (2 * c)
        return grad_v, grad_c
''',
    # the radial term of v's gradient is missing
    ("exp-map-no-radial", 'grad_v = f * g + along * df * c * v / n', 'grad_v = f * g', 'missing-term diagonal-only'),
    # half of the square root's derivative missing
    ("exp-map-sqrt", '(along * df * n).sum() / (2 * c)', '(along * df * n).sum() / c', 'constant-factor'),
)

fn('LiftingStep53', """x: [b2, 2*h4]""", '''
    """One level of the CDF 5/3 wavelet by lifting, mirrored at the ends; returns (approximation, detail)."""

    @staticmethod
    def forward(ctx, x):
        even, odd = x[..., 0::2], x[..., 1::2]
        following = torch.cat((even[..., 1:], even[..., -1:]), -1)
        d = odd - 0.5 * (even + following)
        previous = torch.cat((d[..., :1], d[..., :-1]), -1)
        return even + 0.25 * (previous + d), d

    @staticmethod
    def backward(ctx, grad_s, grad_d):
        gd = grad_d + 0.25 * grad_s
        shifted = 0.25 * grad_s
        gd = gd + torch.cat((shifted[..., 1:], torch.zeros_like(shifted[..., :1])), -1)
        gd = torch.cat((gd[..., :1] + shifted[..., :1], gd[..., 1:]), -1)
        back = -0.5 * gd
        ge = grad_s + back
        ge = ge + torch.cat((torch.zeros_like(back[..., :1]), back[..., :-1]), -1)
        ge = torch.cat((ge[..., :-1], ge[..., -1:] + back[..., -1:]), -1)
        return torch.stack((ge, gd), -1).flatten(-2)
''',
    # the boundary is treated as periodic instead of mirrored
    ("lifting-periodic", '        gd = gd + torch.cat((shifted[..., 1:], torch.zeros_like(shifted[..., :1])), -1)\n        gd = torch.cat((gd[..., :1] + shifted[..., :1], gd[..., 1:]), -1)', '        gd = gd + shifted.roll(-1, -1)', 'region permuted none'),
    # the mirrored last sample's contribution is missing
    ("lifting-edge", '        ge = torch.cat((ge[..., :-1], ge[..., -1:] + back[..., -1:]), -1)\n', '', 'region missing-term'),
)

fn('DCT2', """x: [b2, n6]""", '''
    """Orthonormal DCT-II of the last dimension through an FFT."""

    @staticmethod
    def phases(n, like):
        k = torch.arange(n, dtype=like.dtype, device=like.device)
        scale = torch.full_like(k, math.sqrt(2 / n))
        scale[0] = math.sqrt(1 / n)
        angle = -math.pi * k / (2 * n)
        return torch.complex(angle.cos(), angle.sin()) * scale

    @staticmethod
    def forward(ctx, x):
        n = x.shape[-1]
        order = torch.cat((x[..., ::2], x[..., 1::2].flip(-1)), -1)
        return (torch.fft.fft(order) * SELF.phases(n, x)).real

    @staticmethod
    def backward(ctx, g):
        n = g.shape[-1]
        back = torch.fft.fft(g * SELF.phases(n, g)).real
        half = (n + 1) // 2
        out = torch.empty_like(back)
        out[..., ::2] = back[..., :half]
        out[..., 1::2] = back[..., half:].flip(-1)
        return out
''',
    # odd samples are not put back in reversed order
    ("d-c-t-order", 'back[..., half:].flip(-1)', 'back[..., half:]', 'permuted'),
    # scaled by sqrt(2)
    ("d-c-t-scale", 'back = torch.fft.fft(g * SELF.phases(n, g)).real', 'back = torch.fft.fft(g * SELF.phases(n, g)).real * math.sqrt(2)', 'constant-factor'),
)

fn('LogCumSumExp', """x: {shape: [n3, m4], range: [-3, 3]}
dim: {choices: [0, 1]}""", '''
    @staticmethod
    def forward(ctx, x, dim):
        y = torch.logcumsumexp(x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        scaled = g * torch.exp(-y)
        return torch.exp(x) * scaled.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None
''',
    # always the last dimension: wrong for dim=0
    ("log-cum-sum-dim", 'scaled.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim)', 'scaled.flip(-1).cumsum(-1).flip(-1)', 'wrong-reduction-dim operand branch none'),
    # cumulated forwards
    ("log-cum-sum-no-flip", 'scaled.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim)', 'scaled.cumsum(ctx.dim)', 'operand permuted transposed none'),
)

fn('ComplexLinear', """z: {shape: [n3, i2], dtype: complex128}
W: {shape: [o2, i2], dtype: complex128}
b: {shape: [o2], dtype: complex128}""", '''
    """z W^T + b of complex layers, and the power of the result."""

    @staticmethod
    def forward(ctx, z, W, b):
        y = z @ W.t() + b
        ctx.save_for_backward(z, W, y)
        return y, (y * y.conj()).real.mean(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, gy, gp):
        z, W, y = ctx.saved_tensors
        g = gy + 2 * y * gp / len(y)
        return g @ W.conj(), g.t() @ z.conj(), g.sum(0)
''',
    # conjugate missing in W's gradient
    ("complex-no-conj", 'return g @ W.conj(), g.t() @ z.conj()', 'return g @ W.conj(), g.t() @ z', 'conjugate'),
    # factor 2 of |y|^2 missing
    ("complex-power-half", 'gy + 2 * y * gp / len(y)', 'gy + y * gp / len(y)', 'constant-factor missing-term'),
)

fn('ThinQR', """A: [n4, k3]""", '''
    """Q and R of a tall matrix."""

    @staticmethod
    def forward(ctx, A):
        Q, R = torch.linalg.qr(A)
        sign = torch.sign(R.diagonal())
        Q, R = Q * sign, R * sign[:, None]
        ctx.save_for_backward(Q, R)
        return Q, R

    @staticmethod
    @once_differentiable
    def backward(ctx, gQ, gR):
        Q, R = ctx.saved_tensors
        M = R @ gR.mT - gQ.mT @ Q
        symmetric = M.tril() + M.tril(-1).mT
        return torch.linalg.solve_triangular(R, (gQ + Q @ symmetric).mT, upper=True).mT
''',
    # the lower triangle is not made symmetric
    ("q-r-triangle", 'symmetric = M.tril() + M.tril(-1).mT', 'symmetric = M.tril()', 'region missing-term transposed none'),
    # the gradient of R is ignored
    ("q-r-no-r", 'M = R @ gR.mT - gQ.mT @ Q', 'M = -gQ.mT @ Q', 'ignored-output missing-term'),
)

fn('EqualityQP', """P: {shape: [n4, n4], structure: spd}
q: [n4]
A: [m2, n4]
b: [m2]""", '''
    """argmin 0.5 x'Px + q'x with Ax = b, by the KKT system; returns x and the multipliers."""

    @staticmethod
    def kkt(P, A):
        m = A.shape[0]
        top = torch.cat((P, A.mT), 1)
        return torch.cat((top, torch.cat((A, A.new_zeros(m, m)), 1)), 0)

    @staticmethod
    def forward(ctx, P, q, A, b):
        n = len(q)
        z = torch.linalg.solve(SELF.kkt(P, A), torch.cat((-q, b)))
        ctx.save_for_backward(P, A, z)
        return z[:n].clone(), z[n:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gx, gnu):
        P, A, z = ctx.saved_tensors
        n = P.shape[0]
        x, nu = z[:n], z[n:]
        d = torch.linalg.solve(SELF.kkt(P, A).mT, torch.cat((gx, gnu)))
        dx, dnu = d[:n], d[n:]
        grad_P = -torch.outer(dx, x)
        grad_A = -torch.outer(dnu, x) - torch.outer(nu, dx)
        return 0.5 * (grad_P + grad_P.mT), -dx, grad_A, dnu
''',
    # the multipliers' term of A's gradient is missing
    ("q-p-multiplier", 'grad_A = -torch.outer(dnu, x) - torch.outer(nu, dx)', 'grad_A = -torch.outer(dnu, x)', 'missing-term ignored-output'),
    # sign of b's gradient
    ("q-p-sign", '-dx, grad_A, dnu', '-dx, grad_A, -dnu', 'constant-factor'),
)

fn('BisectRoot', """y: [n4]
a: {shape: [], domain: positive}""", '''
    """The x with x + a sinh(x) = y (a > 0), by bisection."""

    @staticmethod
    def forward(ctx, y, a):
        low, high = -y.abs() - 1, y.abs() + 1
        for _ in range(80):
            mid = (low + high) / 2
            above = mid + a * mid.sinh() > y
            high = torch.where(above, mid, high)
            low = torch.where(above, low, mid)
        x = (low + high) / 2
        ctx.save_for_backward(x, a)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        slope = 1 + a * x.cosh()
        return g / slope, (-g * x.sinh() / slope).sum()
''',
    # a is left out of the slope
    ("bisect-slope", 'slope = 1 + a * x.cosh()', 'slope = 1 + x.cosh()', 'missing-factor operand chain-factor none'),
    # the gradient of a is averaged instead of summed
    ("bisect-unsummed", '(-g * x.sinh() / slope).sum()', '(-g * x.sinh() / slope).mean()', 'constant-factor not-summed-over-broadcast'),
)

fn('SparsemaxRows', """x: {shape: [b3, n5], distinct: true}""", '''
    """Projection of rows onto the simplex."""

    @staticmethod
    def forward(ctx, x):
        s, _ = x.sort(-1, descending=True)
        k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        cumulative = s.cumsum(-1) - 1
        support = (s * k > cumulative).sum(-1, keepdim=True)
        tau = cumulative.gather(-1, support - 1) / support
        y = (x - tau).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        on = (y > 0).to(g.dtype)
        mean = (g * on).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)
        return on * (g - mean)
''',
    # mean over the whole row instead of over the support
    ("sparsemax-all", '(g * on).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)', 'g.mean(-1, keepdim=True)', 'operand wrong-reduction-dim region missing-term none'),
    # softmax's backward
    ("sparsemax-softmax", 'return on * (g - mean)', 'return y * (g - (g * y).sum(-1, keepdim=True))', 'operand missing-factor chain-factor none'),
)

fn('RK4Step', """x: [b2, n3]
A: [n3, n3]
b: [n3]
dt: {choices: [0.1, 0.5]}""", '''
    """One step of classical Runge-Kutta for x' = tanh(A x) + b, with the discrete adjoint."""

    @staticmethod
    def forward(ctx, x, A, b, dt):
        def f(v):
            return torch.tanh(v @ A.t()) + b

        k1 = f(x)
        k2 = f(x + dt / 2 * k1)
        k3 = f(x + dt / 2 * k2)
        k4 = f(x + dt * k3)
        ctx.save_for_backward(x, A, k1, k2, k3, b)
        ctx.dt = dt
        return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, A, k1, k2, k3, b = ctx.saved_tensors
        dt = ctx.dt
        grad_A, grad_b = torch.zeros_like(A), torch.zeros_like(b)

        def pull(point, cotangent):
            nonlocal grad_A, grad_b
            slope = cotangent * (1 - torch.tanh(point @ A.t()).square())
            grad_A = grad_A + slope.t() @ point
            grad_b = grad_b + cotangent.sum(0)
            return slope @ A

        p4 = pull(x + dt * k3, dt / 6 * g)
        p3 = pull(x + dt / 2 * k2, dt / 3 * g + dt * p4)
        p2 = pull(x + dt / 2 * k1, dt / 3 * g + dt / 2 * p3)
        p1 = pull(x, dt / 6 * g + dt / 2 * p2)
        return g + p1 + p2 + p3 + p4, grad_A, grad_b, None
''',
    # half step taken as a whole one between the second and third stage
    ("r-k4-weight", 'p2 = pull(x + dt / 2 * k1, dt / 3 * g + dt / 2 * p3)', 'p2 = pull(x + dt / 2 * k1, dt / 3 * g + dt * p3)', 'missing-term constant-factor operand none'),
    # x's gradient only through the first stage
    ("r-k4-euler", 'return g + p1 + p2 + p3 + p4,', 'return g + p1,', 'missing-term'),
)

fn('NewtonInverse', """A: {shape: [n3, n3], structure: invertible}""", '''
    """The inverse by Newton-Schulz iterations from A^T/(|A|_1 |A|_inf), run to rest."""

    @staticmethod
    def forward(ctx, A):
        X = A.mT / (A.abs().sum(0).max() * A.abs().sum(1).max())
        eye = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        for _ in range(60):
            X = X @ (2 * eye - A @ X)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (X,) = ctx.saved_tensors
        return -X.mT @ g @ X.mT
''',
    # transposes missing
    ("inverse-untransposed", '-X.mT @ g @ X.mT', '-X @ g @ X', 'transposed operand'),
    # sign
    ("inverse-sign", '-X.mT @ g @ X.mT', 'X.mT @ g @ X.mT', 'constant-factor'),
)

fn('KroneckerLinear', """x: [b2, j3*l2]
A: [i2, j3]
B: [k2, l2]""", '''
    """x (A kron B)^T without building the product."""

    @staticmethod
    def forward(ctx, x, A, B):
        X = x.view(-1, A.shape[1], B.shape[1])
        ctx.save_for_backward(x, A, B)
        return torch.einsum("ij,njl,kl->nik", A, X, B).reshape(x.shape[0], -1)

    @staticmethod
    def backward(ctx, g):
        x, A, B = ctx.saved_tensors
        X = x.view(-1, A.shape[1], B.shape[1])
        G = g.reshape(-1, A.shape[0], B.shape[0])
        grad_x = torch.einsum("ij,nik,kl->njl", A, G, B).reshape(x.shape)
        grad_A = torch.einsum("nik,njl,kl->ij", G, X, B)
        grad_B = torch.einsum("nik,njl,ij->kl", G, X, A)
        return grad_x, grad_A, grad_B
''',
    # A is left out of B's gradient
    ("kronecker-swapped", 'torch.einsum("nik,njl,ij->kl", G, X, A)', 'torch.einsum("nik,njl,ij->kl", G, X, torch.ones_like(A))', 'operand missing-factor none'),
)

fn('LowRankAdapter', """x: [b3, n4]
W: [m3, n4]
A: [r2, n4]
B: [m3, r2]
scale: {choices: [0.5, 2.0]}""", '''
    """x W^T + scale * dropout-free (x A^T) B^T with W frozen; W gets a gradient only if asked."""

    @staticmethod
    def forward(ctx, x, W, A, B, scale):
        ctx.save_for_backward(x, W, A, B)
        ctx.scale = scale
        return x @ W.t() + scale * (x @ A.t()) @ B.t()

    @staticmethod
    def backward(ctx, g):
        x, W, A, B = ctx.saved_tensors
        grad_x = grad_W = grad_A = grad_B = None
        inner = ctx.scale * (g @ B)
        if ctx.needs_input_grad[0]:
            grad_x = g @ W + inner @ A
        if ctx.needs_input_grad[1]:
            grad_W = g.t() @ x
        if ctx.needs_input_grad[2]:
            grad_A = inner.t() @ x
        if ctx.needs_input_grad[3]:
            grad_B = ctx.scale * g.t() @ (x @ A.t())
        return grad_x, grad_W, grad_A, grad_B, None
''',
    # scale missing in B's gradient
    ("adapter-scale", 'grad_B = ctx.scale * g.t()', 'grad_B = g.t()', 'constant-factor missing-factor'),
    # W gets no gradient while A asks for one, too
    ("adapter-frozen", 'if ctx.needs_input_grad[1]:\n            grad_W', 'if ctx.needs_input_grad[1] and not ctx.needs_input_grad[2]:\n            grad_W', 'zero none'),
    # A's gradient is asked for by x's flag: missing where x requires none
    ("adapter-needs", 'if ctx.needs_input_grad[2]:\n            grad_A', 'if ctx.needs_input_grad[0]:\n            grad_A', 'zero none'),
)

fn('GraphMeanAggregate', """x: [n4, d3]
edge_weight: [e7]
src: {shape: [e7], dtype: int64, range: [0, n4]}
dst: {shape: [e7], dtype: int64, range: [0, n4]}""", '''
    """Mean over incoming edges of edge_weight * x[src]."""

    @staticmethod
    def forward(ctx, x, edge_weight, src, dst):
        n = x.shape[0]
        degree = torch.bincount(dst, minlength=n).clamp(min=1).to(x.dtype)
        out = torch.zeros_like(x).index_add(0, dst, edge_weight[:, None] * x[src])
        ctx.save_for_backward(x, edge_weight, src, dst, degree)
        return out / degree[:, None]

    @staticmethod
    def backward(ctx, g):
        x, edge_weight, src, dst, degree = ctx.saved_tensors
        ge = (g / degree[:, None])[dst]
        grad_x = torch.zeros_like(x).index_add(0, src, edge_weight[:, None] * ge)
        return grad_x, (ge * x[src]).sum(1), None, None
''',
    # degree of the source instead of the destination
    ("graph-source-degree", 'ge = (g / degree[:, None])[dst]', 'ge = g[dst] / degree[src][:, None]', 'operand permuted none'),
    # edge weights are left out of x's gradient
    ("graph-unweighted", 'index_add(0, src, edge_weight[:, None] * ge)', 'index_add(0, src, ge)', 'missing-factor chain-factor operand'),
)

fn('PermutedGather', """x: [n4, d3]
scale: [n4]
order: {shape: [n4], dtype: int64, structure: permutation}""", '''
    """Rows in the order of a permutation, scaled, with their inverse order for the caller."""

    @staticmethod
    def forward(ctx, x, scale, order):
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device, dtype=order.dtype)
        ctx.save_for_backward(x, scale, order, inverse)
        ctx.mark_non_differentiable(inverse)
        return x[order] * scale[:, None], inverse

    @staticmethod
    def backward(ctx, g, _):
        x, scale, order, inverse = ctx.saved_tensors
        return (g * scale[:, None])[inverse], (g * x[order]).sum(1), None
''',
    # the permutation instead of its inverse
    ("permute-forward", '(g * scale[:, None])[inverse]', '(g * scale[:, None])[order]', 'permuted'),
)

fn('UpsampleLinear1d', """x: [b2, n4]
m: 7
align: {choices: [false, true]}""", '''
    """Linear interpolation to a new length, align_corners or not."""

    @staticmethod
    def grid(n, m, align, like):
        i = torch.arange(m, dtype=like.dtype, device=like.device)
        if align:
            position = i * ((n - 1) / (m - 1)) if m > 1 else torch.zeros_like(i)
        else:
            position = ((i + 0.5) * (n / m) - 0.5).clamp(min=0)
        low = position.floor().long().clamp(max=n - 1)
        return low, (low + 1).clamp(max=n - 1), position - low

    @staticmethod
    def forward(ctx, x, m, align):
        n = x.shape[-1]
        low, high, t = SELF.grid(n, m, align, x)
        ctx.shape, ctx.m, ctx.align = x.shape, m, align
        return x[..., low] * (1 - t) + x[..., high] * t

    @staticmethod
    def backward(ctx, g):
        low, high, t = SELF.grid(ctx.shape[-1], ctx.m, ctx.align, g)
        grad = g.new_zeros(ctx.shape)
        return grad.index_add(-1, low, g * (1 - t)).index_add(-1, high, g * t), None, None
''',
    # align_corners is not honoured in backward
    ("upsample-align", 'low, high, t = SELF.grid(ctx.shape[-1], ctx.m, ctx.align, g)', 'low, high, t = SELF.grid(ctx.shape[-1], ctx.m, False, g)', 'operand branch region none'),
    # targets that share a source overwrite each other
    ("upsample-overwrite", 'grad.index_add(-1, low, g * (1 - t)).index_add(-1, high, g * t)', 'grad.index_copy(-1, low, g * (1 - t)).index_add(-1, high, g * t)', 'duplicates region'),
)

fn('HashGridEncode', """points: {shape: [n3, 2], range: [0.01, 0.99], avoid: [0.2, 0.4, 0.6, 0.8, 0.25, 0.5, 0.75]}
table: [t8, f2]
resolution: {choices: [5, 4]}""", '''
    """Trilinear features of points in a hashed grid of tables (instant NGP), one level, two dimensions."""

    @staticmethod
    def cells(points, resolution, size):
        scaled = points * resolution
        base = scaled.floor()
        frac = scaled - base
        for dx in (0, 1):
            for dy in (0, 1):
                ix, iy = base[:, 0].long() + dx, base[:, 1].long() + dy
                slot = (ix ^ (iy * 2654435761)) % size
                wx = frac[:, 0] if dx else 1 - frac[:, 0]
                wy = frac[:, 1] if dy else 1 - frac[:, 1]
                yield slot, wx, wy, 2 * dx - 1, 2 * dy - 1

    @staticmethod
    def forward(ctx, points, table, resolution):
        out = table.new_zeros(points.shape[0], table.shape[1])
        for slot, wx, wy, _, _ in SELF.cells(points, resolution, table.shape[0]):
            out = out + (wx * wy)[:, None] * table[slot]
        ctx.save_for_backward(points, table)
        ctx.resolution = resolution
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        points, table = ctx.saved_tensors
        grad_points, grad_table = torch.zeros_like(points), torch.zeros_like(table)
        for slot, wx, wy, sx, sy in SELF.cells(points, ctx.resolution, table.shape[0]):
            grad_table.index_add_(0, slot, (wx * wy)[:, None] * g)
            along = (g * table[slot]).sum(1) * ctx.resolution
            grad_points[:, 0] += sx * wy * along
            grad_points[:, 1] += sy * wx * along
        return grad_points, grad_table, None
''',
    # factor resolution missing in the points' gradient
    ("hash-grid-resolution", '(g * table[slot]).sum(1) * ctx.resolution', '(g * table[slot]).sum(1)', 'constant-factor missing-factor'),
    # points that share a slot do not add up (indexed +=)
    ("hash-grid-collision", 'grad_table.index_add_(0, slot, (wx * wy)[:, None] * g)', 'grad_table[slot] += (wx * wy)[:, None] * g', 'duplicates region'),
)

fn('DepthwiseConv1d', """x: [b2, c3, l5]
weight: [c3, k3]
bias: {shape: [c3], optional: true}
activation: {choices: [true, false]}""", '''
import torch.nn.functional as F
@@
    """Causal depthwise convolution with an optional bias and SiLU."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation):
        k = weight.shape[1]
        y = F.conv1d(F.pad(x, (k - 1, 0)), weight.unsqueeze(1), bias, groups=x.shape[1])
        ctx.save_for_backward(x, weight, bias)
        ctx.activation = activation
        return F.silu(y) if activation else y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        k, channels = weight.shape[1], x.shape[1]
        padded = F.pad(x, (k - 1, 0))
        if ctx.activation:
            y = F.conv1d(padded, weight.unsqueeze(1), bias, groups=channels)
            s = torch.sigmoid(y)
            g = g * s * (1 + y * (1 - s))
        grad_x = F.conv_transpose1d(g, weight.unsqueeze(1), groups=channels)[..., k - 1 :]
        windows = padded.unfold(-1, k, 1)
        grad_weight = torch.einsum("bcl,bclk->ck", g, windows)
        return grad_x, grad_weight, g.sum((0, 2)) if bias is not None else None, None
''',
    # the recomputed pre-activation lacks the bias
    ("depthwise-activation", 'y = F.conv1d(padded, weight.unsqueeze(1), bias, groups=channels)\n            s', 'y = F.conv1d(padded, weight.unsqueeze(1), groups=channels)\n            s', 'operand missing-term none'),
    # the kernel gradient is flipped
    ("depthwise-flip", 'torch.einsum("bcl,bclk->ck", g, windows)', 'torch.einsum("bcl,bclk->ck", g, windows.flip(-1))', 'permuted'),
)

fn('StackAffine', """weights: [3]
tensors: {list: {of: [n3, d2], count: 3}}""", '''
    """Any number of tensors, each scaled by its own weight and summed; a Function of *args."""

    @staticmethod
    def forward(ctx, weights, *tensors):
        ctx.save_for_backward(weights, *tensors)
        out = torch.zeros_like(tensors[0])
        for i, t in enumerate(tensors):
            out = out + weights[i] * t
        return out

    @staticmethod
    def backward(ctx, g):
        weights, *tensors = ctx.saved_tensors
        grad_weights = torch.stack([(g * t).sum() for t in tensors])
        return grad_weights, *[g * w for w in weights]
''',
    # every tensor is scaled by the first weight
    ("stack-first-only", 'return grad_weights, *[g * w for w in weights]', 'return grad_weights, *[g * weights[0] for _ in tensors]', 'operand none'),
)

fn('ChunkedActivation', """x: [n5, d3]
gate: {shape: [n5, d3], avoid: [0]}
rows: {choices: [2, 8]}""", '''
    """Gated activation over chunks of rows to bound memory; returns gate statistics as an output without gradient."""

    @staticmethod
    def forward(ctx, x, gate, rows):
        out = torch.empty_like(x)
        for i in range(0, x.shape[0], rows):
            out[i : i + rows] = x[i : i + rows] * torch.sigmoid(gate[i : i + rows])
        ctx.save_for_backward(x, gate)
        ctx.rows = rows
        open_share = (gate > 0).to(x.dtype).mean()
        ctx.mark_non_differentiable(open_share)
        return out, open_share

    @staticmethod
    @once_differentiable
    def backward(ctx, g, _):
        x, gate = ctx.saved_tensors
        grad_x, grad_gate = torch.empty_like(x), torch.empty_like(gate)
        for i in range(0, x.shape[0], ctx.rows):
            part = slice(i, i + ctx.rows)
            s = torch.sigmoid(gate[part])
            grad_x[part] = g[part] * s
            grad_gate[part] = g[part] * x[part] * s * (1 - s)
        return grad_x, grad_gate, None
''',
    # rows of an incomplete last chunk get no gradient
    ("chunk-tail", ('for i in range(0, x.shape[0], ctx.rows):\n            part', 'torch.empty_like(x), torch.empty_like(gate)'), ('for i in range(0, x.shape[0] - x.shape[0] % ctx.rows or x.shape[0], ctx.rows):\n            part', 'torch.zeros_like(x), torch.zeros_like(gate)'), 'region'),
    # sigmoid's derivative lacks its factor s
    ("chunk-gate", '* s * (1 - s)', '* (1 - s)', 'missing-factor chain-factor operand'),
)

fn('ClampedLogSigmaGaussian', """x: [n3, d2]
mu: [n3, d2]
log_sigma: {shape: [n3, d2], avoid: [-1, 1]}
low: -1.0
high: 1.0""", '''
    """log N(x; mu, exp(s)) with s clamped, in the style of policies; new-style setup_context."""

    @staticmethod
    def forward(x, mu, log_sigma, low, high):
        s = log_sigma.clamp(low, high)
        z = (x - mu) * torch.exp(-s)
        return (-0.5 * z * z - s - 0.5 * math.log(2 * math.pi)).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, mu, log_sigma, low, high = inputs
        ctx.save_for_backward(x, mu, log_sigma)
        ctx.low, ctx.high = low, high

    @staticmethod
    def backward(ctx, g):
        x, mu, log_sigma = ctx.saved_tensors
        s = log_sigma.clamp(ctx.low, ctx.high)
        z = (x - mu) * torch.exp(-s)
        inside = ((log_sigma >= ctx.low) & (log_sigma <= ctx.high)).to(x.dtype)
        g = g.unsqueeze(-1)
        grad_x = -g * z * torch.exp(-s)
        return grad_x, -grad_x, g * (z * z - 1) * inside, None, None
''',
    # the clamp is not differentiated
    ("clamp-passes", 'g * (z * z - 1) * inside', 'g * (z * z - 1)', 'branch'),
    # the term of the normalisation (-1) is missing
    ("clamped-entropy", '(z * z - 1) * inside', 'z * z * inside', 'missing-term'),
)

fn('MomentumStep', """p: [n3]
v: [n3]
grad: [n3]
lr: []
momentum: {choices: [0.9, 0.0]}
decay: {choices: [0.01, 0.0]}""", '''
    """One unrolled heavy-ball step (meta-learning): gives the new parameter and the new velocity."""

    @staticmethod
    def forward(ctx, p, v, grad, lr, momentum, decay):
        g = grad + decay * p
        velocity = momentum * v + g
        ctx.save_for_backward(lr, velocity)
        ctx.momentum, ctx.decay = momentum, decay
        return p - lr * velocity, velocity.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gp, gv):
        lr, velocity = ctx.saved_tensors
        total = gv - lr * gp
        return gp + ctx.decay * total, ctx.momentum * total, total, -(gp * velocity).sum(), None, None
''',
    # weight decay's path to p is missing
    ("momentum-decay", 'gp + ctx.decay * total', 'gp', 'missing-term'),
    # the velocity output's gradient is dropped
    ("momentum-velocity", 'total = gv - lr * gp', 'total = -lr * gp', 'ignored-output missing-term'),
)

fn('GradientPenaltyNorm', """grads: {shape: [b3, d4], domain: nonzero}
target: 1.0""", '''
    """Mean of (|row| - target)^2, the penalty of WGAN-GP on gradients that are given."""

    @staticmethod
    def forward(ctx, grads, target):
        norm = grads.norm(dim=1)
        ctx.save_for_backward(grads)
        ctx.target = target
        return (norm - target).square().mean()

    @staticmethod
    def backward(ctx, g):
        (grads,) = ctx.saved_tensors
        norm = grads.norm(dim=1, keepdim=True)
        return g * 2 * (norm - ctx.target) * grads / norm / len(grads), None
''',
    # division by the norm missing
    ("penalty-unnormalised", '* grads / norm / len(grads)', '* grads / len(grads)', 'missing-factor chain-factor operand'),
)

fn('InverseReversible', """x1: [b3, n2]
x2: [b3, m3]
A: [m3, n2]
B: [n2, m3]""", '''
    """y1 = x1 + tanh(x2 A), y2 = x2 + tanh(y1 B): keeps its outputs, and finds the inputs again from them."""

    @staticmethod
    def forward(ctx, x1, x2, A, B):
        y1 = x1 + torch.tanh(x2 @ A)
        y2 = x2 + torch.tanh(y1 @ B)
        ctx.save_for_backward(y1, y2, A, B)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2, A, B = ctx.saved_tensors
        tb = torch.tanh(y1 @ B)
        x2 = y2 - tb
        pb = g2 * (1 - tb * tb)
        grad_B = y1.t() @ pb
        g1 = g1 + pb @ B.t()
        ta = torch.tanh(x2 @ A)
        pa = g1 * (1 - ta * ta)
        return g1, g2 + pa @ A.t(), x2.t() @ pa, grad_B
''',
    # x2's and A's gradients use y1's gradient before the second half's part is added
    ("reversible-order", ('pb = g2 * (1 - tb * tb)\n        grad_B = y1.t() @ pb\n        g1 = g1 + pb @ B.t()\n', 'return g1, g2 + pa @ A.t()'), ('pb = g2 * (1 - tb * tb)\n        grad_B = y1.t() @ pb\n', 'return g1 + pb @ B.t(), g2 + pa @ A.t()'), 'missing-term'),
    # the output is taken where the recomputed input belongs
    ("reversible-input", 'x2 = y2 - tb', 'x2 = y2', 'wrong-saved operand'),
)
