"""The command line: parse, run a session, render, exit. No other logic lives here.

Nothing heavy is imported at the top: `gradverify --help` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradverify import __version__
from gradverify.errors import SpecError, UsageError
from gradverify.model import Engine, Report, Settings
from gradverify.session.outcome import ExitCode

if TYPE_CHECKING:
    from gradverify.report import TextStyle
    from gradverify.session.request import Progress, Request

ISSUES = "https://github.com/gradverify/gradverify/issues"

TORCH_RTOL, TORCH_ATOL = 1e-3, 1e-5
"""gradcheck's own default tolerances, which `--engine torch` uses unless told otherwise."""


class Format(StrEnum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


app = typer.Typer(
    name="gradverify",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="TARGET...", help="module.py, module.py::Name or 'module.py::Name[b=3,mode=sum]'"),
]
Specs = Annotated[
    list[Path] | None, typer.Option("--spec", metavar="FILE", help="Spec file to use (repeatable).")
]
Keyword = Annotated[
    str,
    typer.Option("-k", metavar="EXPR", help="Only targets whose path::Name matches: names, and, or, not."),
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="CODES", help="Report only these codes or prefixes (GV1,GV3)."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="CODES", help="Do not report these codes or prefixes.")
]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:INDEX.")]
Seed = Annotated[
    str | None, typer.Option("--seed", metavar="INT|random", help="Seed of all input values (default 0).")
]
Rtol = Annotated[
    float | None,
    typer.Option("--rtol", metavar="F", help="Relative tolerance for a derivative (default 1e-7)."),
]
Atol = Annotated[float | None, typer.Option("--atol", metavar="F", help="Absolute tolerance (default 0).")]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="Who gives the verdict: jacobian compares full Jacobians with measured errors; "
        "torch asks torch.autograd.gradcheck, with its tolerances.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Limit for each target.", min=0.1)
]
StopAtFirst = Annotated[bool, typer.Option("-x", help="Stop after the first target that is not verified.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only findings and the summary.")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say everything about every target.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the report on stdout.")]
ColorOption = Annotated[Color, typer.Option("--color", help="Colour the text report.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False,  # noqa: FBT002
) -> None:
    """Verify hand-written PyTorch backwards: is it wrong, where, why, and what to do."""
    if version:
        typer.echo(f"gradverify {__version__}, torch {_torch_version()}, Python {platform.python_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


@app.command()
def check(  # noqa: PLR0913 - one parameter for each option
    targets: Targets = None,
    spec: Specs = None,
    keyword: Keyword = "",
    select: Select = None,
    ignore: Ignore = None,
    device: Device = "cpu",
    seed: Seed = None,
    rtol: Rtol = None,
    atol: Atol = None,
    engine: EngineOption = Engine.JACOBIAN,
    timeout: Timeout = 60.0,
    stop_at_first: StopAtFirst = False,  # noqa: FBT002
    quiet: Quiet = False,  # noqa: FBT002
    verbose: Verbose = 0,
    output: FormatOption = Format.TEXT,
    color: ColorOption = Color.AUTO,
) -> None:
    """Verify the backwards of a module against the derivative of its forwards.

    Exit code: 0 everything verified, 1 something is wrong or not verified, 2 usage, spec or import error,
    3 a bug in gradverify, 5 nothing to check, 130 interrupted.
    """
    style = _style(color, -1 if quiet else min(verbose, 1))
    with _told(style, output):
        request = _request(
            targets, spec, keyword, select, ignore, device, seed, rtol, atol, engine, timeout, stop_at_first
        )
        report = _check(request)
        _print_report(report, style, output)
    raise typer.Exit(report.exit_code)


@app.command("list")
def list_(
    targets: Targets = None,
    spec: Specs = None,
    keyword: Keyword = "",
    verbose: Verbose = 0,
    color: ColorOption = Color.AUTO,
) -> None:
    """Show what is discovered, where its inputs come from, which cases and checks would run."""
    from gradverify.report import render_listing, render_mistakes  # noqa: PLC0415
    from gradverify.session.listing import list_targets  # noqa: PLC0415

    style = _style(color, min(verbose, 1))
    with _told(style, Format.TEXT):
        request = _request(targets, spec, keyword)
        with _progress() as progress:
            listed, modules, errors = list_targets(request, progress)
        _write(sys.stdout, render_listing(listed, modules, style))
        if errors:
            _write(sys.stderr, render_mistakes(errors, style))
    raise typer.Exit(ExitCode.USAGE if errors else ExitCode.OK if listed else ExitCode.NOTHING)


@app.command()
def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="A code such as GV101.")]) -> None:
    """Say what a code means, why it matters, with an example and the remedy."""
    from gradverify.report import render_rule  # noqa: PLC0415

    with _told(_style(Color.AUTO, 0), Format.TEXT):
        _write(sys.stdout, render_rule(code))


@app.command()
def rules() -> None:
    """Show the table of codes."""
    from gradverify.report import render_rules_table  # noqa: PLC0415

    _write(sys.stdout, render_rules_table())


@app.command()
def demo(verbose: Verbose = 0, color: ColorOption = Color.AUTO) -> None:
    """Check a small module that ships with the package: right and wrong Functions.

    Exit code 0 when each gets its intended verdict.
    """
    from gradverify.demo.intended import unintended  # noqa: PLC0415

    style = _style(color, min(verbose, 1))
    with _told(style, Format.TEXT):
        from gradverify import demo as package  # noqa: PLC0415

        request = _request([str(Path(package.__path__[0]) / "functions.py")])
        report = _check(request)
        _print_report(report, style, Format.TEXT)
        surprises = unintended(report)
        _write(sys.stdout, _closing(report, surprises))
    raise typer.Exit(ExitCode.BUG if surprises else ExitCode.OK)


def main() -> None:
    """The console script. Every way out has its exit code; a traceback of ours is a bug, and says so."""
    try:
        app(prog_name="gradverify")
    except KeyboardInterrupt:
        _write(sys.stderr, "interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the report has seen enough. Python would complain again while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FINDINGS)
    except Exception:  # noqa: BLE001 - the last resort
        _write(sys.stderr, traceback.format_exc())
        _write(sys.stderr, _bug_sentence())
        sys.exit(ExitCode.BUG)


def _request(  # noqa: PLR0913 - one parameter for each option
    targets: list[str] | None,
    spec: list[Path] | None = None,
    keyword: str = "",
    select: list[str] | None = None,
    ignore: list[str] | None = None,
    device: str = "cpu",
    seed: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    engine: Engine = Engine.JACOBIAN,
    timeout: float = 60.0,
    stop_at_first: bool = False,  # noqa: FBT001, FBT002
) -> Request:
    from gradverify.session.request import Request  # noqa: PLC0415
    from gradverify.session.selection import check_codes, parse_target  # noqa: PLC0415

    if not targets:
        raise UsageError("nothing to check: name a module, as in `gradverify check mymodule.py`")
    chosen = check_codes(_split(select), "--select")
    ignored = check_codes(_split(ignore), "--ignore")
    by_torch = engine is Engine.TORCH
    return Request(
        selections=tuple(parse_target(t) for t in targets),
        settings=Settings(
            engine=engine, device=_device(device), select=chosen, ignore=ignored,
            **({"rtol": rtol} if rtol is not None else {}), **({"atol": atol} if atol is not None else {}),
        ),
        seed=_seed(seed),
        rtol=_tolerance(TORCH_RTOL if rtol is None and by_torch else rtol, "--rtol"),
        atol=_tolerance(TORCH_ATOL if atol is None and by_torch else atol, "--atol"),
        specs=tuple(spec or ()),
        keyword=keyword,
        timeout=timeout,
        stop_at_first=stop_at_first,
        extra_arguments=_repeated(spec, device, rtol, atol, engine),
    )  # fmt: skip


def _check(request: Request) -> Report:
    from gradverify.session.run import check as run_check  # noqa: PLC0415

    with _progress() as progress:
        return run_check(request, progress)


def _repeated(
    spec: list[Path] | None, device: str, rtol: float | None, atol: float | None, engine: Engine
) -> tuple[str, ...]:
    """Options that a command reproducing a finding must repeat."""
    words = [word for path in spec or () for word in ("--spec", path.as_posix())]
    words += ["--device", device] if device != "cpu" else []
    words += ["--rtol", f"{rtol:g}"] if rtol is not None else []
    words += ["--atol", f"{atol:g}"] if atol is not None else []
    words += ["--engine", engine.value] if engine is not Engine.JACOBIAN else []
    return tuple(words)


def _seed(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "random":
        return secrets.randbelow(2**31)
    if not text.isdecimal():
        raise UsageError(f"--seed: `{text}` is not a whole number, nor `random`")
    return int(text)


def _device(text: str) -> str:
    kind, _, index = text.partition(":")
    if kind not in {"cpu", "cuda"} or (kind == "cpu" and index) or (":" in text and not index.isdecimal()):
        raise UsageError(f"--device: `{text}` is not supported: use cpu, cuda or cuda:INDEX")
    return text


def _tolerance(value: float | None, option: str) -> float | None:
    if value is not None and not 0 <= value < 1:
        raise UsageError(f"{option}: {value:g} is not between 0 and 1")
    return value


def _split(codes: list[str] | None) -> list[str]:
    return [code.strip() for part in codes or () for code in part.split(",")]


def _style(color: Color, verbosity: int) -> TextStyle:
    from gradverify.report import TextStyle  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    by_environment = bool(os.environ.get("FORCE_COLOR")) or (
        terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    )
    colored = color is Color.ALWAYS or (color is Color.AUTO and by_environment)
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return TextStyle(_terminal_width() if terminal else None, colored, unicode, verbosity)


def _terminal_width() -> int:
    try:
        return max(40, os.get_terminal_size(sys.stdout.fileno()).columns)
    except OSError:
        return 80


@contextlib.contextmanager
def _told(style: TextStyle, output: Format) -> Iterator[None]:
    """Turn a user's mistake into sentences and exit code 2."""
    from gradverify.report import render_json, render_mistakes  # noqa: PLC0415

    try:
        yield
    except UsageError as error:
        _write(sys.stderr, f"gradverify: {error}\n")
        raise typer.Exit(ExitCode.USAGE) from None
    except SpecError as error:
        if output is Format.JSON:
            _write(sys.stdout, render_json(_only_errors(error)))
        else:
            _write(sys.stderr, render_mistakes(error.problems, style))
        raise typer.Exit(ExitCode.USAGE) from None


def _only_errors(error: SpecError) -> Report:
    from gradverify.session.outcome import summary_of  # noqa: PLC0415

    return Report(
        Settings(), (), error.problems, (), __version__, _torch_version(), ExitCode.USAGE, summary_of(())
    )


def _print_report(report: Report, style: TextStyle, output: Format) -> None:
    from gradverify.report import render_json, render_text  # noqa: PLC0415

    match output:
        case Format.TEXT:
            _write(sys.stdout, render_text(report, style))
        case Format.JSON:
            _write(sys.stdout, render_json(report))


def _closing(report: Report, surprises: tuple[str, ...]) -> str:
    if surprises:
        return "".join(f"not as intended: {line}\n" for line in surprises)
    return f"\nEach of the {len(report.targets)} Functions got its intended verdict: the wrong ones are wrong on purpose.\n"


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    from gradverify.session.progress import on_terminal  # noqa: PLC0415

    with on_terminal(sys.stderr) as progress:
        yield progress


def _write(stream: object, text: str) -> None:
    write: Callable[[str], object] = stream.write  # type: ignore[attr-defined]
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    write(text)
    stream.flush()  # type: ignore[attr-defined]


def _torch_version() -> str:
    """Torch's version from its metadata: importing it takes seconds."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _bug_sentence() -> str:
    return (
        f"\nThis is a bug in gradverify {__version__}, not in your code: please report it with the text above "
        f"at {ISSUES}\n"
    )
