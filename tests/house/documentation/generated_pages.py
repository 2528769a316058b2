"""What of the documentation is written by gradverify itself: pages of codes, tables, the text of `--help`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer.main
from console_blocks import forked_command
from constants import constants
from spec_reference import TITLES, table

from gradverify.cli.commands import app
from gradverify.rules import RULES

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
RULE_PAGES = DOCS / "rules"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")), RULE_PAGES / "README.md")
"""Pages that somebody wrote, whether or not parts of them are generated."""

SECTION = re.compile(r"(<!-- generated: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
"""A part of a page that is generated: its name, and what stands there."""

FAMILIES = {
    "GV0": "Targets that could not be verified as asked",
    "GV1": "First order: is backward the derivative of forward",
    "GV2": "Second order",
    "GV3": "Against a composite reference",
    "GV4": "What must leave the gradient as it is: layouts, subsets, repeated calls, writes",
    "GV5": "torch's transforms",
    "GV6": "Native dtypes",
    "GV7": "Devices",
    "GV8": "Static rules, which `gradverify lint` reads off the source",
    "GV9": "Processes that end early",
}
"""What codes that begin alike have in common."""


def rule_pages() -> dict[Path, str]:
    """The page of every code, by its file: that of the package."""
    return {RULE_PAGES / f"{rule.code}.md": rule.page.markdown for rule in RULES}


def sections() -> dict[str, Callable[[], str]]:
    """Everything that a page can ask for by name."""
    return {
        "codes": codes,
        "constants": constants,
        "families": families,
        "help": partial(help_of, ""),
        **{f"help {command}": partial(help_of, command) for command in typer.main.get_command(app).commands},
        **{f"spec {name}": partial(table, name) for name in TITLES},
    }


def sections_of(page: str) -> dict[str, str]:
    """The generated parts of a page as they stand there, by name."""
    return {found[2]: found[3] for found in SECTION.finditer(page)}


def renewed(page: str) -> str:
    """A page with its generated parts as they must be today."""
    known = sections()
    return SECTION.sub(lambda found: f"{found[1]}{known[found[2]]()}\n{found[4]}", page)


def codes() -> str:
    """The tables of codes, one for each family."""
    parts = []
    for prefix, words in FAMILIES.items():
        rows = [
            f"| [{r.code}]({r.code}.md) | {r.name} | {r.severity} | {r.summary} |"
            for r in RULES
            if r.code.startswith(prefix)
        ]
        if rows:
            head = ["| code | name | severity | a finding when |", "|---|---|---|---|"]
            parts.append("\n".join([f"## {prefix}xx: {words}", "", *head, *rows]))
    return "\n\n".join(parts)


def families() -> str:
    """One line for each family of codes."""
    rows = [
        f"| {prefix}xx | {words} | {len(own)} |"
        for prefix, words in FAMILIES.items()
        if (own := [r for r in RULES if r.code.startswith(prefix)])
    ]
    return "\n".join(["| codes | what they are about | how many |", "|---|---|---|", *rows])


def help_of(command: str) -> str:
    """What `--help` of a command prints at 80 columns, as a block of text."""
    asked = [*([command] if command else []), "--help"]
    done = forked_command.run(asked, ROOT, forked_command.plain_environment(TERM="dumb"))
    assert done.code == 0, done.err
    lines = [line.rstrip() for line in done.out.splitlines()]
    return "\n".join(["```text", *lines, "```"])
