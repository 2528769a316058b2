"""The inputs of an entry as a spec writes them, read into what cases are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradverify.cases.inputs import (
    GROUP,
    ChoicesSpec,
    ConcatSpec,
    InputSpec,
    ListSpec,
    TensorSpec,
    ValueSpec,
    expressions,
    leaves,
    shape_of,
)
from gradverify.cases.messages import Path
from gradverify.cases.sizes import Expression
from gradverify.model import Annotation, ObjectInput
from gradverify.spec import schema
from gradverify.spec.schema import OfEntry, TensorEntry
from gradverify.spec.source import as_written


def read_input(name: str, entry: object, *, across: bool) -> InputSpec:
    """Return an input from its entry; `across` several ranks a tensor is local by default."""
    placement = "local" if across else ""
    made: InputSpec
    match entry:
        case schema.ListEntry() | schema.ConcatEntry():
            made = _several(name, entry, placement)
        case TensorEntry() | list():
            made = _tensor(name, entry, placement)
        case schema.ChoicesEntry(choices=choices):
            made = ChoicesSpec(name, tuple(choices))
        case schema.AnnotationEntry(avoid=avoid, constant_at=constants, requires_grad=wanted):
            made = Annotation(name, wanted, tuple(map(float, avoid)), _constants(constants))
        case schema.GroupEntry():
            made = ObjectInput(name, GROUP)
        case schema.ObjectEntry(path=path, init=init, parameters=parameters):
            made = ObjectInput(name, path, None if init is None else tuple(init), parameters)
        case schema.SizeEntry(size=size):
            made = ValueSpec(name, size if isinstance(size, Expression) else Expression(str(size)))
        case schema.TupleEntry(entries=value) | schema.ValueEntry(value=value) | value:
            made = ValueSpec(name, value)
    return made


def _several(
    name: str, entry: schema.ListEntry | schema.ConcatEntry, placement: str
) -> ListSpec | ConcatSpec:
    several = entry.items if isinstance(entry, schema.ListEntry) else entry.parts
    if isinstance(several, OfEntry):
        return ListSpec(name, (_tensor(name, several.of, placement),), tuple(several.count), entry.optional)
    items = tuple(_tensor(f"{name}[{k}]", one, placement) for k, one in enumerate(several))
    if isinstance(entry, schema.ListEntry):
        return ListSpec(name, items, optional=entry.optional)
    return ConcatSpec(name, items, entry.optional, entry.requires_grad)


def _tensor(name: str, entry: TensorEntry | list[Any], placement: str) -> TensorSpec:
    if isinstance(entry, list):
        return TensorSpec(name, tuple(entry), placement=placement)
    said = {key: getattr(entry, key) for key in entry.model_fields_set}
    said = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    said["constant_at"] = _constants(entry.constant_at)
    said["placement"] = entry.placement or placement
    return TensorSpec(name, **{"shape": shape_of(entry.value), **said})


def _constants(written: Mapping[str, Any]) -> tuple[tuple[int, tuple[Any, ...]], ...]:
    return tuple((int(key), tuple(indices)) for key, indices in written.items())


def written_expressions(item: InputSpec, raw: object) -> list[tuple[Path, Expression]]:
    """Return the size expressions of an input in the order in which its entry has them."""
    order = {path: number for number, (path, _) in enumerate(leaves(raw))}
    return sorted(expressions(item), key=lambda found: order.get(as_written(raw, found[0]), 0))
