"""The shape of a spec file, as pydantic models: what keys there are and what each may hold.

These models know one entry at a time. What relates entries to each other (sizes to shapes, ranges
to special values, names to the module) is in `tensors`, `relations` and `module_names`. Pydantic's
errors are turned into sentences by `gradverify.spec.mistakes`; an editor shows the descriptions here.

The shape of a spec file above its inputs: functions, defaults, the file itself. See `schema`.

The JSON Schema of a spec file, made from the same models that read it: what editors complete from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
)
from pydantic_core import CoreSchema, core_schema

from gradverify.cases.messages import nearest
from gradverify.spec import fields as f

INPUT_FORMS = ("choices", "list", "concat", "object", "tuple", "size", "process_group")
"""Keys that decide what the entry of an input is; without one it is a tensor, or a literal."""


def input_form(raw: object) -> str:
    """Tell which form of an input this is, before anything is validated: one form, one error."""
    if not isinstance(raw, dict):
        return "shape" if isinstance(raw, list) else "literal"
    form = next((key for key in INPUT_FORMS if key in raw), None)
    literal = "value" in raw and not isinstance(raw["value"], list) and not {"shape", "dtype"} & raw.keys()
    return form or ("value" if literal else "tensor")


def written_form(raw: object) -> str:
    """Tell forms apart by what is written: a list, a mapping, or anything else."""
    return "list" if isinstance(raw, list) else "mapping" if isinstance(raw, dict) else "other"


def surrogate_form(raw: object) -> str:
    """Tell a path, a call, and a mere reason."""
    if not isinstance(raw, dict):
        return "path"
    reason = any(nearest(str(key), ("call", "inputs", "reason")) == "reason" for key in raw)
    return "reason" if reason and "call" not in raw else "surrogate"


def function_form(raw: object) -> str:
    """Tell a function whose arguments a hook builds."""
    return "hooked" if isinstance(raw, dict) and "arguments" in raw else "function"


class Forms:
    """A value that has several forms; it is validated as the one that it looks like."""

    def __init__(self, form: Callable[[object], str], **forms: Any) -> None:  # noqa: ANN401 - types
        """`forms` are types by the names that `form` gives; any other one is validated as `other`."""
        self.form, self.forms = form, forms
        self.adapter = cache(lambda name: TypeAdapter(forms[name]))

    def validated(self, raw: object) -> Any:  # noqa: ANN401 - what the form gives
        """Return what the form of a value makes of it. Raises `pydantic.ValidationError`."""
        form = self.form(raw)
        return self.adapter(form if form in self.forms else "other").validate_python(raw)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Return what pydantic validates with, and what editors are sent: each of the forms."""
        return core_schema.json_or_python_schema(
            core_schema.union_schema([handler.generate_schema(one) for one in self.forms.values()]),
            core_schema.no_info_plain_validator_function(self.validated),
        )


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
    make: f.Hook = Field(
        default="", description="module:attribute, f(generator, device, dtype, shape) -> tensor."
    )
    optional: bool = Field(default=False, description="Given in some cases, None in others.")
    requires_grad: _Bool = Field(
        default=None, description="Whether it is differentiated; floats are by default."
    )
    value: Annotated[f.Values, Given] = Field(
        default=None, description="Nested lists of literals; with a dtype."
    )
    placement: f.Placement = Field(
        default="", description="Across ranks: local (its default), replicate, shard(d), partial."
    )
    gradient: f.Gradient = Field(
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

    group: f.Group = Field(alias="process_group", description="world: the group of all ranks.")


class ObjectEntry(Entry):
    """`{object: torch.nn.Linear, init: [2, 2]}`: a live object, called with `init` first if there is one."""

    path: f.Reference = Field(alias="object", description="Dotted path or module:attribute.")
    init: Annotated[list[f.InitScalar] | None, Given] = Field(
        default=None, description="Arguments to call it with; names of sizes are sizes."
    )
    parameters: Annotated[str, Given] = Field(
        default="", description="The `*args` parameter that gets the parameters of this module."
    )


ITEM = Forms(written_form, list=list[f.Dimension], other=TensorEntry)
ItemEntry = Annotated[Any, ITEM]


class OfEntry(Entry):
    """`{of: [b, n], count: [2, 1]}`: so many tensors of one kind."""

    of: ItemEntry = Field(description="Each of the tensors.")
    count: f.Counts = Field(description="How many; a list is swept.")


ListItems = Annotated[
    Any, Forms(written_form, other=Annotated[list[ItemEntry], Field(min_length=1)], mapping=OfEntry)
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


INPUT = Forms(
    input_form,
    shape=list[f.Dimension],
    tensor=TensorEntry,
    value=ValueEntry,
    choices=ChoicesEntry,
    list=ListEntry,
    concat=ConcatEntry,
    object=ObjectEntry,
    tuple=TupleEntry,
    size=SizeEntry,
    process_group=GroupEntry,
    literal=f.LiteralValue,
)
InputEntry = Annotated[Any, INPUT]


ANNOTATION = Forms(lambda _: "other", other=AnnotationEntry)


class CallEntry(Entry):
    """`{call: f, arguments: [x, w]}`: a reference that takes its arguments in another order."""

    call: f.Reference = Field(description="Dotted path or module:attribute.")
    arguments: f.Arguments = Field(default_factory=list, description="Names of inputs, in order.")


class SurrogateCall(Entry):
    """`{call: f, inputs: [x]}`: a surrogate gradient for some of the inputs."""

    call: f.Reference = Field(description="Dotted path or module:attribute.")
    inputs: f.Names = Field(default_factory=list, description="Inputs whose gradient it replaces.")


class SurrogateReason(Entry):
    """`{reason: …}`: deliberately not the derivative, and no composite to compare with."""

    reason: f.Reason = Field(description="Why; the report repeats it.")


class XfailEntry(Entry):
    """A failure that is expected: each of its codes must occur at least once."""

    codes: f.Names = Field(description="Full codes, such as GV201.")
    reason: f.Reason = Field(description="Why; the report repeats it.")
    until: f.Day = Field(default="", description="The first day on which it no longer holds: 2027-01-31.")
    input: f.Words = Field(default="", description="Limits it to findings on one input.")
    cases: f.Names = Field(default_factory=list, description="Limits it to cases: ids, or parts of ids.")


class ToleranceEntry(Entry):
    """Tolerances of one function; the command line wins over them."""

    rtol: Annotated[f.Tolerance | None, Given] = Field(default=None, description="Relative.")
    atol: Annotated[f.Tolerance | None, Given] = Field(default=None, description="Absolute.")


ReferenceEntry = Annotated[Any, Forms(written_form, other=f.Reference, mapping=CallEntry)]
SurrogateEntry = Annotated[
    Any, Forms(surrogate_form, path=f.Reference, surrogate=SurrogateCall, reason=SurrogateReason)
]
CasesEntry = Annotated[
    Any,
    Forms(
        written_form,
        other=f.Product,
        list=Annotated[list[dict[str, f.LiteralValue]], Field(min_length=1)],
    ),
]
XfailEntries = Annotated[
    Any,
    Forms(written_form, other=XfailEntry, list=Annotated[list[XfailEntry], Field(min_length=1)]),
]
InitEntry = Annotated[
    Any,
    Forms(
        written_form,
        other=Annotated[dict[str, f.InitValue], AfterValidator(f.parameter_names)],
        list=list[f.InitValue],
    ),
]


class CommonEntry(Entry):
    """The keys of a function, its inputs left aside."""

    sizes: dict[str, f.Sizes] = Field(
        default_factory=dict, description="Symbolic dimensions; lists are swept, pairwise."
    )
    where: f.Where = Field(
        default_factory=list, description="Conditions on sizes, such as h >= k; other cases are dropped."
    )
    cases: Annotated[CasesEntry, Given] = Field(
        default=None,
        description="`product` instead of the pairwise cover, or a list of {size: value, option: value}.",
    )
    reference: ReferenceEntry = Field(
        default="",
        description="A composite that computes the same: dotted path, module:attribute, or a call.",
    )
    surrogate: Annotated[SurrogateEntry, Given] = Field(
        default=None,
        description="What the gradient is compared with where it is deliberately not the derivative.",
    )
    tolerance: Annotated[ToleranceEntry, BeforeValidator(f.some_tolerance)] = Field(
        default_factory=ToleranceEntry, description="rtol and atol."
    )
    outputs: f.Outputs = Field(default_factory=list, description="Positions of outputs to differentiate.")
    default_dtype: f.DefaultDtype = Field(default="", description="torch's default dtype while it runs.")
    devices: f.Devices = Field(default_factory=list, description="Devices it is limited to.")
    dtypes: f.Dtypes = Field(
        default_factory=list,
        description="Native dtypes it is judged in beside float64; float32 where nothing is listed.",
    )
    internals: f.Internals = Field(
        default="", description="float32: nothing inside is rounded to a shorter dtype."
    )
    target: f.Attribute = Field(
        default="", description="An attribute of the module, or package.module:attribute."
    )
    world_size: f.WorldSizes = Field(
        default_factory=list, description="Numbers of ranks that it runs on; the first is the base."
    )
    output_placement: f.OutputPlacements = Field(
        default_factory=list, description="How each output is placed on the ranks; one word for all."
    )
    second_order: bool = Field(default=False, description="Across ranks: judge the second derivative, too.")
    init: Annotated[InitEntry, Given] = Field(
        default=None, description="Arguments that an nn.Module is built with; names of sizes are sizes."
    )
    skip: f.Reason = Field(default="", description="Why it is not verified.")
    ignore: dict[str, f.Reason] = Field(
        default_factory=dict, description="{code or prefix: reason}: checks that are not run."
    )
    xfail: Annotated[XfailEntries, Given] = Field(
        default=None, description="Failures that are expected; strict."
    )
    notes: f.Words = Field(default="", description="For readers; nothing is done with it.")


class FunctionEntry(CommonEntry):
    """One key of `functions:`."""

    inputs: dict[str, InputEntry] = Field(
        default_factory=dict, description="By the names of forward's parameters."
    )


class HookedEntry(CommonEntry):
    """One key of `functions:` whose arguments a hook builds."""

    arguments: f.Hook = Field(
        description="module:attribute, f(generator, device, dtype, **sizes) -> args or (args, kwargs)."
    )
    inputs: dict[str, AnnotationEntry] = Field(
        default_factory=dict, description="What is to be known of the tensors that the hook builds."
    )


class Defaults(Entry):
    """`defaults:` of a file; the command line wins over them."""

    seed: int = Field(default=0, description="What the points of every case are drawn from.")
    dtype: f.Float64 = Field(default="float64", description="The dtype of the verification.")
    dtypes: f.Dtypes = Field(default_factory=list, description="Native dtypes beside float64.")
    rtol: f.Tolerance = Field(default=1e-7, description="Relative tolerance.")
    atol: f.Tolerance = Field(default=0.0, description="Absolute tolerance.")


FUNCTION = Forms(function_form, function=FunctionEntry, hooked=HookedEntry)


class FileEntry(Entry):
    """A spec of gradverify: how hand-written backwards are to be called, and what is known of them."""

    gradverify: f.Version = Field(default=1, description="The version of the format.")
    module: str = Field(default="", description="A path relative to this file, or a dotted name.")
    defaults: Defaults = Field(default_factory=Defaults, description="For every function of the file.")
    functions: dict[str, Annotated[Any, FUNCTION]] = Field(
        description=(
            "By the name of the Function or callable; `Name@variant` for another spec of the same. Without "
            "`module`: `path.py::Name` or `package.module::Name`."
        ),
        json_schema_extra={"minProperties": 1},
    )


DRAFT = "http://json-schema.org/draft-07/schema#"
"""What editors and yaml-language-server understand best."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec file, in the words of draft 7.

    Shapes, keys, words and ranges; what relates entries to each other only reading can tell. Integer
    keys of YAML (`constant_at: {0: [0]}`) count as text, as JSON has them.
    """
    made = FileEntry.model_json_schema(by_alias=True)
    definitions = made.pop("$defs")
    return {
        "$schema": DRAFT,
        **_draft_7(made),
        "definitions": {name: _draft_7(one) for name, one in sorted(definitions.items())},
    }


def _draft_7(node: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(node, list):
        return [_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _draft_7(value) for key, value in node.items()}
    # Exactly one form matches in our reading, but `{value: 3}` has the shape of two.
    forms = made.pop("oneOf", None) or made.pop("anyOf", None)
    if forms is not None:
        # None stands for an absent key in the models; a null in a file is refused.
        forms = [form for form in forms if form != {"type": "null"}]
        made = {**made, **(forms[0] if len(forms) == 1 else {"anyOf": forms})}
    # An absent key has no value to show; titles only repeat the names of keys.
    if made.get("default", ...) in (None, "", [], {}):
        del made["default"]
    if isinstance(made.get("title"), str):
        del made["title"]
    if "$ref" not in made:
        return made
    reference = {"$ref": made.pop("$ref").replace("#/$defs/", "#/definitions/")}
    # Draft 7 ignores whatever is beside a $ref.
    return {**made, "allOf": [reference]} if made else reference
