"""From the frames of an error to the arguments that it is about: names followed through the calls."""

from __future__ import annotations

import ast
import itertools
import linecache
import re
from collections.abc import Mapping, Sequence
from functools import cache

from gradverify.model import Frame, RaisedError
from gradverify.source import names_bound, names_read, tree_of
from gradverify.verifier.infer.helpers import passed
from gradverify.verifier.infer.state import State


def function_around(frame: Frame) -> ast.FunctionDef | None:
    """The innermost function that holds a frame's line; None where its source is not to be had."""
    return _around(frame.file, frame.line)


@cache
def _around(file: str, line: int) -> ast.FunctionDef | None:
    try:
        tree = tree_of("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    holding = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and holds(n, line))
    return max(holding, key=lambda node: node.lineno, default=None)


def holds(node: ast.stmt | ast.expr, line: int) -> bool:
    """Whether a node is on a line, or around it."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def names_in_forward(frames: Sequence[Frame], parameters: Sequence[str]) -> Mapping[str, str]:
    """Parameters of the innermost function by what forward calls what they were given.

    `frames` come outermost first, `parameters` are forward's own.
    """
    known = {name: name for name in parameters}
    for outer, inner in itertools.pairwise(frames):
        calling, called = function_around(outer), function_around(inner)
        known = {} if calling is None or called is None else _passed_on(calling, outer.line, called, known)
    return known


def _passed_on(
    calling: ast.FunctionDef, line: int, called: ast.FunctionDef, known: Mapping[str, str]
) -> dict[str, str]:
    for node in ast.walk(calling):
        if isinstance(node, ast.Call) and holds(node, line) and getattr(node.func, "id", "") == called.name:
            return {name: known[value] for name, value in passed(called, node) if value in known}
    return {}


def suspects_of(state: State, error: RaisedError) -> list[int]:
    """Positions of the arguments that the failing line names; of all where it names none.

    A helper may call them by other names; what is computed of them is followed back where they are not named.
    """
    names = [a.name for a in state.arguments]
    for end in range(len(error.frames), 0, -1):
        frames = error.frames[:end]
        words = set(re.findall(r"[A-Za-z_]\w*", frames[-1].source))
        of_helper = names_in_forward(frames, names) if end > 1 else {}
        for named in (words, _computed_of(frames[-1], words)):
            known = {of_helper.get(word, word) for word in named}
            found = [k for k, name in enumerate(names) if name in known]
            if found:
                return found
    return list(range(len(state.arguments)))


def _computed_of(frame: Frame, words: set[str]) -> set[str]:
    """The names that some words were computed of in the lines before a frame's."""
    function, found = function_around(frame), set(words)
    before = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    for step in sorted((n for n in before if n.lineno < frame.line), key=lambda n: -n.lineno):
        if found & names_bound([step]):
            found |= names_read(step.value)
    return found
