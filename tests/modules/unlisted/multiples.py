"""Right and wrong where one tensor may be twice as long as another; there is no spec."""

import torch
from torch.autograd import Function


class KeysInGroups(Function):
    """Heads share keys."""

    @staticmethod
    def forward(ctx, q, key):
        ctx.save_for_backward(q, key)
        return q @ key.repeat_interleave(q.shape[0] // key.shape[0], 0).mT

    @staticmethod
    def backward(ctx, g):
        q, key = ctx.saved_tensors
        group = q.shape[0] // key.shape[0]
        of_key = (g.mT @ q).unflatten(0, (key.shape[0], group)).sum(1)
        return g @ key.repeat_interleave(group, 0), of_key


class MeanOfGroups(KeysInGroups):
    """Wrong: a mean in place of the sum, which one head for a key does not show."""

    @staticmethod
    def backward(ctx, g):
        q, key = ctx.saved_tensors
        group = q.shape[0] // key.shape[0]
        of_key = (g.mT @ q).unflatten(0, (key.shape[0], group)).mean(1)
        return g @ key.repeat_interleave(group, 0), of_key


class ScaleOfGroups(Function):
    """Wrong: the first of the channels that share a scale."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale.repeat_interleave(x.shape[1] // scale.shape[0])

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        group = x.shape[1] // scale.shape[0]
        of_scale = (g * x).sum(0).unflatten(0, (scale.shape[0], group))[:, 0]
        return g * scale.repeat_interleave(group), of_scale


class ReadsTheFirst(Function):
    """Right for as many rows as there are; of more, torch refuses its gradient."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(x, rows)
        return x * rows[: len(x)]

    @staticmethod
    def backward(ctx, g):
        x, rows = ctx.saved_tensors
        return g * rows[: len(x)], g * x


class CrossedGroups(KeysInGroups):
    """Wrong: heads go round the keys in backward, which shows for two keys and more heads alone."""

    @staticmethod
    def backward(ctx, g):
        q, key = ctx.saved_tensors
        group = q.shape[0] // key.shape[0]
        of_key = (g.mT @ q).unflatten(0, (group, key.shape[0])).sum(0)
        return g @ key.repeat(group, 1, 1), of_key
