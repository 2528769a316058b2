"""Factorisations, structured solves, transforms and steps of physics."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class CholeskyFactor(Function):
    """L of A = L Lᵀ, reading the symmetric part; Murray's formula."""

    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky((a + a.mT) / 2)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        phi = (factor.mT @ g.tril()).tril()
        phi = phi - 0.5 * torch.diag_embed(phi.diagonal(dim1=-2, dim2=-1))
        s = torch.linalg.solve_triangular(factor.mT, phi, upper=True)
        s = torch.linalg.solve_triangular(factor, s, upper=False, left=False)
        return (s + s.mT) / 2


class ThinQR(Function):
    """Q and R of a tall matrix, R with a positive diagonal."""

    @staticmethod
    def forward(ctx, a):
        q, r = torch.linalg.qr(a)
        sign = torch.sign(r.diagonal(dim1=-2, dim2=-1))
        q, r = q * sign.unsqueeze(-2), r * sign.unsqueeze(-1)
        ctx.save_for_backward(q, r)
        return q, r

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gr):
        q, r = ctx.saved_tensors
        m = r @ gr.triu().mT - gq.mT @ q
        sym = m.tril() + m.tril(-1).mT
        return torch.linalg.solve_triangular(r.mT, gq + q @ sym, upper=False, left=False)


class PolarFactor(Function):
    """The orthogonal factor of a square matrix; backward solves a Sylvester equation by an eigenbasis."""

    @staticmethod
    def forward(ctx, a):
        u, s, vh = torch.linalg.svd(a)
        ctx.save_for_backward(u, s, vh)
        return u @ vh

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, s, vh = ctx.saved_tensors
        inner = u.mT @ g @ vh.mT
        skew = inner - inner.mT
        return u @ (skew / (s.unsqueeze(-1) + s.unsqueeze(-2))) @ vh


class Sylvester(Function):
    """X of A X + X B = C, by Kronecker products; the adjoint solves the transposed equation."""

    @staticmethod
    def solve(a, b, c):
        n, m = c.shape
        big = torch.kron(a.contiguous(), torch.eye(m, dtype=a.dtype))
        big = big + torch.kron(torch.eye(n, dtype=a.dtype), b.mT.contiguous())
        return torch.linalg.solve(big, c.reshape(-1)).view(n, m)

    @staticmethod
    def forward(ctx, a, b, c):
        x = Sylvester.solve(a, b, c)
        ctx.save_for_backward(a, b, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, x = ctx.saved_tensors
        w = Sylvester.solve(a.mT, b.mT, g)
        da = -w @ x.mT if ctx.needs_input_grad[0] else None
        db = -x.mT @ w if ctx.needs_input_grad[1] else None
        return da, db, w if ctx.needs_input_grad[2] else None


class TriangularSolve(Function):
    """T x = b with a triangle, upper or lower, transposed or not, with ones on its diagonal or not."""

    @staticmethod
    def forward(ctx, t, b, upper=False, transposed=False, unit=False):
        matrix = t.mT if transposed else t
        x = torch.linalg.solve_triangular(matrix, b, upper=upper != transposed, unitriangular=unit)
        ctx.save_for_backward(t, x)
        ctx.flags = upper, transposed, unit
        return x

    @staticmethod
    def backward(ctx, g):
        t, x = ctx.saved_tensors
        upper, transposed, unit = ctx.flags
        db = TriangularSolve.apply(t, g, upper, not transposed, unit)
        dt = -(x @ db.mT) if transposed else -(db @ x.mT)
        k = 1 if unit else 0
        return (dt.triu(k) if upper else dt.tril(-k)), db, None, None, None


class Tridiagonal(Function):
    """Thomas' algorithm: three bands and a right-hand side; backward runs it on the transpose."""

    @staticmethod
    def thomas(lower, main, upper, rhs):
        n = main.size(0)
        c, d = [], []
        for i in range(n):
            pivot = main[i] - (lower[i - 1] * c[i - 1] if i else 0)
            c.append(upper[i] / pivot if i < n - 1 else None)
            d.append((rhs[i] - (lower[i - 1] * d[i - 1] if i else 0)) / pivot)
        x = [d[-1]]
        for i in range(n - 2, -1, -1):
            x.append(d[i] - c[i] * x[-1])
        return torch.stack(x[::-1])

    @staticmethod
    def forward(ctx, lower, main, upper, rhs):
        x = Tridiagonal.thomas(lower, main, upper, rhs)
        ctx.save_for_backward(lower, main, upper, x)
        return x

    @staticmethod
    def backward(ctx, g):
        lower, main, upper, x = ctx.saved_tensors
        w = Tridiagonal.apply(upper, main, lower, g)
        return -w[1:] * x[:-1], -w * x, -w[:-1] * x[1:], w


class LowRankGaussian(Function):
    """Quadratic form and log-determinant of D + U Uᵀ, by Woodbury's identity."""

    @staticmethod
    def forward(ctx, x, log_d, u):
        inv_d = torch.exp(-log_d)
        du = inv_d.unsqueeze(1) * u
        small = torch.eye(u.size(1), dtype=u.dtype) + u.mT @ du
        chol = torch.linalg.cholesky(small)
        core = torch.cholesky_solve(du.mT, chol)
        y = inv_d * x - du @ (core @ x)
        ctx.save_for_backward(log_d, u, y, du, core)
        return x @ y, log_d.sum() + 2 * chol.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g_quad, g_logdet):
        log_d, u, y, du, core = ctx.saved_tensors
        inverse = torch.diag(torch.exp(-log_d)) - du @ core
        d_sigma = -g_quad * torch.outer(y, y) + g_logdet * inverse
        return 2 * g_quad * y, d_sigma.diagonal() * log_d.exp(), 2 * d_sigma @ u


class SpectralNormalize(Function):
    """W / (uᵀ W v) with buffers u and v of a power iteration, which forward advances in place."""

    @staticmethod
    def forward(ctx, weight, u):
        v = weight.mT @ u
        v = v / v.norm()
        sigma = u @ weight @ v
        ctx.save_for_backward(weight, u, v, sigma)
        return weight / sigma

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        weight, u, v, sigma = ctx.saved_tensors
        # sigma = |Wᵀu|, whose derivative is u vᵀ
        return g / sigma - (g * weight).sum() / sigma**2 * torch.outer(u, v), None


class ToeplitzMatmul(Function):
    """A Toeplitz matrix, given by its 2n - 1 diagonals, times vectors, by FFTs of a circulant."""

    @staticmethod
    def circulant(kernel, x, n):
        size = kernel.size(-1) + 1
        full = torch.cat(
            [kernel[..., n - 1 :], kernel.new_zeros(*kernel.shape[:-1], 1), kernel[..., : n - 1]], -1
        )
        y = torch.fft.irfft(torch.fft.rfft(full, n=size) * torch.fft.rfft(x, n=size), n=size)
        return y[..., :n]

    @staticmethod
    def forward(ctx, kernel, x):
        ctx.save_for_backward(kernel, x)
        return ToeplitzMatmul.circulant(kernel, x, x.size(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        kernel, x = ctx.saved_tensors
        n = x.size(-1)
        dx = ToeplitzMatmul.circulant(kernel.flip(-1), g, n)
        size = 2 * n
        correlation = torch.fft.irfft(torch.fft.rfft(g, n=size) * torch.fft.rfft(x, n=size).conj(), n=size)
        lags = correlation.sum(tuple(range(x.dim() - 1))) if x.dim() > 1 else correlation
        return torch.cat([lags[size - n + 1 :], lags[:n]]), dx


class STFTMagnitude(Function):
    """Framing, window, rfft, modulus (with a floor); backward overlaps and adds."""

    @staticmethod
    def forward(ctx, signal, window, hop, eps=1e-8):
        n = window.numel()
        frames = signal.unfold(-1, n, hop)
        spectrum = torch.fft.rfft(frames * window)
        magnitude = (spectrum.real**2 + spectrum.imag**2 + eps).sqrt()
        ctx.save_for_backward(frames, window, spectrum, magnitude)
        ctx.hop, ctx.length = hop, signal.size(-1)
        return magnitude

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        frames, window, spectrum, magnitude = ctx.saved_tensors
        n = window.numel()
        d_spectrum = spectrum * (g / magnitude)
        full = torch.zeros(*g.shape[:-1], n, dtype=spectrum.dtype)
        full[..., : d_spectrum.size(-1)] = d_spectrum
        d_windowed = torch.fft.ifft(full, norm="forward").real
        d_window = (d_windowed * frames).sum(tuple(range(frames.dim() - 1)))
        d_frames = d_windowed * window
        d_signal = g.new_zeros(*g.shape[:-2], ctx.length)
        for k in range(d_frames.size(-2)):
            d_signal[..., k * ctx.hop : k * ctx.hop + n] += d_frames[..., k, :]
        return d_signal, d_window, None, None


class HadamardTransform(Function):
    """Fast Walsh-Hadamard transform, by butterflies, orthonormal; its own adjoint."""

    @staticmethod
    def forward(ctx, x):
        n = x.size(-1)
        y, h = x.reshape(-1, n).clone(), 1
        while h < n:
            y = y.view(-1, n // (2 * h), 2, h)
            y = torch.stack([y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]], 2)
            h *= 2
        return (y.reshape(x.shape)) / n**0.5

    @staticmethod
    def backward(ctx, g):
        return HadamardTransform.apply(g)


class Householder(Function):
    """Product of reflections I - 2 v vᵀ / vᵀv, one for each row of `vs`, applied to x."""

    @staticmethod
    def forward(ctx, vs, x):
        scaled = vs / vs.square().sum(1, keepdim=True)
        states = [x]
        for v, s in zip(vs, scaled, strict=True):
            states.append(states[-1] - 2 * (states[-1] @ v).unsqueeze(-1) * s)
        ctx.save_for_backward(vs, *states[:-1])
        return states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        vs, *states = ctx.saved_tensors
        dvs = torch.zeros_like(vs)
        for i in range(len(vs) - 1, -1, -1):
            v, x = vs[i], states[i]
            vv = v @ v
            gv, xv = g @ v, x @ v
            dvs[i] = -2 / vv * (gv @ x + xv @ g) + 4 / vv**2 * (gv * xv).sum() * v
            g = g - 2 / vv * gv.unsqueeze(-1) * v
        return dvs, g


class KroneckerMatvec(Function):
    """(A ⊗ B) vec(X), without the product."""

    @staticmethod
    def forward(ctx, a, b, x):
        ctx.save_for_backward(a, b, x)
        inner = x.view(a.size(1), b.size(1))
        return (a @ inner @ b.mT).reshape(-1)

    @staticmethod
    def backward(ctx, g):
        a, b, x = ctx.saved_tensors
        inner = x.view(a.size(1), b.size(1))
        g = g.reshape(a.size(0), b.size(0))
        return g @ b @ inner.mT, g.mT @ a @ inner, (a.mT @ g @ b).reshape(-1)


class RidgeRegression(Function):
    """Weights of a ridge regression, by data, targets and log λ, through the normal equations."""

    @staticmethod
    def forward(ctx, x, y, log_lam):
        lam = log_lam.exp()
        gram = x.mT @ x + lam * torch.eye(x.size(1), dtype=x.dtype)
        chol = torch.linalg.cholesky(gram)
        w = torch.cholesky_solve((x.mT @ y).unsqueeze(1), chol).squeeze(1)
        ctx.save_for_backward(x, y, lam, chol, w)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y, lam, chol, w = ctx.saved_tensors
        z = torch.cholesky_solve(g.unsqueeze(1), chol).squeeze(1)
        rest = y - x @ w
        dx = torch.outer(rest, z) - torch.outer(x @ z, w)
        return dx, x @ z, -lam * (z @ w)


class IsotonicProjection(Function):
    """The nearest non-increasing vector, by pooling adjacent violators; backward averages each pool."""

    @staticmethod
    def forward(ctx, y):
        sums, counts = [], []
        for value in y.tolist():
            sums.append(value)
            counts.append(1)
            while len(sums) > 1 and sums[-2] / counts[-2] < sums[-1] / counts[-1]:
                s, c = sums.pop(), counts.pop()
                sums[-1] += s
                counts[-1] += c
        ctx.counts = counts
        sizes = torch.tensor(counts)
        means = torch.tensor(sums, dtype=y.dtype) / sizes
        return means.repeat_interleave(sizes)

    @staticmethod
    def backward(ctx, g):
        return torch.cat([part.mean().expand(len(part)) for part in g.split(ctx.counts)])


class MatrixLogSPD(Function):
    """log of a symmetric positive definite matrix (Daleckii, Krein), equal eigenvalues included."""

    @staticmethod
    def forward(ctx, a):
        values, q = torch.linalg.eigh((a + a.mT) / 2)
        ctx.save_for_backward(values, q)
        return (q * values.log().unsqueeze(-2)) @ q.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        values, q = ctx.saved_tensors
        lo, hi = values.unsqueeze(-1), values.unsqueeze(-2)
        ratio = (lo - hi) / hi
        near = ratio.abs() < 1e-4
        safe = torch.where(near, torch.ones_like(ratio), ratio)
        mean = (1 - ratio / 2 + ratio**2 / 3 - ratio**3 / 4) / hi
        divided = torch.where(near, mean, torch.log1p(safe) / (safe * hi))
        inner = q.mT @ ((g + g.mT) / 2) @ q
        return q @ (divided * inner) @ q.mT


class JacobiIterations(Function):
    """A fixed number of damped Jacobi sweeps for A x = b from zero, unrolled by hand."""

    @staticmethod
    def forward(ctx, a, b, sweeps=3, damping=0.7):
        diagonal = a.diagonal()
        x, states = torch.zeros_like(b), []
        for _ in range(sweeps):
            states.append(x)
            x = x + damping * (b - a @ x) / diagonal
        ctx.save_for_backward(a, b, *states)
        ctx.damping = damping
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, *states = ctx.saved_tensors
        diagonal = a.diagonal()
        da, db = torch.zeros_like(a), torch.zeros_like(b)
        for x in reversed(states):
            step = ctx.damping * g / diagonal
            rest = b - a @ x
            da -= torch.outer(step, x)
            da.diagonal().sub_(step * rest / diagonal)
            db += step
            g = g - a.mT @ step
        return da, db, None, None


class HeatSteps(Function):
    """Explicit Euler of u_t = (k u_x)_x on a ring; diffusivity k on cell faces is learned."""

    @staticmethod
    def forward(ctx, u, k, dt=0.1, steps=2):
        states = []
        for _ in range(steps):
            states.append(u)
            flux = k * (u.roll(-1, -1) - u)
            u = u + dt * (flux - flux.roll(1, -1))
        ctx.save_for_backward(k, torch.stack(states))
        ctx.dt = dt
        return u

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        k, states = ctx.saved_tensors
        dk = torch.zeros_like(k)
        for u in states.flip(0):
            d_flux = ctx.dt * (g - g.roll(-1, -1))
            dk += (d_flux * (u.roll(-1, -1) - u)).reshape(-1, k.numel()).sum(0)
            d_diff = d_flux * k
            g = g + d_diff.roll(1, -1) - d_diff
        return g, dk, None, None


class Leapfrog(Function):
    """Kick-drift-kick steps in a pendulum's potential; reversible, so backward integrates back."""

    @staticmethod
    def forward(ctx, q, p, stiffness, dt, steps):
        for _ in range(steps):
            p = p - 0.5 * dt * stiffness * torch.sin(q)
            q = q + dt * p
            p = p - 0.5 * dt * stiffness * torch.sin(q)
        ctx.save_for_backward(q, p, stiffness)
        ctx.dt, ctx.steps = dt, steps
        return q, p

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gp):
        q, p, k = ctx.saved_tensors
        half = 0.5 * ctx.dt
        dk = torch.zeros_like(k)
        for _ in range(ctx.steps):
            dk -= (gp * half * torch.sin(q)).sum()
            p = p + half * k * torch.sin(q)
            gq = gq - gp * half * k * torch.cos(q)
            q = q - ctx.dt * p
            gp = gp + gq * ctx.dt
            dk -= (gp * half * torch.sin(q)).sum()
            p = p + half * k * torch.sin(q)
            gq = gq - gp * half * k * torch.cos(q)
        return gq, gp, dk, None, None


class AnalyticSignal(Function):
    """x + i H(x) by FFT: a complex output of a real input."""

    @staticmethod
    def weights(n, dtype):
        w = torch.zeros(n, dtype=dtype)
        w[0] = 1
        w[1 : (n + 1) // 2] = 2
        if n % 2 == 0:
            w[n // 2] = 1
        return w

    @staticmethod
    def forward(ctx, x):
        return torch.fft.ifft(torch.fft.fft(x) * AnalyticSignal.weights(x.size(-1), x.dtype))

    @staticmethod
    def backward(ctx, g):
        weights = AnalyticSignal.weights(g.size(-1), g.real.dtype)
        return torch.fft.ifft(torch.fft.fft(g) * weights).real


class CayleyUnitary(Function):
    """(I - A)⁻¹ (I + A) of a complex matrix."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.size(-1), dtype=a.dtype)
        u = torch.linalg.solve(eye - a, eye + a)
        ctx.save_for_backward(a, u)
        return u

    @staticmethod
    def backward(ctx, g):
        a, u = ctx.saved_tensors
        eye = torch.eye(a.size(-1), dtype=a.dtype)
        w = torch.linalg.solve((eye - a).mH, g)
        return w @ (eye + u).mH


def upper(generator, device, dtype, *, n, flag):
    t = torch.rand(n, n, generator=generator, dtype=dtype).triu() + torch.eye(n, dtype=dtype)
    b = torch.rand(n, 2, generator=generator, dtype=dtype)
    return t.requires_grad_(), b.requires_grad_(), True, bool(flag), bool(flag)
