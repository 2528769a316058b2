"""Waiting for torch, and standing in front of `Function.apply` and of custom ops from then on."""

from __future__ import annotations

import functools
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .noting import Notebook

VARIABLE = "GRADVERIFY_RECORD"
"""Environment variable: what to record, as JSON with `folder`, `root` and `modules`."""


class Waiting:
    """A finder that finds nothing itself: it only sees when torch's modules to be wrapped are loaded."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self._waited_for = {
            "torch.autograd.function": wrap_functions,
            "torch._library.custom_ops": wrap_operators,
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with a loader that wraps what it loads."""
        wrap = self._waited_for.pop(name, None)
        if wrap is None:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        if not self._waited_for:
            sys.meta_path[:] = others
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._wrap(spec.loader, wrap)
                return spec
        return None

    def _wrap(self, loader: Any, wrap: Callable[[ModuleType, Notebook], None]) -> None:  # noqa: ANN401
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            wrap(module, self.notebook)

        loader.exec_module = exec_module


def install() -> None:
    """Record this process, if the environment asks for it."""
    asked = json.loads(os.environ.get(VARIABLE, "null"))
    if asked:
        notebook = Notebook(asked["folder"], asked["root"], tuple(asked["modules"]))
        sys.meta_path.insert(0, Waiting(notebook))


def wrap_functions(module: ModuleType, notebook: Notebook) -> None:
    """Note every `Function.apply` and the gradients that come back, before torch goes on as ever."""
    function, backward = module.Function, module.BackwardCFunction
    apply, apply_backward = function.__dict__["apply"].__func__, backward.apply

    @functools.wraps(apply)
    def noted_apply(cls: type, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        notebook.call(cls, arguments, named)
        return apply(cls, *arguments, **named)

    @functools.wraps(apply_backward)
    def noted_backward(self: Any, *gradients: Any) -> Any:  # noqa: ANN401
        notebook.gradients(self, gradients)
        return apply_backward(self, *gradients)

    function.apply = classmethod(noted_apply)
    backward.apply = noted_backward


def wrap_operators(module: ModuleType, notebook: Notebook) -> None:
    """Note every call of what `custom_op` or `triton_op` defined, by the name that its module gives it."""
    definition = getattr(module, "CustomOpDef", None)
    if definition is None:
        return
    call = definition.__call__

    @functools.wraps(call)
    def noted_call(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        notebook.call(self, arguments, named)
        return call(self, *arguments, **named)

    definition.__call__ = noted_call
