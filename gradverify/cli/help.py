"""How `--help` is laid out: arguments, options in groups, then what `manual` says below them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from gradverify.cli.manual import EPILOGS, GROUPS, SHORT

Rows = list[tuple[str, str]]
"""(option, what it means) pairs of one section."""

# The formatter and the parameters are click's, which typer carries with it or depends on, by its version.


class ManualCommand(TyperCommand):
    """A command whose help is a manual page."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the arguments, then the options by their groups."""
        for title, rows in _sections(self, ctx):
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write what stands below the options, its lines as they are."""
        _write_epilog(self.name, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments."""
        _unset_flags(self, ctx)
        return super().parse_args(ctx, args)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the line for the list of commands."""
        return SHORT.get(self.name or "") or super().get_short_help_str(limit)


class ManualGroup(TyperGroup):
    """A program whose commands are listed, and found, without loading any other."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return the names of the commands in their order."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the commands, each with its line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SHORT[name]) for name in self.list_commands(ctx)])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments in front of the command's."""
        _unset_flags(self, ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write what stands below the commands, its lines as they are."""
        _write_epilog(self.name, formatter)


def _unset_flags(command: TyperCommand | TyperGroup, ctx: Any) -> None:  # noqa: ANN401
    """Say of typer's own flags (`--help`) that they are off where they are not given.

    They stand at None: typer loads pydantic to make a truth value of that, which takes longer than all else.
    """
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False) and parameter.default is None:
            parameter.default = False


def _sections(command: TyperCommand, ctx: Any) -> list[tuple[str, Rows]]:  # noqa: ANN401
    grouped = {name: title for title, names in GROUPS.get(command.name or "", ()) for name in names}
    titles = ["Arguments", *dict.fromkeys(grouped.values()), "Options"]
    sections: dict[str, Rows] = {title: [] for title in titles}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_argument = parameter.param_type_name == "argument"
        title = "Arguments" if is_argument else grouped.get(parameter.name or "", "Options")
        sections[title].append((_without_type(record[0]), record[1]) if is_argument else record)
    return [(title, rows) for title, rows in sections.items() if rows]


def _without_type(name: str) -> str:
    """`TARGET <list[str]>` is of use to nobody who types it."""
    return name.partition(" <")[0]


def _write_epilog(name: str | None, formatter: Any) -> None:  # noqa: ANN401
    epilog = EPILOGS.get(name or "")
    if epilog:
        formatter.write_paragraph()
        formatter.write(epilog)
