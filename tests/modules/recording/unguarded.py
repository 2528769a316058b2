import torch
from torch.autograd import Function


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


with open("runs", "a") as file:
    file.write("once\n")
Double.apply(torch.randn(7, requires_grad=True)).sum().backward()
