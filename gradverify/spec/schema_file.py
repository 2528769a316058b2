"""The shape of a spec file above its inputs: functions, defaults, the file itself. See `schema`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from gradverify.spec import fields as f
from gradverify.spec import fields_function as ff
from gradverify.spec import fields_ranks as fr
from gradverify.spec.schema import (
    MARK,
    AnnotationEntry,
    Entry,
    Given,
    InputEntry,
    by_kind,
    function_form,
    surrogate_form,
)


class CallEntry(Entry):
    """`{call: f, arguments: [x, w]}`: a reference that takes its arguments in another order."""

    call: ff.Reference = Field(description="Dotted path or module:attribute.")
    arguments: ff.Arguments = Field(default_factory=list, description="Names of inputs, in order.")


class SurrogateCall(Entry):
    """`{call: f, inputs: [x]}`: a surrogate gradient for some of the inputs."""

    call: ff.Reference = Field(description="Dotted path or module:attribute.")
    inputs: ff.Names = Field(default_factory=list, description="Inputs whose gradient it replaces.")


class SurrogateReason(Entry):
    """`{reason: …}`: deliberately not the derivative, and no composite to compare with."""

    reason: ff.Reason = Field(description="Why; the report repeats it.")


class XfailEntry(Entry):
    """A failure that is expected: each of its codes must occur at least once."""

    codes: ff.Names = Field(description="Full codes, such as GV201.")
    reason: ff.Reason = Field(description="Why; the report repeats it.")
    until: ff.Day = Field(default="", description="The first day on which it no longer holds: 2027-01-31.")
    input: ff.Words = Field(default="", description="Limits it to findings on one input.")
    cases: ff.Names = Field(default_factory=list, description="Limits it to cases: ids, or parts of ids.")


class ToleranceEntry(Entry):
    """Tolerances of one function; the command line wins over them."""

    rtol: Annotated[ff.Tolerance | None, Given] = Field(default=None, description="Relative.")
    atol: Annotated[ff.Tolerance | None, Given] = Field(default=None, description="Absolute.")


ReferenceEntry = Annotated[
    Annotated[ff.Reference, Tag(MARK + "path")] | Annotated[CallEntry, Tag(MARK + "call")],
    by_kind(keys="call", other="path"),
]
SurrogateEntry = Annotated[
    Annotated[ff.Reference, Tag(MARK + "path")]
    | Annotated[SurrogateCall, Tag(MARK + "surrogate")]
    | Annotated[SurrogateReason, Tag(MARK + "reason")],
    Discriminator(surrogate_form),
]
CasesEntry = Annotated[
    Annotated[ff.Product, Tag(MARK + "word")]
    | Annotated[list[dict[str, f.LiteralValue]], Field(min_length=1), Tag(MARK + "rows")],
    by_kind(many="rows", other="word"),
]
XfailEntries = Annotated[
    Annotated[XfailEntry, Tag(MARK + "xfail")]
    | Annotated[list[XfailEntry], Field(min_length=1), Tag(MARK + "xfails")],
    by_kind(many="xfails", other="xfail"),
]
InitEntry = Annotated[
    Annotated[dict[str, ff.InitValue], AfterValidator(ff.parameter_names), Tag(MARK + "named")]
    | Annotated[list[ff.InitValue], Tag(MARK + "positional")],
    by_kind(many="positional", other="named"),
]


class CommonEntry(Entry):
    """The keys of a function, its inputs left aside."""

    sizes: dict[str, f.Sizes] = Field(
        default_factory=dict, description="Symbolic dimensions; lists are swept, pairwise."
    )
    where: ff.Where = Field(
        default_factory=list, description="Conditions on sizes, such as h >= k; other cases are dropped."
    )
    cases: Annotated[CasesEntry | None, Given] = Field(
        default=None,
        description="`product` instead of the pairwise cover, or a list of {size: value, option: value}.",
    )
    reference: ReferenceEntry = Field(
        default="",
        description="A composite that computes the same: dotted path, module:attribute, or a call.",
    )
    surrogate: Annotated[SurrogateEntry | None, Given] = Field(
        default=None,
        description="What the gradient is compared with where it is deliberately not the derivative.",
    )
    tolerance: Annotated[ToleranceEntry, BeforeValidator(ff.some_tolerance)] = Field(
        default_factory=ToleranceEntry, description="rtol and atol."
    )
    outputs: ff.Outputs = Field(default_factory=list, description="Positions of outputs to differentiate.")
    default_dtype: ff.DefaultDtype = Field(default="", description="torch's default dtype while it runs.")
    devices: ff.Devices = Field(default_factory=list, description="Devices it is limited to.")
    dtypes: ff.Dtypes = Field(
        default_factory=list,
        description="Native dtypes it is judged in beside float64; float32 where nothing is listed.",
    )
    internals: ff.Internals = Field(
        default="", description="float32: nothing inside is rounded to a shorter dtype."
    )
    target: ff.Attribute = Field(
        default="", description="An attribute of the module, or package.module:attribute."
    )
    world_size: fr.WorldSizes = Field(
        default_factory=list, description="Numbers of ranks that it runs on; the first is the base."
    )
    output_placement: fr.OutputPlacements = Field(
        default_factory=list, description="How each output is placed on the ranks; one word for all."
    )
    second_order: bool = Field(default=False, description="Across ranks: judge the second derivative, too.")
    init: Annotated[InitEntry | None, Given] = Field(
        default=None, description="Arguments that an nn.Module is built with; names of sizes are sizes."
    )
    skip: ff.Reason = Field(default="", description="Why it is not verified.")
    ignore: dict[str, ff.Reason] = Field(
        default_factory=dict, description="{code or prefix: reason}: checks that are not run."
    )
    xfail: Annotated[XfailEntries | None, Given] = Field(
        default=None, description="Failures that are expected; strict."
    )
    notes: ff.Words = Field(default="", description="For readers; nothing is done with it.")


class FunctionEntry(CommonEntry):
    """One key of `functions:`."""

    inputs: dict[str, InputEntry] = Field(
        default_factory=dict, description="By the names of forward's parameters."
    )


class HookedEntry(CommonEntry):
    """One key of `functions:` whose arguments a hook builds."""

    arguments: ff.Hook = Field(
        description="module:attribute, f(generator, device, dtype, **sizes) -> args or (args, kwargs)."
    )
    inputs: dict[str, AnnotationEntry] = Field(
        default_factory=dict, description="What is to be known of the tensors that the hook builds."
    )


class Defaults(Entry):
    """`defaults:` of a file; the command line wins over them."""

    seed: int = Field(default=0, description="What the points of every case are drawn from.")
    dtype: ff.Float64 = Field(default="float64", description="The dtype of the verification.")
    dtypes: ff.Dtypes = Field(default_factory=list, description="Native dtypes beside float64.")
    rtol: ff.Tolerance = Field(default=1e-7, description="Relative tolerance.")
    atol: ff.Tolerance = Field(default=0.0, description="Absolute tolerance.")


AnyFunction = Annotated[
    Annotated[FunctionEntry, Tag(MARK + "function")] | Annotated[HookedEntry, Tag(MARK + "hooked")],
    Discriminator(function_form),
]


class FileEntry(Entry):
    """A spec of gradverify: how hand-written backwards are to be called, and what is known of them."""

    gradverify: ff.Version = Field(default=1, description="The version of the format.")
    module: str = Field(default="", description="A path relative to this file, or a dotted name.")
    defaults: Defaults = Field(default_factory=Defaults, description="For every function of the file.")
    functions: dict[str, AnyFunction] = Field(
        description=(
            "By the name of the Function or callable; `Name@variant` for another spec of the same. Without "
            "`module`: `path.py::Name` or `package.module::Name`."
        ),
        json_schema_extra={"minProperties": 1},
    )
