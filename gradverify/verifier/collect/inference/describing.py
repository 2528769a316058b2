"""Attempts in words, for the report of a search that has found nothing."""

from __future__ import annotations

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import State


def described(state: State) -> str:
    """The arguments of a state in words: `x [4, 3], index int64 [4] below 3, eps=0.75`."""
    return ", ".join(_described(state, k) for k in range(len(state.arguments))) or "no arguments"


def _described(state: State, place: int) -> str:
    argument = state.arguments[place]
    guess, shape = argument.guess, list(state.shape(argument))
    match guess.kind:
        case Kind.LITERAL:
            said = f"={guess.choices[0]!r}"
        case Kind.SIZE:
            said = f"={shape[0]}"
        case Kind.CALLABLE | Kind.OBJECT:
            said = f"={guess.path}"
        case Kind.OMITTED:
            said = " left out"
        case Kind.LIST if argument.parts:
            parts = state.of(argument.parts)
            said = f" of {', '.join(_described(parts, k).strip() for k in range(len(parts.arguments)))}"
        case Kind.LIST:
            said = f" {argument.items} tensors {shape}"
        case Kind.INDEX:
            bound = argument.bound.value(state.values) if argument.bound is not None else 2
            said = f" integers {shape} below {bound}"
        case Kind.BOOL:
            said = f" booleans {shape}"
        case Kind.FLOAT:
            said = f" {shape}"
    return argument.name + said


def answer_of(error: RaisedError) -> str:
    """An exception on one line."""
    line = error.message.strip().splitlines()[0] if error.message.strip() else ""
    return f"{error.type}: {line[:120]}" if line else error.type
