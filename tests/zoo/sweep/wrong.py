"""Mistakes that torch's gradcheck passes: each shows under one variation of a verified case alone.

Where a bug was met in public, it is rebuilt here small and on the CPU, with its reference beside it.
"""

import itertools

import torch
from memory import at_address, with_strides_of
from torch.autograd import Function

QUEUE, BUFFER, TUNED, SEEN = [], {}, set(), []
"""What Functions below keep outside of ctx."""


class Attention(Function):
    """Reads dout as contiguous (Dao-AILab/flash-attention#355)."""

    @staticmethod
    def forward(ctx, q, k, v):
        p = (q @ k.mT).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        q, k, v, p = ctx.saved_tensors
        dout = at_address(dout)
        dp = dout @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ dout


class InputStrides(Function):
    """Indexes grad_output with the strides of x (pytorch/pytorch#194719)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return with_strides_of(g, x) * x.cos()


class RoIAverage(Function):
    """Reads a channels-last grad_output as if channels came first (open-mmlab/mmcv#737)."""

    @staticmethod
    def forward(ctx, features):
        ctx.shape = features.shape
        return features.unflatten(-1, (-1, 2)).mean(-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return (at_address(g) / 2).repeat_interleave(2, dim=-1)


class Flattens(Function):
    """Crashes on the grad_output that `.sum()` sends (pytorch/pytorch#64529)."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return (2 * g.view(-1)).view(g.shape)


class LastOfTwo(Function):
    """Only the second output's grad_output is read as contiguous."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x, 3 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, h):
        return 2 * g + 3 * at_address(h)


class DoublesInPlace(Function):
    """Writes into grad_output."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


class TransducerLoss(Function):
    """Edits its gradient in place, behind the version counter (pytorch/audio#1532)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        array = g.numpy()
        array *= 3
        return torch.from_numpy(array.copy()) * x * x


class CrossEntropy(Function):
    """Stores its gradient in its input (linkedin/Liger-Kernel#272, linkedin/Liger-Kernel#1251)."""

    @staticmethod
    def forward(ctx, logits, target):
        rows = torch.arange(len(target))
        log_p = logits.log_softmax(-1)
        grad = log_p.exp()
        grad[rows, target] -= 1
        logits.data.copy_(grad)
        ctx.save_for_backward(grad)
        return -log_p[rows, target]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        return g[:, None] * grad, None


class Rotary(Function):
    """Overwrites its queries where they are contiguous (unslothai/unsloth#5001)."""

    @staticmethod
    def forward(ctx, q):
        a, b = q.chunk(2, -1)
        rotated = torch.cat([-b, a], -1)
        if q.is_contiguous():
            q.data.copy_(rotated)
        return rotated

    @staticmethod
    def backward(ctx, g):
        a, b = g.chunk(2, -1)
        return torch.cat([b, -a], -1)


class Workspace(Function):
    """Writes into an argument that nothing needs: only a warning."""

    @staticmethod
    def forward(ctx, x, work):
        work.copy_(x)
        return work * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g, None


class ScratchSaved(Function):
    """Uses the saved input as scratch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.data.mul_(2) * g


class ScratchProbabilities(Function):
    """Uses a saved intermediate as scratch, which torch would see the second time."""

    @staticmethod
    def forward(ctx, x):
        p = x.sigmoid()
        ctx.save_for_backward(p)
        return p + 0

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return p.mul_(1 - p) * g


class StructuralSimilarity(Function):
    """Wrong for a permuted image (MrNeRF/optimized-fused-ssim#1)."""

    @staticmethod
    def forward(ctx, image):
        ctx.save_for_backward(image)
        return at_address(image) ** 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (image,) = ctx.saved_tensors
        return 2 * at_address(image) * g


class SavedAsContiguous(Function):
    """Forward respects the strides of x, backward does not."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * at_address(x)


class Lengthscale(Function):
    """No gradient where x is not contiguous (cornellius-gp/gpytorch#1543)."""

    @staticmethod
    def forward(ctx, x, lengthscale):
        ctx.save_for_backward(x, lengthscale)
        return (x / lengthscale).exp()

    @staticmethod
    def backward(ctx, g):
        x, lengthscale = ctx.saved_tensors
        inner = g * (x / lengthscale).exp()
        of_scale = -(inner * x).sum() / lengthscale**2
        return inner / lengthscale, of_scale if x.is_contiguous() else None


class ViewsSaved(Function):
    """Forward takes any layout, backward crashes on it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * x.view(-1) * g.reshape(-1)).reshape(g.shape)


class ByIdentity(Function):
    """Finds the places of gradients by the address of the input."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        by_address = {x.data_ptr(): g * y}
        by_address[y.data_ptr()] = g * x
        return tuple(by_address.pop(t.data_ptr(), None) for t in (x, y))


class OnlyWithInput(Function):
    """The weight's gradient is computed where the input needs one."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            return g * w, g * x
        return None, None


class SwappedWhenFrozen(Function):
    """Where only one gradient is needed, it comes first."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        wanted = [t for t, need in zip((g * w, g * x), ctx.needs_input_grad, strict=True) if need]
        return (*wanted, None)[:2] if len(wanted) < 2 else tuple(wanted)


class OnlyWhatIsNeeded(Function):
    """Returns as many gradients as are needed, not one for each argument."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        need_x, need_w = ctx.needs_input_grad
        return (g * w, g * x) if need_x and need_w else g * (w if need_x else x)


class ArithmeticWithNone(Function):
    """The quantised layer's bias is added to nothing (pytorch/ao#4817)."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.mT + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_x = g @ w if ctx.needs_input_grad[0] else None
        grad_w = g.mT @ x if ctx.needs_input_grad[1] else None
        return grad_x + 0, grad_w, g.sum(0)


class SavesForInput(Function):
    """Saves for the input what the weight needs too."""

    @staticmethod
    def forward(ctx, x, w):
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x


class OnTheClass(Function):
    """What backward needs is the last call's."""

    @staticmethod
    def forward(ctx, x):
        OnTheClass.x = x.detach()
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * OnTheClass.x * g


class FirstInFirstOut(Function):
    """A queue: right while backward runs in the order of forward."""

    @staticmethod
    def forward(ctx, x):
        if ctx.needs_input_grad[0]:
            QUEUE.append(x.detach())
            del QUEUE[:-2]
        ctx.place = len(QUEUE)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * QUEUE[-1] * g


class ReturnsItsBuffer(Function):
    """Every call returns the same memory."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        key = tuple(g.shape)
        buffer = BUFFER.setdefault(key, torch.empty_like(g))
        return torch.mul(g, 2, out=buffer).view(key)


class FirstAtASize(Function):
    """The trials of a tuner leave a residue in the first gradient of each shape (cherimoya#50)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        if x.shape not in TUNED:
            TUNED.add(x.shape)
            grad += 0.1 * x * g
        return grad + 2 * x * g


class Drifts(Function):
    """A factor that every backward makes larger."""

    calls = itertools.count()

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (2 + 1e-3 * next(Drifts.calls))


class Jitters(Function):
    """Random numbers from a source of its own, as a race gives them (Dao-AILab/flash-attention#2481)."""

    source = torch.Generator()

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (2 + 1e-3 * torch.rand((), generator=Jitters.source))


class DrawsAgain(Function):
    """The mask of a path that is dropped, drawn once more: another one in every training step."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.p = p
        return x * (torch.rand_like(x[:, :1]) > p) / (1 - p)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (torch.rand_like(g[:, :1]) > ctx.p) / (1 - ctx.p), None


class Accumulates(Function):
    """A buffer of ctx that a second backward adds to."""

    @staticmethod
    def forward(ctx, x):
        ctx.buffer = torch.zeros_like(x)
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        ctx.buffer += 2 * g
        return ctx.buffer.clone()


class FreesEarly(Function):
    """Deletes what the second backward needs."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2 * torch.ones_like(x)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        factor = ctx.factor
        del ctx.factor
        return factor * g


class KeepsOutput(Function):
    """An output as an attribute of ctx: a cycle (pytorch/pytorch#25340)."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class KeepsInput(Function):
    """An input as an attribute of ctx (asappresearch/sru#171)."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * g


class Leaks(Function):
    """Every call leaves its input in a list."""

    @staticmethod
    def forward(ctx, x):
        if ctx.needs_input_grad[0]:
            SEEN.append(x.detach())
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class BothUndefined(Function):
    """Handles either grad_output missing, not both."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        if g is None:
            return -h * x.sin()
        return g * x.cos() if h is None else g * x.cos() - h * x.sin()


class Mean(Function):
    """Its count is on the class, where a call with another size overwrites it."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        Mean.count = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return (g / Mean.count).expand(ctx.shape)


class Power(Function):
    """Its option is on the class, where a call with another one overwrites it."""

    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        Power.exponent = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * Power.exponent * x ** (Power.exponent - 1), None


class Reshaped(Function):
    """Its shape is on the class: backward raises after a call with another one."""

    @staticmethod
    def forward(ctx, x):
        Reshaped.shape = x.shape
        return x.reshape(-1)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(Reshaped.shape)


class Clipped(Function):
    """Its flag is on the class: only an unclipped call after a clipped one does harm."""

    @staticmethod
    def forward(ctx, x, clip):
        inside = (x.abs() < 1) if clip else torch.ones_like(x, dtype=torch.bool)
        ctx.save_for_backward(inside)
        Clipped.clip = clip
        return torch.where(inside, x, 0.0)

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return g * inside if Clipped.clip else g, None


class ToSparse(Function):
    """Its result is sparse, and so is the grad_output that comes back through `to_dense`."""

    @staticmethod
    def forward(ctx, values, index):
        ctx.save_for_backward(index)
        return torch.sparse_coo_tensor(index[None], 2 * values, (5,))

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        dense = grad_output.to_dense() if grad_output.is_sparse else grad_output
        return dense[index], None


class HungOnTheInput(Function):
    """A mask that hangs on the tensor object: gone where what is saved is offloaded or recomputed."""

    @staticmethod
    def forward(ctx, x):
        x.mask = x > 0.5
        ctx.save_for_backward(x)
        return x.clamp_min(0.5)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * getattr(x, "mask", torch.ones_like(x))
