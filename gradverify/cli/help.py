"""How `--help` is laid out: arguments, options in groups, then the page of `manual/` below them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

MANUAL = Path(__file__).with_name("manual")
"""A page for each command, 80 columns at most."""

SHORT = {
    "check": "Verify backwards against the derivative of their forwards.",
    "list": "Show the targets, where their inputs come from, their cases.",
    "suggest": "Print the right backward of a Function or operator.",
    "init": "Draft a spec beside a module, from the inputs inferred.",
    "lint": "Read the source for what is certainly wrong, without torch.",
    "record": "Run a program, and write a spec of what it called.",
    "explain": "Say what a code means, with an example and the remedy.",
    "rules": "Show the table of codes.",
    "schema": "Print the JSON Schema of spec files, for editors.",
    "demo": "Show the report on a small module that ships with the package.",
}
"""One line for each command, for the list of them."""

Rows = list[tuple[str, str]]
"""(option, what it means) pairs of one section."""

# The formatter and the parameters are click's, which typer carries with it or depends on, by its version.


class _Manual:
    """What a command and the program have in common."""

    name: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write what is below the options, its lines as they are."""
        epilog = page_of(self.name or "")
        if epilog:
            formatter.write_paragraph()
            formatter.write(epilog)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments.

        Typer's own flags (`--help`) are off where they are not given. They are None, and to make a truth
        value of that typer loads pydantic, which takes longer than all else.
        """
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return parsed


class ManualCommand(_Manual, TyperCommand):
    """A command whose help is a manual page."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the arguments, then the options by their groups."""
        for title, rows in _sections(self, ctx):
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the line for the list of commands."""
        return SHORT.get(self.name or "") or super().get_short_help_str(limit)


class ManualGroup(_Manual, TyperGroup):
    """A program whose commands are listed, and found, without loading any other."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return the names of the commands in their order."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the commands, each with its line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SHORT[name]) for name in self.list_commands(ctx)])


def _sections(command: TyperCommand, ctx: Any) -> list[tuple[str, Rows]]:  # noqa: ANN401
    grouped = _grouped() if command.name == "check" else {}
    titles = ["Arguments", *dict.fromkeys(grouped.values()), "Options"]
    sections: dict[str, Rows] = {title: [] for title in titles}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_argument = parameter.param_type_name == "argument"
        title = "Arguments" if is_argument else grouped.get(parameter.name or "", "Options")
        # `TARGET <list[str]>` is of use to nobody who types it.
        sections[title].append((record[0].partition(" <")[0], record[1]) if is_argument else record)
    return [(title, rows) for title, rows in sections.items() if rows]


def _grouped() -> dict[str, str]:
    from gradverify.cli.options import GROUPS  # noqa: PLC0415 - the list of commands needs none of them

    return {f.name: title for title, groups in GROUPS for group in groups for f in fields(group)}


def page_of(name: str) -> str:
    """What is below the options of a command; empty where there is nothing."""
    page = MANUAL / f"{name}.txt"
    codes = (MANUAL / "exit_codes.txt").read_text("utf-8")
    return page.read_text("utf-8").replace("{exit codes}\n", codes) if page.is_file() else ""
