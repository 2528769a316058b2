"""The one place that calls user code. Whatever it does comes back as a value: `Returned` or `Raised`.

What this machine lacks: a GPU, and what follows for kernels that want one; a package; memory.

An exception that tells of the machine says nothing of the Function: it is not verified, and has not failed.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import random
import re
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch

from gradverify.model import RaisedError
from gradverify.verifier.guard import dispatching
from gradverify.verifier.guard.devices import accelerators, kind_of
from gradverify.verifier.guard.global_state import leave_modes, modes
from gradverify.verifier.guard.raised_errors import (
    OF_THE_INTERPRETER,
    describe,
    is_raised_by_hand,
    not_imported,
)

with contextlib.suppress(ImportError):  # torch has loaded NumPy, not yet this part of it: once for all forks
    importlib.import_module("numpy.random")

_WANTS_A_GPU = re.compile(
    r"active drivers \(\[\]\)|cannot be accessed from Triton \(cpu tensor\?\)"
    r"|Torch not compiled with CUDA enabled|No CUDA GPUs are available|Found no NVIDIA driver"
    r"|Could not run '.*' with arguments from the 'CPU' backend.* backends: \[[^\]]*\b(?:CUDA|HIP|XPU|MPS)\b",
    re.DOTALL,
)
"""Parts of messages of torch and Triton for a call that a GPU would have answered."""

_WANTS_THE_CPU = (
    r"Could not run '.*' with arguments from the '{0}' backend|{0}\S* device type tensor to numpy"
)
"""The same of a call on a device of this kind that the CPU would have answered."""

_SPEAKS_OF_A_GPU = re.compile(r"(?i:\b(?:cuda|gpus?|nvidia|rocm)\b|\bis_cuda\b)|\bHIP\b")
"""In a message, or in the line that raises it: the author may refuse tensors that are elsewhere."""

_NO_MEMORY = "can't allocate memory"
"""In torch's message for an allocation on the CPU that the system refuses."""

TOO_LARGE = "It takes more memory than there is here. Use smaller sizes."

_GPU = "`--device cuda` verifies it where there is one"


def needs_the_cpu(error: RaisedError, device: str) -> str:
    """What to do where a forward on a device runs what is for the CPU alone; empty for every other error."""
    kind = kind_of(device)
    if kind == "cpu" or not re.search(_WANTS_THE_CPU.format(kind), error.message, re.IGNORECASE):
        return ""
    return "It runs on the CPU alone, as it is written. `devices: [cpu]` in a spec skips it elsewhere."


def lacking(error: RaisedError, device: str = "cpu") -> str:
    """What a call on tensors of a device lacks, with what to do about it; empty for every other error."""
    lacks, is_of_a_gpu = _lacking(error, device)
    return f"{lacks}{_GPU}; `devices: [cuda]` in a spec skips it elsewhere." if is_of_a_gpu else lacks


def lacking_at_import(error: RaisedError) -> str:
    """The same where a module is imported, which no spec skips."""
    lacks, is_of_a_gpu = _lacking(error, "cpu")
    return f"{lacks}{_GPU}." if is_of_a_gpu else lacks


def lacks_memory(error: RaisedError) -> bool:
    """Whether an exception tells that there was no memory for what was asked for."""
    return error.type in {"MemoryError", "OutOfMemoryError"} or _NO_MEMORY in error.message


def _lacking(error: RaisedError, device: str) -> tuple[str, bool]:
    """What is lacking; whether it is a GPU, whose remedy is yet to be said."""
    of_triton = "Without a GPU, kernels run in Triton's interpreter, which does not support all of Triton. "
    if error.type == OF_THE_INTERPRETER:
        return of_triton, True
    absent = not_imported(error) or (TOO_LARGE if lacks_memory(error) else "")
    if absent or device != "cpu":
        return absent, False
    none, by_hand = "" if accelerators() else ", and there is none here", is_raised_by_hand(error)
    if not by_hand and _WANTS_A_GPU.search(error.message):
        return f"It needs a GPU{none}. ", True
    if not (error.deliberate or error.type == "RuntimeError"):  # of a C++ operator's check
        return "", False
    line = error.frames[-1].source if by_hand else ""
    texts = ("What it raises", error.message), ("The line that raises it", line)
    spoken = next((what for what, text in texts if _SPEAKS_OF_A_GPU.search(text)), "")
    return (f"{spoken} speaks of a GPU{none}: if it needs one, ", True) if spoken else ("", False)


T = TypeVar("T")


DEVICE = ""
"""The default device while user code runs, where its module has set one; empty leaves it alone."""

AFTER_A_CALL: Callable[[], None] | None = None
"""What a worker does after each call of user code: counts it, and gives it back streams that it closed."""


@dataclass
class Calls:
    """A count of calls."""

    made: int = 0


CALLS = Calls()
"""Of user code, in this process."""

LET_THROUGH: Callable[[BaseException], bool] | None = None
"""Whether an exception is not user code's: none is in a worker; in a caller's process, those that end it."""

LOST_WORDS = ("CUDA error:", "HIP error:", "device-side assert")
"""Parts of messages of errors after which a context answers every call with the same error."""

OF_BACKWARD = 1_000_003
"""Added to a seed for the states that backward starts from; any number does."""


@dataclass(frozen=True)
class Returned(Generic[T]):
    """User code came back with a value."""

    value: T


@dataclass(frozen=True)
class Raised:
    """User code raised; `error` holds its own frames alone."""

    error: RaisedError


class EndsTheTargetError(RuntimeError):
    """What no check can make a value of: whatever is asked of the target from here on fails too."""


class OutOfStepError(EndsTheTargetError):
    """Ranks wait for what will never come, or one of them has ended: none of them answers any more."""

    def __init__(self, message: str, doing: str = "") -> None:
        """`doing` is what they were asked for, as `in backward`."""
        super().__init__(f"{message} ({doing})" if doing else message)
        self.in_backward = doing == "in backward"


class NotJudgedError(EndsTheTargetError):
    """Nothing can be said of the target, and nothing is wrong with it."""

    def __init__(self, message: str, hint: str) -> None:
        """Why, and what to do about it."""
        super().__init__(message)
        self.hint = hint


class DeviceLostError(EndsTheTargetError):
    """An accelerator's context is lost: whatever this process asks of it from here on fails too."""

    def __init__(self, error: RaisedError) -> None:
        """`error` is what user code raised, or what waiting for its kernels did."""
        super().__init__(f"{error.type}: {error.message}")
        self.error = error


def is_device_lost(error: BaseException) -> bool:
    """Whether an exception tells that an accelerator's context is lost: a kernel left its memory, say.

    Which of these errors spoil the context no one documents for all devices: all count. Running out of
    memory is none of them.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    raised_by_torch = type(error).__name__ == "AcceleratorError"  # since torch 2.8
    return raised_by_torch or any(words in str(error) for words in LOST_WORDS)


def call(function: Callable[..., T], *arguments: Any, **named: Any) -> Returned[T] | Raised:  # noqa: ANN401
    """Call user code and turn every exception into a value.

    `SystemExit` and `KeyboardInterrupt` too: the terminal's Ctrl-C never reaches this process, so one
    that arrives here was raised by the code itself. Where it may be for us that it raises, the call is made
    again as in a program of its own: without the modes that watch it, and with a compiler that has not seen
    all our layouts and sizes. Not where something was written by then.
    Raises `DeviceLostError` where nothing can be asked of the device any more: kernels are waited for, so
    that it is this call's.
    """
    watching = dispatching.active()
    versions = _versions(arguments) if watching or dispatching.is_compiler_loaded() else ()
    found, is_compilers = _attempt(function, arguments, named)
    if isinstance(found, Returned) or not (watching or is_compilers):
        return found
    if not all(mode.may_leave for mode in watching) or versions != _versions(arguments):
        return found
    if is_compilers:
        dispatching.forget_compiled()
    with dispatching.left(watching):
        return _attempt(function, arguments, named)[0]


def _attempt(
    function: Callable[..., T], arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Returned[T] | Raised, bool]:
    """What a call came back with, and whether torch's compiler raised it."""
    entered = modes()
    try:
        result = function(*arguments, **named) if not DEVICE else _with_its_device(function, arguments, named)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return Returned(result), False
    except BaseException as error:
        if lets_through(error) or isinstance(error, EndsTheTargetError):
            raise
        if is_device_lost(error):
            raise DeviceLostError(describe(error)) from error
        return Raised(describe(error)), dispatching.is_of_compiler(error)
    finally:
        if modes() != entered:  # those of the code's own, which ours must not run in
            leave_modes(entered)
        CALLS.made += 1
        if AFTER_A_CALL is not None:
            AFTER_A_CALL()


def _versions(arguments: Sequence[Any]) -> list[int]:
    """How often each tensor among some arguments was written to."""
    several = (a if isinstance(a, list | tuple) else (a,) for a in arguments)
    tensors = (one for values in several for one in values if isinstance(one, torch.Tensor))
    return [t._version for t in tensors if not t.is_inference()]  # noqa: SLF001 - its only name


def under(
    mode: contextlib.AbstractContextManager[Any], function: Callable[[], T], otherwise: Callable[[], T]
) -> T:
    """Call user code under a mode of ours; where it raises, `otherwise` without. Raises what that raises."""
    try:
        with mode:
            return function()
    except Exception as error:
        if is_device_lost(error) or lets_through(error) or isinstance(error, EndsTheTargetError):
            raise
    return otherwise()


def lets_through(error: BaseException) -> bool:
    """Whether an exception is not user code's, but whoever's who debugs it."""
    return LET_THROUGH is not None and LET_THROUGH(error)


def _with_its_device(function: Callable[..., T], arguments: Sequence[Any], named: Mapping[str, Any]) -> T:
    with torch.device(DEVICE):
        return function(*arguments, **named)


class LeavingTheCallers:
    """Leave alone for a while what is meant for the caller, in whose own process user code runs.

    Exits, Ctrl-C, a debugger that is left, and whatever else is no `Exception`: a test runner's time limit.
    """

    def __enter__(self) -> None:
        global LET_THROUGH  # noqa: PLW0603 - what `call` looks at; set back on the way out
        self._before = LET_THROUGH
        LET_THROUGH = _is_the_callers

    def __exit__(self, *_: object) -> None:
        global LET_THROUGH  # noqa: PLW0603
        LET_THROUGH = self._before


def _is_the_callers(error: BaseException) -> bool:
    return isinstance(error, BdbQuit) or not isinstance(error, Exception)


class RandomStates:
    """The random states every call starts from, so that a stochastic forward repeats itself.

    Covers torch (CPU and every CUDA device), `random` and NumPy where user code has loaded it. Backward
    starts from others than forward: between the two a training step draws as it likes, so a backward that
    draws a mask again instead of keeping it must not find forward's.
    """

    def __init__(self, seed: int) -> None:
        """Seed every generator for backward and for forward, and remember the states."""
        self._of_backward = _Generators.seeded(seed + OF_BACKWARD)
        self._of_forward = self._last = _Generators.seeded(seed)

    def replay(self) -> None:
        """Set every generator to where forward starts."""
        self._last = self._of_forward
        self._last.set_back()

    def replay_for_backward(self) -> None:
        """Set every generator to where backward starts."""
        self._last = self._of_backward
        self._last.set_back()

    def untouched(self) -> bool:
        """Whether nothing has drawn a random number since the last replay."""
        return self._last.untouched()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave every generator as it is for what runs inside, as a checkpoint does for a second forward."""
        last = self._last
        try:
            with unmoved():
                yield
        finally:
            self._last = last

    def forwards_alone(self) -> RandomStates:
        """The same where backward finds what forward found, too: it draws the same numbers there."""
        alone = copy.copy(self)
        alone._of_backward = self._of_forward  # noqa: SLF001 - its own kind
        return alone


@contextlib.contextmanager
def unmoved() -> Iterator[None]:
    """Set every generator back at the end."""
    now, numpy = _Generators.now(), sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        now.set_back()
        if numpy is not None:
            numpy.random.set_state(of_numpy)


@dataclass(frozen=True)
class _Generators:
    """The states of every generator at one time."""

    of_python: tuple[Any, ...]
    of_torch: torch.Tensor
    of_cuda: list[torch.Tensor]
    numpy_seed: int

    @classmethod
    def seeded(cls, seed: int) -> _Generators:
        """Seed them; NumPy when it is set back, where user code has loaded it by then."""
        random.seed(seed)
        # Not `torch.manual_seed`: for every kind of device not in use it keeps a stack trace, which takes
        # longer than a small forward.
        torch.default_generator.manual_seed(seed % 2**63)
        if cuda_in_use():
            torch.cuda.manual_seed_all(seed % 2**63)
        return cls.now(seed % 2**32)

    @classmethod
    def now(cls, numpy_seed: int = 0) -> _Generators:
        """As they are; of NumPy's only the seed is known."""
        cuda = torch.cuda.get_rng_state_all() if cuda_in_use() else []
        return cls(random.getstate(), torch.get_rng_state(), cuda, numpy_seed)

    def set_back(self) -> None:
        random.setstate(self.of_python)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda:
            torch.cuda.set_rng_state_all(self.of_cuda)
        numpy = sys.modules.get("numpy")
        if numpy is not None:  # as an attribute: NumPy loads its `random` only when it is first asked for
            numpy.random.seed(self.numpy_seed)

    def untouched(self) -> bool:
        if random.getstate() != self.of_python or not torch.equal(torch.get_rng_state(), self.of_torch):
            return False
        if self.of_cuda and not all(map(torch.equal, torch.cuda.get_rng_state_all(), self.of_cuda)):
            return False
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return True
        now, fresh = numpy.random.get_state(), _numpy_state(self.numpy_seed)
        return bool(now[2] == fresh[2] and (now[1] == fresh[1]).all())


@lru_cache(maxsize=64)
def _numpy_state(seed: int) -> tuple[Any, ...]:
    """The state of NumPy's generator once it is seeded. Remembered: making one takes as long as a forward."""
    numpy = sys.modules["numpy"]
    state: tuple[Any, ...] = numpy.random.RandomState(seed).get_state()
    return state


def cuda_in_use() -> bool:
    """Whether this process has used a CUDA device."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


_replaced: list[torch.dtype] = []
"""Default dtypes that others stand in for, the last one for now."""


@contextlib.contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """Torch's default dtype while a target runs, by name; an empty one leaves it."""
    before = torch.get_default_dtype()
    _replaced.append(before)
    if name:
        torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        _replaced.pop()
        torch.set_default_dtype(before)


@contextlib.contextmanager
def own_default_dtype() -> Iterator[None]:
    """The default dtype that a process of the user's has, as for inputs that have no more digits."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(_replaced[-1] if _replaced else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
