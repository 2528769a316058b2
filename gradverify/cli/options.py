"""The options of the command line, and how what the user gives becomes a `Request`."""

from __future__ import annotations

import math
import secrets
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gradverify.errors import UsageError
from gradverify.model import Engine, Settings
from gradverify.session.folders import exclusion
from gradverify.session.request import Request
from gradverify.session.selection import check_codes
from gradverify.session.targets import parse_targets

TORCH_RTOL, TORCH_ATOL = 1e-3, 1e-5
"""gradcheck's own default tolerances, which `--engine torch` uses unless told otherwise."""

LONGEST_SEED = 18
"""Digits of a seed: more would not make it more random, and JSON readers round longer numbers."""

LONGEST_WAIT = 1e6
"""Seconds; the system's own clocks cannot wait for arbitrarily many."""


class Format(StrEnum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET...",
        help="module.py, folder/, dotted.module, FILE.gradverify.yaml, module.py::Name or "
        "'module.py::Name[b=3,mode=sum]'. Of a folder, the modules that define a Function are imported.",
    ),
]
Specs = Annotated[
    list[Path] | None, typer.Option("--spec", metavar="FILE", help="Spec file to use (repeatable).")
]
NoInfer = Annotated[
    bool, typer.Option("--no-infer", help="Only specs give inputs: a target that none names is unchecked.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="GLOB",
        help="Leave out files and folders of this name, or with a slash of this path (repeatable).",
    ),
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
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Limit for each target.")]
StopAtFirst = Annotated[bool, typer.Option("-x", help="Stop after the first target that is not verified.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only findings and the summary.")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say everything about every target.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the report on stdout.")]
ColorOption = Annotated[Color, typer.Option("--color", help="Colour the text report.")]


def request_of(  # noqa: PLR0913 - one parameter for each option
    targets: list[str] | None,
    *,
    spec: list[Path] | None = None,
    no_infer: bool = False,
    exclude: list[str] | None = None,
    keyword: str = "",
    select: list[str] | None = None,
    ignore: list[str] | None = None,
    device: str = "cpu",
    seed: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    engine: Engine = Engine.JACOBIAN,
    timeout: float = 60.0,
    stop_at_first: bool = False,
) -> Request:
    """Read what the command line asks for.

    Raises `UsageError` for values that mean nothing.
    """
    if not targets:
        raise UsageError("nothing to check: name a module, as in `gradverify check mymodule.py`")
    rtol, atol = _tolerance(rtol, "--rtol"), _tolerance(atol, "--atol")
    settings = Settings(
        engine=engine,
        device=_device(device),
        select=check_codes(_split(select), "--select"),
        ignore=check_codes(_split(ignore), "--ignore"),
        rtol=Settings.rtol if rtol is None else rtol,
        atol=Settings.atol if atol is None else atol,
    )
    by_torch = engine is Engine.TORCH
    excluded = exclusion([(Path.cwd(), pattern) for pattern in exclude or ()])
    selections, specs_given = parse_targets(targets)
    specs = tuple(dict.fromkeys((*(spec or ()), *specs_given)))
    return Request(
        selections=selections,
        settings=settings,
        seed=_seed(seed),
        rtol=TORCH_RTOL if rtol is None and by_torch else rtol,
        atol=TORCH_ATOL if atol is None and by_torch else atol,
        specs=specs,
        infer=not no_infer,
        excluded=excluded,
        keyword=keyword,
        timeout=_timeout(timeout),
        stop_at_first=stop_at_first,
        extra_arguments=_repeated(specs, settings, rtol, atol),
    )


def _repeated(
    specs: tuple[Path, ...], settings: Settings, rtol: float | None, atol: float | None
) -> tuple[str, ...]:
    """Options that a command reproducing a finding must repeat."""
    words = [word for path in specs for word in ("--spec", path.as_posix())]
    words += ["--device", settings.device] if settings.device != "cpu" else []
    words += ["--rtol", f"{rtol:g}"] if rtol is not None else []
    words += ["--atol", f"{atol:g}"] if atol is not None else []
    words += ["--engine", settings.engine.value] if settings.engine is not Engine.JACOBIAN else []
    return tuple(words)


def _seed(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "random":
        return secrets.randbelow(2**31)
    if not (text.isascii() and text.isdecimal()) or len(text) > LONGEST_SEED:
        raise UsageError(
            f"--seed: `{text}` is neither a whole number of at most {LONGEST_SEED} digits nor `random`"
        )
    return int(text)


def _device(text: str) -> str:
    kind, _, index = text.partition(":")
    good_index = index.isascii() and index.isdecimal() and len(index) < LONGEST_SEED
    if kind not in {"cpu", "cuda"} or (":" in text and (kind == "cpu" or not good_index)):
        raise UsageError(f"--device: `{text}` is not supported: use cpu, cuda or cuda:INDEX")
    return text


def _tolerance(value: float | None, option: str) -> float | None:
    if value is not None and not 0 <= value < 1:
        raise UsageError(f"{option}: {value:g} is not between 0 and 1")
    return value


def _timeout(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--timeout: {seconds:g} is not a number of seconds")
    return min(seconds, LONGEST_WAIT)


def _split(codes: list[str] | None) -> list[str]:
    return [code.strip() for part in codes or () for code in part.split(",")]
