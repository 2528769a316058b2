"""An argument as plain data: the cheap part tells calls apart, the full one is written down."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LITERALS = (bool, int, float, str, type(None))

LONGEST_TEXT = 200
"""Characters of a literal string that is written down."""

MOST_KEPT = 64
"""Entries of a tensor that is written down whole: a kernel, a few weights, a table of neighbours."""

MOST_DISTINCT = 4096
"""Entries of an integer tensor that are looked at for duplicates."""


def signature_of(value: Any) -> Any:  # noqa: ANN401
    """What tells one kind of call from another: hashable, and free of the tensor's values."""
    kind = type(value)
    if kind in LITERALS:
        return kind, value
    if kind is list or kind is tuple:
        return kind, tuple([signature_of(item) for item in value])
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        contiguous = value.is_contiguous() if strided else True
        return value.shape, value.dtype, value.requires_grad, contiguous
    return kind, getattr(value, "__qualname__", None)


def described(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """The argument in full, as JSON can say it."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return _tensor(torch, value)
    if isinstance(value, LITERALS) and type(value) in LITERALS:
        return _literal(value)
    if isinstance(value, list | tuple):
        return {
            "kind": "list",
            "items": [described(item) for item in value],
            "tuple": isinstance(value, tuple),
        }
    path = _path(torch, value)
    return {"kind": "object", "path": path, "type": _type(value)}


def _literal(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return {"kind": "object", "path": "", "type": "a long string"}
    if isinstance(value, float) and not math.isfinite(value):
        return {"kind": "literal", "float": repr(value)}
    return {"kind": "literal", "value": value}


def _tensor(torch: Any, value: Any) -> dict[str, Any]:  # noqa: ANN401
    note: dict[str, Any] = {
        "kind": "tensor",
        "shape": [int(size) for size in value.shape],
        "dtype": str(value.dtype).removeprefix("torch."),
        "requires_grad": bool(value.requires_grad),
        "layout": str(value.layout).removeprefix("torch."),
    }
    if value.layout is torch.strided:
        note |= {"stride": list(value.stride()), "contiguous": bool(value.is_contiguous())}
        plain = type(value) is torch.Tensor or type(value) is torch.nn.Parameter
        if plain and value.numel() and not _is_capturing(torch, value):
            with contextlib.suppress(Exception), torch.no_grad(), _no_modes():
                note |= _values(torch, value.detach())
    return note


def _values(torch: Any, value: Any) -> dict[str, Any]:  # noqa: ANN401
    if value.dtype is torch.bool:
        return {}
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    low, high = (bound.item() for bound in torch.aminmax(value))
    if not (math.isfinite(low) and math.isfinite(high)):
        return {"finite": False}
    note: dict[str, Any] = {"low": low, "high": high}
    if value.dim() and value.numel() <= MOST_KEPT:
        note["values"] = value.tolist()
    if not value.is_floating_point() and value.numel() <= MOST_DISTINCT:
        flat = value.reshape(-1)
        note["distinct"] = len(flat.unique()) == flat.numel()
        note["sorted"] = value.dim() == 1 and bool((flat[1:] >= flat[:-1]).all())
    return note


def _is_capturing(torch: Any, value: Any) -> bool:  # noqa: ANN401
    """Whether a CUDA graph is being captured, which reading a value would break."""
    return bool(value.is_cuda and torch.cuda.is_current_stream_capturing())


def _no_modes() -> contextlib.AbstractContextManager[Any]:
    """Without the dispatch modes that the program has on: they must not see what is only looked at."""
    module = sys.modules.get("torch.utils._python_dispatch")
    disable: Callable[[], contextlib.AbstractContextManager[Any]] | None
    disable = getattr(module, "_disable_current_modes", None)
    return contextlib.nullcontext() if disable is None else disable()


def _type(value: Any) -> str:  # noqa: ANN401
    name = getattr(value, "__qualname__", "")
    return f"`{name}`" if name else f"an object of {type(value).__qualname__}"


def _path(torch: Any, value: Any) -> str:  # noqa: ANN401
    """`module:attribute` by which it can be imported; empty where there is none."""
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        text = str(value)
        return text if getattr(torch, text.removeprefix("torch."), None) is value else ""
    module: object = getattr(value, "__module__", None)
    name: object = getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "builtins":
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module_name(module)}:{name}" if found is value else ""


def module_name(name: str) -> str:
    """The name that a module is imported by: that of a script or `python -m` hides behind `__main__`."""
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec is not None else Path(getattr(main, "__file__", "") or "").stem
