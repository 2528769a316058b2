"""User code run as if nothing in it cut the graph: `.detach()`, `.data`, `.item()`, what is in `no_grad`."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
"""Folders whose frames are no user's: torch's and the verifier's."""

_CUTS = frozenset({"detach", "get data", "item"})
"""Calls that give a tensor back without its graph, or its number."""


@dataclass(frozen=True)
class Site:
    """One call of an operation in the source: the same at every point, however often a loop passes it."""

    file: str
    """Empty where the code has no file: a graph that was recorded."""
    line: int
    start: int
    """Column of the expression's first character."""
    end: int
    """Column behind its last one, on the same line; -1 where it spans several."""
    operation: str


def site_of_call(operation: str) -> Site:
    """The call that user code is in now."""
    frame = _users_frame()
    if frame is None:
        return Site("", 0, 0, -1, operation)
    file = frame.f_code.co_filename
    line, start, end = _position(frame.f_code, frame.f_lasti)
    return Site("" if file.startswith("<") else file, line, start, end, operation)


def text_of(site: Site) -> str:
    """The expression as the user wrote it; empty where it cannot be quoted."""
    if not site.file or site.end < 0:
        return ""
    line = linecache.getline(site.file, site.line)
    # Columns count bytes.
    return line.encode()[site.start : site.end].decode(errors="replace").strip()


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=4096)
def _position(code: CodeType, instruction: int) -> tuple[int, int, int]:
    """Line, first column and last column of an instruction."""
    found = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
    line, last_line, start, end = (-1 if n is None else n for n in found)
    return line, start, end if line == last_line else -1


@dataclass
class Undetached(TorchFunctionMode):
    """While it is active, a cut in user code leaves the graph as it is, but for those that are to stay."""

    kept: frozenset[Site] = frozenset()
    """Cuts that are left in."""
    found: dict[Site, str] = field(default_factory=dict)
    """Cuts that were met, with how each is called."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        named = dict(kwargs or {})
        name = _name(func)
        if name in _CUTS and args and _has_graph(args[0]):
            whole = args[0].reshape(()) if name == "item" else args[0]
            return whole if self._is_lifted(name) else func(*args, **named)
        if torch.is_grad_enabled() or name.startswith("get ") or name == "_set_grad_enabled":
            return func(*args, **named)
        if not any(_has_graph(a) for a in (*args, *named.values())) or not self._is_lifted("no_grad"):
            return func(*args, **named)
        with torch.enable_grad():
            return func(*args, **named)

    def _is_lifted(self, how: str) -> bool:
        site = site_of_call(how)
        self.found.setdefault(site, how)
        return site not in self.kept


def _name(function: Callable[..., Any]) -> str:
    """`detach` of `Tensor.detach`, `get data` of `Tensor.data`."""
    name = getattr(function, "__name__", "") or ""
    owner = getattr(function, "__self__", None)
    return f"get {getattr(owner, '__name__', '')}" if name == "__get__" else name


def _has_graph(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and value.requires_grad


def in_words(site: Site, how: str) -> str:
    """`` `y.detach()` (norms.py:12) ``."""
    text = text_of(site) or {"detach": ".detach()", "get data": ".data", "item": ".item()"}.get(
        how, "no_grad"
    )
    where = f" ({Path(site.file).name}:{site.line})" if site.file and site.line > 0 else ""
    return f"`{text}`" + (" under no_grad" if how == "no_grad" else "") + where
