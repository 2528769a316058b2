"""Verify, show what would be verified, join what was."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradverify.cli import options
from gradverify.cli.asked import configuration, random_seed, request_of
from gradverify.cli.destinations import refuse_source, report_files
from gradverify.cli.options import Color, Format
from gradverify.cli.screen import print_bugs, print_report, style_for, told, write, write_file
from gradverify.errors import InterruptedRunError
from gradverify.model import Engine
from gradverify.session.progress import on_terminal
from gradverify.session.request import Request, Silent

if TYPE_CHECKING:
    from gradverify.model import Report


def check(  # noqa: PLR0913 - one parameter for each option
    targets: options.Targets = None,
    spec: options.Specs = None,
    no_infer: options.NoInfer = False,  # noqa: FBT002
    exclude: options.Exclude = None,
    config: options.ConfigFile = None,
    keyword: options.Keyword = "",
    select: options.Select = None,
    ignore: options.Ignore = None,
    device: options.Device = None,
    dtype: options.Dtypes = None,
    autocast: options.Autocast = False,  # noqa: FBT002
    seed: options.Seed = None,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
    engine: options.EngineOption = Engine.PROBE,
    effort: options.EffortOption = None,
    timeout: options.Timeout = None,
    budget: options.Budget = None,
    price: options.PriceOption = None,
    memory: options.Memory = None,
    jobs: options.Jobs = 1,
    in_process: options.InThisProcess = False,  # noqa: FBT002
    stop_at_first: options.StopAtFirst = False,  # noqa: FBT002
    maxfail: options.MaxFail = None,
    last_failed: options.LastFailed = False,  # noqa: FBT002
    no_cache: options.NoCache = False,  # noqa: FBT002
    changed: options.Changed = None,
    watch: options.WatchOption = False,  # noqa: FBT002
    baseline: options.Baseline = None,
    shard: options.Shard = None,
    mutate: options.Mutate = False,  # noqa: FBT002
    strict: options.Strict = False,  # noqa: FBT002
    durations: options.Durations = None,
    dump: options.DumpFolder = None,
    quiet: options.Quiet = False,  # noqa: FBT002
    verbose: options.Verbose = 0,
    output: options.FormatOption = Format.TEXT,
    report_to: options.ReportFiles = None,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Verify the backwards of a module against the derivative of its forwards.

    First and second order, a composite reference if a spec names one, what backward really returns, layouts,
    requires_grad subsets, repeated calls and torch's transforms. What was not verified is said, and is not
    green. The report goes to stdout, progress and messages go to stderr.
    """
    from gradverify.cli.compared import compared  # noqa: PLC0415

    verbosity = -1 if quiet else min(verbose, 2)
    style = style_for(color, verbosity)
    files: list[tuple[Format, Path]] = []
    drawn = random_seed()

    def asked() -> Request:
        settings = configuration(config, verbose)
        settings = replace(settings, seed=drawn) if settings.seed == "random" else settings
        request = request_of(
            targets,
            config=settings,
            spec=spec,
            no_infer=no_infer,
            exclude=exclude,
            keyword=keyword,
            select=select,
            ignore=ignore,
            device=device,
            dtypes=dtype,
            autocast=autocast,
            seed=str(drawn) if seed == "random" else seed,
            rtol=rtol,
            atol=atol,
            engine=engine,
            effort=effort,
            timeout=timeout,
            budget=budget,
            price=price,
            memory=memory,
            jobs=jobs,
            in_process=in_process,
            stop_at_first=stop_at_first,
            maxfail=maxfail,
            shard=shard,
            strict=strict,
            durations=durations,
            dump=dump,
            mutate=mutate,
        )
        return compared(
            request,
            settings,
            last_failed=last_failed,
            no_cache=no_cache,
            changed=changed,
            baseline=baseline,
        )

    with told(style, output, files):
        files += report_files(report_to)
        if watch:
            from gradverify.cli.watched import Printing, watch_and_check  # noqa: PLC0415

            printing = Printing(lambda: style_for(color, verbosity), output, files)
            raise typer.Exit(watch_and_check(asked, config, printing))
        try:
            report = checked(asked())
        except InterruptedRunError as interrupted:
            print_report(interrupted.report, style, output, files)
            raise
        print_report(report, style, output, files)
    raise typer.Exit(report.exit_code)


def list_(  # noqa: PLR0913 - one parameter for each option
    targets: options.Targets = None,
    spec: options.Specs = None,
    no_infer: options.NoInfer = False,  # noqa: FBT002
    exclude: options.Exclude = None,
    config: options.ConfigFile = None,
    keyword: options.Keyword = "",
    dtype: options.Dtypes = None,
    effort: options.EffortOption = None,
    verbose: options.Verbose = 0,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Show what is discovered, where inputs come from, which cases and checks would run, at what cost."""
    from gradverify.report import render_listing, render_mistakes  # noqa: PLC0415 - `check` needs neither
    from gradverify.session.listing import list_targets  # noqa: PLC0415

    style = style_for(color, min(verbose, 2))
    with told(style, Format.TEXT):
        request = request_of(
            targets,
            config=configuration(config, verbose),
            spec=spec,
            no_infer=no_infer,
            exclude=exclude,
            keyword=keyword,
            dtypes=dtype,
            effort=effort,
        )
        with on_terminal(sys.stderr) as shown:
            listing = list_targets(request, shown)
        write(sys.stdout, render_listing(listing.targets, listing.modules, style))
        if listing.errors:
            write(sys.stderr, render_mistakes(listing.errors, style))
        print_bugs(listing.bugs)
    raise typer.Exit(listing.exit_code)


def merge(reports: options.Reports, output: options.MergedTo = None) -> None:
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
    with contextlib.nullcontext(Silent()) if request.in_process else on_terminal(sys.stderr) as shown:
        from gradverify.session.choosing import choose  # noqa: PLC0415 - loads pydantic

        chosen = choose(request)
        from gradverify.session.run import check as run_check  # noqa: PLC0415 - the specs may be wrong

        return run_check(request, shown, chosen)
