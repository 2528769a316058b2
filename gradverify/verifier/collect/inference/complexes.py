"""Complex inputs: where only they are taken, and where the source provides for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.shapes import State

COMPLEX = "complex128"

MARKS = frozenset(
    {"conj", "conj_physical", "view_as_real", "imag", "mH", "H", "adjoint", "resolve_conj", "angle"}
)
"""What is asked of complex tensors; of real ones it changes nothing, or is refused."""

REFUSED = re.compile(
    r"non-complex|only supported for complex|(?:must|should|ha(?:s|ve) to|expects?|expected|requires?|needs?)"
    r" .{0,30}complex"
    r"|ComplexDouble|c10::complex|complex<double>",
    re.IGNORECASE,
)
"""Messages by which a real tensor is refused, or one that is not complex like another."""


def provided_for(definition: ast.AST) -> frozenset[str]:
    """Names whose conjugate, imaginary part or the like is taken in a body."""
    found = set()
    for node in ast.walk(definition):
        match node:
            case ast.Attribute(value=whole, attr=attr) if attr in MARKS:
                found |= _names(whole)
                if isinstance(whole, ast.Name) and whole.id == "torch":
                    continue
            case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in MARKS:
                found |= _names(first)
            case _:
                continue
    return frozenset(found)


def _names(node: ast.expr) -> set[str]:
    """The name that an expression is, or a part or a transpose of."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def by_refusal(state: State, message: str, suspects: Sequence[int]) -> Iterator[State]:
    """After a message that asks for complex tensors: each suspect, and all of them."""
    if not REFUSED.search(message):
        return
    real = [k for k in suspects if _is_real(state, k)]
    for places in dict.fromkeys([*((k,) for k in real), tuple(real)]):
        if places:
            yield made_complex(state, places)


def made_complex(state: State, places: Collection[int]) -> State:
    """The same with complex tensors at some places."""
    for place in places:
        state = state.with_argument(place, replace(state.arguments[place], dtype=COMPLEX))
    return state


def with_complex(
    state: State, marked: Collection[str], works: Callable[[State], bool]
) -> tuple[State, frozenset[str]]:
    """The same with complex tensors where the source provides for them, and which were made so.

    All real tensors together first, then those alone that are marked.
    """
    if not any(a.name in marked and _is_real(state, k) for k, a in enumerate(state.arguments)):
        return state, frozenset()
    real = [k for k in range(len(state.arguments)) if _is_real(state, k)]
    alone = [k for k in real if state.arguments[k].name in marked]
    for places in dict.fromkeys([tuple(real), tuple(alone)]):
        changed = made_complex(state, places)
        if works(changed):
            return changed, frozenset(state.arguments[k].name for k in places)
    return state, frozenset()


def _is_real(state: State, place: int) -> bool:
    argument = state.arguments[place]
    plain = argument.guess.kind is Kind.FLOAT and not argument.structure and argument.domain == "real"
    return plain and not argument.dtype.startswith("complex")
