"""Inputs that count as constants: backward returns None for them, and its source intends no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradverify.verifier.infer.known import Known
from gradverify.verifier.infer.repairs import refused_gradient
from gradverify.verifier.infer.state import State
from gradverify.verifier.infer.trial import Ran, attempt, works

Remark = tuple[str, str]
"""(input, sentence)."""


def with_constants(known: Known, state: State, ran: Ran) -> tuple[State, list[Remark]]:
    """Inputs whose gradient the author leaves out count as constants, unless one is intended for them."""
    remarks = []
    for place, name in _without_gradient(known, state, ran):
        moves = _moves(known, state, ran, place)
        constant = state.with_argument(place, replace(state.arguments[place], requires_grad=False))
        if moves and (known.facts(name).intended or _misplaced(known, constant, ran)):
            continue
        state = constant
        depends = ", though the output depends on it" if moves else ""
        remarks.append((name, f"`{name}` counts as a constant: backward returns None for it{depends}"))
    return state, remarks


def _without_gradient(known: Known, state: State, ran: Ran) -> Iterator[tuple[int, str]]:
    """(place, name) of the inputs for which backward gives None: as it ran, or by its source."""
    for place, argument in enumerate(state.arguments):
        gradient = known.facts(argument.name).gradient
        # Where no output has a gradient, the source is all there is to say.
        by_source = gradient is False and argument.is_float and ran.connected
        missing = by_source if ran.gradients is None else ran.gradients.get(argument.name, ...) is None
        if missing and gradient is not True and not known.passed[argument.name].is_parameter:
            yield place, argument.name


def _misplaced(known: Known, constant: State, ran: Ran) -> bool:
    """Whether a gradient that the engine refused for its shape is there only if the input requires grad."""
    names = [a.name for a in constant.arguments]
    refused = ran.backward is not None and refused_gradient(ran.backward.message, names) is not None
    return refused and works(known.caller, constant)


def _moves(known: Known, state: State, ran: Ran, place: int) -> bool:
    """Whether the output changes with one argument alone, which other values of it tell."""
    argument = state.arguments[place]
    other = replace(argument, domain="unit" if argument.domain == "real" else "real")
    return not ran.has_outputs_of(attempt(known.caller, state.with_argument(place, other)))
