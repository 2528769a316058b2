"""Read sources with `lint`."""

from __future__ import annotations

import sys

import typer

from gradverify.cli import options
from gradverify.cli.asked import configuration, lint_request_of
from gradverify.cli.options import Color, LintFormat
from gradverify.cli.screen import lint_text, style_for, told, write
from gradverify.session.linting import lint as run_lint


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
    style = style_for(color, 1 if verbose or select else 0)
    with told(style):
        found = run_lint(lint_request_of(targets, configuration(config, verbose), exclude, select, ignore))
        write(sys.stdout, lint_text(found, style, output))
    raise typer.Exit(found.exit_code)
