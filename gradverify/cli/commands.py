"""The commands. What only some of them need is imported there: `gradverify --help` answers at once."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gradverify.cli import options
from gradverify.cli.arguments import with_revision
from gradverify.cli.asked import lint_request_of, random_seed, report_files, request_of
from gradverify.cli.help import ManualCommand, ManualGroup
from gradverify.cli.options import Color, Format, LintFormat
from gradverify.cli.screen import (
    bug_sentence,
    configuration,
    lint_text,
    open_standard_streams,
    print_bugs,
    print_report,
    progress,
    style_for,
    tell,
    told,
    versions,
    write,
    write_file,
)
from gradverify.model import Engine, Report, Verdict
from gradverify.report import (
    render_listing,
    render_mistakes,
    render_rule,
    render_rules_table,
    render_selftest,
    render_suggestion,
)
from gradverify.session.outcome import ExitCode
from gradverify.session.request import Request

app = typer.Typer(
    name="gradverify",
    cls=ManualGroup,
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


@app.command(cls=ManualCommand)
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
    memory: options.Memory = None,
    jobs: options.Jobs = 1,
    in_process: options.InThisProcess = False,  # noqa: FBT002
    stop_at_first: options.StopAtFirst = False,  # noqa: FBT002
    maxfail: options.MaxFail = None,
    last_failed: options.LastFailed = False,  # noqa: FBT002
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
        return compared(request, settings, last_failed=last_failed, changed=changed, baseline=baseline)

    with told(style, output, files):
        files += report_files(report_to)
        if watch:
            from gradverify.cli.watched import Printing, watch_and_check  # noqa: PLC0415

            printing = Printing(lambda: style_for(color, verbosity), output, files)
            raise typer.Exit(watch_and_check(asked, config, printing))
        report = _check(asked())
        print_report(report, style, output, files)
    raise typer.Exit(report.exit_code)


@app.command("list", cls=ManualCommand)
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
        with progress() as shown:
            listing = list_targets(request, shown)
        write(sys.stdout, render_listing(listing.targets, listing.modules, style))
        if listing.errors:
            write(sys.stderr, render_mistakes(listing.errors, style))
        print_bugs(listing.bugs)
    raise typer.Exit(listing.exit_code)


@app.command(cls=ManualCommand)
def merge(reports: options.Reports, output: options.MergedTo = None) -> None:
    """Join the JSON reports of shards to that of the whole run; the exit code is that of the whole."""
    from gradverify.session.merging import merge_reports  # noqa: PLC0415

    with told(style_for(Color.AUTO, 0)):
        text, code = merge_reports(reports)
        if output is None:
            write(sys.stdout, text)
        else:
            write_file(output, text, "--output")
    raise typer.Exit(code)


@app.command(cls=ManualCommand)
def suggest(
    target: Annotated[
        str, typer.Argument(metavar="TARGET::NAME", help="One Function or operator: module.py::Name.")
    ],
    spec: options.Specs = None,
    config: options.ConfigFile = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
) -> None:
    """Print the right backward, derived from the reference or from forward itself, in the user's names.

    It is executed and verified before it is shown.
    """
    from gradverify.session.suggesting import suggest_backward  # noqa: PLC0415

    style = style_for(Color.AUTO, 0)
    with told(style, Format.TEXT):
        request = request_of([target], config=configuration(config, 0), spec=spec, seed=seed, timeout=timeout)
        with progress() as shown:
            suggestion = suggest_backward(request, shown)
        if suggestion.errors:
            write(sys.stderr, render_mistakes(suggestion.errors, style))
        elif suggestion.target is not None:
            stream = sys.stdout if suggestion.exit_code is ExitCode.OK else sys.stderr
            write(stream, render_suggestion(suggestion.target, suggestion.answer))
        print_bugs(suggestion.bugs)
    raise typer.Exit(suggestion.exit_code)


@app.command(cls=ManualCommand)
def init(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="module.py, or module.py::Name.")],
    to_stdout: Annotated[bool, typer.Option("--stdout", help="Print it; write no file.")] = False,  # noqa: FBT002
    force: Annotated[bool, typer.Option("--force", help="Replace a spec that is there.")] = False,  # noqa: FBT002
    config: options.ConfigFile = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Draft a spec beside the module: the inputs inferred for each Function, with what was guessed.

    To a spec that is there what it lacks is added. Checked at once, it gives the same verdicts as without.
    """
    from gradverify.cli.drafted import write_draft  # noqa: PLC0415
    from gradverify.session.drafting import draft_spec  # noqa: PLC0415

    with told(style_for(color, 0), Format.TEXT):
        request = request_of([target], config=configuration(config, 0), seed=seed, timeout=timeout)
        with progress() as shown:
            draft = draft_spec(request, shown, afresh=force)
        if to_stdout:
            write(sys.stdout, draft.text)
        else:
            write_draft(draft)


@app.command(cls=ManualCommand)
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


@app.command(cls=ManualCommand)
def record(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD", help="After --: the program and its arguments.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="SPEC", help="The spec file to write.")],
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="MOD",
            help="Only Functions of this module or package (repeatable; default: of files below the current "
            "folder; of installed packages it is said what was called).",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a spec that is there.")] = False,  # noqa: FBT002
) -> None:
    """Run a program, and write a spec of what it called.

    Every call of an autograd Function or custom op is noted; sizes that are equal in every call become one
    symbol, and are shrunk as far as forward allows. Calls inside a compiled region (torch.compile) or by
    torch.ops are not recorded.
    """
    from gradverify.cli.recorded import refuse_output, tell_recording  # noqa: PLC0415
    from gradverify.session.recording import draft_recording, run_recorded  # noqa: PLC0415

    with told(style_for(Color.AUTO, 0), Format.TEXT):
        refuse_output(output, replace=force)
        ran = run_recorded(command, module or ())
        with progress() as shown:
            recording = draft_recording(ran, output, Request(()), shown)
        code = tell_recording(recording, output, command)
    raise typer.Exit(code)


@app.command(cls=ManualCommand)
def explain(code: options.Code) -> None:
    """Say what a code means, why it matters, with an example and the remedy."""
    with told(style_for(Color.AUTO, 0), Format.TEXT):
        write(sys.stdout, render_rule(code))


@app.command(cls=ManualCommand)
def rules() -> None:
    """Show the table of codes."""
    with told(style_for(Color.AUTO, 0)):
        write(sys.stdout, render_rules_table())


@app.command(cls=ManualCommand)
def schema() -> None:
    """Print the JSON Schema of spec files, for editors."""
    from gradverify.spec import json_schema  # noqa: PLC0415 - pydantic takes longer to load than the rest

    with told(style_for(Color.AUTO, 0)):
        write(sys.stdout, json.dumps(json_schema(), indent=2) + "\n")


@app.command(cls=ManualCommand)
def demo(verbose: options.Verbose = 0, color: options.ColorOption = Color.AUTO) -> None:
    """Check a small module that ships with the package: right and wrong Functions."""
    from gradverify.demo.intended import unintended  # noqa: PLC0415

    style = style_for(color, min(verbose, 2))
    with told(style, Format.TEXT):
        from gradverify import demo as package  # noqa: PLC0415

        request = request_of([str(Path(package.__path__[0]) / "functions.py")])
        report = _check(request)
        print_report(report, style, Format.TEXT)
        surprises = unintended(report)
        write(sys.stdout, _closing(report, surprises))
    raise typer.Exit(ExitCode.BUG if surprises else ExitCode.OK)


@app.command(cls=ManualCommand)
def selftest(color: options.ColorOption = Color.AUTO) -> None:
    """Plant known faults in right Functions that ship with the package, and show that each is caught."""
    from gradverify.demo.intended import INTENDED  # noqa: PLC0415

    style = style_for(color, 0)
    with told(style, Format.TEXT):
        from gradverify import demo as package  # noqa: PLC0415

        module = Path(package.__path__[0]) / "functions.py"
        right = [name for name, (status, _) in INTENDED.items() if status is Verdict.PASSED]
        report = _check(request_of([f"{module}::{name}" for name in right], mutate=True, strict=True))
        write(sys.stdout, render_selftest(report, style))
        print_bugs(report.bugs)
    raise typer.Exit(report.exit_code)


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


def _check(request: Request) -> Report:
    from gradverify.session.run import check as run_check  # noqa: PLC0415

    if request.in_process:  # a line that moves and a debugger's prompt do not go together
        return run_check(request)
    with progress() as shown:
        return run_check(request, shown)


def _closing(report: Report, surprises: tuple[str, ...]) -> str:
    if surprises:
        return "".join(f"not as intended: {line}\n" for line in surprises)
    count = len(report.targets)
    return f"\nEach of the {count} Functions got its intended verdict: the wrong ones are wrong on purpose.\n"
