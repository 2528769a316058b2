"""Nothing that has a backward of its own."""
from torch.autograd import Function
from right import Product


class Base(Function):
    pass


def helper(x):
    return x
