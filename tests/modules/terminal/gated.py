import torch


class GatedSum(torch.autograd.Function):
    """sigmoid(gate) * (a*b + c*d), of five inputs."""

    @staticmethod
    def forward(ctx, a, b, c, d, gate):
        s = torch.sigmoid(gate)
        ctx.save_for_backward(a, b, c, d, gate)
        return s * (a * b + c * d)

    @staticmethod
    def backward(ctx, grad_output):
        a, b, c, d, gate = ctx.saved_tensors
        s = torch.sigmoid(gate)
        g = grad_output * s * s
        return g * b, g * a, g * d, g * c, g * (1 - s) * (a * b + c * d)
