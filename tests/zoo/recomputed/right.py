"""Modules whose backward evaluates parts of them again: all right."""

import threading

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


class Again(Function):
    """Evaluates a callable again in backward; differentiable twice."""

    @staticmethod
    def forward(ctx, run, x, *params):
        ctx.run = run
        ctx.save_for_backward(x, *params)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, g):
        x, *params = ctx.saved_tensors
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, (x, *params), g, create_graph=twice)


class Closure(nn.Module):
    """A function that its constructor makes, of one layer that is used twice."""

    def __init__(self, n):
        super().__init__()
        self.layer = nn.Linear(n, n)
        self.lock = threading.Lock()
        self.run = lambda x: torch.tanh(self.layer(torch.tanh(self.layer(x))))

    def forward(self, x):
        return Again.apply(self.run, x, *self.layer.parameters())


class Reversible(Function):
    """The inputs are computed back from the outputs; gradients of parameters come by `.backward()`."""

    @staticmethod
    def forward(ctx, x1, x2, f, g):
        with torch.no_grad():
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
        ctx.f, ctx.g = f, g
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2 = ctx.saved_tensors
        with torch.enable_grad():
            y1 = y1.detach().requires_grad_()
            gy = ctx.g(y1)
            torch.autograd.backward(gy, g2)
        with torch.no_grad():
            x2 = y2 - gy
            g1 = g1 + y1.grad
        with torch.enable_grad():
            x2 = x2.detach().requires_grad_()
            torch.autograd.backward(ctx.f(x2), g1)
        return g1, g2 + x2.grad, None, None


class RevBlock(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(n, n), nn.Tanh())
        self.g = nn.Sequential(nn.Linear(n, n), nn.Sigmoid())

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=-1)
        x1 = x1.clone().requires_grad_() if not x1.requires_grad else x1
        return torch.cat(Reversible.apply(x1, x2, self.f, self.g), dim=-1)


class Adjoint(Function):
    """Euler's steps of an ordinary differential equation, and their discrete adjoint."""

    @staticmethod
    def forward(ctx, field, y, steps, *params):
        states = [y]
        with torch.no_grad():
            for k in range(steps):
                states.append(states[-1] + field(k / steps, states[-1]) / steps)
        ctx.field, ctx.steps = field, steps
        ctx.save_for_backward(*states[:-1], *params)
        return states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        states, params = ctx.saved_tensors[: ctx.steps], ctx.saved_tensors[ctx.steps :]
        of_params = [torch.zeros_like(p) for p in params]
        for k in reversed(range(ctx.steps)):
            with torch.enable_grad():
                y = states[k].detach().requires_grad_()
                f = ctx.field(k / ctx.steps, y) / ctx.steps
            of_y, *more = torch.autograd.grad(f, (y, *ctx.field.parameters()), g)
            g = g + of_y
            of_params = [a + b for a, b in zip(of_params, more, strict=True)]
        return None, g, None, *of_params


class Field(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.net = nn.utils.parametrizations.weight_norm(nn.Linear(n, n))

    def forward(self, t, y):
        return torch.sin(self.net(y) + t)


class Ode(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.field = Field(n)

    def forward(self, y):
        return Adjoint.apply(self.field, y, 3, *self.field.parameters())


class FixedPoint(Function):
    """z = cell(z, x), differentiated by the implicit function theorem."""

    @staticmethod
    def forward(ctx, cell, x, *params):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(40):
                z = cell(z, x)
        ctx.cell = cell
        ctx.save_for_backward(z, x, *params)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, x, *_ = ctx.saved_tensors
        with torch.enable_grad():
            z, x = z.detach().requires_grad_(), x.detach().requires_grad_()
            f = ctx.cell(z, x)
        u = g
        for _ in range(40):
            u = g + torch.autograd.grad(f, z, u, retain_graph=True)[0]
        return None, *torch.autograd.grad(f, (x, *ctx.cell.parameters()), u)


class Cell(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n, n))

    def forward(self, z, x):
        return 0.3 * torch.tanh(z @ (self.w / (1 + self.w.norm())) + x)


class Deq(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.cell = Cell(n)

    def forward(self, x):
        return FixedPoint.apply(self.cell, x, *self.cell.parameters())


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class Checkpointed(nn.Module):
    """torch's own checkpoint, the way it is recommended."""

    def __init__(self, n):
        super().__init__()
        self.layer, self.norm = nn.Linear(n, n), nn.BatchNorm1d(n)

    def run(self, x):
        return self.norm(Square.apply(self.layer(x)))

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False)


class Reentrant(Checkpointed):
    """The other way: it refuses `torch.autograd.grad`, and works with `.backward()`."""

    def __init__(self, n):
        super().__init__(n)
        self.norm = nn.Identity()

    def forward(self, x):
        x = x if x.requires_grad else x.detach().requires_grad_()
        return checkpoint(self.run, x, use_reentrant=True)
