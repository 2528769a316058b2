"""What a verdict holds for: what was varied, judged in native dtypes, and called."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class Closeness(StrEnum):
    """From the best certificate to the worst; only `WRONG` is a mistake."""

    CORRECT = "correctly rounded"
    """Every entry is the truth, rounded once, up to float32's noise inside."""
    WITHIN = "within rounding"
    """Rounding every operation to float32 explains all of it."""
    ROUNDED = "rounded"
    """Rounding intermediates to the dtype explains all of it, rounding the result alone does not."""
    COARSE = "coarsely right"
    """Half of the dtype's digits are right; the noise inside could not be measured."""
    UNKNOWN = "not judged"
    WRONG = "wrong"


@dataclass(frozen=True)
class Precision:
    """What became of one value, an output or a gradient, in one dtype."""

    dtype: str
    value: str
    """`output 0`, or the name of an input: its gradient. Empty for all of them."""
    closeness: Closeness
    worst: float = 0.0
    """In units of what the closeness allows: 1 is the limit."""
    hides: float | None = None
    """An error of all entries by this factor, relative, could have hidden."""
    reason: str = ""
    """Why it was not judged, or how it was."""

    def worse(self, other: Precision) -> Precision:
        """The worse of two about the same value."""
        order = list(Closeness)
        return max(self, other, key=lambda p: (order.index(p.closeness), p.worst))


@dataclass(frozen=True)
class Domain:
    """The inputs that a target was judged on."""

    numbers: tuple[str, ...] = ()
    """`real`, `complex`: of the inputs that are differentiated; empty where a hook builds them."""
    real_alone: bool = False
    """Its source speaks of complex numbers, and none was tried."""
    ranges: tuple[str, ...] = ()
    """Restrictions on values, as ``x` in [0, 1]`` and ``p` positive``."""
    constants: tuple[str, ...] = ()
    """Floating inputs that are not differentiated, as a spec or inference has it."""
    sizes: str = ""
    """The only sizes, as `n=3,d=4`; empty where there are others, or none."""

    @property
    def phrases(self) -> tuple[str, ...]:
        """All of it, a phrase each."""
        constants = (f"`{name}` constant" for name in self.constants)
        return (*self.numbers, *self.ranges, *constants, *filter(None, (self.sizes,)))


@dataclass(frozen=True)
class Evaluations:
    """How often user code was called."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: Evaluations) -> Evaluations:
        """Add counts."""
        return Evaluations(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True)
class Swept:
    """What a verified case was varied over, by name: what did not change its gradient, or what did."""

    layouts: tuple[str, ...] = ()
    """`grad_output transposed`, `inputs channels-last`, ..."""
    requires_grad: tuple[str, ...] = ()
    """Sets of inputs that required grad, as `x,weight`."""
    calls: tuple[str, ...] = ()
    """`again`, `interleaved`, `backward twice`, ..."""
    sizes: tuple[str, ...] = ()
    """Sizes beyond those of its cases, as `n=1,d=3`: those that its spec leaves open or does not list."""
    precision: tuple[Precision, ...] = ()
    """What was judged in native dtypes: the worst of each value in each dtype."""
    native: str = ""
    """Why it was judged in native dtypes alone; empty where it has a float64 path."""
    devices: tuple[str, ...] = ()
    """Devices besides its own that its gradient was held against."""
    past: tuple[str, ...] = ()
    """Constants of the source, each with the size that was past it: `BLOCK = 128 (n=257)`."""
    not_past: tuple[str, ...] = ()
    """Constants that nothing is known past: `BLOCK = 128 (n=257): forward raises ValueError`."""
    interpreted: bool = False
    """Its Triton kernels ran in Triton's interpreter, not compiled."""
    ever_true: tuple[str, ...] = ()
    """Comparisons of its source that were true somewhere, as `x < 1e-4 (line 31)`."""
    ever_false: tuple[str, ...] = ()
    """Those that were false somewhere."""

    @property
    def on_one_side(self) -> tuple[str, ...]:
        """Comparisons of its source that were true everywhere, or false."""
        either = (*self.ever_true, *self.ever_false)
        return tuple(one for one in either if (one in self.ever_true) != (one in self.ever_false))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The native dtypes in which every value was judged, in order of precision."""
        known = [p for p in self.precision if p.closeness is not Closeness.UNKNOWN]
        unknown = {p.dtype for p in self.precision if p.value and p.closeness is Closeness.UNKNOWN}
        return tuple(dict.fromkeys(p.dtype for p in known if p.dtype not in unknown))

    def joined(self, other: Swept) -> Swept:
        """What either of them was varied over."""
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        made: dict[str, Any] = {
            name: tuple(dict.fromkeys((*one, *two))) if isinstance(one, tuple) else one or two
            for name, (one, two) in both.items()
        }
        return Swept(**{**made, "precision": _worst_of_each((*self.precision, *other.precision))})


def _worst_of_each(found: tuple[Precision, ...]) -> tuple[Precision, ...]:
    """One for each value in each dtype, in the order in which they came."""
    worst: dict[tuple[str, str], Precision] = {}
    for one in found:
        key = (one.dtype, one.value)
        worst[key] = worst[key].worse(one) if key in worst else one
    return tuple(worst.values())
