"""The commands, each loaded when it is called: `gradverify --help` answers at once."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from gradverify.cli.help import ManualCommand, ManualGroup
from gradverify.cli.screen import INTERRUPTED, bug_sentence, open_standard_streams, tell, versions, write
from gradverify.session.outcome import ExitCode

HOMES = {
    "check": "verifying",
    "list": "verifying",
    "suggest": "drafting",
    "init": "drafting",
    "lint": "verifying",
    "record": "drafting",
    "explain": "reading",
    "rules": "reading",
    "schema": "reading",
    "demo": "verifying",
}
"""The module of each command, in the order of `gradverify --help`."""


class Commands(Mapping[str, Any]):
    """Typer's command of each name."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a command of click's, which typer carries with it
        """Load its module where it was not asked for before."""
        if name not in self._loaded:
            module = import_module(f"{__name__}.{HOMES[name]}")
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            # A function that would hide a builtin is called `list_`.
            alone.command(name, cls=ManualCommand)(getattr(module, name, None) or getattr(module, f"{name}_"))
            self._loaded[name] = typer.main.get_command(alone)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


class Program(ManualGroup):
    """The program itself, with its commands."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - what typer gives a group
        super().__init__(**given)
        self.commands: Any = Commands()


app = typer.Typer(
    name="gradverify",
    cls=Program,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False,  # noqa: FBT002
) -> None:
    """Verify hand-written PyTorch backwards: is it wrong, where, why, and what to do."""
    if version:
        write(sys.stdout, versions() + "\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


def main() -> None:
    """The console script. Every way out has its exit code; a traceback of ours is a bug, and says so."""
    open_standard_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves the terminal as it was
    try:
        app(prog_name="gradverify")
    except KeyboardInterrupt:
        tell(INTERRUPTED)
        sys.exit(ExitCode.INTERRUPTED)
    except Exception:  # noqa: BLE001 - the last resort
        tell(traceback.format_exc() + bug_sentence())
        sys.exit(ExitCode.BUG)


__all__ = ["app", "main"]
