"""Functions whose right backward needs a size that is computed: twice another, one more, halved."""

import torch
from torch.autograd import Function


class TwoGroups(Function):
    """The features are two groups: half of them each."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        grouped = x.view(x.shape[0], 2, -1)
        return (grouped * grouped.mean(-1, keepdim=True)).view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Window(Function):
    """Neighbours are summed, beyond the ends zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.nn.functional.pad(x * x, (1, 1)).unfold(1, 3, 1).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Patches(Function):
    """An image cut into patches, which are no view of it."""

    @staticmethod
    def forward(ctx, image, weight):
        rows, columns = image.shape[0] // 2, image.shape[1] // 2
        patches = image.reshape(rows, 2, columns, 2).transpose(1, 2).reshape(rows * columns, 4)
        ctx.save_for_backward(patches, weight)
        return patches @ weight

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output


class MeanStd(Function):
    """Divided by one less than there are."""

    @staticmethod
    def forward(ctx, x):
        mean, std = x.mean(1), x.std(1)
        ctx.save_for_backward(x, mean, std)
        return mean, std

    @staticmethod
    def backward(ctx, grad_mean, grad_std):
        return grad_mean[:, None]


class Differences(Function):
    """One row less than there are."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x[1:] - x[:-1]).tanh()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Recurrence(Function):
    """As many steps as rows."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        h = torch.zeros_like(x[0])
        for row in x:
            h = torch.tanh(w * h + row)
        return h

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output.expand_as(x), w * grad_output


class Segments(Function):
    """A size that no tensor has."""

    @staticmethod
    def forward(ctx, x, segment, count):
        ctx.save_for_backward(x, segment)
        return x.new_zeros(count).index_add(0, segment, x.exp())

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[:1], None, None
