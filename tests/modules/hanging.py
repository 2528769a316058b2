"""Functions that never come back, and one that does."""
import re
import subprocess
import sys

from torch.autograd import Function


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class LoopsInBackward(Double):
    @staticmethod
    def backward(ctx, grad):
        print("still going")
        subprocess.Popen(["sleep", "54321"])
        subprocess.Popen(["sleep", "54321"], start_new_session=True)
        while True:
            pass


class HoldsTheInterpreter(Double):
    """A regular expression that backtracks for ever and never lets another thread run."""

    @staticmethod
    def forward(ctx, x):
        re.match(r"(a+)+b", "a" * 64)
        return 2 * x


class IgnoresEveryException(Double):
    @staticmethod
    def backward(ctx, grad):
        while True:
            try:
                sys.stdout.write("")
            except BaseException:
                pass


class Last(Double):
    pass
