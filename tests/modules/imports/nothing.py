"""Nothing that has a backward of its own."""
from torch.autograd import Function
from torch import nn

from good import Double


class Module(nn.Module):
    pass


class Base(Function):
    pass


def helper(x):
    return x
