"""Whether a mismatch hangs on a size that backward alone has a number for: it is looked for again there.

Where backward goes through `range(3)`, or reads `taps[2]` last, three entries are meant, and forward takes
any number of them. A length that was guessed makes such a backward wrong; one that is right where an input
has as many entries as it names may be right for every caller.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from gradverify.model import TensorInput
from gradverify.source import definitions_behind
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.other_sizes import at_shapes, takes
from gradverify.verifier.doubt.returned_shapes import Shapes

LARGEST_SIZE = 16
"""Numbers beyond are blocks and widths of a machine, no taps, coordinates or components."""

LEAST_PASSED = 3
"""A number that is passed to a call is a size from here on: smaller ones are dimensions and powers."""

_NO_DATA = frozenset({"shape", "saved_tensors", "saved_variables", "needs_input_grad"})
"""Attributes whose index says nothing of how many entries an input has."""


def at_written_sizes(sample: Sample) -> tuple[str, ...]:
    """What was guessed, in words, where backward is right once a dimension has a size that it names.

    Empty where it is wrong there as well, where forward refuses all such sizes, and where it names none.
    """
    shapes = at_shapes(sample, _at_sizes(sample))
    if shapes is None:
        return ()
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput)}
    return tuple(
        f"that `{name}` may have {old} entries along dimension {k}, and not the {new} that backward names,"
        for name, shape in shapes.items()
        for k, (old, new) in enumerate(zip(given[name], shape, strict=True))
        if old != new
    )


def takes_written_sizes(sample: Sample) -> bool:
    """Whether forward takes an input with a dimension of a size that backward names."""
    return takes(sample, _at_sizes(sample))


def _at_sizes(sample: Sample) -> Iterator[Shapes]:
    """The shapes with a size that backward names: for a dimension of one input, then for all as long."""
    function = sample.subject.function_class
    sizes = sorted(written_sizes(own_backward(function))) if function is not None else ()
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and _is_free(i)]
    for size in sizes:
        for one in given:
            for k, old in enumerate(one.shape):
                if old != size:
                    yield {one.name: (*one.shape[:k], size, *one.shape[k + 1 :])}
        for old in dict.fromkeys(n for i in given for n in i.shape if n not in {1, size}):
            together = {
                i.name: tuple(size if n == old else n for n in i.shape) for i in given if old in i.shape
            }
            if len(together) > 1:
                yield together


def _is_free(one: TensorInput) -> bool:
    return (
        one.range is None
        and one.value is None
        and not one.structure
        and not one.layout
        and one.dtype == "float64"
    )


def written_sizes(function: Any) -> frozenset[int]:  # noqa: ANN401 - whatever `backward` is
    """Numbers in a function's source, or in what it calls by name, that may be the size of a dimension."""
    found: set[int] = set()
    for definition, known in definitions_behind(function):
        for node in ast.walk(definition):
            found |= {n for n in _sizes_in(node, known) if 1 < n <= LARGEST_SIZE}
    return frozenset(found)


def _sizes_in(node: ast.AST, known: Mapping[str, Any]) -> Iterator[int]:
    match node:
        case ast.Call(func=ast.Name(id="range"), args=args):
            bounds = [_number(a, known) for a in args]
            if all(b is not None for b in bounds):
                yield len(range(*(b for b in bounds if b is not None)))
        case ast.Call(args=args, keywords=keywords):
            passed = (_number(a, known) for a in (*args, *(k.value for k in keywords)))
            yield from (n for n in passed if n is not None and n >= LEAST_PASSED)
        case ast.Subscript(value=ast.Attribute(attr=name)) if name in _NO_DATA:
            pass
        case ast.Subscript(slice=index):
            for part in index.elts if isinstance(index, ast.Tuple) else [index]:
                yield from _of_index(part, known)
        case ast.Compare(left=left, comparators=others):
            compared = (_number(side, known) for side in (left, *others))
            yield from (n for n in compared if n is not None and n >= LEAST_PASSED)
        case _:
            pass


def _of_index(part: ast.expr, known: Mapping[str, Any]) -> Iterator[int]:
    """How many entries there are if an index is the last one, or a slice ends with the last."""
    if isinstance(part, ast.Slice):
        ends = (_number(e, known) for e in (part.lower, part.upper) if e is not None)
        yield from (abs(n) for n in ends if n is not None)
    else:
        number = _number(part, known)
        if number is not None and number >= 0:
            yield number + 1


def _number(node: ast.expr, known: Mapping[str, Any]) -> int | None:
    """An integer that is written down, or that a name of the module stands for."""
    value: Any = None
    match node:
        case ast.Constant(value=value):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(inner))):
            value = -inner
        case ast.Name(id=name):
            value = known.get(name)
        case _:
            pass
    return value if type(value) is int else None
