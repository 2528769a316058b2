"""The inputs of a function before sizes are bound: what was read, and what each is swept over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from gradverify.model import Scalar
from gradverify.spec import schema
from gradverify.spec.schema import AnnotationEntry, TensorEntry
from gradverify.spec.sizes import Expression
from gradverify.spec.wording import Path

GIVEN = "given"
"""The level of an optional input that is not left out."""


@cache
def _input() -> TypeAdapter[Any]:
    return TypeAdapter(schema.InputEntry)


@dataclass(frozen=True)
class LiteralSpec:
    """A literal, or one swept over its choices."""

    name: str
    choices: tuple[Scalar, ...]
    swept: bool = False


@dataclass(frozen=True)
class SizedSpec:
    """A literal that follows from sizes: an integer, or a tuple."""

    name: str
    value: object
    """An expression, a scalar, or nested tuples of them."""
    key: str
    """`size` or `tuple`."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor whose sizes are not bound yet."""

    name: str
    entry: TensorEntry
    path: Path = ()
    """Where it stands inside the entry of its input: `("list", 0)`."""
    inline: bool = False
    """Written as a bare list: its shape is the entry itself."""


@dataclass(frozen=True)
class ListSpec:
    """Several tensors, written out or counted."""

    name: str
    items: tuple[TensorSpec, ...]
    """Those written out, or the one of which there are several."""
    counts: tuple[int, ...] = ()
    """How many there are of the one; empty where they are written out."""
    optional: bool = False


@dataclass(frozen=True)
class ConcatSpec:
    """One tensor made of parts."""

    name: str
    parts: tuple[TensorSpec, ...]
    optional: bool = False
    requires_grad: bool | None = None


@dataclass(frozen=True)
class ObjectSpec:
    """A live object."""

    name: str
    path: str
    init: tuple[object, ...] | None = None


@dataclass(frozen=True)
class AnnotationSpec:
    """What is said of a tensor that a hook builds."""

    name: str
    entry: AnnotationEntry


InputSpec = LiteralSpec | SizedSpec | TensorSpec | ListSpec | ConcatSpec | ObjectSpec | AnnotationSpec


def read_input(name: str, raw: object) -> InputSpec:
    """Return an input whose form has been validated."""
    entry = _input().validate_python(raw)
    made: InputSpec
    match entry:
        case list() | schema.TensorEntry():
            made = _tensor(name, entry, ())
        case schema.ChoicesEntry():
            made = LiteralSpec(name, tuple(entry.choices), swept=True)
        case schema.ValueEntry():
            made = LiteralSpec(name, (entry.value,))
        case schema.SizeEntry():
            made = SizedSpec(name, entry.size, "size")
        case schema.TupleEntry():
            made = SizedSpec(name, entry.entries, "tuple")
        case schema.ObjectEntry():
            made = ObjectSpec(name, entry.path, None if entry.init is None else tuple(entry.init))
        case schema.ListEntry():
            made = _list(name, entry)
        case schema.ConcatEntry():
            parts = tuple(_tensor(f"{name}[{i}]", part, ("concat", i)) for i, part in enumerate(entry.parts))
            made = ConcatSpec(name, parts, entry.optional, entry.requires_grad)
        case _:
            made = LiteralSpec(name, (entry,))
    return made


def read_annotation(name: str, raw: object) -> InputSpec:
    """Return what is said of a tensor that a hook builds, once it has been validated."""
    return AnnotationSpec(name, AnnotationEntry.model_validate(raw))


def _tensor(name: str, entry: Any, path: Path) -> TensorSpec:  # noqa: ANN401 - a list or a TensorEntry
    if isinstance(entry, list):
        return TensorSpec(name, TensorEntry.model_construct({"shape"}, shape=entry), path, inline=True)
    return TensorSpec(name, entry, path)


def _list(name: str, entry: schema.ListEntry) -> ListSpec:
    if isinstance(entry.items, schema.OfEntry):
        one = _tensor(name, entry.items.of, ("list", "of"))
        return ListSpec(name, (one,), tuple(entry.items.count), entry.optional)
    items = tuple(_tensor(f"{name}[{i}]", item, ("list", i)) for i, item in enumerate(entry.items))
    return ListSpec(name, items, optional=entry.optional)


def tensors_of(item: InputSpec) -> tuple[TensorSpec, ...]:
    """Return the tensors that an input is made of."""
    match item:
        case TensorSpec():
            return (item,)
        case ListSpec(items=tensors) | ConcatSpec(parts=tensors):
            return tensors
        case _:
            return ()


def is_optional(item: InputSpec) -> bool:
    """Whether it is left out in some cases."""
    if isinstance(item, TensorSpec):
        return item.entry.optional
    return isinstance(item, ListSpec | ConcatSpec) and item.optional


def levels(item: InputSpec) -> tuple[Scalar, ...]:
    """Return what an input is swept over, empty where it is the same in every case."""
    if isinstance(item, LiteralSpec):
        return item.choices if item.swept else ()
    counts = item.counts if isinstance(item, ListSpec) else ()
    if is_optional(item):
        return (*(counts or (GIVEN,)), None)
    return counts


def size_names(item: InputSpec) -> tuple[str, ...]:
    """Return the sizes that an input depends on, each once."""
    return tuple(dict.fromkeys(name for one in _expressions(item) for name in one.names))


def _expressions(item: InputSpec) -> Iterator[Expression]:
    match item:
        case SizedSpec(value=value):
            yield from _nested(value)
        case AnnotationSpec():
            yield from _nested(list(item.entry.constant_at.values()))
        case _:
            for tensor in tensors_of(item):
                entry = tensor.entry
                yield from _nested([entry.shape, entry.range, list(entry.constant_at.values())])


def _nested(value: object) -> Iterator[Expression]:
    if isinstance(value, Expression):
        yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _nested(inner)
