"""Switches of the process that user code can set: remembered before it runs, set back between targets."""
# ruff: noqa: SLF001 - most switches of torch have no public name

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

_C: Any = torch._C
_AUTOGRAD: Any = _C._autograd

FLAGS = (
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_enabled",
    "mkldnn_deterministic",
    "mkldnn_enabled",
    "nnpack_enabled",
    "warnAlways",
)
"""Switches that torch has as `_get_NAME` and `_set_NAME`."""

PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "all"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)
"""What has an `fp32_precision` of its own since torch 2.9: (backend, operations) pairs, the whole before its
parts, since setting one sets the others."""

AUTOCAST = ("cpu", "cuda")
"""Kinds of devices that autocast is switched for."""


@dataclass(frozen=True)
class Switch:
    """One thing that is set for the whole process."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]
    ours: bool = True
    """What a module sets on import it sets for everyone who imports it, so that its targets are to have it.
    Not so with switches that gradverify's own code depends on."""


@dataclass(frozen=True)
class GlobalState:
    """What every switch is at."""

    values: Mapping[str, Any]

    @staticmethod
    def take() -> GlobalState:
        """Remember the switches as they are."""
        return GlobalState({switch.name: switch.get() for switch in SWITCHES})

    def restore(self) -> None:
        """Set back what differs."""
        for switch in SWITCHES:
            if switch.get() != self.values[switch.name]:
                with contextlib.suppress(OSError, RuntimeError, ValueError):  # a folder that was removed
                    switch.set(self.values[switch.name])

    def after_import(self) -> GlobalState:
        """What the targets of a module start with that was imported since: some switches stay ours."""
        now = {switch.name: switch.get() for switch in SWITCHES}
        return GlobalState({s.name: self.values[s.name] if s.ours else now[s.name] for s in SWITCHES})


def default_device() -> torch.device | None:
    """What `torch.set_default_device` was given; None where it was not called."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def modes() -> tuple[int, int]:
    """How many modes of functions and of the dispatcher are entered."""
    return _C._len_torch_function_stack(), _C._len_torch_dispatch_stack()


def leave_modes(before: tuple[int, int]) -> None:
    """Leave those that were entered since. That of a default device is not always the last."""
    if not before[0] and default_device() is not None:
        torch.set_default_device(None)
    while _C._len_torch_function_stack() > before[0]:
        _C._pop_torch_function_stack()
    while _C._len_torch_dispatch_stack() > before[1]:
        _C._pop_torch_dispatch_stack()


def _of_precision() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object], Any]]:
    """How each precision of float32 operations is had and set, and the one without short cuts."""
    if hasattr(_C, "_get_fp32_precision_getter"):
        for pair in PRECISIONS:
            get, put = _C._get_fp32_precision_getter, _C._set_fp32_precision_setter
            yield partial(get, *pair), partial(put, *pair), "ieee"
    else:
        for name in ("cublas_allow_tf32", "cudnn_allow_tf32"):
            yield getattr(_C, f"_get_{name}"), getattr(_C, f"_set_{name}"), False


_PRECISIONS = tuple(_of_precision())

EXACT = ("", *(exact for *_, exact in _PRECISIONS))
"""No TF32 and no bfloat16 inside."""


def precisions() -> tuple[Any, ...]:
    """What float32 operations compute with: by the older interface, empty where both were used; then each."""
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        legacy = ""
    return (legacy, *(get() for get, *_ in _PRECISIONS))


def set_precisions(values: tuple[Any, ...]) -> None:
    """Set what differs."""
    legacy, *others = values
    if legacy and precisions()[0] != legacy:
        torch.set_float32_matmul_precision(legacy)
    for (get, put, _), value in zip(_PRECISIONS, others, strict=True):
        if get() != value:
            put(value)


def _autocast() -> tuple[Any, ...]:
    kinds = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST]
    return (*kinds, torch.is_autocast_cache_enabled())


def _set_autocast(values: tuple[Any, ...]) -> None:
    *kinds, cached = values
    for kind, (enabled, dtype) in zip(AUTOCAST, kinds, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cached)


def _hooks() -> dict[str, Any]:
    named = {name: value for name, value in vars(torch_modules).items() if name.startswith("_global_")}
    return {name: dict(value) if isinstance(value, dict) else value for name, value in named.items()}


def _set_hooks(values: dict[str, Any]) -> None:
    for name, value in values.items():
        now = getattr(torch_modules, name, None)
        if isinstance(now, dict):
            now.clear()
            now.update(value)
        else:
            setattr(torch_modules, name, value)


def _saved_tensors_hooks() -> int:
    """Whether hooks on saved tensors are entered: torch tells the last pair alone."""
    ignore_is_tracing = False
    return int(_AUTOGRAD._top_saved_tensors_default_hooks(ignore_is_tracing) is not None)


def _pop_saved_tensors_hooks(_: int) -> None:
    while _saved_tensors_hooks():
        _AUTOGRAD._pop_saved_tensors_default_hooks()


def _flushes_denormals() -> bool:
    return not (torch.tensor(1e-310, dtype=torch.float64) * 1.0).item()


def _numpy_errors() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {} if numpy is None else numpy.geterr()


def _set_numpy_errors(values: dict[str, Any]) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is not None and values:
        numpy.seterr(**values)


def _alarm() -> bool:
    return any(signal.getitimer(signal.ITIMER_REAL))


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _set_path(values: list[str]) -> None:
    sys.path[:] = values


def _set_warnings(values: list[Any]) -> None:
    module: Any = warnings
    module.filters = list(values)
    module._filters_mutated()


def _of_python() -> Iterator[Switch]:
    yield Switch("warnings", lambda: list(warnings.filters), _set_warnings)
    yield Switch("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, ours=False)
    yield Switch("sys.path", lambda: list(sys.path), _set_path, ours=False)
    yield Switch("folder", lambda: str(Path.cwd()), os.chdir, ours=False)
    yield Switch("environment", lambda: dict(os.environ), _set_environment, ours=False)
    yield Switch("NumPy's errors", _numpy_errors, _set_numpy_errors, ours=False)
    if hasattr(signal, "setitimer"):
        yield Switch("alarm", _alarm, lambda _: signal.setitimer(signal.ITIMER_REAL, 0.0))


def _of_torch() -> Iterator[Switch]:
    yield Switch("default device", default_device, torch.set_default_device)
    yield Switch("modes", modes, leave_modes)
    yield Switch("default dtype", torch.get_default_dtype, torch.set_default_dtype, ours=False)
    yield Switch("grad mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Switch("threads", torch.get_num_threads, torch.set_num_threads)
    # As the debug mode it can be set back without loading torch's compiler.
    yield Switch(
        "deterministic",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        ours=False,
    )
    yield Switch("float32 precision", precisions, set_precisions, ours=False)
    yield Switch("denormals", _flushes_denormals, torch.set_flush_denormal, ours=False)
    yield Switch("autocast", _autocast, _set_autocast)
    yield Switch("anomaly mode", torch.is_anomaly_enabled, torch.set_anomaly_enabled)
    yield Switch("hooks of all modules", _hooks, _set_hooks, ours=False)
    yield Switch("hooks of saved tensors", _saved_tensors_hooks, _pop_saved_tensors_hooks)
    for name in FLAGS:
        get, put = getattr(_C, f"_get_{name}", None), getattr(_C, f"_set_{name}", None)
        if get is not None and put is not None:
            yield Switch(name, get, put, ours=False)


SWITCHES = (*_of_python(), *_of_torch())
"""Every switch that is restored."""
