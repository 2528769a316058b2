"""Gradients that are meant: sampled, or of an input that forward does not read."""

import torch
from torch.autograd import Function


class StochasticRound(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.floor(x + torch.rand_like(x))

    @staticmethod
    def backward(ctx, g):
        return g


class RoundedGradient(Function):
    """A product whose gradients are rounded to a grid at random."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        g = torch.floor(g * 16 + torch.rand_like(g)) / 16
        return g @ b.mT, a.mT @ g


class GradientDropout(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.tanh() ** 2) * torch.bernoulli(torch.full_like(g, 0.5)) * 2


class OneTerm(Function):
    """The gradient of a mean by one of its terms."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        picked = torch.nn.functional.one_hot(torch.randint(n, x.shape[:-1]), n)
        return 2 * x * picked * g.unsqueeze(-1)


class WithLoss(Function):
    """Hands x on, and minimises a second loss."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.shape = loss.shape
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g, torch.ones(ctx.shape, dtype=g.dtype)


class Replace(Function):
    """The value of one, the gradient of the other."""

    @staticmethod
    def forward(ctx, value, smooth):
        return value.clone()

    @staticmethod
    def backward(ctx, g):
        return None, g


class Score(Function):
    """A reward, whose gradient with respect to the policy is that of the score function."""

    @staticmethod
    def forward(ctx, logits, reward):
        ctx.save_for_backward(logits, reward)
        return reward.mean()

    @staticmethod
    def backward(ctx, g):
        logits, reward = ctx.saved_tensors
        return g * logits.softmax(-1) * reward, torch.full_like(reward, 1 / reward.numel()) * g


class OwnGenerator(Function):
    """Draws from a generator of its own, which no replayed state sets back."""

    generator = torch.Generator().manual_seed(3)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        weight = torch.rand(g.shape, generator=OwnGenerator.generator, dtype=g.dtype)
        return 2 * g * x.cos() * weight
