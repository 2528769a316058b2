"""Whether the source of a target speaks of complex numbers: a pass on real inputs is then one for a part."""

from __future__ import annotations

import ast

from gradverify.lint.reachable import statements_behind

COMPLEX_WORDS = frozenset(
    {"conj", "conj_physical", "resolve_conj", "mH", "vdot"}
    | {"view_as_complex", "view_as_real", "imag", "is_complex"}
    | {"complex", "complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"}
)
"""Attributes and names that real tensors need not; not those that other things are called, too (`angle`)."""


def is_of_complex_use(source: str, attribute: str) -> bool:
    """Whether a target, or what it uses of its module, names such an operation, dtype or annotation.

    `attribute` is how the module calls the target; False where the source cannot be read.
    """
    nodes = (node for statement in statements_behind(source, attribute) for node in ast.walk(statement))
    return any(_name(node) in COMPLEX_WORDS for node in nodes)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Constant(value=str() as text) if text.isidentifier():  # an annotation in quotes
            return text
        case _:
            return ""
