"""Counts of which nothing depends but the order of work, and others."""

import math

import torch
from torch.autograd import Function


class Tiled(Function):
    """So many rows at a time."""

    @staticmethod
    def forward(ctx, x, w, tile):
        ctx.save_for_backward(x, w)
        ctx.tile = tile
        out = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)
        for start in range(0, x.shape[0], tile):
            out[start : start + tile] = (x[start : start + tile] @ w).tanh()
        return out

    @classmethod
    def of_part(cls, g, x, w):
        return g * (1 - (x @ w).tanh() ** 2)

    @classmethod
    def backward(cls, ctx, g):
        x, w = ctx.saved_tensors
        of_x, of_w = [], 0
        for part, rows in zip(g.split(ctx.tile), x.split(ctx.tile), strict=True):
            inner = cls.of_part(part, rows, w)
            of_x.append(inner @ w.t())
            of_w = of_w + rows.t() @ inner
        return torch.cat(of_x), of_w, None


class TiledUnsquared(Tiled):
    """Wrong whatever the tile is."""

    @classmethod
    def of_part(cls, g, x, w):
        return g * (1 - (x @ w).tanh())


class LastTile(Tiled):
    """Wrong where the last tile is smaller than the others, of which forward does not say that it may be."""

    @classmethod
    def backward(cls, ctx, g):
        x, w = ctx.saved_tensors
        whole = math.floor(x.shape[0] / ctx.tile) * ctx.tile
        inner = cls.of_part(g, x, w)
        inner = torch.cat([inner[:whole], 0 * inner[whole:]])
        return inner @ w.t(), x.t() @ inner, None


class Truncated(Function):
    """The gradient of a solution by so many terms of a series: right for as many as it is called with."""

    @staticmethod
    def forward(ctx, b, terms: int):
        mixing = torch.eye(b.shape[0], dtype=b.dtype).roll(1, 0) * 0.9
        ctx.save_for_backward(mixing)
        ctx.terms = terms
        return torch.linalg.solve(torch.eye(b.shape[0], dtype=b.dtype) - mixing, b)

    @staticmethod
    def backward(ctx, g):
        (mixing,) = ctx.saved_tensors
        total = term = g
        for _ in range(ctx.terms):
            term = mixing.t() @ term
            total = total + term
        return total, None


class Rounds(Function):
    """A root by so many rounds, whose gradient is that of the root."""

    @staticmethod
    def forward(ctx, x, rounds):
        y = x.abs() + 1
        for _ in range(rounds):
            y = (y + (x.abs() + 1) / y) / 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.sign() / (2 * y), None


def in_chunks(function, x, size):
    return torch.cat([function(x[start : start + size]) for start in range(0, x.shape[0], size)])


class ChunkedByHelper(Function):
    """Wrong whatever a helper takes at a time."""

    @staticmethod
    def forward(ctx, x, chunk: int):
        ctx.save_for_backward(x)
        ctx.chunk = chunk
        return in_chunks(torch.sin, x, chunk)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * in_chunks(torch.sin, x, ctx.chunk), None


class BlockedInAWhile(Function):
    """A sum of squares, block by block; backward takes all at once, and forgets the 2."""

    @staticmethod
    def forward(ctx, x, block: int):
        ctx.save_for_backward(x)
        total, start = x.new_zeros(()), 0
        while start < x.shape[0]:
            total = total + (x[start : start + block] ** 2).sum()
            start += block
        return total

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x, None


class InOrderTwice(Function):
    """Wrong for any number of parts of either operand."""

    @staticmethod
    def forward(ctx, x, y, rows: int, columns: int):
        ctx.save_for_backward(x, y)
        out = x.new_zeros(x.shape[0], y.shape[0])
        for i in range(0, x.shape[0], rows):
            for j in range(0, y.shape[0], columns):
                out[i : i + rows, j : j + columns] = x[i : i + rows] @ y[j : j + columns].t()
        return out

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y, 2 * g.t() @ x, None, None


def shrinking(x):
    return torch.eye(x.shape[0], dtype=x.dtype).roll(1, 0) * 0.9


def repeated(mixing, g, rounds):
    total = g
    for _ in range(rounds):
        total = g + mixing.t() @ total
    return total


class TruncatedByHelper(Truncated):
    """The same by a helper."""

    @staticmethod
    def backward(ctx, g):
        (mixing,) = ctx.saved_tensors
        return repeated(mixing, g, ctx.terms), None


class TruncatedInAWhile(Function):
    """The same where forward keeps the count by another name, and backward counts down."""

    @staticmethod
    def forward(ctx, b, terms: int):
        mixing = shrinking(b)
        ctx.save_for_backward(mixing)
        ctx.left = terms
        return torch.linalg.solve(torch.eye(b.shape[0], dtype=b.dtype) - mixing, b)

    @staticmethod
    def backward(ctx, g):
        (mixing,) = ctx.saved_tensors
        total, left = g, ctx.left
        while left > 0:
            total, left = g + mixing.t() @ total, left - 1
        return total, None


class TruncatedByPowers(Function):
    """-log(1 - 0.9 tanh(x)), whose 1 / (1 - ...) is a geometric series in backward."""

    @staticmethod
    def forward(ctx, x, order: int):
        share = 0.9 * x.tanh()
        ctx.save_for_backward(x, share)
        ctx.order = order
        return -torch.log1p(-share)

    @staticmethod
    def backward(ctx, g):
        x, share = ctx.saved_tensors
        total = sum(share**k for k in range(ctx.order + 1))
        return g * total * 0.9 * (1 - x.tanh() ** 2), None
