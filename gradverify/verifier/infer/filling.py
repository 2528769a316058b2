"""From inputs that were refused to an entry to be filled in: what each argument is, and no shapes.

The shapes that were tried are no help, since forward refused them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gradverify.deduced import (
    TO_FILL_IN,
    DeducedInput,
    DeducedList,
    DeducedLiteral,
    DeducedObject,
    DeducedTensor,
)
from gradverify.source import GROUPS
from gradverify.spec.ranks import GROUP
from gradverify.verifier.infer.known import Known
from gradverify.verifier.infer.state import Argument, Kind, State

ANY_OBJECT = "module:attribute"
"""What stands for the path of an object."""


def to_fill_in(known: Known, state: State) -> tuple[DeducedInput, ...]:
    """The arguments that have no default, as far as they are known."""
    needed = {p.name for p in known.parameters if not p.has_default}
    return tuple(i for a in state.arguments if a.name in needed for i in _input(known, state, a))


def _input(known: Known, state: State, argument: Argument) -> Iterator[DeducedInput]:
    name, guess = argument.name, argument.guess
    facts = known.facts(name)
    is_object = any(not hasattr(Tensor, a) for a in facts.attributes) or bool(
        facts.kinds & {"callable", "module"}
    )
    if name in GROUPS:
        yield DeducedObject(name, GROUP)
        return
    match guess.kind:
        case Kind.LITERAL if not (is_object and guess.is_invented_number):
            yield DeducedLiteral(name, guess.choices)
        case Kind.SIZE:
            yield DeducedLiteral(name, state.shape(argument)[:1])
        case Kind.LIST:
            yield DeducedList(name, (_tensor(argument),) * argument.items)
        case Kind.INDEX | Kind.BOOL:
            yield _tensor(argument)
        case Kind.FLOAT if not is_object or facts.gradient:
            yield _tensor(argument)
        case Kind.OMITTED | Kind.PARAMETERS:
            pass
        case _:
            yield DeducedObject(name, guess.path if guess.found and guess.path else ANY_OBJECT)


def _tensor(argument: Argument) -> DeducedTensor:
    plain = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(argument.guess.kind, "float64")
    return DeducedTensor(argument.name, (TO_FILL_IN,), argument.dtype or plain)
