"""What inference deduced of a target: a spec entry as plain values; the front plans it, `init` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model import Doubt, Nested, Scalar


@dataclass(frozen=True)
class DeducedTensor:
    """A tensor argument; every dimension is a size expression."""

    name: str
    shape: tuple[str, ...]
    dtype: str = "float64"
    domain: str = "real"
    range: tuple[str, ...] = ()
    """Two bounds as size expressions, half-open; empty for none."""
    layout: str = ""
    structure: str = ""
    value: Nested = None
    """Nested tuples of entries that are passed as they are; None where they are drawn."""
    requires_grad: bool | None = None
    optional: bool = False
    """Given, and left out as None."""


@dataclass(frozen=True)
class DeducedLiteral:
    """A literal argument. More than one choice is swept; the first is in the source."""

    name: str
    choices: tuple[Nested, ...]


@dataclass(frozen=True)
class DeducedSize:
    """A size passed as an integer."""

    name: str
    expression: str


@dataclass(frozen=True)
class DeducedList:
    """Several tensors: a list argument, or what a `*args` parameter receives."""

    name: str
    items: tuple[DeducedTensor, ...]


@dataclass(frozen=True)
class DeducedObject:
    """A live object that the source names."""

    name: str
    path: str
    init: tuple[Scalar, ...] | None = None
    """What it is called with, to pass what it returns; None to pass the object itself."""
    parameters: str = ""
    """The `*args` parameter that gets the parameters of this module; empty for none."""


DeducedInput = DeducedTensor | DeducedLiteral | DeducedSize | DeducedList | DeducedObject


TO_FILL_IN = "..."
"""What stands for the sizes of a tensor, and for a number, that are not known."""


@dataclass(frozen=True)
class Deduced:
    """A spec entry that forward accepted at every size listed."""

    inputs: tuple[DeducedInput, ...]
    """In call order."""
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    reference: str = ""
    """`module:attribute` of a sibling whose forward agrees."""
    doubts: tuple[Doubt, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    """(input, sentence) pairs: what the user should know of a guess."""
    never: tuple[tuple[str, str], ...] = ()
    """(input, sentence) pairs: options that can be verified at other inputs alone, and were not."""
    tries: int = 0
    """Calls of forward that the search took."""
    default_dtype: str = ""
    """Set where it runs only under this default dtype of torch, or keeps in it what it computes."""


@dataclass(frozen=True)
class Attempt:
    """One call that forward answered with an exception."""

    arguments: str
    answer: str
    """`RuntimeError: mat1 and mat2 shapes cannot be multiplied`."""
    missing: str = ""
    """What this machine lacks for it, as sentences; empty where the exception is about the arguments."""
    inputs: tuple[DeducedInput, ...] = ()
    """What its arguments were, with shapes left to be filled in."""
