"""Tensors that are none of the plain ones; a right and a wrong Function behind each."""

from torch import Tensor
from torch.autograd import Function


class Refusing(Tensor):
    """Has no difference."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if "sub" in getattr(func, "__name__", ""):
            raise TypeError("no differences here")
        return super().__torch_function__(func, types, args, kwargs or {})


class Right(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Wrong(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


class ReturnsASubclass(Right):
    @staticmethod
    def forward(ctx, x):
        return (2 * x).as_subclass(Refusing)


class RightAfterReturnsASubclass(Right):
    pass


class WrongAfterReturnsASubclass(Wrong):
    pass


class ReturnsATupleOfThem(Right):
    @staticmethod
    def forward(ctx, x):
        return 2 * x, (3 * x).as_subclass(Refusing)

    @staticmethod
    def backward(ctx, grad, other):
        return 2 * grad + 3 * other


class RightAfterReturnsATupleOfThem(Right):
    pass


class WrongAfterReturnsATupleOfThem(Wrong):
    pass


class ChangesTheClass(Right):
    @staticmethod
    def forward(ctx, x):
        y = 2 * x
        y.__class__ = Refusing
        return y


class RightAfterChangesTheClass(Right):
    pass


class WrongAfterChangesTheClass(Wrong):
    pass


class ChangesTheClassOfItsInput(Right):
    @staticmethod
    def forward(ctx, x):
        x.__class__ = Refusing
        return 2 * x.as_subclass(Tensor)


class RightAfterChangesTheClassOfItsInput(Right):
    pass


class WrongAfterChangesTheClassOfItsInput(Wrong):
    pass


class ReturnsAGradientOfASubclass(Right):
    @staticmethod
    def backward(ctx, grad):
        return (2 * grad).as_subclass(Refusing)


class RightAfterReturnsAGradientOfASubclass(Right):
    pass


class WrongAfterReturnsAGradientOfASubclass(Wrong):
    pass


class WrongGradientOfASubclass(Right):
    @staticmethod
    def backward(ctx, grad):
        return (3 * grad).as_subclass(Refusing)
