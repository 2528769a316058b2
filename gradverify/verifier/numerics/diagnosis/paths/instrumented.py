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
    is_square,
)
from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge
from gradverify.verifier.numerics.diagnosis.paths.made_of import MADE_OF, given
from gradverify.verifier.numerics.diagnosis.paths.operations import VIEWS, WITH_NUMBERS
from gradverify.verifier.numerics.diagnosis.paths.sites import (
    ArgumentPath,
    Site,
    operation_name,
    paths_of,
    site_of_call,
    text_of,
)
from gradverify.verifier.numerics.diagnosis.paths.switches import Join, Switches, Tap, Weighted
from gradverify.verifier.numerics.diagnosis.paths.values import MOST_ALIKE, Values

MOST_CALLS = 2000
"""Operations of a forward up to which every use of a value gets its switch."""


class TooLongError(Exception):
    """Forward runs too many operations."""


Factor = tuple[Site, int]
"""One result of a call, by its number."""


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
    aside: dict[Site, list[Tensor]] = field(default_factory=dict)
    """The same of calls whose derivatives are not looked at: of constants, and views."""
    exchanged: Mapping[Edge, float] = field(default_factory=dict)
    """Numbers that are replaced while forward runs."""
    moved: Mapping[Site, Callable[[Tensor, int], Tensor | None]] = field(default_factory=dict)
    """Results whose values are replaced, by others for each pass."""
    given: dict[Edge, list[Tensor]] = field(default_factory=dict)
    """What each use of a value was given, pass by pass."""
    instead: Mapping[Edge, Callable[[int], Tensor | None]] = field(default_factory=dict)
    """Uses that are given another value, by the number of the pass."""
    factors: list[Factor] = field(default_factory=list)
    """Square constants in the derivatives of operations that are made of others."""
    turned: frozenset[Factor] = frozenset()
    """Those of them that are transposed."""
    live: dict[str, Tensor] = field(default_factory=dict)
    """The latest results with their gradients, by their texts."""
    paths: dict[Site, tuple[ArgumentPath, ...]] = field(default_factory=dict)
    """Where each argument of a call stands."""
    is_plain: bool = False
    """Nothing is to be switched or noted."""
    calls: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._part = 0
        self._site: Site | None = None
        # One backward is asked of such a run: nothing is noted for others, and nothing can be switched.
        altered = self.exchanged or self.moved or self.instead or self.turned
        self._is_exchange = self.is_plain or bool(altered)

    def __torch_function__(
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
        if site not in self.paths and not self._is_exchange:
            self.paths[site] = paths_of((args, named))
        leaves = self._with_constants(leaves, site, name)
        if not any(_flows(leaf) for leaf in leaves) or name.startswith("get ") or not torch.is_grad_enabled():
            args, named = _pytree.tree_unflatten(leaves, structure)
            return self._aside(site, self._turned(site, func(*args, **named)))
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise TooLongError
        first = func.__name__.endswith("_") and not func.__name__.endswith("__")
        writes = first or name == "setitem" or "out" in named
        if name in VIEWS and not writes and not (name == "getitem" and _has_tensor(leaves[1:])):
            return self._aside(site, func(*args, **named))
        tapped = [
            leaf if writes and k == 0 else self._used(leaf, Edge(site, k)) for k, leaf in enumerate(leaves)
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
        return Site(outer.file, outer.line, outer.start, outer.end, name, self._part, outer.operation)

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

    def _aside(self, site: Site, result: Any) -> Any:  # noqa: ANN401
        """The result, kept by its value alone: masks, counts, and slices of what has a gradient."""
        noted = self._site is None and not self._is_exchange
        if noted and isinstance(result, Tensor) and result.layout is torch.strided:
            self.aside.setdefault(site, []).append(result.detach().clone())
        return result

    def _turned(self, site: Site, result: Any) -> Any:  # noqa: ANN401
        """Constants inside of an operation made of others: noted, and transposed where that is asked."""
        if self._site is None or site.operation in VIEWS or not isinstance(result, Tensor | tuple):
            return result
        several = isinstance(result, tuple)
        each = list(result) if several else [result]
        for k, value in enumerate(each):
            if isinstance(value, Tensor) and is_square(value) and value.is_floating_point():
                self.factors.append((site, k))
                each[k] = value.mT if (site, k) in self.turned else value
        return type(result)(each) if several else each[0]

    def _kept(self, site: Site, result: Any) -> Any:  # noqa: ANN401
        """The result, by another value where one is to be tried; kept."""
        if not isinstance(result, Tensor) or not _flows(result):
            return result
        if self._is_exchange and site not in self.moved:
            return result
        known = self.results.setdefault(site, [])
        other = self.moved[site](result.detach(), len(known)) if site in self.moved else None
        known.append(result.detach().clone())
        return result if other is None else at(result, other)

    def _used(self, leaf: Any, edge: Edge) -> Any:  # noqa: ANN401
        """An argument as the operation gets it: another value, where that is asked, with its switch."""
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        value = leaf if edge.site.part else self._exchanged(leaf, edge)
        if not value.requires_grad or self._is_exchange:
            return value
        self.edges.setdefault(edge, [])
        return Tap.apply(value, self.switches, edge)  # type: ignore[no-untyped-call]

    def _exchanged(self, leaf: Tensor, edge: Edge) -> Tensor:
        if self._is_exchange and edge not in self.instead:
            return leaf
        known = self.given.setdefault(edge, [])
        other = self.instead[edge](len(known)) if edge in self.instead else None
        known.append(leaf.detach())
        return leaf if other is None else at(leaf, other)

    def _made(self, name: str, again: _Again, tapped: list[Any], site: Site) -> Any:  # noqa: ANN401
        """The result; of an operation that is made of others, these are run one by one."""
        inside = self._site is None and (bool(self.turned) or not self._is_exchange)
        rule = MADE_OF.get(name) if inside else None
        if rule is None:
            return again(tapped)
        args, named = _pytree.tree_unflatten(tapped, again.structure)
        self._site, self._part = site, 0
        try:
            with self:
                made = rule(*args, **given(named))
        except (TypeError, RuntimeError, ValueError, IndexError):
            made = None  # it was called in another way
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
                weighted = Weighted.apply(leaf, result, self.switches, edge)  # type: ignore[no-untyped-call]
                given = weighted.expand(result.shape)
                own += [Alternative(c, given) for c in formulas_of(edge, leaf, call)]
            self._know(edge, own)
            others += own
        together = list(alternatives_of_all(call, result, values, list(self.live.items())))
        for alternative in together:
            self._know(alternative.change.edge, [alternative])
        others += together
        values.passed[call.site] = values.passed.get(call.site, 0) + 1
        if not others:
            return result
        changes = tuple(a.change for a in others)
        joined: Tensor = Join.apply(result, self.switches, changes, *(a.value for a in others))  # type: ignore[no-untyped-call]
        self._live(call.site, joined)
        return joined

    def _live(self, site: Site, joined: Tensor) -> None:
        """Keep a result with its gradient, the latest ones by their texts."""
        text = "" if site.part else text_of(site)
        if text:
            self.live.pop(text, None)
            self.live[text] = joined
        if len(self.live) > MOST_ALIKE:
            del self.live[next(iter(self.live))]

    def _know(self, edge: Edge, own: Sequence[Alternative]) -> None:
        known = self.edges.setdefault(edge, [])
        known += [a.change for a in own if a.change not in known]


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
