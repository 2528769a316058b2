"""The shape of a spec file, as pydantic models: what keys there are and what each may hold.

These models know one entry at a time. What relates entries to each other (sizes to shapes, ranges
to special values, names to the module) is in `tensors`, `relations` and `module_names`. Pydantic's
errors are turned into sentences by `gradverify.spec.mistakes`.

The JSON Schema of a spec file, made from the same models that read it: what editors complete from.
The text below a key is what they show of it.
"""

from __future__ import annotations

import inspect
import re
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
from gradverify.spec.fields import (
    Attribute,
    Bounds,
    Choices,
    Constants,
    Counts,
    Day,
    Distinct,
    Dtype,
    Dtypes,
    Entries,
    Float64,
    Gradient,
    Hook,
    InitScalar,
    InitValue,
    Integer,
    LiteralValue,
    Maybe,
    OutputPlacements,
    Outputs,
    Placement,
    Points,
    Product,
    Reason,
    Reference,
    Shape,
    Sizes,
    Some,
    Text,
    Tolerance,
    Values,
    Version,
    Where,
    Words,
    WorldSizes,
    given,
    one_of,
    parameter_names,
    some_tolerance,
)
from gradverify.spec.tensors import STRUCTURES


def input_form(raw: object) -> str:
    """Tell which form of an input this is, before anything is validated: one form, one error."""
    if not isinstance(raw, dict):
        return "shape" if isinstance(raw, list) else "literal"
    form = next((key for key in KEYED if key in raw), None)
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

    def __init__(self, form: Callable[[object], str] = written_form, **forms: Any) -> None:  # noqa: ANN401 - types
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


class TensorEntry(Entry):
    """`{shape: [b, n], …}`: a tensor that is drawn, made by a hook, or given by `value` with a `dtype`."""

    shape: Maybe[Shape] = None
    """Dimensions: integers, size names, expressions such as 2*n."""
    dtype: Dtype = "float64"
    """The dtype, as torch calls it."""
    domain: Annotated[str, one_of("domain", "domains", "real", "positive", "negative", "nonzero", "unit")] = (
        "real"
    )
    """The valid values."""
    range: Maybe[Bounds] = None
    """[low, high]; closed for floats, half-open for integers."""
    special: Points = []
    """Valid values worth planting; of integers also marks outside of `range`."""
    avoid: Points = []
    """Kinks that drawn values keep away from; integers not to draw."""
    structure: Annotated[str, one_of("structure", "structures", *STRUCTURES)] = ""
    """The manifold it lies on, or the form it has."""
    layout: Annotated[str, one_of("layout", "layouts", "sparse_coo", "sparse_csr")] = ""
    """A sparse layout; strided without it."""
    ties: bool = False
    """Equal values are valid, and planted."""
    distinct: bool = False
    """No two values may be equal, or nearly so."""
    constant_at: Constants = {}
    """{dimension: [indices]} of slices never perturbed; their gradient must be zero."""
    mutated: bool = False
    """A buffer that forward writes into."""
    make: Hook = ""
    """module:attribute, f(generator, device, dtype, shape) -> tensor."""
    optional: bool = False
    """Given in some cases, None in others."""
    requires_grad: Maybe[bool] = None
    """Whether it is differentiated; floats are by default."""
    value: Maybe[Values] = None
    """Nested lists of literals; with a dtype."""
    placement: Placement = ""
    """Across ranks: local (its default), replicate, shard(d), partial."""
    gradient: Gradient = ""
    """Of a replicated input, what each rank returns: partial, partial(avg), shard(d)."""


class ValueEntry(Entry):
    """`{value: x}`: a literal, where the bare scalar would mean something else."""

    value: LiteralValue
    """The literal."""


class ChoicesEntry(Entry):
    """`{choices: [mean, sum]}`: a literal that is swept over the cases."""

    choices: Choices
    """Literals; the first makes the base case."""


class TupleEntry(Entry):
    """`{tuple: [2, n]}`: a tuple of numbers and size expressions."""

    entries: Entries = Field(alias="tuple")
    """Numbers, size expressions, lists of them."""


class SizeEntry(Entry):
    """`{size: n + 1}`: a size, passed as an integer."""

    size: Integer
    """A size expression."""


class GroupEntry(Entry):
    """`{process_group: world}`: the group of the ranks."""

    group: Annotated[str, one_of("process_group", "groups", "world")] = Field(alias="process_group")
    """world: the group of all ranks."""


class ObjectEntry(Entry):
    """`{object: torch.nn.Linear, init: [2, 2]}`: a live object, called with `init` first if there is one."""

    path: Reference = Field(alias="object")
    """Dotted path or module:attribute."""
    init: Maybe[list[InitScalar]] = None
    """Arguments to call it with; names of sizes are sizes."""
    parameters: Annotated[str, BeforeValidator(given)] = ""
    """The `*args` parameter that gets the parameters of this module."""


ITEM = Forms(list=Shape, other=TensorEntry)
ItemEntry = Annotated[Any, ITEM]


class OfEntry(Entry):
    """`{of: [b, n], count: [2, 1]}`: so many tensors of one kind."""

    of: ItemEntry
    """Each of the tensors."""
    count: Counts
    """How many; a list is swept."""


class ListEntry(Entry):
    """`{list: [[b, n], [b, m]]}`: a list of tensors; splatted under a `*args` parameter."""

    items: Annotated[Any, Forms(other=Some[ItemEntry], mapping=OfEntry)] = Field(alias="list")
    """Tensors, or {of: tensor, count: 2}."""
    optional: bool = False
    """Given in some cases, None in others."""


class ConcatEntry(Entry):
    """`{concat: [[b, 3], {shape: [b, 4], structure: unit-norm}]}`: parts along the last dimension."""

    parts: Some[ItemEntry] = Field(alias="concat")
    """The parts."""
    optional: bool = False
    """Given in some cases, None in others."""
    requires_grad: Maybe[bool] = None
    """Whether the whole is differentiated."""


class AnnotationEntry(Entry):
    """What is said of a tensor that a hook builds."""

    requires_grad: Maybe[bool] = None
    """Whether it is differentiated."""
    avoid: Points = []
    """Kinks of the function."""
    constant_at: Constants = {}
    """Slices never perturbed."""


KEYED = {
    "choices": ChoicesEntry,
    "list": ListEntry,
    "concat": ConcatEntry,
    "object": ObjectEntry,
    "tuple": TupleEntry,
    "size": SizeEntry,
    "process_group": GroupEntry,
}
"""What the entry of an input is by the key that decides it; without one it is a tensor, or a literal."""
INPUT = Forms(
    input_form,
    shape=Shape,
    tensor=TensorEntry,
    value=ValueEntry,
    **KEYED,
    literal=LiteralValue,
)


class CallEntry(Entry):
    """`{call: f, arguments: [x, w]}`: a reference that takes its arguments in another order."""

    call: Reference
    """Dotted path or module:attribute."""
    arguments: Some[Text] = []
    """Names of inputs, in order."""


class SurrogateCall(Entry):
    """`{call: f, inputs: [x]}`: a surrogate gradient for some of the inputs."""

    call: Reference
    """Dotted path or module:attribute."""
    inputs: Distinct[Text] = []
    """Inputs whose gradient it replaces."""


class SurrogateReason(Entry):
    """`{reason: …}`: deliberately not the derivative, and no composite to compare with."""

    reason: Reason
    """Why; the report repeats it."""


class XfailEntry(Entry):
    """A failure that is expected: each of its codes must occur at least once."""

    codes: Distinct[Text]
    """Full codes, such as GV201."""
    reason: Reason
    """Why; the report repeats it."""
    until: Day = ""
    """The first day on which it no longer holds: 2027-01-31."""
    input: Words = ""
    """Limits it to findings on one input."""
    cases: Distinct[Text] = []
    """Limits it to cases: ids, or parts of ids."""


class ToleranceEntry(Entry):
    """Tolerances of one function; the command line wins over them."""

    rtol: Maybe[Tolerance] = None
    """Relative."""
    atol: Maybe[Tolerance] = None
    """Absolute."""


INIT = Forms(other=Annotated[dict[str, InitValue], AfterValidator(parameter_names)], list=list[InitValue])
SURROGATE = Forms(surrogate_form, path=Reference, surrogate=SurrogateCall, reason=SurrogateReason)


class CommonEntry(Entry):
    """The keys of a function, its inputs left aside."""

    sizes: dict[str, Sizes] = {}
    """Symbolic dimensions; lists are swept, pairwise."""
    where: Where = []
    """Conditions on sizes, such as h >= k; other cases are dropped."""
    cases: Maybe[Annotated[Any, Forms(other=Product, list=Some[dict[str, LiteralValue]])]] = None
    """`product` instead of the pairwise cover, or a list of {size: value, option: value}."""
    reference: Annotated[Any, Forms(other=Reference, mapping=CallEntry)] = ""
    """A composite that computes the same: dotted path, module:attribute, or a call."""
    surrogate: Maybe[Annotated[Any, SURROGATE]] = None
    """What the gradient is compared with where it is deliberately not the derivative."""
    tolerance: Annotated[ToleranceEntry, BeforeValidator(some_tolerance)] = Field(
        default_factory=ToleranceEntry
    )
    """rtol and atol."""
    outputs: Outputs = []
    """Positions of outputs to differentiate."""
    default_dtype: Annotated[str, one_of("default_dtype", "dtypes", "float64", "float32")] = ""
    """torch's default dtype while it runs."""
    devices: Distinct[Annotated[str, one_of("devices", "devices", "cpu", "cuda")]] = []
    """Devices it is limited to."""
    dtypes: Dtypes = []
    """Native dtypes it is judged in beside float64; float32 where nothing is listed."""
    internals: Annotated[str, one_of("internals", "dtypes", "float32")] = ""
    """float32: nothing inside is rounded to a shorter dtype."""
    target: Attribute = ""
    """An attribute of the module, or package.module:attribute."""
    world_size: WorldSizes = []
    """Numbers of ranks that it runs on; the first is the base."""
    output_placement: OutputPlacements = []
    """How each output is placed on the ranks; one word for all."""
    second_order: bool = False
    """Across ranks: judge the second derivative, too."""
    init: Maybe[Annotated[Any, INIT]] = None
    """Arguments that an nn.Module is built with; names of sizes are sizes."""
    skip: Reason = ""
    """Why it is not verified."""
    ignore: dict[str, Reason] = {}
    """{code or prefix: reason}: checks that are not run."""
    xfail: Maybe[Annotated[Any, Forms(other=XfailEntry, list=Some[XfailEntry])]] = None
    """Failures that are expected; strict."""
    notes: Words = ""
    """For readers; nothing is done with it."""


class FunctionEntry(CommonEntry):
    """One key of `functions:`."""

    inputs: dict[str, Annotated[Any, INPUT]] = {}
    """By the names of forward's parameters."""


class HookedEntry(CommonEntry):
    """One key of `functions:` whose arguments a hook builds."""

    arguments: Hook
    """module:attribute, f(generator, device, dtype, **sizes) -> args or (args, kwargs)."""
    inputs: dict[str, AnnotationEntry] = {}
    """What is to be known of the tensors that the hook builds."""


class Defaults(Entry):
    """`defaults:` of a file; the command line wins over them."""

    seed: int = 0
    """What the points of every case are drawn from."""
    dtype: Float64 = "float64"
    """The dtype of the verification."""
    dtypes: Dtypes = []
    """Native dtypes beside float64."""
    rtol: Tolerance = 1e-7
    """Relative tolerance."""
    atol: Tolerance = 0.0
    """Absolute tolerance."""


FUNCTION = Forms(function_form, function=FunctionEntry, hooked=HookedEntry)


class FileEntry(Entry):
    """A spec of gradverify: how hand-written backwards are to be called, and what is known of them."""

    gradverify: Version = 1
    """The version of the format."""
    module: str = ""
    """A path relative to this file, or a dotted name."""
    defaults: Defaults = Field(default_factory=Defaults)
    """For every function of the file."""
    functions: dict[str, Annotated[Any, FUNCTION]] = Field(json_schema_extra={"minProperties": 1})
    """By the name of the Function or callable; `Name@variant` for another spec of the same. Without
    `module`: `path.py::Name` or `package.module::Name`."""


DRAFT = "http://json-schema.org/draft-07/schema#"
"""What editors and yaml-language-server understand best."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec file, in the words of draft 7.

    Shapes, keys, words and ranges; what relates entries to each other only reading can tell. Integer
    keys of YAML (`constant_at: {0: [0]}`) count as text, as JSON has them.
    """
    made = FileEntry.model_json_schema()
    definitions = made.pop("$defs")
    for name, one in {FileEntry.__name__: made, **definitions}.items():
        model = globals()[name]
        for key, field in model.model_fields.items():
            shown = one["properties"][field.alias or key]
            one["properties"][field.alias or key] = dict(
                sorted({**shown, "description": _texts(model)[key]}.items())
            )
    return {
        "$schema": DRAFT,
        **_draft_7(made),
        "definitions": {name: _draft_7(one) for name, one in sorted(definitions.items())},
    }


@cache
def _texts(model: type[BaseModel]) -> dict[str, str]:
    """The text below each key of a mapping, those that it has in common with others included."""
    inherited = {} if model is Entry else _texts(model.__mro__[1])
    found = re.findall(
        r'\n    (\w+): (?:(?!\n    \w).)*?\n    """(.*?)"""', inspect.getsource(model), re.DOTALL
    )
    return {**inherited, **{key: " ".join(text.split()) for key, text in found}}


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
    made.pop("title", None)
    if "$ref" not in made:
        return made
    reference = {"$ref": made.pop("$ref").replace("#/$defs/", "#/definitions/")}
    # Draft 7 ignores whatever is beside a $ref.
    return {**made, "allOf": [reference]} if made else reference
