"""Inputs that count as constants: backward returns None for them, and its source intends no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from gradverify.verifier.collect.inference.call_sites import Passed
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.refused_gradients import refused_gradient
from gradverify.verifier.collect.inference.shapes import State
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt, works


def with_constants(
    caller: Caller, state: State, ran: Ran, facts: Mapping[str, Facts], passed: Mapping[str, Passed]
) -> tuple[State, list[tuple[str, str]]]:
    """Inputs whose gradient the author leaves out count as constants, unless one is intended for them."""
    remarks = []
    for place, argument in enumerate(state.arguments):
        left_out = facts[argument.name].gradient is False and argument.guess.kind is Kind.FLOAT
        known = left_out and ran.connected  # where no output has a gradient, that is all there is to say
        missing = known if ran.gradients is None else argument.name in ran.gradients
        if not missing or (ran.gradients or {}).get(argument.name) is not None:
            continue
        if facts[argument.name].gradient is True or passed[argument.name].is_parameter:
            continue
        moves = _moves(caller, state, ran, place)
        constant = state.with_argument(place, replace(argument, requires_grad=False))
        if moves and (facts[argument.name].intended or _misplaced(caller, constant, ran)):
            continue
        state = constant
        depends = ", though the output depends on it" if moves else ""
        sentence = f"`{argument.name}` counts as a constant: backward always returns None for it{depends}"
        remarks.append((argument.name, sentence))
    return state, remarks


def _misplaced(caller: Caller, constant: State, ran: Ran) -> bool:
    """Whether a gradient that the engine refused for its shape is there only if the input requires grad."""
    names = [a.name for a in constant.arguments]
    refused = ran.backward is not None and refused_gradient(ran.backward.message, names) is not None
    return refused and works(caller, constant)


def _moves(caller: Caller, state: State, ran: Ran, place: int) -> bool:
    """Whether the output changes with one argument alone, which other values of it tell."""
    argument = state.arguments[place]
    scaled = state.with_argument(
        place, replace(argument, domain="unit" if argument.domain == "real" else "real")
    )
    again = attempt(caller, scaled)
    if not isinstance(again, Ran) or len(again.outputs) != len(ran.outputs):
        return True
    return any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(again.outputs, ran.outputs, strict=True)
    )
