"""Which sizes to write, the best first: small and swept, until forward accepts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradverify.record.entries import Sizing
from gradverify.record.sizes import Dimensions, relations, shrunk, strong_relations


def sizings(found: Dimensions) -> Iterator[Sizing]:
    """Yield sizes to be tried; the last ones are as recorded, in the call with the fewest entries."""
    base, strong = found.recorded(found.base), strong_relations(found)
    small = {symbol: shrunk(base.values())[size] for symbol, size in base.items()}
    other = _another(found, base)
    both = shrunk([*base.values(), *other.values()])
    if other != base:
        values = {s: tuple(dict.fromkeys((both[base[s]], both[other[s]]))) for s in base}
        yield _sizing(values, strong)
    yield _sizing({s: (size,) for s, size in small.items()}, strong)
    related = relations(found)
    if related != strong:
        yield _sizing({s: (size,) for s, size in small.items()}, related)
    for symbol, size in base.items():
        if size != small[symbol]:
            yield _sizing({**{s: (v,) for s, v in small.items()}, symbol: (size,)}, {})
    yield as_recorded(found)


def as_recorded(found: Dimensions) -> Sizing:
    """The sizes of the smallest call."""
    return _sizing({s: (size,) for s, size in found.recorded(found.base).items()}, {})


def _another(found: Dimensions, base: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes of the call in which most of them differ."""
    calls = [found.recorded(call) for call in range(len(found.form.calls))]
    return max(calls, key=lambda sizes: sum(sizes[s] != base[s] for s in base), default=base)


def _sizing(values: Mapping[str, tuple[int, ...]], derived: Mapping[str, str]) -> Sizing:
    return Sizing({s: v for s, v in values.items() if s not in derived}, derived)
