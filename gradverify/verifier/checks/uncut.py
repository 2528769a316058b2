"""User code run as if nothing in it cut the graph: `.detach()`, `.data`, `.item()`, what is in `no_grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradverify.verifier.numerics.diagnosis.paths.sites import Site, operation_name, site_of_call, text_of

_CUTS = frozenset({"detach", "get data", "item"})
"""Calls that give a tensor back without its graph, or its number."""


@dataclass
class Uncut(TorchFunctionMode):
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
        name = operation_name(func)
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
        site = site_of_call(how, 0)
        self.found.setdefault(site, how)
        return site not in self.kept


def _has_graph(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and value.requires_grad


def in_words(site: Site, how: str) -> str:
    """`` `y.detach()` (norms.py:12) ``."""
    text = text_of(site) or {"detach": ".detach()", "get data": ".data", "item": ".item()"}.get(
        how, "no_grad"
    )
    where = f" ({Path(site.file).name}:{site.line})" if site.file and site.line > 0 else ""
    return f"`{text}`" + (" under no_grad" if how == "no_grad" else "") + where
