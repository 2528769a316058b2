import torch


class Variance(torch.autograd.Function):
    """By the mean of squares, which cancels where the mean is large."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x + 1e6
        return (y * y).mean(1) - y.mean(1) ** 2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * (x - x.mean(1, keepdim=True)) / x.shape[1] * grad_output[:, None]
