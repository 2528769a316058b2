"""Read sources with `lint`."""

from __future__ import annotations

import sys

import typer

from gradverify.cli.options import Lint, taking
from gradverify.cli.request import configuration, lint_request_of
from gradverify.cli.screen import lint_text, style_for, told, write
from gradverify.session.linting import lint as run_lint


@taking(Lint)
def lint(options: Lint) -> None:
    """Read the source of Functions for what is certainly wrong: nothing is imported, no torch is needed.

    What these rules cannot be certain of they do not report; the gradient itself only `check` verifies.
    """
    style = style_for(options.color, 1 if options.verbose or options.select else 0)
    with told(style):
        found = run_lint(lint_request_of(options, configuration(options.config, options.verbose)))
        write(sys.stdout, lint_text(found, style, options.output))
    raise typer.Exit(found.exit_code)
