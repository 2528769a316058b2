"""Functions that set what holds for the whole process; a right and a wrong one behind each."""

import signal
import warnings

import numpy as np
import torch
from torch.autograd import Function
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

torch.set_default_device("cuda")
torch.set_float32_matmul_precision("medium")


class Right(Function):
    """Finds everything as it was."""

    @staticmethod
    def forward(ctx, x):
        assert torch.zeros(1).device == x.device
        assert torch.get_default_dtype() is torch.float32
        assert not torch_modules._global_forward_hooks
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_anomaly_enabled()
        assert torch.get_num_threads() == 1
        assert not torch.overrides._get_current_function_mode_stack()[1:]
        assert np.geterr()["divide"] == "warn"
        assert torch.backends.cudnn.deterministic is False
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Wrong(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


class Nothing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return None


class SetsTheDevice(Right):
    @staticmethod
    def forward(ctx, x):
        torch.set_default_device("meta")
        return 2 * x


class RightAfterSetsTheDevice(Right):
    pass


class WrongAfterSetsTheDevice(Wrong):
    pass


class SetsTheDtype(Right):
    @staticmethod
    def forward(ctx, x):
        torch.set_default_dtype(torch.float16)
        return 2 * x


class RightAfterSetsTheDtype(Right):
    pass


class WrongAfterSetsTheDtype(Wrong):
    pass


class SetsThePrecision(Right):
    @staticmethod
    def forward(ctx, x):
        torch.set_float32_matmul_precision("high")
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        torch.backends.cudnn.deterministic = True
        return 2 * x


class RightAfterSetsThePrecision(Right):
    pass


class WrongAfterSetsThePrecision(Wrong):
    pass


class SetsHooks(Right):
    @staticmethod
    def forward(ctx, x):
        torch_modules.register_module_forward_hook(lambda *_: 1 / 0)
        torch.autograd.graph.saved_tensors_hooks(lambda t: 1 / 0, lambda t: t).__enter__()
        return 2 * x


class RightAfterSetsHooks(Right):
    pass


class WrongAfterSetsHooks(Wrong):
    pass


class SetsTorchsModes(Right):
    @staticmethod
    def forward(ctx, x):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_autocast_enabled("cpu", True)
        torch.autograd.set_detect_anomaly(True)
        torch.set_num_threads(2)
        torch.set_flush_denormal(True)
        return 2 * x


class RightAfterSetsTorchsModes(Right):
    pass


class WrongAfterSetsTorchsModes(Wrong):
    pass


class LeavesAModeEntered(Right):
    @staticmethod
    def forward(ctx, x):
        y = 2 * x
        Nothing().__enter__()
        return y


class RightAfterLeavesAModeEntered(Right):
    pass


class WrongAfterLeavesAModeEntered(Wrong):
    pass


class SetsWarnings(Right):
    @staticmethod
    def forward(ctx, x):
        warnings.simplefilter("error")
        np.seterr(all="raise")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 30)
        return 2 * x


class RightAfterSetsWarnings(Right):
    pass


class WrongAfterSetsWarnings(Wrong):
    pass
