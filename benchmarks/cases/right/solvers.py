"""Right Functions that solve something: linear algebra, iterations, transforms, implicit differentiation."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def badly_scaled(generator, device, dtype, shape):
    """A covariance whose variables are measured in units eight decades apart."""
    n = shape[-1]
    a = torch.randn(*shape, generator=generator, device=device, dtype=dtype)
    scale = torch.logspace(-4, 4, n, device=device, dtype=dtype)
    return scale[:, None] * (a @ a.mT + n * torch.eye(n, device=device, dtype=dtype)) * scale


def nearly_degenerate(generator, device, dtype, shape):
    """Eigenvalues that differ by some 1e-4."""
    n = shape[-1]
    a = torch.randn(*shape, generator=generator, device=device, dtype=dtype)
    return torch.eye(n, device=device, dtype=dtype) + 1e-4 * (a + a.mT)


class BadlyScaledCholesky(Function):
    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(0.5 * (a + a.mT))
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    def backward(ctx, g):
        (factor,) = ctx.saved_tensors
        phi = (factor.mT @ g).tril()
        phi = phi - 0.5 * torch.diag_embed(phi.diagonal(dim1=-2, dim2=-1))
        half = torch.linalg.solve_triangular(factor.mT, phi, upper=True)
        grad = torch.linalg.solve_triangular(factor, half, upper=False, left=False)
        return 0.5 * (grad + grad.mT)


class LogDeterminant(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.slogdet(a)[1]

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * torch.linalg.inv(a).mT


class Eigenvalues(Function):
    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(0.5 * (a + a.mT))
        ctx.save_for_backward(vectors)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (vectors,) = ctx.saved_tensors
        return vectors @ (g[:, None] * vectors.mT)


class MatrixRoot(Function):
    """By the Sylvester equation in the eigenbasis; degenerate values are no trouble."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        root = values.sqrt()
        ctx.save_for_backward(root, vectors)
        return vectors @ (root[:, None] * vectors.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        root, vectors = ctx.saved_tensors
        inner = vectors.mT @ g @ vectors / (root[:, None] + root[None, :])
        return vectors @ inner @ vectors.mT


class Solve(Function):
    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        grad_b = torch.linalg.solve(a.mT, g)
        return -grad_b @ x.mT, grad_b


class Exponential(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.matrix_exp(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        n = a.shape[-1]
        zero = torch.zeros_like(a)
        block = torch.cat([torch.cat([a.mT, g], dim=1), torch.cat([zero, a.mT], dim=1)])
        return torch.linalg.matrix_exp(block)[:n, n:]


class NuclearNorm(Function):
    @staticmethod
    def forward(ctx, a):
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        ctx.save_for_backward(u, vh)
        return s.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, vh = ctx.saved_tensors
        return g * (u @ vh)


class LeastSquares(Function):
    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.lstsq(a, b).solution
        ctx.save_for_backward(a, x, b - a @ x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, x, residual = ctx.saved_tensors
        z = torch.linalg.solve(a.mT @ a, g)
        return residual @ z.mT - a @ z @ x.mT, a @ z


class NewtonRoot(Function):
    """Square roots by Heron's iteration until nothing changes."""

    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=1.0)
        for _ in range(60):
            after = 0.5 * (y + x / y)
            if torch.equal(after, y):
                break
            y = after
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


class Kepler(Function):
    """E - e sin E = M, by Newton to a tolerance of 1e-12."""

    @staticmethod
    def forward(ctx, mean, eccentricity):
        e = mean.clone()
        for _ in range(50):
            step = (e - eccentricity * e.sin() - mean) / (1 - eccentricity * e.cos())
            e = e - step
            if step.abs().max() < 1e-12:
                break
        ctx.save_for_backward(e, eccentricity)
        return e

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        e, eccentricity = ctx.saved_tensors
        by_mean = g / (1 - eccentricity * e.cos())
        return by_mean, by_mean * e.sin()


class Equilibrium(Function):
    """A fixed point z = tanh(W z + x) to 1e-10, differentiated implicitly."""

    @staticmethod
    def forward(ctx, x, weight):
        z = torch.zeros_like(x)
        for _ in range(500):
            after = torch.tanh(z @ weight.mT + x)
            done = (after - z).abs().max() < 1e-10
            z = after
            if done:
                break
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, weight = ctx.saved_tensors
        slope = 1 - z * z
        identity = torch.eye(weight.shape[0], dtype=weight.dtype)
        u = torch.linalg.solve(identity - weight.mT * slope[:, None, :], (g).unsqueeze(-1)).squeeze(-1)
        grad_x = u * slope
        return grad_x, grad_x.mT @ z


class Bisection(Function):
    """The root of x^3 + a x = b for a > 0."""

    @staticmethod
    def forward(ctx, a, b):
        low, high = -1 - b.abs(), 1 + b.abs()
        for _ in range(80):
            middle = 0.5 * (low + high)
            above = middle**3 + a * middle > b
            high, low = torch.where(above, middle, high), torch.where(above, low, middle)
        ctx.save_for_backward(a, middle)
        return middle

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        scaled = g / (3 * x * x + a)
        return -scaled * x, scaled


class ConjugateGradient(Function):
    @staticmethod
    def forward(ctx, a, b):
        x = _conjugate_gradient(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        z = _conjugate_gradient(a, g)
        outer = -z[:, None] * x[None, :]
        return 0.5 * (outer + outer.mT), z


def _conjugate_gradient(a, b):
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r, r @ r
    for _ in range(10 * b.shape[0]):
        if rr.sqrt() <= 1e-13 * b.norm():
            break
        ap = a @ p
        alpha = rr / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        before, rr = rr, r @ r
        p = r + rr / before * p
    return x


class Sinkhorn(Function):
    """Twenty rounds; backward runs them again under autograd."""

    @staticmethod
    def forward(ctx, cost):
        ctx.save_for_backward(cost)
        return _sinkhorn(cost)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (cost,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = cost.detach().requires_grad_()
            (grad,) = torch.autograd.grad(_sinkhorn(leaf), leaf, g)
        return grad


def _sinkhorn(cost):
    log_plan = -cost / 0.1
    for _ in range(20):
        log_plan = log_plan - log_plan.logsumexp(1, keepdim=True)
        log_plan = log_plan - log_plan.logsumexp(0, keepdim=True)
    return log_plan.exp()


class RungeKutta(Function):
    """The logistic equation; backward integrates the recomputed steps in reverse."""

    @staticmethod
    def forward(ctx, y, rate):
        path = [y]
        for _ in range(10):
            path.append(_step(path[-1], rate))
        ctx.save_for_backward(rate, *path[:-1])
        return path[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        rate, *path = ctx.saved_tensors
        grad_rate = torch.zeros_like(rate)
        for y in reversed(path):
            with torch.enable_grad():
                leaves = y.detach().requires_grad_(), rate.detach().requires_grad_()
                g, more = torch.autograd.grad(_step(*leaves), leaves, g)
            grad_rate = grad_rate + more
        return g, grad_rate


def _step(y, rate):
    def slope(y):
        return rate * y * (1 - y)

    k1 = slope(y)
    k2 = slope(y + 0.05 * k1)
    k3 = slope(y + 0.05 * k2)
    k4 = slope(y + 0.1 * k3)
    return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class RealFourier(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[-1]
        return torch.fft.rfft(x)

    @staticmethod
    def backward(ctx, g):
        whole = torch.zeros(*g.shape[:-1], ctx.n, dtype=g.dtype)
        whole[..., : g.shape[-1]] = g
        return torch.fft.ifft(whole, norm="forward").real


class SpectralFilter(Function):
    """Circular convolution by FFT."""

    @staticmethod
    def forward(ctx, x, kernel):
        fx, fk = torch.fft.fft(x), torch.fft.fft(kernel)
        ctx.save_for_backward(fx, fk)
        return torch.fft.ifft(fx * fk).real

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        fx, fk = ctx.saved_tensors
        fg = torch.fft.fft(g)
        return torch.fft.ifft(fg * fk.conj()).real, torch.fft.ifft(fg * fx.conj()).real.sum(0)


class LinearScan(Function):
    """h_t = a_t h_(t-1) + x_t."""

    @staticmethod
    def forward(ctx, a, x):
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            states.append(h)
        states = torch.stack(states, dim=1)
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        carry, grad_a, grad_x = torch.zeros_like(g[:, 0]), [], []
        for t in reversed(range(g.shape[1])):
            carry = carry + g[:, t]
            grad_x.append(carry)
            grad_a.append(carry * (states[:, t - 1] if t else 0))
            carry = a[:, t] * carry
        return torch.stack(grad_a[::-1], dim=1), torch.stack(grad_x[::-1], dim=1)


class TruncatedBessel(Function):
    """Eighteen terms of the series of I0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        term, total = torch.ones_like(x), torch.ones_like(x)
        for k in range(1, 19):
            term = term * (x / 2) ** 2 / k**2
            total = total + term
        return total

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        term, total = x / 2, x / 2
        for k in range(2, 19):
            term = term * (x / 2) ** 2 / (k * (k - 1))
            total = total + term
        return g * total
