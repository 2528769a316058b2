from torch.autograd import Function

import os

print("leaving")
os._exit(0)


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
