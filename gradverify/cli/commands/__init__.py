"""The commands. What only some of them need is imported there: `gradverify --help` answers at once."""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Annotated

import typer

from gradverify.cli.arguments import with_revision
from gradverify.cli.commands.drafting import init, record, suggest
from gradverify.cli.commands.reading import explain, lint, rules, schema
from gradverify.cli.commands.shipped import demo, selftest
from gradverify.cli.commands.verifying import check, list_, merge
from gradverify.cli.help import ManualCommand, ManualGroup
from gradverify.cli.screen import bug_sentence, open_standard_streams, tell, versions, write
from gradverify.session.outcome import ExitCode

app = typer.Typer(
    name="gradverify",
    cls=ManualGroup,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


COMMANDS = (check, list_, merge, suggest, init, lint, record, explain, rules, schema, demo, selftest)
"""In the order of `gradverify --help`."""

for command in COMMANDS:
    app.command(command.__name__.rstrip("_"), cls=ManualCommand)(command)


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
        app(with_revision(sys.argv[1:]), prog_name="gradverify")
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception:  # noqa: BLE001 - the last resort
        tell(traceback.format_exc() + bug_sentence())
        sys.exit(ExitCode.BUG)


__all__ = ["COMMANDS", "app", "main"]
