from torch.autograd import Function

from . import __name__ as where
from ..constants import TWO

assert where == "package.inner"


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return TWO * x

    @staticmethod
    def backward(ctx, grad):
        return TWO * grad
