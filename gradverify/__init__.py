"""gradverify: verify hand-written PyTorch backwards.

The command `gradverify check mymodule.py` is the way in; in tests, the functions below. This package imports
nothing heavy: torch is loaded when one of them is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradverify.api.command import check
    from gradverify.api.distributed import gradcheck_distributed
    from gradverify.api.gradcheck import gradcheck, gradgradcheck
    from gradverify.api.gradient_error import GradientError
    from gradverify.api.kernel import assert_kernel
    from gradverify.api.verify import verify

__version__ = "0.1.0"
__all__ = [
    "GradientError",
    "__version__",
    "assert_kernel",
    "check",
    "gradcheck",
    "gradcheck_distributed",
    "gradgradcheck",
    "verify",
]

_HOMES = {
    "assert_kernel": "gradverify.api.kernel",
    "check": "gradverify.api.command",
    "GradientError": "gradverify.api.gradient_error",
    "gradcheck": "gradverify.api.gradcheck",
    "gradcheck_distributed": "gradverify.api.distributed",
    "gradgradcheck": "gradverify.api.gradcheck",
    "verify": "gradverify.api.verify",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
