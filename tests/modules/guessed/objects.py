"""Functions that take what a package makes of its own: objects, blocks, options, closures."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Unready:
    """A proxy that knows nothing of itself before it is set up."""

    def __getattr__(self, name):
        raise RuntimeError(f"set up first, then read `{name}`")

    def __call__(self, *values):
        return values[0]


UNREADY = Unready()


class Rulebook:
    def __init__(self, rows, cols, geometry):
        self.rows, self.cols, self.geometry = rows, cols, geometry


class SparseGather(Function):
    @staticmethod
    def forward(ctx, feats, rulebook, scale):
        ctx.rulebook = rulebook
        ctx.n = feats.shape[0]
        ctx.scale = scale
        out = feats.new_zeros(rulebook.num_out, feats.shape[1])
        out.index_add_(0, rulebook.cols, feats[rulebook.rows] * scale)
        return out

    @staticmethod
    def backward(ctx, g):
        rb = ctx.rulebook
        grad = g.new_zeros(ctx.n, g.shape[1])
        grad.index_add_(0, rb.rows, g[rb.cols] * ctx.scale)
        return grad, None, None


class QLinear(Function):
    """x @ dequantize().T"""

    @staticmethod
    def forward(ctx, x, bias, dequantize):
        w = dequantize()
        ctx.dequantize = dequantize
        return x @ w.t() + bias

    @staticmethod
    def backward(ctx, g):
        w = ctx.dequantize()
        return g @ w, g.sum(0), None


class QLayer(Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        w = (layer.qweight - layer.zeros) * layer.scales
        y = x @ w.t()
        if layer.bias is not None:
            y = y + layer.bias
        return y

    @staticmethod
    def backward(ctx, g):
        layer = ctx.layer
        w = (layer.qweight - layer.zeros) * layer.scales
        return g @ w, None


class Opts(Function):
    @staticmethod
    def forward(ctx, x, options):
        ctx.options = options
        y = torch.nn.functional.softplus(x, beta=options["beta"])
        ctx.save_for_backward(x)
        return y * options["gain"]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x * ctx.options["beta"]) * ctx.options["gain"], None


class Blocks(Function):
    @staticmethod
    def forward(ctx, x, blocks):
        ctx.blocks = blocks
        ctx.save_for_backward(x)
        with torch.no_grad():
            for b in blocks:
                x = b(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x
            for b in ctx.blocks:
                y = b(y)
            y.backward(g)
        return x.grad, None


class RevBlocks(Function):
    @staticmethod
    def forward(ctx, x, kwargs, blocks):
        ctx.kwargs = kwargs
        for block in blocks:
            x = block(x, **kwargs)
        ctx.y = x.detach()
        ctx.blocks = blocks
        return x

    @staticmethod
    def backward(ctx, dy):
        y = ctx.y
        kwargs = ctx.kwargs
        for block in ctx.blocks[::-1]:
            y, dy = block.backward_pass(y, dy, **kwargs)
        return dy, None, None


class ReversibleBlock(torch.nn.Module):
    def __init__(self, f, g):
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x, f_args={}, g_args={}):
        x1, x2 = torch.chunk(x, 2, dim=-1)
        with torch.no_grad():
            y1 = x1 + self.f(x2, **f_args)
            y2 = x2 + self.g(y1, **g_args)
        return torch.cat([y1, y2], dim=-1)

    def backward_pass(self, y, dy, f_args={}, g_args={}):
        y1, y2 = torch.chunk(y, 2, dim=-1)
        dy1, dy2 = torch.chunk(dy, 2, dim=-1)
        with torch.enable_grad():
            y1 = y1.detach().requires_grad_()
            gy1 = self.g(y1, **g_args)
            torch.autograd.backward(gy1, dy2)
        with torch.no_grad():
            x2 = y2 - gy1
            dx1 = dy1 + y1.grad
        with torch.enable_grad():
            x2 = x2.detach().requires_grad_()
            fx2 = self.f(x2, **f_args)
            torch.autograd.backward(fx2, dx1)
        with torch.no_grad():
            x1 = y1 - fx2
            dx2 = dy2 + x2.grad
        return torch.cat([x1.detach(), x2.detach()], -1), torch.cat([dx1, dx2], -1)


class Adjoint(Function):
    """fixed point solver with named args"""

    @staticmethod
    def forward(ctx, func, x0, params, tol, max_iter):
        with torch.no_grad():
            x = x0
            for _ in range(max_iter):
                x = 0.25 * func(x, params=params)
        ctx.func = func
        ctx.save_for_backward(x0, params)
        ctx.max_iter = max_iter
        return x

    @staticmethod
    def backward(ctx, g):
        x0, params = ctx.saved_tensors
        with torch.enable_grad():
            x0 = x0.detach().requires_grad_()
            params = params.detach().requires_grad_()
            x = x0
            for _ in range(ctx.max_iter):
                x = 0.25 * ctx.func(x, params=params)
            a, b = torch.autograd.grad(x, (x0, params), g)
        return None, a, b, None, None


class F32Only(Function):
    @staticmethod
    def forward(ctx, x, w):
        assert x.dtype == torch.float32, "float32 only"
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x


class SparseGatherUnscaled(Function):
    """Wrong: the gradient lacks the scale."""

    @staticmethod
    def forward(ctx, feats, rulebook, scale):
        ctx.rulebook, ctx.n = rulebook, feats.shape[0]
        out = feats.new_zeros(rulebook.num_out, feats.shape[1])
        return out.index_add_(0, rulebook.cols, feats[rulebook.rows] * scale)

    @staticmethod
    def backward(ctx, g):
        rules = ctx.rulebook
        grad = g.new_zeros(ctx.n, g.shape[1])
        return grad.index_add_(0, rules.rows, g[rules.cols]), None, None


class OptsSquared(Function):
    """Wrong: the gain twice."""

    @staticmethod
    def forward(ctx, x, options):
        ctx.options = options
        return x * options["gain"]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.options["gain"] ** 2, None


class Buffered(Function):
    """Right, with a buffer in torch's default dtype."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.zeros(x.shape)
        for k in range(x.shape[0]):
            out[k] = x[k].sin()
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def _convolved(x, table):
    return (x[:, table.first] * table.gains).sum(1)


class OfTable(Function):
    """Right: what is read of an object, a helper alone reads."""

    @staticmethod
    def forward(ctx, x, table):
        ctx.table, ctx.shape = table, x.shape
        return _convolved(x, table)

    @staticmethod
    def backward(ctx, g):
        grad = g.new_zeros(ctx.shape)
        grad.index_add_(1, ctx.table.first, g[:, None] * ctx.table.gains)
        return grad, None


class InBlocks(Function):
    """Right: a dimension is the product of two of another tensor."""

    @staticmethod
    def forward(ctx, x, w):
        m, n, b = w.shape
        ctx.save_for_backward(x, w)
        return torch.einsum("inb,mnb->imb", x.reshape(-1, n, b), w).reshape(-1, m * b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        m, n, b = w.shape
        g = g.reshape(-1, m, b)
        grad_x = torch.einsum("imb,mnb->inb", g, w).reshape(x.shape)
        return grad_x, torch.einsum("imb,inb->mnb", g, x.reshape(-1, n, b))


class Inverted(Function):
    """Right where the function has no parameters of its own; they would be passed beside it."""

    @staticmethod
    def forward(ctx, f, x, *weights):
        ctx.f = f
        ctx.save_for_backward(x, *weights)
        first, second = f(x)
        return first * second

    @staticmethod
    def backward(ctx, g):
        x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            first, second = ctx.f(x)
            grads = torch.autograd.grad(first * second, (x, *weights), g)
        return None, *grads


class F32Round(Function):
    """Straight-through in float32 alone: never a failure, never a pass."""

    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class F32Doubled(Function):
    """Wrong in float32 alone."""

    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.cos()


class Shares(Function):
    """Right for what it does not refuse."""

    @staticmethod
    def forward(ctx, p, temperature):
        if p.min() < 0:
            raise ValueError("p should be non-negative")
        ctx.save_for_backward(p)
        ctx.temperature = temperature.item()
        return p.sqrt() * ctx.temperature

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g * ctx.temperature / (2 * p.sqrt()), None


class OfChannels(Function):
    """Right for images: that there are four dimensions, backward alone says."""

    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain

    @staticmethod
    def backward(ctx, g):
        x, gain = ctx.saved_tensors
        return g * gain, (g * x).sum((0, 2, 3), keepdim=True)


class Tested(Function):
    """Right: a list of modules of a class that is tested for."""

    @staticmethod
    def forward(ctx, x, blocks):
        assert isinstance(blocks, torch.nn.ModuleList)
        for block in blocks:
            assert isinstance(block, ReversibleBlock)
            x = block(x)
        ctx.y, ctx.blocks = x.detach(), blocks
        return x

    @staticmethod
    def backward(ctx, dy):
        y = ctx.y
        for k in range(len(ctx.blocks) - 1, -1, -1):
            y, dy = ctx.blocks[k].backward_pass(y, dy)
        return dy, None


class Weighted(Function):
    """Right for a module without parameters: those of its own would be passed beside it."""

    @staticmethod
    def forward(ctx, x, inner, *weights):
        ctx.inner = inner
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x + inner.forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        weights = tuple(ctx.inner.parameters())
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            grads = torch.autograd.grad(x + ctx.inner.forward(x), (x, *weights), g)
        return (grads[0], None, *grads[1:])


class ZippedBlocks(Function):
    """Right: blocks that split what they get along the third dimension, each with options of its own."""

    @staticmethod
    def forward(ctx, x, blocks, args):
        ctx.args = args
        for block, kwarg in zip(blocks, args):
            x = block(x, **kwarg)
        ctx.y = x.detach()
        ctx.blocks = blocks
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        y = ctx.y
        for block, kwargs in zip(ctx.blocks[::-1], ctx.args[::-1]):
            y, dy = block.gone_back(y, dy, **kwargs)
        return dy, None, None


class ZippedBlocksTwice(Function):
    """Wrong: every block counts twice."""

    @staticmethod
    def forward(ctx, x, blocks, args):
        ctx.args = args
        for block, kwarg in zip(blocks, args):
            x = block(x, **kwarg)
        ctx.y = x.detach()
        ctx.blocks = blocks
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        y = ctx.y
        for block, kwargs in zip(ctx.blocks[::-1], ctx.args[::-1]):
            y, dy = block.gone_back(y, 2 * dy, **kwargs)
        return dy, None, None


class DeepBlock(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x, scale=1.0):
        x1, x2 = torch.chunk(x, 2, dim=2)
        with torch.no_grad():
            return torch.cat([x1 + scale * self.f(x2), x2], dim=2)

    def gone_back(self, y, dy, scale=1.0):
        y1, x2 = torch.chunk(y, 2, dim=2)
        dy1, dy2 = torch.chunk(dy, 2, dim=2)
        with torch.enable_grad():
            x2 = x2.detach().requires_grad_()
            fx2 = scale * self.f(x2)
            torch.autograd.backward(fx2, dy1)
        x1 = y1 - fx2.detach()
        return torch.cat([x1, x2.detach()], 2), torch.cat([dy1, dy2 + x2.grad], 2)


class SortedLayers(Function):
    """Right: layers with parameters of their own, and a list that is sorted where it stands."""

    @staticmethod
    def forward(ctx, x, layers, buffered):
        buffered.sort()
        x1, x2 = torch.chunk(x, 2, dim=-1)
        for layer in layers:
            x1, x2 = layer(x1, x2)
            if layer.layer_id in buffered:
                raise RuntimeError("nothing is buffered here")
        ctx.save_for_backward(x1.detach(), x2.detach())
        ctx.layers = layers
        return torch.cat([x1, x2], dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x1, x2 = ctx.saved_tensors
        d1, d2 = torch.chunk(dy, 2, dim=-1)
        for layer in ctx.layers[::-1]:
            x1, x2, d1, d2 = layer.undone(x1, x2, d1, d2)
        return torch.cat([d1, d2], dim=-1), None, None


class Layer(torch.nn.Module):
    def __init__(self, width: int, layer_id: int = 0):
        super().__init__()
        self.norm, self.layer_id = torch.nn.LayerNorm(width), layer_id
        torch.nn.init.constant_(self.norm.weight, 0.7)

    def forward(self, x1, x2):
        with torch.no_grad():
            return x2, x1 + self.norm(x2).tanh()

    def undone(self, y1, y2, d1, d2):
        with torch.enable_grad():
            x2 = y1.detach().requires_grad_()
            added = self.norm(x2).tanh()
            (of_added,) = torch.autograd.grad(added, x2, d2)
        return y2 - added.detach(), y1, d2, d1 + of_added


class Popped(Function):
    """Right: takes its options out of the dictionary, so that a second call wants a fresh one."""

    @staticmethod
    def forward(ctx, x, options):
        ctx.gain = options.pop("gain")
        return x * ctx.gain

    @staticmethod
    def backward(ctx, g):
        return g * ctx.gain, None


class Prepared(Function):
    """Calls, before anything else, what is not set up."""

    @staticmethod
    def forward(ctx, x):
        x = UNREADY(x)
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()
