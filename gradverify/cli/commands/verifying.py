"""Verify, show what would be verified, join what was."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradverify.cli.destinations import refuse_source, report_files
from gradverify.cli.formats import Format
from gradverify.cli.options import (
    Checks,
    Color,
    ColorOption,
    Dtypes,
    EffortOption,
    Failing,
    Limits,
    Numbers,
    Options,
    Output,
    Since,
    Targets,
    Verbose,
    taking,
)
from gradverify.cli.request import compared, configuration, random_seed, request_of
from gradverify.cli.screen import print_bugs, print_report, style_for, told, write, write_file
from gradverify.errors import InterruptedRunError
from gradverify.session.progress import on_terminal
from gradverify.session.request import Progress, Request

if TYPE_CHECKING:
    from gradverify.model import Report


@taking(Targets, Since, Checks, Numbers, Limits, Failing, Output)
def check(*groups: Any) -> None:  # noqa: ANN401 - a value for each
    """Verify the backwards of a module against the derivative of its forwards.

    First and second order, a composite reference if a spec names one, what backward really returns, layouts,
    requires_grad subsets, repeated calls and torch's transforms. What was not verified is said, and is not
    green. The report goes to stdout, progress and messages go to stderr.
    """
    options = Options(*groups)
    output = options.output
    verbosity = -1 if output.quiet else min(output.verbose, 2)
    style = style_for(output.color, verbosity)
    files: list[tuple[Format, Path]] = []
    drawn = str(random_seed())

    def asked() -> Request:
        config = configuration(options.which.config, output.verbose)
        config = replace(config, seed=int(drawn)) if config.seed == "random" else config
        numbers = options.numbers
        numbers = replace(numbers, seed=drawn) if numbers.seed == "random" else numbers
        return compared(request_of(replace(options, numbers=numbers), config), options, config)

    with told(style, output.output, files):
        files += report_files(output.report_to)
        if options.since.watch:
            from gradverify.cli.watched import Printing, watch_and_check  # noqa: PLC0415

            printing = Printing(lambda: style_for(output.color, verbosity), output.output, files)
            raise typer.Exit(watch_and_check(asked, options.which.config, printing))
        try:
            report = checked(asked())
        except InterruptedRunError as interrupted:
            print_report(interrupted.report, style, output.output, files)
            raise
        print_report(report, style, output.output, files)
    raise typer.Exit(report.exit_code)


@taking(Targets)
def list_(
    which: Targets,
    dtype: Dtypes = None,
    effort: EffortOption = None,
    verbose: Verbose = 0,
    color: ColorOption = Color.AUTO,
) -> None:
    """Show what is discovered, where inputs come from, which cases and checks would run, at what cost."""
    from gradverify.report.listing import render_listing  # noqa: PLC0415 - `check` needs neither
    from gradverify.report.mistakes import render_mistakes  # noqa: PLC0415
    from gradverify.session.listing import list_targets  # noqa: PLC0415

    style = style_for(color, min(verbose, 2))
    with told(style, Format.TEXT):
        options = Options(which, checks=Checks(effort=effort), numbers=Numbers(dtype=dtype))
        request = request_of(options, configuration(which.config, verbose))
        with on_terminal(sys.stderr) as shown:
            listing = list_targets(request, shown)
        write(sys.stdout, render_listing(listing.targets, listing.modules, style))
        if listing.errors:
            write(sys.stderr, render_mistakes(listing.errors, style))
        print_bugs(listing.bugs)
    raise typer.Exit(listing.exit_code)


def merge(
    reports: Annotated[
        list[Path], typer.Argument(metavar="REPORT", help="JSON reports: --report json=PATH of each shard.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PATH", help="Write it there, not to stdout.")
    ] = None,
) -> None:
    """Join the JSON reports of shards to that of the whole run; the exit code is that of the whole."""
    from gradverify.session.merging import merge_reports  # noqa: PLC0415

    with told(style_for(Color.AUTO, 0)):
        if output is not None:
            refuse_source(output, "--output")
        text, code = merge_reports(reports)
        if output is None:
            write(sys.stdout, text)
        else:
            write_file(output, text, "--output")
    raise typer.Exit(code)


def checked(request: Request) -> Report:
    """Run a session with its progress shown."""
    # A line that moves and a debugger's prompt do not go together.
    with contextlib.nullcontext(Progress()) if request.in_process else on_terminal(sys.stderr) as shown:
        from gradverify.session.choosing import choose  # noqa: PLC0415 - loads pydantic

        chosen = choose(request)
        from gradverify.session.run import check as run_check  # noqa: PLC0415 - the specs may be wrong

        return run_check(request, shown, chosen)
