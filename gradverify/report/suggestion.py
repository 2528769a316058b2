"""A suggested backward as it is printed: source to paste, and comments that say what it needs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gradverify.events import NotSuggested, Suggested
from gradverify.model import LinePatch, Target, TargetKind
from gradverify.report.fixes import signed_lines

WIDTH = 100
"""Columns of a comment."""

NAMED_CASES = 4
"""Cases that are named; of more, their number."""


def render_change(target: Target, patches: Sequence[LinePatch]) -> str:
    """The lines that make a backward right, as comments; empty where none are known."""
    if not patches:
        return ""
    said = f"{target.id}: right with this change; --write applies it, --diff prints it."
    lines = [line for p in patches for line in (f"{p.path}:{p.line}", *signed_lines(p))]
    return "\n".join([*_comment(said), *(f"#   {line}".rstrip() for line in lines), "", ""])


def render_suggestion(target: Target, answer: Suggested | NotSuggested) -> str:
    """The method as Python source, its conditions as comments before it."""
    if isinstance(answer, NotSuggested):
        return f"{target.id}: no backward can be suggested: {answer.reason}\n"
    lines = [line for sentence in _sentences(target, answer) for line in _comment(sentence)]
    indent = "    " if target.kind is TargetKind.FUNCTION else ""
    return "\n".join([*lines, "", *textwrap.indent(answer.backward, indent).splitlines()]) + "\n"


def _sentences(target: Target, answer: Suggested) -> Iterator[str]:
    cases = answer.judged_at
    named = "; ".join(cases) if len(cases) <= NAMED_CASES else f"{len(cases)} cases"
    yield f"{target.id}: derived from {answer.source}, and verified as its derivative at {named}."
    saves = "forward" if target.kind is TargetKind.FUNCTION else "setup_context"
    if answer.saved:
        yield f"{saves} must save: ctx.save_for_backward({', '.join(answer.saved)})"
    for name, expression in answer.attributes:
        yield f"{saves} must also set: ctx.{name} = {expression}"
    if target.kind is not TargetKind.FUNCTION:
        yield "register_autograd(backward, setup_context=setup_context) is where it is given to the operator."
    if answer.not_at:
        yield f"It is another one for {'; '.join(answer.not_at[:NAMED_CASES])}."
    if not answer.sizes_varied:
        yield "No other sizes could be tried: numbers in it may belong to these."
    if "@once_differentiable" in answer.backward:
        yield (
            "from torch.autograd.function import once_differentiable: a second derivative would lack what "
            "reached the values that forward keeps."
        )


def _comment(sentence: str) -> list[str]:
    return textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
