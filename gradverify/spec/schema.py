"""The shape of a spec file, as pydantic models: what keys there are and what each may hold.

These models know one entry at a time. What relates entries to each other (sizes to shapes, ranges
to special values, names to the module) is in `inputs`, `function` and `module_names`. Pydantic's
errors are turned into sentences by `gradverify.spec.translate`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from gradverify.spec.fields import (
    Attribute,
    Bounds,
    Choices,
    Dimension,
    Domain,
    Dtype,
    Finite,
    Float64,
    Hook,
    LiteralValue,
    Reason,
    Reference,
    Sizes,
    Tolerance,
    Values,
    Version,
    given,
    no_call,
)


class Entry(BaseModel):
    """Any mapping of a spec: exact types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TensorEntry(Entry):
    """`{shape: [b, n], …}`: a tensor that is drawn, or given by `value` with a `dtype`."""

    shape: Annotated[list[Dimension] | None, BeforeValidator(given)] = None
    dtype: Dtype = "float64"
    domain: Domain = "real"
    range: Annotated[Bounds | None, BeforeValidator(given)] = None
    special: list[Finite] = Field(default_factory=list)
    avoid: list[Finite] = Field(default_factory=list)
    optional: bool = False
    requires_grad: Annotated[bool | None, BeforeValidator(given)] = None
    value: Annotated[Values, BeforeValidator(given)] = None


class ValueEntry(Entry):
    """`{value: x}`: a literal, where the bare scalar would mean something else."""

    value: LiteralValue


class ChoicesEntry(Entry):
    """`{choices: [mean, sum]}`: a literal that is swept over the cases."""

    choices: Choices


def input_form(raw: object) -> str:
    """Tell which form of an input this is, before anything is validated: one form, one error."""
    if isinstance(raw, list):
        return "shape"
    if not isinstance(raw, dict):
        return "literal"
    if "choices" in raw:
        return "choices"
    literal = "value" in raw and not isinstance(raw["value"], list) and not {"shape", "dtype"} & raw.keys()
    return "value" if literal else "tensor"


def reference_form(raw: object) -> str:
    """Tell a path from a call."""
    return "call" if isinstance(raw, dict) else "path"


InputEntry = Annotated[
    Annotated[list[Dimension], Tag("shape")]
    | Annotated[TensorEntry, Tag("tensor")]
    | Annotated[ValueEntry, Tag("value")]
    | Annotated[ChoicesEntry, Tag("choices")]
    | Annotated[LiteralValue, Tag("literal")],
    Discriminator(input_form),
]


class CallEntry(Entry):
    """`{call: …, arguments: […]}`: known, and not supported yet."""


ReferenceEntry = Annotated[
    Annotated[Reference, Tag("path")] | Annotated[CallEntry, AfterValidator(no_call), Tag("call")],
    Discriminator(reference_form),
]


class FunctionEntry(Entry):
    """One key of `functions:`."""

    sizes: dict[str, Sizes] = Field(default_factory=dict)
    inputs: dict[str, InputEntry] = Field(default_factory=dict)
    reference: ReferenceEntry = ""
    arguments: Hook = ""
    target: Attribute = ""
    skip: Reason = ""
    ignore: dict[str, Reason] = Field(default_factory=dict)


class Defaults(Entry):
    """`defaults:` of a file; the command line wins over them."""

    seed: int = 0
    dtype: Float64 = "float64"
    dtypes: Annotated[list[Float64], Field(min_length=1)] = ["float64"]
    rtol: Tolerance = 1e-7
    atol: Tolerance = 0.0


class FileEntry(Entry):
    """A whole spec file."""

    gradverify: Version = 1
    module: str = ""
    defaults: Defaults = Field(default_factory=Defaults)
    functions: dict[str, FunctionEntry]
