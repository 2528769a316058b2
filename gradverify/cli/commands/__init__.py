"""The program and its commands."""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Annotated

import typer

from gradverify.cli.commands import drafting, reading, verifying
from gradverify.cli.screen import INTERRUPTED, bug_sentence, open_standard_streams, tell, versions, write
from gradverify.session.outcome import ExitCode

app = typer.Typer(
    name="gradverify",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(verifying.check)
app.command("list")(verifying.list_targets)
app.command("suggest")(drafting.suggest)
app.command("init")(drafting.init)
app.command("lint")(verifying.lint)
app.command("record")(drafting.record)
app.command("explain")(reading.explain)
app.command("rules")(reading.rules)
app.command("schema")(reading.schema)
app.command("demo")(verifying.demo)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False,
) -> None:
    """Verify hand-written PyTorch backwards: whether one is wrong, where, by how much, and how to fix it.

    A module that is checked is imported and run, in a process of its own: name none that you do not trust.
    """
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
