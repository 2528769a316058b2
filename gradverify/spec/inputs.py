"""The inputs of a function before sizes are bound: what was read, and what each is swept over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from gradverify.model import Scalar
from gradverify.spec import schema
from gradverify.spec.messages import Path
from gradverify.spec.schema import AnnotationEntry, ConcatEntry, ListEntry, OfEntry, TensorEntry
from gradverify.spec.sizes import Expression

GIVEN = "given"
"""The level of an optional input that is not left out."""


@cache
def _input() -> TypeAdapter[Any]:
    return TypeAdapter(schema.InputEntry)


@dataclass(frozen=True)
class InputSpec:
    """An input whose sizes are not bound yet, or one tensor of it."""

    name: str
    entry: Any
    """An entry of `gradverify.spec.schema`; of a plain literal the literal."""
    path: Path = ()
    """Where it is inside the entry of its input: `("list", 0)`."""
    inline: bool = False
    """Written as a bare list: its shape is the entry itself."""
    across_ranks: bool = False
    """Its function runs on several ranks."""
    order: Mapping[Path, int] = field(default_factory=dict, compare=False, repr=False)
    """Where in its entry each value stands: undeclared sizes get their values as they appear."""

    @property
    def is_annotation(self) -> bool:
        """Whether a hook builds it."""
        return isinstance(self.entry, AnnotationEntry)


def read_input(name: str, raw: object) -> InputSpec:
    """Return an input whose form has been validated."""
    order = {path: number for number, path in enumerate(_paths(raw, ()))}
    return replace(_read(name, _input().validate_python(raw), ()), order=order)


def read_annotation(name: str, raw: object) -> InputSpec:
    """Return what is said of a tensor that a hook builds, once it has been validated."""
    return InputSpec(name, AnnotationEntry.model_validate(raw))


def _paths(raw: object, path: Path) -> Iterator[Path]:
    yield path
    if isinstance(raw, dict | list):
        for key, inner in raw.items() if isinstance(raw, dict) else enumerate(raw):
            yield from _paths(inner, (*path, key))


def _read(name: str, entry: Any, path: Path) -> InputSpec:  # noqa: ANN401 - a list or an entry
    if isinstance(entry, list):
        return InputSpec(name, TensorEntry.model_construct({"shape"}, shape=entry), path, inline=True)
    return InputSpec(name, entry, path)


def tensors_of(item: InputSpec) -> tuple[InputSpec, ...]:
    """Return the tensors that an input is made of; of several of one kind, the one."""
    match item.entry:
        case TensorEntry():
            return (item,)
        case ListEntry(items=OfEntry(of=one)):
            return (replace(_read(item.name, one, ("list", "of")), across_ranks=item.across_ranks),)
        case ListEntry(items=several):
            key = "list"
        case ConcatEntry(parts=several):
            key = "concat"
        case _:
            return ()
    read = (_read(f"{item.name}[{i}]", one, (key, i)) for i, one in enumerate(several))
    return tuple(replace(one, across_ranks=item.across_ranks) for one in read)


def is_optional(item: InputSpec) -> bool:
    """Whether it is left out in some cases."""
    return isinstance(item.entry, TensorEntry | ListEntry | ConcatEntry) and item.entry.optional


def levels(item: InputSpec) -> tuple[Scalar, ...]:
    """Return what an input is swept over, empty where it is the same in every case."""
    if isinstance(item.entry, schema.ChoicesEntry):
        return tuple(item.entry.choices)
    counts = counts_of(item)
    return (*(counts or (GIVEN,)), None) if is_optional(item) else counts


def counts_of(item: InputSpec) -> tuple[int, ...]:
    """Return how many tensors a list may hold of one kind; empty for everything else."""
    of = item.entry.items if isinstance(item.entry, ListEntry) else None
    return tuple(of.count) if isinstance(of, OfEntry) else ()


def size_names(item: InputSpec) -> tuple[str, ...]:
    """Return the sizes that an input depends on, each once."""
    return tuple(dict.fromkeys(name for _, one in expressions(item) for name in one.names))


def expressions(item: InputSpec) -> Iterator[tuple[Path, Expression]]:
    """Yield the size expressions of an input with their paths inside its entry, as they appear there."""
    yield from sorted(_expressions(item), key=lambda found: item.order.get(found[0], 0))


def _expressions(item: InputSpec) -> Iterator[tuple[Path, Expression]]:
    match item.entry:
        case schema.SizeEntry(size=size):
            yield ("size",), size
        case schema.TupleEntry(entries=entries):
            yield from _nested(entries, ("tuple",))
        case AnnotationEntry(constant_at=constants):
            yield from _nested(constants, ("constant_at",))
        case _:
            for tensor in tensors_of(item):
                entry = tensor.entry
                yield from _nested(entry.shape, (*tensor.path, *(() if tensor.inline else ("shape",))))
                yield from _nested(entry.range, (*tensor.path, "range"))
                yield from _nested(entry.constant_at, (*tensor.path, "constant_at"))


def _nested(value: object, path: Path) -> Iterator[tuple[Path, Expression]]:
    if isinstance(value, Expression):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nested(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _nested(inner, (*path, index))
