"""Verify, show what would be verified; lint; the module that ships with gradverify."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradverify import options
from gradverify.cli.screen import (
    configuration,
    lint_text,
    print_bugs,
    print_report,
    report_files,
    reported,
    style_for,
    write,
)
from gradverify.errors import InterruptedRunError, UsageError
from gradverify.model import Engine
from gradverify.options import Color, seed_number
from gradverify.report.formats import Format, LintFormat
from gradverify.requested import lint_request_of, request_of
from gradverify.session.outcome import ExitCode
from gradverify.session.progress import on_terminal
from gradverify.session.request import Progress, Request

if TYPE_CHECKING:
    from gradverify.model import Report
    from gradverify.report.console import TextStyle


def check(
    targets: options.Targets = None,
    spec: options.Specs = None,
    no_infer: options.NoInfer = False,
    keyword: options.Keyword = "",
    exclude: options.Exclude = None,
    config: options.ConfigFile = None,
    watch: options.WatchOption = False,
    select: options.Select = None,
    ignore: options.Ignore = None,
    effort: options.EffortOption = None,
    engine: options.EngineOption = Engine.WITNESSES,
    device: options.DeviceOption = None,
    dtype: options.Dtypes = None,
    autocast: options.Autocast = False,
    seed: options.SeedOption = None,
    rtol: options.RelativeTolerance = None,
    atol: options.AbsoluteTolerance = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    jobs: options.Jobs = 1,
    in_process: options.InProcess = False,
    stop_at_first: options.StopAtFirst = False,
    maxfail: options.MaxFail = None,
    strict: options.Strict = False,
    fix: options.Fix = False,
    unsafe_fixes: options.UnsafeFixes = False,
    output: options.FormatOption = Format.TEXT,
    report_to: options.ReportTo = None,
    durations: options.Durations = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Verify the backwards of a module against the derivative of its forwards.

    Exit codes: 0 everything verified, or skipped with a reason; 1 something wrong, inconclusive or unchecked;
    2 usage, configuration, spec or import error; 3 a bug in gradverify; 5 nothing to check; 130 interrupted.
    """
    given = locals()
    verbosity = -1 if quiet else min(verbose, 2)
    style = style_for(color, verbosity)
    files: list[tuple[Format, Path]] = []
    asked = partial(_asked, given, seed_number("random", "--seed"))
    with reported(style, output, files):
        _refuse_fixing(fix=fix, unsafe=unsafe_fixes, watch=watch, in_process=in_process)
        files += report_files(report_to)
        if watch:
            from gradverify.cli.watched import Printing, watch_and_check  # noqa: PLC0415

            printing = Printing(lambda: style_for(color, verbosity), output, files)
            raise typer.Exit(watch_and_check(asked, checked, printing))
        try:
            request = asked()
            report = checked(request)
            if fix:
                report = _fixed(report, request, unsafe=unsafe_fixes, output=output, style=style)
        except InterruptedRunError as interrupted:
            print_report(interrupted.report, style, output, files)
            raise
        print_report(report, style, output, files)
    raise typer.Exit(report.exit_code)


def _asked(given: Mapping[str, Any], drawn: int) -> Request:
    """What the command line asks for, the configuration read anew; `random` is one seed each time."""
    config = configuration(given["config"], given["verbose"])
    if config.values.get("seed") == "random":
        config = replace(config, values={**config.values, "seed": drawn})
    seed = drawn if given["seed"] == "random" else given["seed"]
    return request_of({**given, "seed": seed}, config)


def _refuse_fixing(*, fix: bool, unsafe: bool, watch: bool, in_process: bool) -> None:
    """Raise `UsageError` where nothing can be fixed by what is asked for."""
    if unsafe and not fix:
        raise UsageError("--unsafe-fixes says what --fix may write: give both")
    if fix and watch:
        raise UsageError("--fix writes into the files that --watch looks at: give one of them")
    if fix and in_process:
        raise UsageError("--fix verifies the changed file afresh, which --in-process cannot import again")


def _fixed(report: Report, request: Request, *, unsafe: bool, output: Format, style: TextStyle) -> Report:
    """Write the changes that a report has, and say which; return the report on the files as they are then."""
    from gradverify.cli.fixed import fixes_text  # noqa: PLC0415 - loads rich
    from gradverify.session.fixing import fix  # noqa: PLC0415 - where it is asked for

    fixes = fix(report, request, checked, unsafe=unsafe)
    # What a program reads on stdout is the report alone.
    stream = sys.stdout if output in (Format.TEXT, Format.CONCISE) else sys.stderr
    write(stream, fixes_text(fixes, style))
    return fixes.report


def list_targets(
    targets: options.Targets = None,
    spec: options.Specs = None,
    no_infer: options.NoInfer = False,
    keyword: options.Keyword = "",
    exclude: options.Exclude = None,
    config: options.ConfigFile = None,
    dtype: options.Dtypes = None,
    effort: options.EffortOption = None,
    verbose: options.Verbose = 0,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Show what is discovered, where inputs come from, which cases and checks would run."""
    from gradverify.report.listing import render_listing  # noqa: PLC0415 - `check` needs neither
    from gradverify.report.text import render_mistakes  # noqa: PLC0415
    from gradverify.session.listing import list_targets as listed  # noqa: PLC0415

    given = locals()
    style = style_for(color, min(verbose, 2))
    with reported(style, Format.TEXT):
        request = request_of(given, configuration(config, verbose))
        with on_terminal(sys.stderr) as shown:
            listing = listed(request, shown)
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


def lint(
    targets: options.Targets = None,
    exclude: options.Exclude = None,
    config: options.ConfigFile = None,
    select: options.Select = None,
    ignore: options.Ignore = None,
    verbose: options.Verbose = 0,
    output: options.LintFormatOption = LintFormat.TEXT,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Read the source of Functions for what is certainly wrong: nothing is imported, no torch is needed.

    What these rules cannot be certain of they do not report; the gradient itself only `check` verifies.
    Exit codes: 0 nothing found; 1 findings; 2 usage error, or a file that is not Python; 5 no Function.
    """
    from gradverify.session.linting import lint as run_lint  # noqa: PLC0415 - with every static rule

    given = locals()
    style = style_for(color, min(verbose, 1))
    with reported(style):
        found = run_lint(lint_request_of(given, configuration(config, verbose)))
        write(sys.stdout, lint_text(found, style, output))
    raise typer.Exit(found.exit_code)


def demo(verbose: options.Verbose = 0, color: options.ColorOption = Color.AUTO) -> None:
    """Check a small module that ships with the package: right and wrong Functions."""
    from gradverify.demo.intended import unintended  # noqa: PLC0415

    style = style_for(color, min(verbose, 2))
    with reported(style, Format.TEXT):
        request = request_of({"targets": [_demo_module()]})
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
