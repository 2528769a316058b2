"""What a verdict holds for, where that may be narrower than what forward takes."""

from __future__ import annotations

from dataclasses import dataclass


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
