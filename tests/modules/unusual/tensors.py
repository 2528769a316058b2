"""Functions that keep, return or are given tensors whose numbers torch does not read one by one."""

import torch
from torch.autograd import Function


class KeptSparse(Function):
    """Right; keeps sparse tensors in a list on ctx, and saves one."""

    @staticmethod
    def forward(ctx, x, w):
        mask = (x > 0).to(x.dtype)
        ctx.kept = [mask.to_sparse(), w.to_sparse()]
        ctx.save_for_backward(w.to_sparse())
        return (mask * x) @ w

    @staticmethod
    def backward(ctx, g):
        mask, w = ctx.kept
        return (g @ w.to_dense().t()) * mask.to_dense(), None


class ProductOfSparse(Function):
    """Right; is given a sparse matrix."""

    @staticmethod
    def forward(ctx, a, x):
        ctx.save_for_backward(a)
        return a @ x

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return None, a.to_dense().t() @ g


class GatedLeak(Function):
    """Wrong; backward keeps two sparse tensors of one kind, which the search for a fix compares."""

    @staticmethod
    def forward(ctx, push, state):
        gate = (push > 0).to(push.dtype)
        ctx.save_for_backward(gate.to_sparse(), (gate * push).to_sparse())
        return 0.3 * state + gate * push.square() * state.detach().sign()

    @staticmethod
    def backward(ctx, upstream):
        gate, pushed = ctx.saved_tensors
        pushed = pushed.to_dense()
        gate = gate.to_dense()
        return upstream * (gate * pushed + 0.7 * pushed.square()), upstream * (0.4 + pushed)


class KeptNested(Function):
    """Wrong; saves a nested tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.nested.nested_tensor([x, x * x]))
        return x**3

    @staticmethod
    def backward(ctx, g):
        (both,) = ctx.saved_tensors
        return 2 * g * both.unbind()[1]


class KeptOnMeta(Function):
    """Wrong; saves a tensor without memory, and keeps one in a list."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = [torch.empty_like(x, device="meta")]
        ctx.save_for_backward(x, torch.empty_like(x, device="meta"))
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        x, shape = ctx.saved_tensors
        return 1.1 * g * x.exp()


class KeptQuantised(Function):
    """Right but at its steps; saves a quantised tensor."""

    @staticmethod
    def forward(ctx, x):
        quantised = torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)
        ctx.kept = [quantised]
        ctx.save_for_backward(quantised)
        return quantised.dequantize().to(x.dtype) + x

    @staticmethod
    def backward(ctx, g):
        return g


class ReturnedOnMeta(Function):
    @staticmethod
    def forward(ctx, x):
        return x.to("meta")

    @staticmethod
    def backward(ctx, g):
        return torch.zeros(g.shape, dtype=torch.float64)


class ReturnedForMkldnn(Function):
    @staticmethod
    def forward(ctx, x):
        return x.float().to_mkldnn()

    @staticmethod
    def backward(ctx, g):
        return g.to_dense().double()


class Refusing(torch.Tensor):
    """Neither copied nor compared."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in {"equal", "allclose", "clone", "detach", "view", "sum"}:
            raise KeyError(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class KeptSubclass(Function):
    """Wrong; keeps a tensor that refuses to be read."""

    @staticmethod
    def forward(ctx, x):
        ctx.one, ctx.kept = torch.ones(3).as_subclass(Refusing), [torch.ones(3).as_subclass(Refusing)]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2.5 * g * x


class AsksForTooMuch(Function):
    """A sum over a table that no machine holds."""

    @staticmethod
    def forward(ctx, x):
        return x + torch.empty(2**46, dtype=torch.float64)[: len(x)]

    @staticmethod
    def backward(ctx, g):
        return g
