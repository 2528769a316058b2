"""A change of a threshold, or to a number, is tried near that: it may merely fit the values that were drawn.

A comparison must be right on both sides of its threshold, and no threshold near may be as right: where no
value tells them apart, it is no fix. Any other number is tried at inputs of its own size.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.own_backward import Backward
from gradverify.verifier.diagnose.edits.rewrites import FACTORS, Known, Value
from gradverify.verifier.diagnose.edits.source import Edit, Slot, Source, expression, slots
from gradverify.verifier.verify.kept import Allowance

if TYPE_CHECKING:
    from gradverify.verifier.diagnose.edits.search import TracedBackward

ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""Comparisons with a threshold."""

LADDER = 4.0
"""Ratio of two shares of the inputs between which a comparison is looked at."""

RUNGS = 4
"""Shares on either side of 1: 4^-4 to 4^4."""

HALVINGS = 4
"""Of what lies between two shares: the threshold is known to 9 % then."""

BESIDE = 1.15
"""Ratio by which inputs go past a threshold: further than the steps of a numerical derivative reach."""

NEIGHBOURS = (0.5, 2.0)
"""Multiples of a threshold that must be wrong where it is right."""

OTHER_NUMBERS = 0.25
"""Times the numbers passed beside tensors: a threshold that is one of them comes nearer to the inputs."""

CALLS = 120
"""Of forward and of backward that a threshold takes at one place, about."""

MULTIPLES = (1.0, 8.0)
"""Of a number: the size of inputs at which it is tried."""

ORDINARY = 4.0
"""Ratio within which inputs are of that size anyway."""

_SEEN = "_gradverify_seen"
"""A function of what is compared and of what comes of it."""


class Place(Protocol):
    """One call at which a change must hold; see `FurtherPlace`."""

    is_of_other_options: bool

    def refutes(self, backward: Backward, wrong: frozenset[str]) -> bool:
        """Whether a gradient is certainly wrong here with another backward."""

    def runs(self, backward: Backward) -> bool:
        """Whether another backward runs here."""

    def scaled(self, share: float) -> Self | None:
        """The same call at other values of its inputs; None where none may have them."""

    def with_numbers(self, share: float) -> Self | None:
        """The same call with other numbers beside its tensors; None where it has none."""

    @property
    def size(self) -> float:
        """The largest absolute value of the inputs that may have others; 0 for none."""


def written_in(sources: Iterable[Source]) -> tuple[float, ...]:
    """Numbers that stand in functions, each once."""
    nodes = (node for source in sources for node in ast.walk(source.whole))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int | float) and not isinstance(v, bool)))


def written_elsewhere(slot: Slot, written: Sequence[float]) -> Iterator[Edit]:
    """Another number of the Function where one is compared."""
    node = slot.node
    if isinstance(node, ast.Constant) and isinstance(slot.parent, ast.Compare | ast.UnaryOp):
        others = (number for number in written if type(node.value) in {int, float} and number != node.value)
        yield from (Edit(slot, ast.Constant(number), "branch") for number in others)


def scaled_before_comparing(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """What is compared, with a factor that has a name."""
    if isinstance(slot.parent, ast.Compare) and isinstance(slot.node, ast.expr) and _is_floating(value):
        for one in known:
            if type(one.value) is float and one.value not in {0.0, 1.0}:
                yield from (Edit(slot, expression(t, e=slot.node, p=one.node), "branch") for t in FACTORS[:2])


def _is_floating(value: Value) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


@dataclass
class _Seen:
    """What a comparison came to in one run of backward."""

    values: list[Tensor] = field(default_factory=list)
    is_of_floats: bool = False
    is_threshold: bool = False
    """Floats are compared with something that is not zero; draws lie on both sides of zero."""

    def note(self, left: Any, right: Any, found: Any) -> Any:  # noqa: ANN401 - what stands in backward
        """Keep it, and give it back."""
        both = [torch.as_tensor(side).detach() for side in (left, right)]
        self.is_of_floats = self.is_of_floats or any(side.is_floating_point() for side in both)
        self.is_threshold = self.is_of_floats and all(bool(side.any()) for side in both)
        self.values.append(torch.as_tensor(found).detach().flatten())
        return found


def is_borne_out(
    edit: Edit, run: TracedBackward, places: Sequence[Place], wrong: frozenset[str], allowance: Allowance
) -> bool:
    """Whether a change that holds at all points holds near the numbers that it brings, too.

    `places` are the calls around which that is tried, `wrong` the inputs whose gradients are wrong without.
    """
    around = [place for place in places if place.is_of_other_options]
    compare = _comparison_around(edit, run)
    if compare is not None:
        return _Threshold.of(edit, compare, run, wrong).is_told(around, allowance)
    written = _numbers_written(edit)
    if not written:
        return True
    with edit.slot.holding(edit.node):
        backward = run.source.compiled()
    near = (place for number in written for place in _of_size(number, around[:1]))
    return backward is not None and not any(place.refutes(backward, wrong) for place in near)


def _of_size(number: float, places: Sequence[Place]) -> Iterator[Place]:
    """Places at inputs that are as large as a number, where they are not so anyway."""
    for place in places:
        for size in (number * multiple for multiple in MULTIPLES):
            share = size / place.size if place.size else 0.0
            is_other = share > 0 and not 1 / ORDINARY <= share <= ORDINARY
            near = place.scaled(share) if is_other else None
            if near is not None:
                yield near


def _numbers_written(edit: Edit) -> list[float]:
    """Numbers with a point in the changed expression that are not in what it replaces, without their sign."""
    old, new = ([*_numbers_in(node)] for node in (edit.slot.node, edit.node))
    return [abs(number) for number in dict.fromkeys(new) if number and new.count(number) > old.count(number)]


def _numbers_in(tree: object) -> Iterator[float]:
    for node in ast.walk(tree) if isinstance(tree, ast.AST) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            yield node.value


def _comparison_around(edit: Edit, run: TracedBackward) -> ast.Compare | None:
    """The comparison within which a change stands; None where it stands in none with a threshold."""
    node: ast.AST | None = edit.slot.parent
    while isinstance(node, ast.expr | ast.keyword):
        if isinstance(node, ast.Compare):
            return node if len(node.ops) == 1 and isinstance(node.ops[0], ORDERED) else None
        node = run.parents.get(id(node))
    return None


@dataclass(frozen=True)
class _Threshold:
    """A changed comparison in backward, and others near it."""

    changed: Backward | None
    watched: Callable[[_Seen], Backward | None]
    neighbours: Sequence[Backward]
    wrong: frozenset[str]

    @classmethod
    def of(cls, edit: Edit, compare: ast.Compare, run: TracedBackward, wrong: frozenset[str]) -> Self:
        """That of a change."""
        slot = next(one for one in slots(run.source.whole) if one.node is compare)

        def with_comparison(text: str, more: dict[str, Any] | None = None) -> Backward | None:
            with edit.slot.holding(edit.node):
                left, right = compare.left, compare.comparators[0]
                parts = {"a": left, "b": right, "c": compare}
                other = expression(text, **parts)
                if isinstance(other, ast.Compare):
                    other.ops = compare.ops
                with slot.holding(other):
                    return run.source.compiled(more)

        def watched(seen: _Seen) -> Backward | None:
            return with_comparison(f"{_SEEN}(a, b, c)", {_SEEN: seen.note})

        neighbours = [with_comparison(f"a < {multiple} * (b)") for multiple in NEIGHBOURS]
        with edit.slot.holding(edit.node):
            changed = run.source.compiled()
        return cls(changed, watched, [one for one in neighbours if one is not None], wrong)

    def is_told(self, places: Sequence[Place], allowance: Allowance) -> bool:
        """Whether it is right on both sides wherever it is looked at, and its neighbours are not."""
        here = [seen for place in places if (seen := self._watched_at(place)) is not None]
        if not any(seen.is_threshold for seen in here):
            values = torch.cat([*(value for seen in here for value in seen.values), torch.zeros(0)]).bool()
            return not any(seen.is_of_floats for seen in here) or bool(values.any() and not values.all())
        others = (other for place in places if (other := place.with_numbers(OTHER_NUMBERS)) is not None)
        told: set[int] = set()
        for place in itertools.chain(places, others):
            if len(told) == len(NEIGHBOURS) and place not in places:
                break
            if self.changed is None or not allowance.covers(CALLS):
                return False
            for near in self._beside(place):
                if near.refutes(self.changed, self.wrong):
                    return False
                told |= {k for k, one in enumerate(self.neighbours) if near.refutes(one, self.wrong)}
        return len(told) == len(NEIGHBOURS)

    def _watched_at(self, place: Place) -> _Seen | None:
        """What the comparison comes to; None where backward does not run."""
        seen = _Seen()
        backward = self.watched(seen)
        return seen if backward is not None and place.runs(backward) and seen.values else None

    def _seen_at(self, place: Place, share: float) -> Tensor | None:
        """Every entry of what it comes to at other values; None where that is not to be had."""
        there = place.scaled(share) if share != 1.0 else place
        seen = None if there is None else self._watched_at(there)
        return None if seen is None else torch.cat(seen.values)

    def _beside(self, place: Place) -> Iterator[Place]:
        """The place at values below and above a threshold, each as near as a slope can be measured."""
        here = self._seen_at(place, 1.0)
        for ratio in (1 / LADDER, LADDER):
            for share in () if here is None else self._crossed(place, ratio, here):
                there = place.scaled(share)
                if there is not None:
                    yield there

    def _crossed(self, place: Place, ratio: float, here: Tensor) -> tuple[float, ...]:
        """Shares of the inputs at which an entry lies on either side; none where none crosses."""
        before = 1.0
        for _ in range(RUNGS):
            share = before * ratio
            while (there := self._seen_at(place, share)) is None and abs(math.log(ratio)) > math.log(BESIDE):
                ratio = math.sqrt(ratio)
                share = before * ratio
            if there is None or there.shape != here.shape:
                return ()
            if not torch.equal(there, here):
                return self._halved(place, before, share, here)
            before = share
        return ()

    def _halved(self, place: Place, same: float, other: float, here: Tensor) -> tuple[float, ...]:
        for _ in range(HALVINGS):
            middle = math.sqrt(same * other)
            there = self._seen_at(place, middle)
            if there is not None and torch.equal(there, here):
                same = middle
            else:
                other = middle
        past = BESIDE if other > same else 1 / BESIDE
        return same / past, other * past
