"""Read sources with `lint`, and what gradverify knows by heart."""

from __future__ import annotations

import json
import sys

import typer

from gradverify.cli import options
from gradverify.cli.asked import lint_request_of
from gradverify.cli.options import Color, Format, LintFormat
from gradverify.cli.screen import (
    configuration,
    lint_text,
    style_for,
    told,
    write,
)
from gradverify.report import (
    render_rule,
    render_rules_table,
)


def lint(  # noqa: PLR0913 - one parameter for each option
    targets: options.LintTargets = None,
    exclude: options.Exclude = None,
    config: options.ConfigFile = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    verbose: options.LintVerbose = 0,
    output: options.LintFormatOption = LintFormat.TEXT,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Read the source of Functions for what is certainly wrong: nothing is imported, no torch is needed.

    What these rules cannot be certain of they do not report; the gradient itself only `check` verifies.
    """
    from gradverify.session.linting import lint as run_lint  # noqa: PLC0415

    style = style_for(color, 1 if verbose or select else 0)
    with told(style):
        found = run_lint(lint_request_of(targets, configuration(config, verbose), exclude, select, ignore))
        write(sys.stdout, lint_text(found, style, output))
    raise typer.Exit(found.exit_code)


def explain(code: options.Code) -> None:
    """Say what a code means, why it matters, with an example and the remedy."""
    with told(style_for(Color.AUTO, 0), Format.TEXT):
        write(sys.stdout, render_rule(code))


def rules() -> None:
    """Show the table of codes."""
    with told(style_for(Color.AUTO, 0)):
        write(sys.stdout, render_rules_table())


def schema() -> None:
    """Print the JSON Schema of spec files, for editors."""
    from gradverify.spec import json_schema  # noqa: PLC0415 - pydantic takes longer to load than the rest

    with told(style_for(Color.AUTO, 0)):
        write(sys.stdout, json.dumps(json_schema(), indent=2) + "\n")
