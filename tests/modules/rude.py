"""Functions that disturb what is around them and are right all the same."""
import os
import random
import sys
import threading
import time

import torch
from torch.autograd import Function

torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
os.chdir("/")
os.environ["SET_ON_IMPORT"] = "1"
sys.stdout.write("hello from the import\n")


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Prints(Double):
    @staticmethod
    def backward(ctx, grad):
        print("through print")
        os.write(1, b"through descriptor 1: \xff\n")
        sys.stderr.write("through stderr ✓\n")
        return 2 * grad


class PrintsAndIsWrong(Prints):
    @staticmethod
    def backward(ctx, grad):
        return 1.5 * Prints.backward(ctx, grad)


class ClosesDescriptors(Double):
    @staticmethod
    def forward(ctx, x):
        for descriptor in (0, 1, 2):
            try:
                os.close(descriptor)
            except OSError:
                pass
        return 2 * x


class PrintsAfterThatAndIsWrong(PrintsAndIsWrong):
    pass


class ClosesThemAtEveryCall(Double):
    """Finds them open at each call."""

    @staticmethod
    def forward(ctx, x):
        os.close(1)
        os.close(2)
        return 2 * x


class PrintsAfterThatThirdAndIsWrong(PrintsAndIsWrong):
    pass


class ClosesStdout(Double):
    @staticmethod
    def forward(ctx, x):
        sys.stdout.close()
        sys.stderr = None
        return 2 * x


class PrintsAfterThatTooAndIsWrong(PrintsAndIsWrong):
    pass


class ReplacesStdout(Double):
    @staticmethod
    def forward(ctx, x):
        sys.stdout = object()
        return 2 * x


class LeavesThreads(Double):
    @staticmethod
    def forward(ctx, x):
        threading.Thread(target=time.sleep, args=(54321,)).start()
        return 2 * x


class ChangesEverything(Double):
    @staticmethod
    def forward(ctx, x):
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        torch.manual_seed(time.time_ns())
        random.seed()
        os.chdir("/tmp")
        os.environ.clear()
        os.environ["LEFT"] = "behind"
        return 2 * x


class FindsEverythingAsItWas(Double):
    @staticmethod
    def forward(ctx, x):
        assert torch.get_default_dtype() == torch.float64
        assert os.getcwd() == "/"
        assert "LEFT" not in os.environ
        assert os.environ["SET_ON_IMPORT"] == "1"
        assert torch.get_num_threads() == 1
        return 2 * x


class ForksAndGoesOn(Double):
    """What forks, and whose child never ends itself."""

    forked = 0

    @staticmethod
    def forward(ctx, x):
        if ForksAndGoesOn.forked < 2:
            ForksAndGoesOn.forked += 1
            os.fork()
        return 2 * x


class RaisesInAThread(Double):
    @staticmethod
    def backward(ctx, grad):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        return 2 * grad
