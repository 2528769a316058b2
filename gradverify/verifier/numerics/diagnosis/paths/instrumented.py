"""Forward run with a switch at every use of a value: each local derivative can be left out, or exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from gradverify.verifier.numerics.diagnosis.formulas import FUNCTIONS
from gradverify.verifier.numerics.diagnosis.paths.alternatives import (
    Alternative,
    Called,
    alternatives_of,
    alternatives_of_all,
    at,
)
from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge
from gradverify.verifier.numerics.diagnosis.paths.made_of import MADE_OF
from gradverify.verifier.numerics.diagnosis.paths.sites import Site, operation_name, site_of_call
from gradverify.verifier.numerics.diagnosis.paths.values import Values

MOST_CALLS = 2000
"""Operations of a forward up to which every use of a value gets its switch."""

VIEWS = frozenset(
    """view reshape expand expand_as view_as transpose t permute squeeze unsqueeze getitem narrow select chunk
    split unbind flatten unflatten movedim swapaxes real imag view_as_real view_as_complex unfold contiguous
    as_strided detach clone to double float type requires_grad_ data""".split()
)
"""Operations whose result may share its input's memory: what is written there later must arrive."""

FORMULAS = {"1": torch.ones_like, **dict(FUNCTIONS)}
"""Local derivatives by how they are written; `{}` stands for the value."""


class TooLongError(Exception):
    """Forward runs too many operations."""


@dataclass
class Switches:
    """What is altered in the next backward."""

    dropped: frozenset[Edge] = frozenset()
    instead: Change | None = None


class _Tap(torch.autograd.Function):
    """One use of a value, whose gradient may be cut."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, switches: Switches, edge: Edge) -> Tensor:  # noqa: ANN401
        ctx.switches, ctx.edge = switches, edge
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:  # noqa: ANN401
        return None if ctx.edge in ctx.switches.dropped else gradient, None, None


class _Join(torch.autograd.Function):
    """The result of an operation; gradients also go through other derivatives of it, when switched on."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401
        result: Tensor,
        switches: Switches,
        changes: tuple[Change, ...],
        *others: Tensor,
    ) -> Tensor:
        del others
        ctx.switches, ctx.changes = switches, changes
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401, D102
        instead = ctx.switches.instead
        return gradient, None, None, *(gradient if c == instead else None for c in ctx.changes)


class _Weighted(torch.autograd.Function):
    """A value whose gradient is multiplied by a formula of it, or of the operation's result."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, result: Tensor, switches: Switches, edge: Edge) -> Tensor:  # noqa: ANN401, D102
        ctx.switches, ctx.edge = switches, edge
        ctx.value, ctx.result = value.detach(), result.detach()
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:  # noqa: ANN401, D102
        change = ctx.switches.instead
        if change is None or change.edge != ctx.edge or change.kind != "formula":
            return None, None, None, None
        of = ctx.result if change.of_result else ctx.value
        return gradient * FORMULAS[change.name](of), None, None, None


@dataclass
class Instrumented(TorchFunctionMode):
    """Switches for every operation that user code calls while it is active."""

    values: Values | None = None
    """An earlier run's: with it, other derivatives are built beside the right ones."""
    switches: Switches = field(default_factory=Switches)
    edges: dict[Edge, list[Change]] = field(default_factory=dict)
    constants: dict[Edge, float] = field(default_factory=dict)
    """Numbers in the source, by where they stand."""
    results: dict[Site, list[Tensor]] = field(default_factory=dict)
    """What each call gave, pass by pass."""
    exchanged: Mapping[Edge, float] = field(default_factory=dict)
    """Numbers that are replaced while forward runs."""
    moved: Mapping[Site, Callable[[Tensor, int], Tensor | None]] = field(default_factory=dict)
    """Results whose values are replaced, by others for each pass."""
    calls: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._part = 0
        self._site: Site | None = None

    def __torch_function__(  # noqa: D105
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        del types
        name = operation_name(func)
        named = dict(kwargs or {})
        leaves, structure = _pytree.tree_flatten((args, named))
        site = self._site_now(name)
        leaves = self._with_constants(leaves, site, name)
        if not any(_flows(leaf) for leaf in leaves) or name.startswith("get ") or not torch.is_grad_enabled():
            args, named = _pytree.tree_unflatten(leaves, structure)
            return func(*args, **named)
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise TooLongError
        first = func.__name__.endswith("_") and not func.__name__.endswith("__")
        writes = first or name == "setitem" or "out" in named
        if name in VIEWS and not writes and not (name == "getitem" and _has_tensor(leaves[1:])):
            return func(*args, **named)
        tapped = [
            self._tapped(leaf, Edge(site, k)) if _flows(leaf) and not (writes and k == 0) else leaf
            for k, leaf in enumerate(leaves)
        ]
        again = _Again(func, structure)
        if writes:
            return again(tapped)
        result = self._made(name, again, tapped, site)
        result = self._kept(site, result)
        return self._joined(Called(name, again, again.by, leaves, site), result)

    def _site_now(self, name: str) -> Site:
        if self._site is None:
            return site_of_call(name, 0)
        self._part += 1
        outer = self._site
        return Site(outer.file, outer.line, outer.start, outer.end, name, self._part)

    def _with_constants(self, leaves: list[Any], site: Site, name: str) -> list[Any]:
        if name not in WITH_NUMBERS or self._site is not None:
            return leaves
        kept = list(leaves)
        for k, leaf in enumerate(leaves):
            if isinstance(leaf, int | float) and not isinstance(leaf, bool):
                edge = Edge(site, k)
                self.constants.setdefault(edge, float(leaf))
                kept[k] = self.exchanged.get(edge, leaf)
        return kept

    def _kept(self, site: Site, result: Any) -> Any:  # noqa: ANN401
        """The result, by another value where one is to be tried; kept."""
        if not isinstance(result, Tensor) or not _flows(result):
            return result
        known = self.results.setdefault(site, [])
        other = self.moved[site](result.detach(), len(known)) if site in self.moved else None
        known.append(result.detach())
        return result if other is None else at(result, other)

    def _tapped(self, value: Tensor, edge: Edge) -> Tensor:
        self.edges.setdefault(edge, [])
        return _Tap.apply(value, self.switches, edge)  # type: ignore[no-any-return, no-untyped-call]

    def _made(self, name: str, again: _Again, tapped: list[Any], site: Site) -> Any:  # noqa: ANN401
        """The result; of an operation that is made of others, these are run one by one."""
        rule = MADE_OF.get(name) if self._site is None else None
        if rule is None:
            return again(tapped)
        args, named = _pytree.tree_unflatten(tapped, again.structure)
        self._site, self._part = site, 0
        try:
            with self:
                made = rule(*args, **named)
        except TypeError:
            made = None
        finally:
            self._site = None
        return again(tapped) if made is None else made

    def _joined(self, call: Called, result: Any) -> Any:  # noqa: ANN401
        """The result with its other derivatives beside it."""
        if not isinstance(result, Tensor) or not _flows(result):
            return result
        values = self.values
        if values is None:
            return result
        others: list[Alternative] = []
        for place, leaf in enumerate(call.leaves):
            edge = Edge(call.site, place)
            if not _flows(leaf) or edge not in self.edges:
                continue
            own = list(alternatives_of(call, edge, leaf, result.detach(), values))
            if _fits(leaf, result):
                weighted = _Weighted.apply(leaf, result, self.switches, edge)  # type: ignore[no-untyped-call]
                given = weighted.expand(result.shape)
                own += [Alternative(c, given) for c in formulas_of(edge, leaf, call)]
            self._know(edge, own)
            others += own
        together = list(alternatives_of_all(call, result))
        for alternative in together:
            self._know(alternative.change.edge, [alternative])
        others += together
        values.passed[call.site] = values.passed.get(call.site, 0) + 1
        if not others:
            return result
        changes = tuple(a.change for a in others)
        return _Join.apply(result, self.switches, changes, *(a.value for a in others))  # type: ignore[no-untyped-call]

    def _know(self, edge: Edge, own: Sequence[Alternative]) -> None:
        known = self.edges.setdefault(edge, [])
        known += [a.change for a in own if a.change not in known]


WITH_NUMBERS = frozenset({"mul", "div", "add", "sub", "pow", "rsub", "rdiv", "rpow", "clamp", "clamp_min"})
"""Operations whose numbers in the source are read as constants of a formula."""


@dataclass(frozen=True)
class _Again:
    """An operation, to be called with other arguments."""

    function: Callable[..., Any]
    structure: Any

    def __call__(self, leaves: Sequence[Any]) -> Any:  # noqa: ANN401
        return self.by(self.function, leaves)

    def by(self, function: Callable[..., Any], leaves: Sequence[Any]) -> Any:  # noqa: ANN401
        """Another operation, called in the same way."""
        args, named = _pytree.tree_unflatten(list(leaves), self.structure)
        return function(*args, **named)


def formulas_of(edge: Edge, value: Tensor, call: Called) -> list[Change]:
    """The identity; for a function of one tensor also every derivative that people know."""
    changes = [Change(edge, "formula", "1")]
    if call.is_of_one_tensor and call.is_elementwise and not value.is_complex():
        changes += [
            Change(edge, "formula", text, of_result=r) for text, _ in FUNCTIONS for r in (False, True)
        ]
    return changes


def _has_tensor(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in leaves)


def _flows(leaf: Any) -> bool:  # noqa: ANN401
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _fits(value: Tensor, result: Tensor) -> bool:
    if value.is_complex() != result.is_complex() or value.dim() > result.dim():
        return False
    shape = (1,) * (result.dim() - value.dim()) + tuple(value.shape)
    return all(n in {1, m} for n, m in zip(shape, result.shape, strict=True))
