"""The shape of a spec file, as pydantic models: what keys there are and what each may hold.

These models know one entry at a time. What relates entries to each other (sizes to shapes, ranges
to special values, names to the module) is in `tensors`, `relations` and `module_names`. Pydantic's
errors are turned into sentences by `gradverify.spec.translate`, the JSON Schema is made by
`gradverify.spec.json_schema`: the descriptions here are what an editor shows.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from gradverify.spec import fields as f
from gradverify.spec import fields_function as ff
from gradverify.spec import fields_ranks as fr
from gradverify.spec.messages import nearest

MARK = "\0"
"""Begins the tags of unions: pydantic mixes them into error paths, and no key of a file can hold it."""
INPUT_FORMS = ("choices", "list", "concat", "object", "tuple", "size", "process_group")
"""Keys that decide what the entry of an input is; without one it is a tensor, or a literal."""


def input_form(raw: object) -> str:
    """Tell which form of an input this is, before anything is validated: one form, one error."""
    if isinstance(raw, list):
        return MARK + "shape"
    if not isinstance(raw, dict):
        return MARK + "literal"
    form = next((key for key in INPUT_FORMS if key in raw), None)
    if form:
        return MARK + form
    literal = "value" in raw and not isinstance(raw["value"], list) and not {"shape", "dtype"} & raw.keys()
    return MARK + ("value" if literal else "tensor")


def by_kind(*, many: str = "", keys: str = "", other: str = "") -> Discriminator:
    """Tell forms apart by what is written: a list, a mapping, or anything else."""

    def form(raw: object) -> str:
        reported = many if isinstance(raw, list) else keys if isinstance(raw, dict) else ""
        return MARK + (reported or other)

    return Discriminator(form)


def surrogate_form(raw: object) -> str:
    """Tell a path, a call, and a mere reason."""
    if not isinstance(raw, dict):
        return MARK + "path"
    reason = any(nearest(str(key), ("call", "inputs", "reason")) == "reason" for key in raw)
    return MARK + ("reason" if reason and "call" not in raw else "surrogate")


def function_form(raw: object) -> str:
    """Tell a function whose arguments a hook builds."""
    return MARK + ("hooked" if isinstance(raw, dict) and "arguments" in raw else "function")


class Entry(BaseModel):
    """Any mapping of a spec: exact types, no unknown keys."""

    # Built where it is first asked for: most only ever as a part of another, which builds it once more.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


Given = BeforeValidator(f.given)
_Shape = Annotated[list[f.Dimension] | None, Given]
_Range = Annotated[f.Bounds | None, Given]
_Bool = Annotated[bool | None, Given]
_Points = list[f.Finite]


class TensorEntry(Entry):
    """`{shape: [b, n], …}`: a tensor that is drawn, made by a hook, or given by `value` with a `dtype`."""

    shape: _Shape = Field(
        default=None, description="Dimensions: integers, size names, expressions such as 2*n."
    )
    dtype: f.Dtype = Field(default="float64", description="The dtype, as torch calls it.")
    domain: f.Domain = Field(default="real", description="The valid values.")
    range: _Range = Field(default=None, description="[low, high]; closed for floats, half-open for integers.")
    special: _Points = Field(
        default_factory=list,
        description="Valid values worth planting; of integers also marks outside of `range`.",
    )
    avoid: _Points = Field(
        default_factory=list, description="Kinks that drawn values keep away from; integers not to draw."
    )
    structure: f.StructureName = Field(default="", description="The manifold it lies on, or the form it has.")
    layout: f.LayoutName = Field(default="", description="A sparse layout; strided without it.")
    ties: bool = Field(default=False, description="Equal values are valid, and planted.")
    distinct: bool = Field(default=False, description="No two values may be equal, or nearly so.")
    constant_at: f.Constants = Field(
        default_factory=dict,
        description="{dimension: [indices]} of slices never perturbed; their gradient must be zero.",
    )
    mutated: bool = Field(default=False, description="A buffer that forward writes into.")
    make: ff.Hook = Field(
        default="", description="module:attribute, f(generator, device, dtype, shape) -> tensor."
    )
    optional: bool = Field(default=False, description="Given in some cases, None in others.")
    requires_grad: _Bool = Field(
        default=None, description="Whether it is differentiated; floats are by default."
    )
    value: Annotated[f.Values, Given] = Field(
        default=None, description="Nested lists of literals; with a dtype."
    )
    placement: fr.Placement = Field(
        default="", description="Across ranks: local (its default), replicate, shard(d), partial."
    )
    gradient: fr.Gradient = Field(
        default="",
        description="Of a replicated input, what each rank returns: partial, partial(avg), shard(d).",
    )


class ValueEntry(Entry):
    """`{value: x}`: a literal, where the bare scalar would mean something else."""

    value: f.LiteralValue = Field(description="The literal.")


class ChoicesEntry(Entry):
    """`{choices: [mean, sum]}`: a literal that is swept over the cases."""

    choices: f.Choices = Field(description="Literals; the first makes the base case.")


class TupleEntry(Entry):
    """`{tuple: [2, n]}`: a tuple of numbers and size expressions."""

    entries: f.Entries = Field(alias="tuple", description="Numbers, size expressions, lists of them.")


class SizeEntry(Entry):
    """`{size: n + 1}`: a size, passed as an integer."""

    size: f.Integer = Field(description="A size expression.")


class GroupEntry(Entry):
    """`{process_group: world}`: the group of the ranks."""

    group: fr.Group = Field(alias="process_group", description="world: the group of all ranks.")


class ObjectEntry(Entry):
    """`{object: torch.nn.Linear, init: [2, 2]}`: a live object, called with `init` first if there is one."""

    path: ff.Reference = Field(alias="object", description="Dotted path or module:attribute.")
    init: Annotated[list[ff.InitScalar] | None, Given] = Field(
        default=None, description="Arguments to call it with; names of sizes are sizes."
    )


ItemEntry = Annotated[
    Annotated[list[f.Dimension], Tag(MARK + "shape")] | Annotated[TensorEntry, Tag(MARK + "item")],
    by_kind(many="shape", other="item"),
]


class OfEntry(Entry):
    """`{of: [b, n], count: [2, 1]}`: so many tensors of one kind."""

    of: ItemEntry = Field(description="Each of the tensors.")
    count: f.Counts = Field(description="How many; a list is swept.")


ListItems = Annotated[
    Annotated[list[ItemEntry], Field(min_length=1), Tag(MARK + "items")]
    | Annotated[OfEntry, Tag(MARK + "of")],
    by_kind(keys="of", other="items"),
]


class ListEntry(Entry):
    """`{list: [[b, n], [b, m]]}`: a list of tensors; splatted under a `*args` parameter."""

    items: ListItems = Field(alias="list", description="Tensors, or {of: tensor, count: 2}.")
    optional: bool = Field(default=False, description="Given in some cases, None in others.")


class ConcatEntry(Entry):
    """`{concat: [[b, 3], {shape: [b, 4], structure: unit-norm}]}`: parts along the last dimension."""

    parts: Annotated[list[ItemEntry], Field(min_length=1)] = Field(alias="concat", description="The parts.")
    optional: bool = Field(default=False, description="Given in some cases, None in others.")
    requires_grad: _Bool = Field(default=None, description="Whether the whole is differentiated.")


class AnnotationEntry(Entry):
    """What is said of a tensor that a hook builds."""

    requires_grad: _Bool = Field(default=None, description="Whether it is differentiated.")
    avoid: _Points = Field(default_factory=list, description="Kinks of the function.")
    constant_at: f.Constants = Field(default_factory=dict, description="Slices never perturbed.")


InputEntry = Annotated[
    Annotated[list[f.Dimension], Tag(MARK + "shape")]
    | Annotated[TensorEntry, Tag(MARK + "tensor")]
    | Annotated[ValueEntry, Tag(MARK + "value")]
    | Annotated[ChoicesEntry, Tag(MARK + "choices")]
    | Annotated[ListEntry, Tag(MARK + "list")]
    | Annotated[ConcatEntry, Tag(MARK + "concat")]
    | Annotated[ObjectEntry, Tag(MARK + "object")]
    | Annotated[TupleEntry, Tag(MARK + "tuple")]
    | Annotated[SizeEntry, Tag(MARK + "size")]
    | Annotated[GroupEntry, Tag(MARK + "process_group")]
    | Annotated[f.LiteralValue, Tag(MARK + "literal")],
    Discriminator(input_form),
]
