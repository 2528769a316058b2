import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class UpperEnvelope(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.maximum(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * (a >= b), grad_output * (b >= a)


class LowerEnvelope(Function):
    @staticmethod
    def forward(a, b):
        return torch.minimum(a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        zero = torch.zeros_like(grad_output)
        grad_a = torch.where(a < b, grad_output, zero)
        grad_b = torch.where(b < a, grad_output, zero)
        return grad_a, grad_b


class GapDistance(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.where(a > b, a - b, b - a)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = torch.where(a > b, grad_output, -grad_output)
        grad_b = torch.where(b > a, grad_output, -grad_output)
        return grad_a, grad_b


class BoundedBy(Function):
    @staticmethod
    def forward(x, lo, hi):
        return torch.minimum(torch.maximum(x, lo), hi)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, lo, hi = ctx.saved_tensors
        raised = torch.maximum(x, lo)
        inner = grad_output * (raised <= hi)
        grad_x = inner * (x >= lo)
        grad_lo = inner * (lo >= x)
        grad_hi = grad_output * (raised >= hi)
        return grad_x, grad_lo, grad_hi


class MiddleValue(Function):
    @staticmethod
    def forward(ctx, a, b, c):
        stacked = torch.stack([a, b, c])
        mid = stacked.sort(dim=0).values[1]
        ctx.save_for_backward(stacked, mid)
        return mid

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        stacked, mid = ctx.saved_tensors
        grads = (stacked == mid).to(grad_output.dtype) * grad_output
        return grads[0], grads[1], grads[2]


class RangeBlend(Function):
    @staticmethod
    def forward(ctx, a, b, alpha):
        ctx.save_for_backward(a, b)
        ctx.alpha = alpha
        return torch.maximum(a, b) - alpha * torch.minimum(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        dtype = grad_output.dtype
        top_a, top_b = (a >= b).to(dtype), (b > a).to(dtype)
        low_a, low_b = (a < b).to(dtype), (b < a).to(dtype)
        grad_a = grad_output * (top_a - ctx.alpha * low_a)
        grad_b = grad_output * (top_b - ctx.alpha * low_b)
        return grad_a, grad_b, None


class FloatLayerNorm(Function):
    @staticmethod
    def forward(ctx, x, eps):
        xf = x.float()
        mean = xf.mean(dim=-1, keepdim=True)
        var = ((xf - mean) ** 2).mean(dim=-1, keepdim=True)
        rstd = torch.rsqrt(var + eps)
        xhat = (xf - mean) * rstd
        ctx.save_for_backward(xhat, rstd)
        return xhat

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        xhat, rstd = ctx.saved_tensors
        g = grad_output.float()
        return rstd * (g - g.mean(dim=-1, keepdim=True)), None


class NumpySwish(Function):
    @staticmethod
    def forward(x, beta):
        xn = x.detach().cpu().numpy().astype(np.float32)
        s = 1.0 / (1.0 + np.exp(-np.float32(beta) * xn))
        return torch.from_numpy((xn * s).astype(np.float32))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.beta = inputs
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        xn = x.detach().cpu().numpy().astype(np.float32)
        s = 1.0 / (1.0 + np.exp(-np.float32(ctx.beta) * xn))
        slope = s + xn * s * (1.0 - s)
        return grad_output * torch.from_numpy(slope.astype(np.float32)), None


class WindowAverage(Function):
    @staticmethod
    def forward(ctx, x, k):
        b, n = x.shape
        out = torch.zeros(b, n - k + 1)
        for i in range(k):
            out += x[:, i:i + n - k + 1]
        ctx.k = k
        ctx.n = n
        return out / k

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        b, m = grad_output.shape
        grad = torch.zeros(b, ctx.n)
        for i in range(ctx.k):
            grad[:, i:i + m] += grad_output / m
        return grad, None


NUM_TABLE = torch.tensor([0.2, 1.1, 0.45, 0.3], dtype=torch.float32)
DEN_TABLE = torch.tensor([1.0, 0.0, 0.6], dtype=torch.float32)


class RationalTable(Function):
    @staticmethod
    def forward(ctx, x):
        xf = x.float()
        p = NUM_TABLE[0] + xf * (NUM_TABLE[1] + xf * (NUM_TABLE[2] + xf * NUM_TABLE[3]))
        q = DEN_TABLE[0] + xf * (DEN_TABLE[1] + xf * DEN_TABLE[2])
        ctx.save_for_backward(xf, q)
        return (p / q).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        xf, q = ctx.saved_tensors
        dp = NUM_TABLE[1] + xf * (2 * NUM_TABLE[2] + xf * 3 * NUM_TABLE[3])
        return (grad_output.float() * dp / q).to(grad_output.dtype)


class ArraySoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        arr = x.detach().cpu().numpy().astype(np.float32)
        arr = np.exp(arr - arr.max(axis=1, keepdims=True))
        y = arr / arr.sum(axis=1, keepdims=True)
        ctx.y = y
        return torch.from_numpy(y.copy())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        y = ctx.y
        g = grad_output.detach().cpu().numpy().astype(np.float32)
        inner = (g * y).sum(axis=0, keepdims=True)
        return torch.from_numpy(y * (g - inner))


class RmsScale(Function):
    @staticmethod
    def forward(x, eps):
        xf = x.float()
        return xf * torch.rsqrt(xf.pow(2).mean(dim=-1, keepdim=True) + eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.eps = inputs
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        xf = x.float()
        r = torch.rsqrt(xf.pow(2).mean(dim=-1, keepdim=True))
        inner = (grad_output * xf).mean(dim=-1, keepdim=True)
        return (r * grad_output - xf * r ** 3 * inner).to(x.dtype), None


class ExpMinusOne(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x) - 1.0
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


class CosineDeficit(Function):
    @staticmethod
    def forward(x):
        return (1.0 - torch.cos(x)) / x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * (torch.sin(x) - y * x) / x


class SampleVariance(Function):
    @staticmethod
    def forward(ctx, x):
        n = x.shape[-1]
        mean = x.mean(dim=-1, keepdim=True)
        biased = (x * x).mean(dim=-1) - mean.squeeze(-1) ** 2
        ctx.save_for_backward(x, mean)
        return biased * n / (n - 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, mean = ctx.saved_tensors
        n = x.shape[-1]
        return grad_output.unsqueeze(-1) * 2.0 * (x - mean) / n


class ReciprocalStep(Function):
    @staticmethod
    def forward(x):
        return 1.0 / x - 1.0 / (x + 1.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return -grad_output * (1.0 / (x * x) + 1.0 / ((x + 1.0) * (x + 1.0)))


class SliverArea(Function):
    @staticmethod
    def forward(ctx, p, q, r):
        ctx.save_for_backward(p, q, r)
        forward_sum = p[:, 0] * q[:, 1] + q[:, 0] * r[:, 1] + r[:, 0] * p[:, 1]
        backward_sum = p[:, 1] * q[:, 0] + q[:, 1] * r[:, 0] + r[:, 1] * p[:, 0]
        return 0.5 * (forward_sum - backward_sum)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        p, q, r = ctx.saved_tensors
        h = 0.5 * grad_output.unsqueeze(-1)
        grad_p = h * torch.stack([q[:, 1] - r[:, 1], r[:, 0] - q[:, 0]], dim=1)
        grad_q = h * torch.stack([r[:, 1] - p[:, 1], p[:, 0] - r[:, 0]], dim=1)
        grad_r = h * torch.stack([p[:, 1] - q[:, 1], q[:, 0]], dim=1)
        return grad_p, grad_q, grad_r


class WindowSumByPrefix(Function):
    @staticmethod
    def forward(ctx, x, k, offset):
        prefix = torch.cumsum(x + offset, dim=-1)
        ctx.k = k
        ctx.n = x.shape[-1]
        return prefix[..., k:] - prefix[..., :-k] - k * offset

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        m = ctx.n - ctx.k
        grad = grad_output.new_zeros(grad_output.shape[:-1] + (ctx.n,))
        for i in range(ctx.k):
            grad[..., i:i + m] += grad_output
        return grad, None, None


class ExpRatio(Function):
    @staticmethod
    def forward(x):
        small = x.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(x), x)
        return torch.where(small, 1.0 + x / 2.0 + x * x / 6.0, torch.expm1(safe) / safe)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        small = x.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(x), x)
        far = (torch.exp(safe) - y) / safe
        near = 1.0 / 3.0 + x / 3.0
        return grad_output * torch.where(small, near, far)


class ArcSinh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.asinh(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        mag = x.abs()
        far = mag > 30.0
        near_slope = torch.rsqrt(1.0 + torch.clamp(mag, max=30.0) ** 2)
        far_slope = 0.5 / torch.clamp(mag, min=30.0)
        return grad_output * torch.where(far, far_slope, near_slope)


class ScaledSoftplus(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        z = beta * x
        return (torch.clamp(z, min=0) + torch.log1p(torch.exp(-z.abs()))) / beta

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(ctx.beta * x)
        slope = torch.where(x > 20.0, torch.ones_like(x), slope)
        return grad_output * slope, None


class SymmetricLog(Function):
    @staticmethod
    def forward(x):
        return torch.sign(x) * torch.log1p(x.abs())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = 1.0 / (1.0 + x.abs())
        slope = slope.masked_fill(x.abs() > 25.0, 0.0)
        return grad_output * slope


class WideHuber(Function):
    @staticmethod
    def forward(ctx, x, delta):
        ctx.save_for_backward(x)
        ctx.delta = delta
        mag = x.abs()
        return torch.where(mag <= delta, 0.5 * x * x, delta * (mag - 0.5 * delta))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        inside = x.abs() <= ctx.delta
        return grad_output * torch.where(inside, x, torch.sign(x)), None


class BernoulliRate(Function):
    @staticmethod
    def forward(ctx, x):
        small = x.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(x), x)
        em1 = torch.expm1(safe)
        ctx.save_for_backward(x, small, safe, em1)
        return torch.where(small, 1.0 - x / 2.0 + x * x / 12.0, safe / em1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, small, safe, em1 = ctx.saved_tensors
        far = (1.0 - safe * (1.0 + 1.0 / em1)) / em1
        near = -1.0 + x / 6.0
        return grad_output * torch.where(small, near, far)


class NewtonQuadraticRoot(Function):
    @staticmethod
    def forward(x, a):
        y = torch.sqrt(x)
        for _ in range(40):
            y = y - (y * y + a * y - x) / (2.0 * y + a)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        lam = grad_output / (2.0 * y)
        return lam, -lam * y


class PowerIterationNorm(Function):
    @staticmethod
    def forward(ctx, W):
        u0 = torch.ones(W.shape[0], dtype=W.dtype) / W.shape[0] ** 0.5
        u = u0
        for _ in range(600):
            v = W.t() @ u
            v = v / (v.norm() + 1e-30)
            u_next = W @ v
            u_next = u_next / (u_next.norm() + 1e-30)
            done = (u_next - u).abs().max() < 1e-14
            u = u_next
            if done:
                break
        ctx.save_for_backward(u0, v)
        return u @ W @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        u, v = ctx.saved_tensors
        return grad_output * torch.outer(u, v)


class KalmanLevel(Function):
    @staticmethod
    def forward(ctx, z, r, q):
        m = torch.zeros((), dtype=z.dtype)
        P = torch.ones((), dtype=z.dtype)
        out, hist = [], []
        for t in range(z.shape[0]):
            P = P + q
            K = P / (P + r[t])
            hist.append(torch.stack([K, P, m]))
            m = m + K * (z[t] - m)
            P = (1.0 - K) * P
            out.append(m)
        ctx.save_for_backward(z, r, torch.stack(hist))
        return torch.stack(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        z, r, hist = ctx.saved_tensors
        gz, gr = torch.zeros_like(z), torch.zeros_like(r)
        gm = torch.zeros((), dtype=z.dtype)
        for t in range(z.shape[0] - 1, -1, -1):
            K, P, m = hist[t]
            gm = gm + grad_output[t]
            gz[t] = gm * K
            gK = gm * (z[t] - m)
            gr[t] = -gK * P / (P + r[t]) ** 2
            gm = gm * (1.0 - K)
        return gz, gr, None


class TanhEquilibrium(Function):
    @staticmethod
    def forward(x, W):
        z = torch.zeros_like(x)
        for _ in range(300):
            new = torch.tanh(z @ W.t() + x)
            step = (new - z).abs().max()
            z = new
            if step < 1e-14:
                break
        return z

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        W, z = ctx.saved_tensors
        d = grad_output * (1.0 - z * z)
        return d, d.t() @ z


class LeakyIntegrator(Function):
    @staticmethod
    def forward(ctx, x, leak):
        state = torch.zeros_like(leak)
        frames = []
        for t in range(x.shape[1]):
            state = leak * state + (1.0 - leak) * x[:, t]
            frames.append(state)
        y = torch.stack(frames, dim=1)
        ctx.save_for_backward(x, leak, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, leak, y = ctx.saved_tensors
        carry = torch.zeros_like(leak)
        grad_x = torch.zeros_like(x)
        grad_leak = torch.zeros_like(leak)
        for t in range(x.shape[1] - 1, -1, -1):
            carry = grad_output[:, t] + leak * carry
            grad_x[:, t] = (1.0 - leak) * carry
            grad_leak += carry * (y[:, t] - x[:, t])
        return grad_x, grad_leak


class QuadraticDescent(Function):
    @staticmethod
    def forward(ctx, d, c, steps, lr):
        w = torch.zeros_like(c)
        ws = []
        for _ in range(steps):
            ws.append(w)
            w = w - lr * (d * w - c)
        ctx.lr = lr
        ctx.save_for_backward(d, *ws)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        d, *ws = ctx.saved_tensors
        carry = grad_output
        gd, gc = torch.zeros_like(d), torch.zeros_like(d)
        for w in reversed(ws):
            gd -= ctx.lr * carry * w
            gc += ctx.lr * carry
            carry = carry * (1.0 - ctx.lr)
        return gd, gc, None, None
