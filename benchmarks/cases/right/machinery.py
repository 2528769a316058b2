"""Right Functions that use what autograd offers: state, randomness, views, graphs in graphs, odd returns."""

import functools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class DropoutWithGenerator(Function):
    """Its own generator, seeded anew in every call."""

    @staticmethod
    def forward(ctx, x, p, seed):
        generator = torch.Generator().manual_seed(seed)
        keep = (torch.rand(x.shape, generator=generator) >= p).to(x.dtype) / (1 - p)
        ctx.save_for_backward(keep)
        return x * keep

    @staticmethod
    def backward(ctx, g):
        (keep,) = ctx.saved_tensors
        return g * keep, None, None


class Dropout(Function):
    """torch's global generator, the mask saved."""

    @staticmethod
    def forward(ctx, x, p, training):
        if not training:
            ctx.keep = None
            return x.clone()
        ctx.keep = torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p)
        return x * ctx.keep

    @staticmethod
    def backward(ctx, g):
        return (g if ctx.keep is None else g * ctx.keep), None, None


class Checkpoint(Function):
    """Forward is run again in backward, with the random state it had."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run, ctx.state = run, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(ctx.run(leaf), leaf, g)
        torch.set_rng_state(now)
        return None, grad


def noisy(x):
    return (x + torch.rand_like(x)) ** 2


class InPlaceExp(Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Transposed(Function):
    """The output is a view of the input."""

    @staticmethod
    def forward(ctx, x):
        return x.transpose(0, 1)

    @staticmethod
    def backward(ctx, g):
        return g.transpose(0, 1)


class Narrowed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x[:, 1:]

    @staticmethod
    def backward(ctx, g):
        return torch.nn.functional.pad(g, (1, 0))


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g


class SameForBoth(Function):
    """One tensor is the gradient of both inputs."""

    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, g):
        return g, g


class ExpandedSum(Function):
    """The gradient has stride 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)


class WithName(Function):
    """Returns what is no tensor, and a tensor of integers."""

    @staticmethod
    def forward(ctx, x, name):
        ctx.save_for_backward(x)
        count = torch.tensor(x.numel())
        ctx.mark_non_differentiable(count)
        return x * x, name, count, 3

    @staticmethod
    def backward(ctx, g, *_):
        (x,) = ctx.saved_tensors
        return 2 * x * g, None


class Gathered(Function):
    """None for the index and for a tensor that is not used."""

    @staticmethod
    def forward(ctx, x, index, unused):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).index_add(0, index, g), None, None


class TwoHeads(Function):
    """Undefined grads are taken as they come."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        s, c = x.sin(), x.cos()
        ctx.save_for_backward(x)
        return s, c

    @staticmethod
    def backward(ctx, gs, gc):
        (x,) = ctx.saved_tensors
        grad = None
        if gs is not None:
            grad = gs * x.cos()
        if gc is not None:
            part = -gc * x.sin()
            grad = part if grad is None else grad + part
        return grad


class Scalars(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b.exp()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.exp(), g * a * b.exp()


class MaybeEmpty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g.unsqueeze(-1) * x * x


class OuterProduct(Function):
    """Broadcasts, and sums its gradients back."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * b).sum_to_size(a.shape), (g * a).sum_to_size(b.shape)


class FloatConstant(Function):
    """A constant of float32 as it came from a file: the function has it rounded, and so has backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.scale = torch.tensor(0.1, dtype=torch.float32)
        return x * ctx.scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale


class FloatInside(Function):
    """Accumulates in float32, and the spec says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.float().exp()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.float().exp().to(x.dtype)


class Scripted(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _scripted()[0](x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _scripted()[1](g, x)


@functools.cache
def _scripted():
    def swish(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)

    def slope(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(swish), torch.jit.script(slope)


class Threads(Function):
    """Rows by a pool of threads."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with ThreadPoolExecutor(2) as pool:
            return torch.stack(list(pool.map(torch.sin, x.unbind(0))))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with ThreadPoolExecutor(2) as pool:
            return g * torch.stack(list(pool.map(torch.cos, x.unbind(0))))


class FunctionalInside(Function):
    """torch.func in forward: the slopes come from vmap of grad."""

    @staticmethod
    def forward(ctx, x):
        slope = torch.func.vmap(torch.func.grad(lambda t: torch.sin(t) * t))(x.detach())
        ctx.save_for_backward(slope)
        return torch.sin(x) * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class CubeGradient(Function):
    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return 3 * g * x * x

    @staticmethod
    def backward(ctx, gg):
        g, x = ctx.saved_tensors
        return 3 * gg * x * x, 6 * gg * g * x


class Cube(Function):
    """Its backward is a Function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return CubeGradient.apply(g, x)


class Composed(Function):
    """Its forward calls a Function under autograd and keeps that graph for backward."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = Cube.apply(leaf).sin()
        ctx.leaf, ctx.y = leaf, y
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (grad,) = torch.autograd.grad(ctx.y, ctx.leaf, g, retain_graph=True)
        return grad


class Energy(Function):
    """Forces by autograd in forward; backward differentiates them again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.enable_grad():
            return _forces(x.detach().requires_grad_(), create_graph=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(_forces(leaf, create_graph=True), leaf, g)
        return grad


def _forces(leaf, *, create_graph):
    energy = (leaf**4).sum() + (leaf[:-1] * leaf[1:]).sum()
    return torch.autograd.grad(energy, leaf, create_graph=create_graph)[0]


class Labelled(torch.Tensor):
    """A subclass that adds nothing."""


class ThroughSubclass(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.as_subclass(Labelled) * 2).as_subclass(torch.Tensor).exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * torch.exp(2 * x)


class Hooked(Function):
    """A hook on a tensor of its own graph scales the gradient, and forward is scaled alike."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = leaf.tanh()
            y.register_hook(lambda grad: 3 * grad)
            (grad,) = torch.autograd.grad(y, leaf, g)
        return grad


class ByNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.arctan(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x * x)


class SetUp(Function):
    """The newer style, with a rule for vmap and one for forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x * w.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w.sin(), g * x * w.cos()

    @staticmethod
    def jvp(ctx, x_t, w_t):
        x, w = ctx.saved_tensors
        return x_t * w.sin() + x * w.cos() * w_t


class Concatenated(Function):
    @staticmethod
    def forward(ctx, dim, *tensors):
        ctx.dim, ctx.sizes = dim, [t.shape[dim] for t in tensors]
        return torch.cat(tensors, dim)

    @staticmethod
    def backward(ctx, g):
        return None, *g.split(ctx.sizes, ctx.dim)


class ByMask(Function):
    """Computes what is needed, and nothing else."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.mT + (0 if b is None else b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = g @ w
        if ctx.needs_input_grad[1]:
            grad_w = g.mT @ x
        if ctx.needs_input_grad[2]:
            grad_b = g.sum(0)
        return grad_x, grad_w, grad_b


class BatchNorm(Function):
    """Running statistics are buffers that forward writes."""

    @staticmethod
    def forward(ctx, x, mean, eps):
        center = x.mean(0)
        mean.mul_(0.9).add_(0.1 * center.detach())
        inverse = (x.var(0, unbiased=False) + eps).rsqrt()
        normal = (x - center) * inverse
        ctx.save_for_backward(normal, inverse)
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        normal, inverse = ctx.saved_tensors
        return inverse * (g - g.mean(0) - normal * (g * normal).mean(0)), None, None


CALLS = []


class Counted(Function):
    """Counts its calls and warns, which changes nothing."""

    @staticmethod
    def forward(ctx, x):
        CALLS.append(x.shape)
        warnings.warn("an old interface", DeprecationWarning, stacklevel=2)
        print("called with", tuple(x.shape))
        ctx.save_for_backward(x)
        return x.cosh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sinh()


@functools.lru_cache(maxsize=8)
def _window(n, dtype):
    return torch.hann_window(n, periodic=False, dtype=dtype) + 0.1


class Windowed(Function):
    """A table that is made once for each length."""

    @staticmethod
    def forward(ctx, x):
        ctx.window = _window(x.shape[-1], x.dtype)
        return x * ctx.window

    @staticmethod
    def backward(ctx, g):
        return g * ctx.window


class EvenOnly(Function):
    """Refuses odd lengths and what is not contiguous, clearly."""

    @staticmethod
    def forward(ctx, x):
        if x.shape[-1] % 2:
            raise ValueError("the last dimension must be even")
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        first, second = x.chunk(2, dim=-1)
        ctx.save_for_backward(first, second)
        return first * torch.sigmoid(second)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        first, second = ctx.saved_tensors
        s = torch.sigmoid(second)
        return torch.cat([g * s, g * first * s * (1 - s)], dim=-1)


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target, ignore_index):
        log_p = torch.log_softmax(logits, -1)
        used = target != ignore_index
        safe = torch.where(used, target, 0)
        count = used.sum().clamp(min=1)
        ctx.save_for_backward(log_p, safe, used, count)
        picked = log_p.gather(-1, safe[:, None])[:, 0]
        return -(picked * used).sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        log_p, safe, used, count = ctx.saved_tensors
        grad = log_p.exp()
        grad.scatter_add_(-1, safe[:, None], -torch.ones_like(grad[:, :1]))
        return g * grad * used[:, None] / count, None, None


class CausalAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = 1 / math.sqrt(q.shape[-1])
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        p = torch.softmax((q @ k.mT * scale).masked_fill(~mask, -math.inf), dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        grad_p = g @ v.mT
        grad_s = ctx.scale * p * (grad_p - (grad_p * p).sum(-1, keepdim=True))
        return grad_s @ k, grad_s.mT @ q, p.mT @ g
