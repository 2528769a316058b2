"""What is noted of a call, and when: in full for a new signature, counted afterwards."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import sys
import threading
import uuid
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .describing import described, module_name, signature_of

MOST_SIGNATURES = 64
"""Distinct signatures of one class that are noted: a literal that changes with every call has no end."""

FOREIGN = frozenset({"site-packages", "dist-packages"})

TORCH = "torch"
"""Its own Functions, of checkpointing or of its tests, are nobody's to record."""


@dataclass
class Signature:
    """One kind of call."""

    number: int
    count: int = 0
    next_look: int = 1
    """Values are looked at again after 1, 2, 4, 8, … calls: ranges widen, and the cost stays small."""


@dataclass
class Noted:
    """What is known of one class."""

    head: dict[str, Any]
    names: tuple[str, ...]
    variadic: bool
    """The last name is that of a `*args`."""
    signatures: dict[Any, Signature] = field(default_factory=dict)
    left_out: int = 0
    strided: bool = False
    """A gradient that is not contiguous was seen."""


class Notebook:
    """The notes of one process: JSON lines, each written at once, so that a crash loses none."""

    def __init__(self, folder: str, root: str, modules: tuple[str, ...]) -> None:
        self._folder, self._root, self._modules = folder, Path(root), modules
        self._lock = threading.RLock()
        self._classes: weakref.WeakKeyDictionary[Any, Noted | None] = weakref.WeakKeyDictionary()
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self._finish)

    def call(self, cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ANN401
        """Note one call of `cls.apply`, or of a custom op. Never raises: the program goes on in any case."""
        with contextlib.suppress(Exception):
            noted = self._noted(cls)
            if noted is None or _is_compiling():
                return
            if named:
                arguments = _by_position(cls, arguments, named)
            with _unseen():
                self._count(noted, arguments)

    def gradients(self, context: Any, gradients: tuple[Any, ...]) -> None:  # noqa: ANN401
        """Note whether the gradients that backward gets are contiguous."""
        with contextlib.suppress(Exception):
            noted = self._classes.get(context._forward_cls)  # noqa: SLF001 - torch's name for it
            if noted is None or noted.strided or _is_compiling():
                return
            with _unseen():
                strided = any(g is not None and not g.is_contiguous() for g in gradients)
            if strided:
                noted.strided = True
                self._write({"kind": "strided", **noted.head})

    def _count(self, noted: Noted, arguments: tuple[Any, ...]) -> None:
        key = tuple([signature_of(value) for value in arguments])
        signature = noted.signatures.get(key)
        if signature is None:
            signature = self._new(noted, key)
        if signature is not None:
            signature.count += 1
            if signature.count >= signature.next_look:
                self._look(noted, signature, arguments)

    def _noted(self, cls: Any) -> Noted | None:  # noqa: ANN401
        try:
            return self._classes[cls]
        except KeyError:
            noted = self._classes[cls] = self._chosen(cls)
            return noted

    def _chosen(self, cls: Any) -> Noted | None:  # noqa: ANN401
        defined = _implementation(cls) or cls
        module = sys.modules.get(defined.__module__)
        name, file = module_name(defined.__module__), getattr(module, "__file__", None)
        if file is None:
            return None
        path = Path(file).resolve()
        if not self._is_asked_for(name, path):
            if name.partition(".")[0] != TORCH:
                self._write({"kind": "other", "module": name, "name": defined.__qualname__})
            return None
        names, variadic = _parameters(cls)
        head: dict[str, Any] = {
            "module": name,
            "file": str(path),
            "name": defined.__qualname__ if defined is cls else _name_of_operator(cls, module),
            "line": _line(defined),
        }
        head["main"] = defined.__module__ == "__main__"
        return Noted(head, names, variadic)

    def _is_asked_for(self, module: str, file: Path) -> bool:
        if self._modules:
            return any(module == m or module.startswith(f"{m}.") for m in self._modules)
        return file.is_relative_to(self._root) and not FOREIGN & set(file.parts)

    def _new(self, noted: Noted, key: Any) -> Signature | None:  # noqa: ANN401
        with self._lock:
            if len(noted.signatures) >= MOST_SIGNATURES:
                noted.left_out += 1
                if noted.left_out == 1:
                    self._write({"kind": "left-out", **noted.head})
                return None
            self._numbers += 1
            signature = noted.signatures[key] = Signature(self._numbers)
            return signature

    def _look(self, noted: Noted, signature: Signature, arguments: tuple[Any, ...]) -> None:
        signature.next_look = 2 * signature.count
        notes = [described(value) for value in arguments]
        names = noted.names
        if noted.variadic:
            fixed = len(names) - 1
            notes[fixed:] = [{"kind": "list", "splatted": True, "items": notes[fixed:]}]
        pairs = [[n, note] for n, note in zip(names, notes, strict=False)]
        line = {"kind": "call", "number": signature.number, "count": signature.count, **noted.head}
        self._write({**line, "arguments": pairs})

    def _begin(self) -> None:
        """Start afresh: in a process that was forked, its own file and its own numbers."""
        self._numbers = 0
        self._descriptor = -1
        self._process = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.RLock()
        self._classes = weakref.WeakKeyDictionary()

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self._descriptor < 0:
                path = Path(self._folder) / f"{self._process}.jsonl"
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(self._descriptor, (json.dumps(line) + "\n").encode())

    def _finish(self) -> None:
        with contextlib.suppress(Exception):
            for noted in list(self._classes.values()):
                for signature in noted.signatures.values() if noted is not None else ():
                    self._write({"kind": "count", "number": signature.number, "count": signature.count})


def _parameters(cls: Any) -> tuple[tuple[str, ...], bool]:  # noqa: ANN401
    """Forward's parameters by position, `ctx` left out, and whether the last one takes all that is left."""
    operator = _implementation(cls)
    if operator is not None:
        return tuple(inspect.signature(operator).parameters), False
    found = list(inspect.signature(cls.forward).parameters.values())
    base = next(
        c for c in cls.__mro__ if c.__module__ == "torch.autograd.function" and c.__name__ == "Function"
    )
    if cls.setup_context is base.setup_context:
        found = found[1:]
    names = [p.name for p in found if p.kind not in {p.KEYWORD_ONLY, p.VAR_KEYWORD}]
    return tuple(names), any(p.kind is p.VAR_POSITIONAL for p in found)


def _by_position(cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:  # noqa: ANN401
    operator = _implementation(cls)
    bound = inspect.signature(operator or cls.forward).bind(*arguments, **named)
    bound.apply_defaults()
    return bound.args if operator is None else tuple(bound.arguments.values())


def _name_of_operator(operator: Any, module: Any) -> str:  # noqa: ANN401
    """What its module calls a custom op: never the plain function that it was made of."""
    names = (name for name, value in list(vars(module).items()) if value is operator)
    return next(names, f"torch.ops.{operator._qualname.replace('::', '.')}")  # noqa: SLF001 - its only name


def _implementation(cls: Any) -> Any:  # noqa: ANN401
    """The Python function behind a custom op; None for a class."""
    return None if isinstance(cls, type) else getattr(cls, "_init_fn", None)


def _line(cls: Any) -> int:  # noqa: ANN401
    try:
        return inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return 0


def _unseen() -> contextlib.AbstractContextManager[Any]:
    """Without `__torch_function__`: classes and modes of the program do not see what is only looked at."""
    guard: contextlib.AbstractContextManager[Any] = sys.modules["torch"]._C.DisableTorchFunction()  # noqa: SLF001
    return guard


def _is_compiling() -> bool:
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())
