"""Functions of CUDA's libdevice, which the interpreter of Triton 3.9 cannot call, by torch on the CPU.

A kernel that imports one from `triton.language.extra.libdevice` gets None from it there, one from
`triton.language.extra.cuda.libdevice` an error. Needed by geglu (`tanh`), rms_norm and layer_norm (`rsqrt`)
of liger-kernel 0.8.5.

Names and what they compute: CUDA's libdevice user's guide, https://docs.nvidia.com/cuda/libdevice-users-guide/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isfunction
from typing import Any

import torch
from torch import Tensor

_PREFIX, _OF_FLOAT32 = "__nv_", "f"

_NAMED_ALIKE = (
    "abs ceil floor trunc sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 "
    "sinh cosh tanh asinh acosh atanh pow fmod hypot copysign erf erfc erfinv lgamma isnan isinf signbit"
)

_CORRECTLY_ROUNDED = {"rcp": "reciprocal", **{name: name for name in ("sqrt", "div", "mul", "add", "sub")}}

_FAST = ("sin", "cos", "tan", "exp", "log", "log2", "log10", "pow")

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _NAMED_ALIKE.split()},
    **{f"{letter}{n}_rn": getattr(torch, f) for letter in ("d", "f") for n, f in _CORRECTLY_ROUNDED.items()},
    "fabs": torch.abs,
    **dict.fromkeys(("rint", "nearbyint"), torch.round),
    "round": lambda x: torch.copysign(torch.floor(x.abs() + 0.5), x),
    "exp10": partial(torch.pow, 10.0),
    "cbrt": lambda x: torch.copysign(x.abs() ** (1 / 3), x),
    "rcbrt": lambda x: torch.copysign(x.abs() ** (-1 / 3), x),
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    **{f"{name}d": getattr(torch, name) for name in ("isnan", "isinf", "signbit", "isfinite")},
    "finite": torch.isfinite,
    "fdim": lambda x, y: torch.clamp(x - y, min=0),
    "fma": lambda x, y, z: torch.addcmul(z, x, y),
    "saturate": lambda x: torch.clamp(x, 0, 1),
    **{f"fast_{name}": getattr(torch, name) for name in _FAST},
    "fast_fdivide": torch.div,
}
"""By the symbol, without its prefix and the `f` of float32."""


def install(interpreter: Any) -> None:  # noqa: ANN401 - Triton's module
    """Have the interpreter compute these functions wherever a kernel calls them.

    Kernels hold the functions by names of their own: what changes is what the functions do, and no name.
    """
    import triton.language.extra.cuda.libdevice as compiled  # noqa: PLC0415 - Triton is loaded already
    import triton.language.extra.libdevice as stubs  # noqa: PLC0415

    interpreter.InterpreterBuilder.create_extern_elementwise = partial(_computed, interpreter)
    for name, function in vars(compiled).items():
        if getattr(function, "__module__", "") != compiled.__name__ or not isfunction(function):
            continue
        function.__code__ = _of_compiled(function).__code__
        function.__kwdefaults__ = {"_semantic": interpreter.interpreter_semantic}
        stub = getattr(stubs, name, None)
        if isfunction(stub):
            stub.__code__ = _of_stub.__code__
            stub.__kwdefaults__ = {"function": function}


def _of_stub(*arguments: Any, function: Callable[..., Any]) -> Any:  # noqa: ANN401
    """What a function for whatever device does in the interpreter: what CUDA's does."""
    return function(*arguments)


def _of_compiled(fn: Callable[..., Any]) -> Any:  # noqa: ANN401 - the code of it is taken
    """What one of CUDA's does in the interpreter: it is given what the compiler would give it.

    Triton's decorator keeps the function in one closure variable, as this does.
    """

    def call(*arguments: Any, _semantic: Any, **options: Any) -> Any:  # noqa: ANN401
        return fn(*arguments, _semantic=_semantic, **options)

    return call


def _computed(
    interpreter: Any,  # noqa: ANN401 - Triton's module
    _library: str,
    _path: str,
    symbol: str,
    arguments: list[Any],
    result: Any,  # noqa: ANN401 - a type of Triton's
    _pure: bool,  # noqa: FBT001 - as Triton calls it
) -> Any:  # noqa: ANN401 - a handle of the interpreter's
    """What a function of libdevice gives for these arguments, element by element."""
    name = symbol.removeprefix(_PREFIX)
    function = FUNCTIONS.get(name) or FUNCTIONS.get(name.removesuffix(_OF_FLOAT32))
    if function is None:
        raise NotImplementedError(f"libdevice's {name} is not computed in the interpreter")
    values = function(*(torch.as_tensor(argument.data) for argument in arguments))
    scalar = result.scalar if hasattr(result, "scalar") else result
    dtype = arguments[0].data.dtype if values.is_floating_point() else interpreter.np.int32
    return interpreter.TensorHandle(values.numpy().astype(dtype), scalar)
