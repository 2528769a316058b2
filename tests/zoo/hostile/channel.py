"""Functions that write to descriptors which are not theirs; a right and a wrong one behind each."""

import contextlib
import os
import threading
import time

from torch.autograd import Function

DESCRIPTORS = range(200, 261)


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


def write_everywhere(text):
    for descriptor in DESCRIPTORS:
        with contextlib.suppress(OSError):
            os.write(descriptor, text)


class SaysDone(Right):
    """Ends an answer before there is one."""

    @staticmethod
    def forward(ctx, x):
        write_everywhere(b'{"":"Done"}\n')
        return 2 * x


class RightAfterDone(Right):
    pass


class WrongAfterDone(Wrong):
    pass


class SaysDoneOfTheFirstRequest(Right):
    @staticmethod
    def backward(ctx, grad):
        write_everywhere(b'0 {"":"Done"}\n1 {"":"Done"}\n2 {"":"Done"}\n')
        return 2 * grad


class RightAfterNumbers(Right):
    pass


class WrongAfterNumbers(Wrong):
    pass


class SaysHalfALine(Right):
    @staticmethod
    def backward(ctx, grad):
        write_everywhere(b'{"":"Done"')
        return 2 * grad


class RightAfterHalfALine(Right):
    pass


class WrongAfterHalfALine(Wrong):
    pass


class WritesLater(Right):
    """What it writes comes when the next one is verified, or nobody is."""

    started = False

    @staticmethod
    def forward(ctx, x):
        if not WritesLater.started:
            WritesLater.started = True
            threading.Thread(target=WritesLater.write, daemon=True).start()
        return 2 * x

    @staticmethod
    def write():
        for _ in range(200):
            time.sleep(0.01)
            write_everywhere(b'{"":"Done"}\n')


class RightAfterAThread(Right):
    pass


class WrongAfterAThread(Wrong):
    pass
