"""Write what a user would: a backward, a spec, a spec of what a program called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradverify import options
from gradverify.cli.screen import configuration, print_bugs, reported, style_for, tell, write
from gradverify.options import Color
from gradverify.report.formats import Format
from gradverify.requested import request_of
from gradverify.session.outcome import ExitCode
from gradverify.session.progress import on_terminal
from gradverify.session.request import Progress, Request

if TYPE_CHECKING:
    from gradverify.model import LinePatch
    from gradverify.report.console import TextStyle
    from gradverify.session.drafting import Draft


def suggest(
    target: options.OneTarget,
    spec: options.Specs = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print a diff for `git apply`.")] = False,
    write_it: Annotated[
        bool, typer.Option("--write", help="Write the change into the file, and verify it again.")
    ] = False,
    config: options.ConfigFile = None,
    device: options.DeviceOption = None,
    seed: options.SeedOption = None,
    timeout: options.Timeout = None,
) -> None:
    """Print what makes a backward right: the change of its lines where one is known, and a whole backward.

    The whole one is derived from the reference, or from forward itself, in your names. Both were executed and
    verified before they are shown.
    """
    from gradverify.report.suggestion import render_change, render_suggestion  # noqa: PLC0415
    from gradverify.report.text import render_mistakes  # noqa: PLC0415 - `--help` needs no report
    from gradverify.session.suggesting import suggest_backward  # noqa: PLC0415

    given = {"targets": [target], "spec": spec, "device": device, "seed": seed, "timeout": timeout}
    style = style_for(Color.AUTO, 0)
    with reported(style, Format.TEXT):
        request = request_of(given, configuration(config, 0))
        if diff or write_it:
            raise typer.Exit(_change(request, style, diff=diff, write_it=write_it))
        with on_terminal(sys.stderr) as shown:
            suggestion = suggest_backward(request, shown)
        code, bugs = suggestion.exit_code, suggestion.bugs
        if suggestion.errors:
            write(sys.stderr, render_mistakes(suggestion.errors, style))
        elif suggestion.target is not None:
            known, more = _known_change(request)
            write(sys.stdout, render_change(suggestion.target, known))
            stream = sys.stdout if code is ExitCode.OK else sys.stderr
            write(stream, render_suggestion(suggestion.target, suggestion.answer))
            code = ExitCode.OK if known and code is ExitCode.FINDINGS else ExitCode.BUG if more else code
            bugs = tuple(dict.fromkeys((*bugs, *more)))
        print_bugs(bugs)
    raise typer.Exit(code)


def _known_change(request: Request) -> tuple[tuple[LinePatch, ...], tuple[str, ...]]:
    """The change that verifying the one target finds, if any; and bugs of ours that it met."""
    from gradverify.cli.commands.verifying import checked  # noqa: PLC0415 - `init` and `record` need none of it
    from gradverify.session.suggesting import known_change  # noqa: PLC0415 - reads sources

    report = checked(request)
    return known_change(report.targets[0]) if len(report.targets) == 1 else (), report.bugs


def _change(request: Request, style: TextStyle, *, diff: bool, write_it: bool) -> ExitCode:
    """Print, or write, the change that makes one target right."""
    from gradverify.cli.commands.verifying import checked  # noqa: PLC0415 - `init` and `record` need none of it
    from gradverify.cli.fixed import fixes_text  # noqa: PLC0415
    from gradverify.model import Verdict  # noqa: PLC0415
    from gradverify.report.fixes import unified_diff  # noqa: PLC0415
    from gradverify.report.text import render_mistakes  # noqa: PLC0415 - only where there is a change
    from gradverify.session.fixing import fix  # noqa: PLC0415
    from gradverify.session.suggesting import change_of, suggest_backward  # noqa: PLC0415

    report = checked(request)
    if report.errors or report.bugs or len(report.targets) != 1:
        # The same as without the option: it says why.
        suggestion = suggest_backward(request, Progress())
        write(sys.stderr, render_mistakes(suggestion.errors, style))
        print_bugs(suggestion.bugs)
        return suggestion.exit_code
    change = change_of(report, lambda: suggest_backward(request, Progress()).answer)
    if not change.patches:
        tell(f"{change.reason}\n")
        return ExitCode.OK if report.targets[0].status is Verdict.PASSED else ExitCode.FINDINGS
    if diff:
        write(sys.stdout, unified_diff(change.patches))
    if not write_it:
        return ExitCode.OK
    fixes = fix(change.report, request, checked, unsafe=True)
    write(sys.stderr if diff else sys.stdout, fixes_text(fixes, style))
    return ExitCode.OK if fixes.written else ExitCode.FINDINGS


def init(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="module.py, or module.py::Name.")],
    to_stdout: Annotated[bool, typer.Option("--stdout", help="Print it; write no file.")] = False,
    force: options.Force = False,
    config: options.ConfigFile = None,
    device: options.DeviceOption = None,
    seed: options.SeedOption = None,
    timeout: options.Timeout = None,
    color: options.ColorOption = Color.AUTO,
) -> None:
    """Draft a spec beside the module: the inputs inferred for each Function, with what was guessed.

    To a spec that is there what it lacks is added. Checked at once, it gives the same verdicts as without.
    """
    from gradverify.session.drafting import draft_spec  # noqa: PLC0415

    given = {"targets": [target], "device": device, "seed": seed, "timeout": timeout}
    with reported(style_for(color, 0), Format.TEXT):
        request = request_of(given, configuration(config, 0))
        with on_terminal(sys.stderr) as shown:
            draft = draft_spec(request, shown, afresh=force)
        if to_stdout:
            write(sys.stdout, draft.text)
        else:
            _write_draft(draft)


def _write_draft(draft: Draft) -> None:
    """Write a drafted spec, and say what is in it.

    Raises `UsageError` where it cannot be written.
    """
    from gradverify.errors import UsageError  # noqa: PLC0415
    from gradverify.model import shown_path  # noqa: PLC0415 - `--help` shows none
    from gradverify.report.console import harmless  # noqa: PLC0415
    from gradverify.report.words import plural  # noqa: PLC0415

    shown, count = shown_path(draft.path), len(draft.entries)
    if not draft.entries:
        write(sys.stdout, harmless(f"{shown}: nothing to add\n"))
        return
    if not draft.is_spec:
        write(sys.stdout, draft.text)
        sentence = f"{shown} is not written: no entry holds without being confirmed. The draft is above.\n"
        tell(f"gradverify: {sentence}")
        return
    try:
        draft.path.write_text(draft.text, "utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"`{shown}` cannot be written: {error.strerror}") from None
    done = "completed" if draft.existed else "written"
    confirm = f", {draft.to_confirm} commented out: to be confirmed" if draft.to_confirm else ""
    write(sys.stdout, harmless(f"{shown} {done}: {plural(count, 'function')}{confirm}\n"))


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
    force: options.Force = False,
) -> None:
    """Run a program, and write a spec of what it called.

    Every call of an autograd Function or custom op is noted; sizes that are equal in every call become one
    symbol, and are shrunk as far as forward allows. Calls inside a compiled region (torch.compile) or by
    torch.ops are not recorded.
    """
    from gradverify.cli.recorded import refuse_output, tell_recording  # noqa: PLC0415
    from gradverify.session.recording import draft_recording, run_recorded  # noqa: PLC0415

    with reported(style_for(Color.AUTO, 0), Format.TEXT):
        refuse_output(output, replace=force)
        ran = run_recorded(command, module or ())
        with on_terminal(sys.stderr) as shown:
            recording = draft_recording(ran, output, Request(()), shown)
        code = tell_recording(recording, output, command)
    raise typer.Exit(code)
