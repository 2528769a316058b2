"""The page of a rule and the table of rules, as text."""

from __future__ import annotations

import textwrap

from gradverify.model import Severity
from gradverify.report.words import wrap
from gradverify.rules import RULES, rule

WIDTH = 80
"""Columns of a page: it is a document, the same in a terminal and in a file."""


def render_rule(code: str) -> str:
    """Return the page of a code; one that does not exist is a `UsageError`."""
    found = rule(code)
    page = found.page
    sections = (
        ("What it checks", _paragraph(page.checks)),
        ("Why it matters", _paragraph(page.matters)),
        ("Example", textwrap.indent(page.example.rstrip(), "    ")),
        ("Remedy", _paragraph(page.remedy)),
    )
    parts = [f"{found.code} {found.name} ({found.severity})\n  {found.summary}"]
    parts += [f"{title}\n{body}" for title, body in sections]
    return "\n\n".join(parts) + "\n"


def render_rules_table() -> str:
    """Return every code with its name and what is wrong, and its severity unless that is error."""
    names = max(len(found.name) for found in RULES)
    lines = [f"{'code':<5}  {'name':<{names}}  what is wrong (an error unless marked)"]
    for place, found in enumerate(RULES):
        if not place or found.code[:3] != RULES[place - 1].code[:3]:
            lines.append("")
        severity = "" if found.severity is Severity.ERROR else f" ({found.severity})"
        lines.append(f"{found.code}  {found.name:<{names}}  {found.summary}{severity}")
    return "\n".join([*lines, "", "`gradverify explain CODE` says more."]) + "\n"


def _paragraph(prose: str) -> str:
    return "\n".join(f"  {line}" for line in wrap(prose, WIDTH, 2, 2))
