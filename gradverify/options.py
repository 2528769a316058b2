"""The options, each an annotated parameter that commands share: typer reads its flag and help from it.

Its other properties are a `Setting` beside the flag: its key in `[tool.gradverify]`, what such a key
holds, how a value is checked, and whether a command that reproduces a finding repeats it. The configuration,
the Python API and pytest read the same table.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import ParameterInfo

from gradverify import completion
from gradverify.completion import DTYPES
from gradverify.errors import UsageError
from gradverify.model import Effort, Engine
from gradverify.report.formats import Format, LintFormat

LONGEST_SEED = 18
"""Digits of a seed: more would not make it more random, and JSON readers round longer numbers."""

RANDOM_SEEDS = 2**31
"""`random` draws one below."""

LONGEST_WAIT = 1e6
"""Seconds; the system's own clocks cannot wait for arbitrarily many."""

EVERY_DEVICE = "all"
"""The `--device` that compares the CPU with every other device."""


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class Holds:
    """What a key of the configuration holds."""

    test: Callable[[object], bool]
    words: str
    """What it must be, after `must be`."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


TEXTS = Holds(_are_texts, "a list of strings")
TEXT = Holds(lambda value: isinstance(value, str), "a string")
NUMBER = Holds(lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number")
FOLDER = Holds(TEXT.test, "a string: the folder of the spec files")
SECONDS = Holds(NUMBER.test, "a number of seconds")
MEBIBYTES = Holds(_is_count, "a whole number of MiB")
SEED = Holds(lambda value: value == "random" or _is_count(value), 'a whole number or "random"')
LEVEL = Holds(lambda value: value in list(Effort), f"one of {', '.join(Effort)}")


def codes(given: list[str] | tuple[str, ...], name: str) -> tuple[str, ...]:
    """Codes and prefixes, by themselves or behind commas. Raises `UsageError` for one that does not exist."""
    from gradverify.session.selection import check_codes  # noqa: PLC0415 - `--help` checks none

    return check_codes([code.strip() for part in given for code in part.split(",")], name)


def seed_number(given: str | int, name: str) -> int:
    """A seed; `random` draws one. Raises `UsageError` for what is none."""
    text = str(given)
    if text == "random":
        import secrets  # noqa: PLC0415 - loads all of hashing

        return secrets.randbelow(RANDOM_SEEDS)
    if not (text.isascii() and text.isdecimal()) or len(text) > LONGEST_SEED:
        raise UsageError(
            f"{name}: `{text}` is neither a whole number of at most {LONGEST_SEED} digits nor `random`"
        )
    return int(text)


def device(text: str, name: str) -> str:
    """A device that torch knows, or `all`. Raises `UsageError` for what is none."""
    kind, _, index = text.partition(":")
    good_index = index.isascii() and index.isdecimal() and len(index) < LONGEST_SEED
    known = kind in {"cpu", "cuda"} and (":" not in text or (kind == "cuda" and good_index))
    if text != EVERY_DEVICE and not known:
        raise UsageError(f"{name}: `{text}` is not supported: use cpu, cuda, cuda:INDEX or all")
    return text


def dtypes(names: list[str], name: str) -> tuple[str, ...]:
    """Dtypes to judge in, each once. Raises `UsageError` for one that targets are not judged in."""
    for dtype in names:
        if dtype not in DTYPES:
            near = difflib.get_close_matches(dtype, DTYPES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(DTYPES)}"
            raise UsageError(f"{name}: there is no dtype {dtype!r} to judge in; {hint}")
    return tuple(dict.fromkeys(names))


def tolerance(value: float, name: str) -> float:
    """A tolerance from 0 to 1. Raises `UsageError` for another number."""
    if not 0 <= value < 1:
        raise UsageError(f"{name}: {value:g} is not between 0 and 1")
    return value


def wait(seconds: float, name: str) -> float:
    """Seconds to wait. Raises `UsageError` for what is no positive number."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"{name}: {seconds:g} is not a number of seconds")
    return min(seconds, LONGEST_WAIT)


def as_given(value: Any, name: str) -> Any:  # noqa: ANN401, ARG001 - whatever the option holds
    """A value that needs no more checking than its type."""
    return value


@dataclass(frozen=True)
class Setting:
    """What an option is beside its flag; metadata of its parameter."""

    name: str
    """Of the parameter."""
    check: Callable[[Any, str], Any] = as_given
    """Gives the value that counts, named as in a message. Raises `UsageError`."""
    key: str = ""
    """In `[tool.gradverify]`; empty where a configuration says nothing of it."""
    holds: Holds = TEXT
    """What that key holds."""
    repeated: bool = False
    """A command that reproduces a finding repeats it."""


WHICH, CHECKS, NUMBERS = "Which targets", "Which checks", "Numbers"
LIMITS, FAILING, FIXES, REPORT = "Processes and limits", "What fails", "Fixes", "Report"
"""Panels of `--help`."""

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        help="module.py, folder/, dotted.module, FILE.gradverify.yaml, module.py::Name or "
        "'module.py::Name[b=3,mode=sum]'.",
        autocompletion=completion.targets,
    ),
    Setting("targets", key="paths", holds=TEXTS),
]
OneTarget = Annotated[str, typer.Argument(metavar="TARGET::NAME", help="module.py::Name.")]
Code = Annotated[
    str, typer.Argument(metavar="CODE", help="A code such as GV101.", autocompletion=completion.codes)
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Read [tool.gradverify] here.", rich_help_panel=WHICH),
]
Specs = Annotated[
    list[Path] | None,
    typer.Option(
        "--spec",
        metavar="FILE",
        help="Spec file (repeatable); alone, what it names is checked.",
        rich_help_panel=WHICH,
    ),
    Setting("spec"),
]
NoInfer = Annotated[
    bool,
    typer.Option("--no-infer", help="Without a spec, a target is unchecked.", rich_help_panel=WHICH),
    Setting("no_infer"),
]
Keyword = Annotated[
    str,
    typer.Option(
        "-k",
        metavar="EXPR",
        help="Only targets whose path::Name matches: names, and, or, not.",
        rich_help_panel=WHICH,
    ),
    Setting("keyword"),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="GLOB", help="Leave out files and folders (repeatable).", rich_help_panel=WHICH
    ),
    Setting("exclude", key="exclude", holds=TEXTS),
]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", help="Run again when a source or spec is saved.", rich_help_panel=WHICH),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODES",
        help="Report only these codes or prefixes (GV1,GV3).",
        autocompletion=completion.code_lists,
        rich_help_panel=CHECKS,
    ),
    Setting("select", codes, key="select", holds=TEXTS),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODES",
        help="Do not report these codes or prefixes.",
        autocompletion=completion.code_lists,
        rich_help_panel=CHECKS,
    ),
    Setting("ignore", codes, key="ignore", holds=TEXTS),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:INDEX, or all (compared).",
        rich_help_panel=NUMBERS,
    ),
    Setting("device", device, key="device", repeated=True),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Beside float64: float32 (default), bfloat16, float16 (repeatable); float64: none.",
        autocompletion=completion.dtypes,
        rich_help_panel=NUMBERS,
    ),
    Setting("dtype", dtypes, repeated=True),
]
Autocast = Annotated[
    bool,
    typer.Option("--autocast", help="Judge under torch.autocast too.", rich_help_panel=NUMBERS),
    Setting("autocast", repeated=True),
]
EffortOption = Annotated[
    Effort | None,
    typer.Option(
        "--effort",
        metavar="LEVEL",
        help="quick: the base case; normal: pairwise cases, extreme values too; thorough: every combination, "
        "more draws.",
        show_default=False,
        rich_help_panel=CHECKS,
    ),
    Setting("effort", key="effort", holds=LEVEL, repeated=True),
]
SeedOption = Annotated[
    str | None,
    typer.Option(
        "--seed", metavar="INT|random", help="Of all input values (default 0).", rich_help_panel=NUMBERS
    ),
    Setting("seed", seed_number, key="seed", holds=SEED),
]
RelativeTolerance = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        metavar="F",
        help="Relative tolerance of a derivative (default 1e-7).",
        rich_help_panel=NUMBERS,
    ),
    Setting("rtol", tolerance, key="rtol", holds=NUMBER, repeated=True),
]
AbsoluteTolerance = Annotated[
    float | None,
    typer.Option("--atol", metavar="F", help="Absolute tolerance (default 0).", rich_help_panel=NUMBERS),
    Setting("atol", tolerance, key="atol", holds=NUMBER, repeated=True),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="witnesses, or torch: gradcheck and gradgradcheck with their tolerances.",
        rich_help_panel=CHECKS,
    ),
    Setting("engine", repeated=True),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", help="For each target (default 60).", rich_help_panel=LIMITS
    ),
    Setting("timeout", wait, key="timeout", holds=SECONDS),
]
Memory = Annotated[
    int | None,
    typer.Option(
        "--memory", metavar="MIB", min=0, help="For each target, torch included.", rich_help_panel=LIMITS
    ),
    Setting("memory", key="memory", holds=MEBIBYTES, repeated=True),
]
Jobs = Annotated[
    int,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=0,
        help="Verify N targets at once (0: one for each core).",
        show_default=False,
        rich_help_panel=LIMITS,
    ),
    Setting("jobs"),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="In this process: breakpoint() works, nothing is captured or limited.",
        rich_help_panel=LIMITS,
    ),
    Setting("in_process"),
]
StopAtFirst = Annotated[
    bool,
    typer.Option("-x", help="Stop after the first target that is not verified.", rich_help_panel=FAILING),
    Setting("stop_at_first"),
]
MaxFail = Annotated[
    int | None,
    typer.Option(
        "--maxfail",
        metavar="N",
        min=1,
        help="Stop after N targets that are not verified.",
        rich_help_panel=FAILING,
    ),
    Setting("maxfail"),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Warnings fail their target, as errors do.", rich_help_panel=FAILING),
    Setting("strict"),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix", help="Write changes of backward that were verified under a spec.", rich_help_panel=FIXES
    ),
]
UnsafeFixes = Annotated[
    bool,
    typer.Option("--unsafe-fixes", help="With --fix: also on inferred inputs.", rich_help_panel=FIXES),
]
Durations = Annotated[
    int | None,
    typer.Option(
        "--durations", metavar="N", min=0, help="Name the N slowest targets (0: all).", rich_help_panel=REPORT
    ),
    Setting("durations"),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Only findings and the summary.", rich_help_panel=REPORT)
]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        help="Everything about every target; -vv: full tracebacks too.",
        show_default=False,
        rich_help_panel=REPORT,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"On stdout: {', '.join(Format)}.",
        autocompletion=completion.formats,
        rich_help_panel=REPORT,
    ),
]
ReportTo = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FORMAT=PATH",
        help="Also write a file (repeatable).",
        autocompletion=completion.report_files,
        rich_help_panel=REPORT,
    ),
]
ColorOption = Annotated[
    Color, typer.Option("--color", metavar="WHEN", help="auto, always or never.", rich_help_panel=REPORT)
]
LintFormatOption = Annotated[
    LintFormat,
    typer.Option("--format", metavar="FORMAT", help=f"On stdout: {', '.join(LintFormat)}."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a spec that is there.")]


@dataclass(frozen=True)
class Option:
    """An option with what it is beside its flag."""

    flag: str
    """Its longest name; of an argument its metavar."""
    setting: Setting


def _table() -> dict[str, Option]:
    found = {}
    for parts in (get_args(alias) for alias in globals().values()):
        setting = next((part for part in parts if isinstance(part, Setting)), None)
        shown = next((part for part in parts if isinstance(part, ParameterInfo)), None)
        if setting is not None and shown is not None:
            names = (
                shown.default,
                *(shown.param_decls or ()),
            )  # the first of `Option(*names)` is its default
            flags = [name for name in names if isinstance(name, str)]
            found[setting.name] = Option(flags[-1] if flags else shown.metavar or "", setting)
    return found


OPTIONS: Mapping[str, Option] = _table()
"""Every option with a setting, by the name of its parameter, in the order in which they are repeated."""

KEYS: Mapping[str, Holds] = {
    "paths": TEXTS,
    "specs": FOLDER,
    **{option.setting.key: option.setting.holds for option in OPTIONS.values() if option.setting.key},
}
"""Every key of `[tool.gradverify]`; `specs` alone has no option."""


def repeated_words(given: Mapping[str, Any]) -> list[str]:
    """The options of what was given that a command reproducing a finding must repeat, each a word."""
    words: list[str] = []
    for name, option in OPTIONS.items():
        value = given.get(name)
        not_given = value is None or value is False or value in ([], (), Engine.WITNESSES)
        if not_given or not option.setting.repeated:
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            text = f"{one:g}" if isinstance(one, float) else str(one)
            words += [option.flag] if one is True else [option.flag, text]
    return words
