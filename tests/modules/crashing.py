"""Functions that take their process down, each in its own way, between two that are right."""
import ctypes
import os
import signal
import sys

from torch.autograd import Function


class Before(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad


class Passing(Function):
    """The harmless parts of what follows."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class SegfaultInForward(Passing):
    @staticmethod
    def forward(ctx, x):
        print("about to read address 0")
        return 2 * x + len(ctypes.string_at(0))


def read_address_zero():
    return len(ctypes.string_at(0))


class SegfaultInBackward(Passing):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad + read_address_zero()


class ExitsZero(Passing):
    @staticmethod
    def backward(ctx, grad):
        os._exit(0)


class ExitsSeven(Passing):
    @staticmethod
    def forward(ctx, x):
        os._exit(7)


class KilledByTheSystem(Passing):
    @staticmethod
    def backward(ctx, grad):
        os.kill(os.getpid(), signal.SIGKILL)


class BreaksTheChannel(Passing):
    @staticmethod
    def backward(ctx, grad):
        os.closerange(3, 1024)
        return 2 * grad


class WritesIntoTheChannel(Passing):
    @staticmethod
    def backward(ctx, grad):
        for descriptor in range(3, 1024):
            try:
                os.write(descriptor, b"nonsense\n")
            except OSError:
                pass
        return 2 * grad


class SysExit(Passing):
    @staticmethod
    def backward(ctx, grad):
        sys.exit("enough")


class Interrupt(Passing):
    @staticmethod
    def backward(ctx, grad):
        raise KeyboardInterrupt


class EndlessRecursion(Passing):
    @staticmethod
    def backward(ctx, grad):
        return EndlessRecursion.backward(ctx, grad)


class UnprintableError(Passing):
    @staticmethod
    def backward(ctx, grad):
        class Odd(Exception):
            def __str__(self):
                raise ValueError("not even that")
        raise Odd


class Raises(Passing):
    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.no_such_attribute


class After(Before):
    pass
