"""Verify, show what would be verified; lint; the module that ships with gradverify."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradverify.cli.destinations import report_files
from gradverify.cli.fixed import fixes_text, refuse_fixing
from gradverify.cli.formats import Format
from gradverify.cli.options import (
    Checks,
    Color,
    ColorOption,
    Dtypes,
    EffortOption,
    Failing,
    Fixing,
    Limits,
    Lint,
    Numbers,
    Options,
    Output,
    Since,
    Targets,
    Verbose,
    taking,
)
from gradverify.cli.request import configuration, lint_request_of, random_seed, request_of
from gradverify.cli.screen import lint_text, print_bugs, print_report, reported, style_for, write
from gradverify.errors import InterruptedRunError
from gradverify.session.outcome import ExitCode
from gradverify.session.progress import on_terminal
from gradverify.session.request import Progress, Request

if TYPE_CHECKING:
    from gradverify.model import Report
    from gradverify.report.console import TextStyle


@taking(Targets, Since, Checks, Numbers, Limits, Failing, Fixing, Output)
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
        return request_of(replace(options, numbers=numbers), config)

    with reported(style, output.output, files):
        refuse_fixing(options)
        files += report_files(output.report_to)
        if options.since.watch:
            from gradverify.cli.watched import Printing, watch_and_check  # noqa: PLC0415

            printing = Printing(lambda: style_for(output.color, verbosity), output.output, files)
            raise typer.Exit(watch_and_check(asked, checked, printing))
        try:
            request = asked()
            report = checked(request)
            if options.fixing.fix:
                report = _fixed(report, request, options, style)
        except InterruptedRunError as interrupted:
            print_report(interrupted.report, style, output.output, files)
            raise
        print_report(report, style, output.output, files)
    raise typer.Exit(report.exit_code)


def _fixed(report: Report, request: Request, options: Options, style: TextStyle) -> Report:
    """Write the changes that a report has, and say which; return the report on the files as they are then."""
    from gradverify.session.fixing import fix  # noqa: PLC0415 - where it is asked for

    fixes = fix(report, request, checked, unsafe=options.fixing.unsafe_fixes)
    # What a program reads on stdout is the report alone.
    stream = sys.stdout if options.output.output in (Format.TEXT, Format.CONCISE) else sys.stderr
    write(stream, fixes_text(fixes, style))
    return fixes.report


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
    with reported(style, Format.TEXT):
        options = Options(which, checks=Checks(effort=effort), numbers=Numbers(dtype=dtype))
        request = request_of(options, configuration(which.config, verbose))
        with on_terminal(sys.stderr) as shown:
            listing = list_targets(request, shown)
        write(sys.stdout, render_listing(listing.targets, listing.modules, style))
        if listing.errors:
            write(sys.stderr, render_mistakes(listing.errors, style))
        print_bugs(listing.bugs)
    raise typer.Exit(listing.exit_code)


def checked(request: Request) -> Report:
    """Run a session with its progress shown."""
    # A line that moves and a debugger's prompt do not go together.
    with contextlib.nullcontext(Progress()) if request.in_process else on_terminal(sys.stderr) as shown:
        from gradverify.session.choosing import choose  # noqa: PLC0415 - loads yaml

        chosen = choose(request)
        from gradverify.session.run import check as run_check  # noqa: PLC0415 - the specs may be wrong

        return run_check(request, shown, chosen)


@taking(Lint)
def lint(options: Lint) -> None:
    """Read the source of Functions for what is certainly wrong: nothing is imported, no torch is needed.

    What these rules cannot be certain of they do not report; the gradient itself only `check` verifies.
    """
    from gradverify.session.linting import lint as run_lint  # noqa: PLC0415 - with every static rule

    style = style_for(options.color, 1 if options.verbose or options.select else 0)
    with reported(style):
        found = run_lint(lint_request_of(options, configuration(options.config, options.verbose)))
        write(sys.stdout, lint_text(found, style, options.output))
    raise typer.Exit(found.exit_code)


def demo(verbose: Verbose = 0, color: ColorOption = Color.AUTO) -> None:
    """Check a small module that ships with the package: right and wrong Functions."""
    from gradverify.demo.intended import unintended  # noqa: PLC0415

    style = style_for(color, min(verbose, 2))
    with reported(style, Format.TEXT):
        request = request_of(Options(Targets([_demo_module()])))
        report = checked(request)
        print_report(report, style, Format.TEXT)
        surprises = unintended(report)
        write(sys.stdout, _closing_of_demo(report, surprises))
    raise typer.Exit(ExitCode.BUG if surprises else ExitCode.OK)


def _demo_module() -> str:
    from gradverify import demo as package  # noqa: PLC0415

    return str(Path(package.__path__[0]) / "functions.py")


def _closing_of_demo(report: Report, surprises: tuple[str, ...]) -> str:
    if surprises:
        return "".join(f"not as intended: {line}\n" for line in surprises)
    count = len(report.targets)
    return f"\nEach of the {count} Functions got its intended verdict: the wrong ones are wrong on purpose.\n"
