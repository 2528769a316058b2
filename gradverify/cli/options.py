"""The options of the command line: their names, types, help and defaults, in groups that have a name.

A command takes whole groups (`taking`): typer sees one parameter for each of their options, and the function
gets one value for each group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gradverify.cli import completion
from gradverify.cli.formats import Format, LintFormat
from gradverify.model import Effort, Engine, Price


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


HELP = dict(
    line.partition(": ")[::2]
    for line in Path(__file__).with_name("manual").joinpath("options.txt").read_text("utf-8").splitlines()
)
"""What `--help` says of each option; of one that another command has with another meaning, `--x of lint`."""


def _option(*names: str, command: str = "", **more: Any) -> Any:  # noqa: ANN401 - typer's
    of_command = f"{names[-1]} of {command}" if command else names[-1]
    return typer.Option(*names, help=HELP[of_command].format(formats=", ".join(Format)), **more)


def _argument(*, metavar: str, command: str = "", **more: Any) -> Any:  # noqa: ANN401 - typer's
    return typer.Argument(
        metavar=metavar, help=HELP[f"{metavar} of {command}" if command else metavar], **more
    )


Code = Annotated[str, _argument(metavar="CODE", autocompletion=completion.codes)]
Specs = Annotated[list[Path] | None, _option("--spec", metavar="FILE")]
Exclude = Annotated[list[str] | None, _option("--exclude", metavar="GLOB")]
ConfigFile = Annotated[Path | None, _option("--config", metavar="FILE")]
Select = Annotated[
    list[str] | None, _option("--select", metavar="CODES", autocompletion=completion.code_lists)
]
Ignore = Annotated[
    list[str] | None, _option("--ignore", metavar="CODES", autocompletion=completion.code_lists)
]
Device = Annotated[str | None, _option("--device", metavar="DEVICE")]
Dtypes = Annotated[list[str] | None, _option("--dtype", metavar="DTYPE", autocompletion=completion.dtypes)]
Seed = Annotated[str | None, _option("--seed", metavar="INT|random")]
EffortOption = Annotated[Effort | None, _option("--effort", metavar="LEVEL", show_default=False)]
Timeout = Annotated[float | None, _option("--timeout", metavar="SECONDS")]
Verbose = Annotated[int, _option("-v", "--verbose", count=True, show_default=False)]
ColorOption = Annotated[Color, _option("--color")]


@dataclass(frozen=True)
class Targets:
    """Which targets, of all that may be named."""

    targets: Annotated[list[str] | None, _argument(metavar="TARGET", autocompletion=completion.targets)] = (
        None
    )
    spec: Specs = None
    no_infer: Annotated[bool, _option("--no-infer")] = False
    exclude: Exclude = None
    config: ConfigFile = None
    keyword: Annotated[str, _option("-k", metavar="EXPR")] = ""


@dataclass(frozen=True)
class Since:
    """Which of them, by what was."""

    watch: Annotated[bool, _option("--watch")] = False


@dataclass(frozen=True)
class Checks:
    """Which checks."""

    select: Select = None
    ignore: Ignore = None
    engine: Annotated[Engine, _option("--engine", metavar="ENGINE")] = Engine.PROBE
    effort: EffortOption = None


@dataclass(frozen=True)
class Numbers:
    """Of what, and how exactly."""

    device: Device = None
    dtype: Dtypes = None
    autocast: Annotated[bool, _option("--autocast")] = False
    seed: Seed = None
    rtol: Annotated[float | None, _option("--rtol", metavar="F")] = None
    atol: Annotated[float | None, _option("--atol", metavar="F")] = None


@dataclass(frozen=True)
class Limits:
    """Processes, and what they may take."""

    timeout: Timeout = None
    budget: Annotated[float | None, _option("--budget", metavar="SECONDS")] = None
    price: Annotated[Price | None, _option("--price", metavar="LEVEL", show_default=False)] = None
    memory: Annotated[int | None, _option("--memory", metavar="MIB", min=0)] = None
    jobs: Annotated[int, _option("-j", "--jobs", metavar="N", min=0, show_default=False)] = 1
    in_process: Annotated[bool, _option("--in-process")] = False


@dataclass(frozen=True)
class Failing:
    """What fails, and what ends the run."""

    stop_at_first: Annotated[bool, _option("-x")] = False
    maxfail: Annotated[int | None, _option("--maxfail", metavar="N", min=1)] = None
    strict: Annotated[bool, _option("--strict")] = False


@dataclass(frozen=True)
class Fixing:
    """What is done about what fails."""

    fix: Annotated[bool, _option("--fix")] = False
    unsafe_fixes: Annotated[bool, _option("--unsafe-fixes")] = False


@dataclass(frozen=True)
class Output:
    """What is reported, where, and how it looks."""

    durations: Annotated[int | None, _option("--durations", metavar="N", min=0)] = None
    quiet: Annotated[bool, _option("-q", "--quiet")] = False
    verbose: Verbose = 0
    output: Annotated[Format, _option("--format", metavar="FORMAT", autocompletion=completion.formats)] = (
        Format.TEXT
    )
    report_to: Annotated[
        list[str] | None, _option("--report", metavar="FORMAT=PATH", autocompletion=completion.report_files)
    ] = None
    color: ColorOption = Color.AUTO


@dataclass(frozen=True)
class Drafting:
    """What `suggest` and `init` take, beside the one target."""

    config: ConfigFile = None
    device: Device = None
    seed: Seed = None
    timeout: Timeout = None

    def of(self, target: str, spec: list[Path] | None = None) -> Options:
        """The same options of `check`, with that target alone."""
        numbers = Numbers(self.device, seed=self.seed)
        return Options(Targets([target], spec), numbers=numbers, limits=Limits(self.timeout))


@dataclass(frozen=True)
class Lint:
    """What `lint` takes."""

    targets: Annotated[
        list[str] | None, _argument(command="lint", metavar="TARGET", autocompletion=completion.targets)
    ] = None
    exclude: Exclude = None
    config: ConfigFile = None
    select: Select = None
    ignore: Ignore = None
    verbose: Annotated[int, _option("-v", "--verbose", command="lint", count=True, show_default=False)] = 0
    output: Annotated[LintFormat, _option("--format", command="lint")] = LintFormat.TEXT
    color: ColorOption = Color.AUTO


@dataclass(frozen=True)
class Options:
    """All that `check` takes; other commands and the Python API take some of it."""

    which: Targets = field(default_factory=Targets)
    since: Since = field(default_factory=Since)
    checks: Checks = field(default_factory=Checks)
    numbers: Numbers = field(default_factory=Numbers)
    limits: Limits = field(default_factory=Limits)
    failing: Failing = field(default_factory=Failing)
    fixing: Fixing = field(default_factory=Fixing)
    output: Output = field(default_factory=Output)


GROUPS = (
    ("Which targets", (Targets, Since)),
    ("Which checks", (Checks,)),
    ("Numbers", (Numbers,)),
    ("Processes and limits", (Limits,)),
    ("What fails", (Failing,)),
    ("Fixes", (Fixing,)),
    ("Report", (Output,)),
)
"""Headings of `check --help`, with the groups below them."""


def taking(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a function of one value for each group be a command with all their options, before its own."""

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[len(groups) :]
        hints = {group: get_type_hints(group, include_extras=True) for group in groups}

        @wraps(function)
        def command(**given: Any) -> None:  # noqa: ANN401 - what typer has read
            made = [group(**{f.name: given.pop(f.name) for f in fields(group)}) for group in groups]
            function(*made, **given)

        taken = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[group][f.name]
            )
            for group in groups
            for f in fields(group)
        ]
        taken += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
        return command

    return decorated
