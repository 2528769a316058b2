"""A second device in plain Python, for machines that have none: every operation on it runs on the CPU.

Its tensors are torch's own, of torch's place for devices from outside (PrivateUse1): `x.device` is
`second:0` or `second:1`, a tensor of the CPU beside one of it is refused, autograd works as on any device.
Code can tell it by `x.device` alone, which is what kernels for one device do. It stands for the comparison
of devices; it has no clock, no streams, no atomics and rounds as the CPU does.
"""

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

NAME = "second"


VALUES = {}
"""The values of each tensor there, by its storage: torch itself makes tensors that share one (detach)."""


def is_there(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def values_of(tensor):
    return VALUES[tensor.untyped_storage()._cdata]


def holding(values):
    made = torch._C._acc.create_empty_tensor(tuple(values.shape), values.dtype)
    VALUES[made.untyped_storage()._cdata] = values
    return made


def on_cpu(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Tensor) and not is_there(value) and value.dim():
        raise RuntimeError("Expected all tensors to be on the same device, but found second:0 and cpu")
    return values_of(value) if is_there(value) else value


def run_on_cpu(operation, *args, **kwargs):
    known = {id(values_of(a)): a for a in (*args, *kwargs.values()) if is_there(a)}
    arguments, options = tree_map(on_cpu, (args, kwargs))

    def wrapped(value):
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else holding(value)

    return tree_map(wrapped, operation(*arguments, **options))


def copy_between(source, target, non_blocking=False):
    source, values = (values_of(t) if is_there(t) else t for t in (source, target))
    values.copy_(source)
    return target


def register():
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL", "PrivateUse1")
    library.fallback(run_on_cpu, "PrivateUse1")
    copies = torch.library.Library("aten", "IMPL", "PrivateUse1")
    copies.impl("_copy_from", copy_between)
    return library, copies


REGISTERED = register()
