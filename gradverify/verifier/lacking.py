"""What this machine lacks: a GPU, and what follows for kernels that want one; a package.

An exception that tells of the machine says nothing of the Function: it is not verified, and has not failed.
"""

from __future__ import annotations

import re

from gradverify.model import RaisedError
from gradverify.verifier.devices import accelerators, kind_of
from gradverify.verifier.interpreter.out_of_bounds import OF_THE_INTERPRETER
from gradverify.verifier.names_bound import missing_package

WANTS_A_GPU = (
    "active drivers ([])",  # triton
    "Torch not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "with arguments from the 'CPU' backend",  # an operator that has kernels for other devices alone
)
"""Parts of messages of a call that a GPU would have answered."""

_SPEAKS_OF_A_GPU = re.compile(r"\b(?:cuda|gpus?|nvidia|hip|rocm)\b|\bis_cuda\b", re.IGNORECASE)
"""In a message, or in the line that raises it: the author may refuse tensors that are elsewhere."""


_NO_POINTER = "cannot be accessed from Triton (cpu tensor?)"
"""In Triton's message for a tensor of the CPU, where a kernel is compiled."""

_CPU_ALONE = (
    "{device} device type tensor to numpy",  # Tensor.numpy
    "with arguments from the '{backend}' backend",  # an operator without kernels there
)
"""In messages of torch for what runs on tensors of the CPU alone; `device` may be `cuda:0`."""


def needs_the_cpu(error: RaisedError, device: str) -> str:
    """What to do where a forward on a device runs what is for the CPU alone; empty for every other error."""
    kind = kind_of(device)
    message = re.sub(rf"\b{kind}:\d+", kind, error.message)
    if kind == "cpu" or not any(m.format(device=kind, backend=kind.upper()) in message for m in _CPU_ALONE):
        return ""
    return "It runs on the CPU alone, as it is written. `devices: [cpu]` in a spec skips it elsewhere."


def lacking(error: RaisedError, device: str = "cpu") -> str:
    """What a call on tensors of a device lacks, with what to do about it; empty for every other error."""
    gpu = "`--device cuda` verifies it where there is one; `devices: [cuda]` in a spec skips it elsewhere."
    if error.type == OF_THE_INTERPRETER:
        return (
            f"Without a GPU, kernels run in Triton's interpreter, which does not support all of Triton. {gpu}"
        )
    package = missing_package(error)
    if package:
        return f"`{package}` cannot be imported here. Install it: what needs it is verified then."
    here = bool(accelerators())
    if not here and any(words in error.message for words in WANTS_A_GPU):
        return f"It needs a GPU, and there is none here. {gpu}"
    raised_at = error.frames[-1].source if error.deliberate and error.frames else ""
    refused = error.deliberate or error.type == "RuntimeError"  # of a C++ operator's check
    speaks = refused and _SPEAKS_OF_A_GPU.search(f"{error.message} {raised_at}")
    if device == "cpu" and _NO_POINTER in error.message:
        return f"It takes tensors on a GPU alone{'' if here else ', and there is none here'}. {gpu}"
    if device == "cpu" and speaks:
        none = "" if here else ", and there is none here"
        return f"What it raises speaks of a GPU{none}: if it needs one, {gpu}"
    return ""
