"""What the command line and the configuration ask for: values checked, a `Request` made."""

from __future__ import annotations

import difflib
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gradverify.cli.completion import DTYPES
from gradverify.cli.destinations import dump_folder
from gradverify.cli.screen import tell
from gradverify.config import Config, load_config
from gradverify.errors import UsageError
from gradverify.model import Effort, Engine, Price, Settings, shown_path
from gradverify.session.folders import exclusion
from gradverify.session.processes import cores
from gradverify.session.request import Request
from gradverify.session.selection import check_codes
from gradverify.session.targets import parse_targets

if TYPE_CHECKING:
    from gradverify.session.linting import LintRequest

T = TypeVar("T")

TORCH_RTOL, TORCH_ATOL = 1e-3, 1e-5
"""gradcheck's own default tolerances, which `--engine torch` uses unless told otherwise."""

EVERY_DEVICE = "all"
"""The `--device` that compares the CPU with every other device."""

LONGEST_SEED = 18
"""Digits of a seed: more would not make it more random, and JSON readers round longer numbers."""

RANDOM_SEEDS = 2**31
"""`random` draws one below."""

LONGEST_WAIT = 1e6
"""Seconds; the system's own clocks cannot wait for arbitrarily many."""


def configuration(given: Path | None, verbosity: int) -> Config:
    """The configuration; -v says on stderr which file it is. Raises as `load_config` does."""
    config = load_config(given)
    if verbosity > 0 and config.file is not None:
        tell(f"gradverify: configuration: {shown_path(config.file)}\n")
    return config


def request_of(  # noqa: PLR0913 - one parameter for each option
    targets: list[str] | None,
    *,
    config: Config | None = None,
    spec: list[Path] | None = None,
    no_infer: bool = False,
    exclude: list[str] | None = None,
    keyword: str = "",
    select: list[str] | None = None,
    ignore: list[str] | None = None,
    device: str | None = None,
    dtypes: list[str] | None = None,
    autocast: bool = False,
    seed: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    engine: Engine = Engine.PROBE,
    effort: Effort | None = None,
    price: Price | None = None,
    timeout: float | None = None,
    budget: float | None = None,
    memory: int | None = None,
    jobs: int = 1,
    in_process: bool = False,
    stop_at_first: bool = False,
    maxfail: int | None = None,
    shard: str | None = None,
    strict: bool = False,
    durations: int | None = None,
    dump: Path | None = None,
    mutate: bool = False,
) -> Request:
    """Read what the command line asks for; what it does not say, the configuration may.

    Raises `UsageError` for values that mean nothing.
    """
    config = config or Config()
    selections, specs_given = parse_targets(targets or _configured_targets(config))
    if in_process:
        _refuse_limits(timeout, memory, budget)
        if jobs != 1:
            raise UsageError("-j needs processes of their own: it cannot be used with --in-process")
    limit = (config.memory if memory is None else memory) or 0
    specs = tuple(dict.fromkeys((*(spec or ()), *specs_given)))
    settings = replace(
        _settings(config, device, select, ignore, rtol, atol),
        engine=engine,
        dtypes=_dtypes(dtypes or []),
        autocast=autocast,
        strict=strict,
        effort=effort or Effort(config.effort or Effort.NORMAL),
        price=price,
        seed=_seed(str(config.seed), config.name_of("seed")) if config.seed is not None else 0,
    )
    by_torch = engine is Engine.TORCH
    return Request(
        selections=selections,
        settings=settings,
        seed=_seed(seed, "--seed") if seed is not None else None,
        rtol=TORCH_RTOL if rtol is None and config.rtol is None and by_torch else rtol,
        atol=TORCH_ATOL if atol is None and config.atol is None and by_torch else atol,
        specs=specs,
        specs_folder=_configured_path(config, config.specs or "specs"),
        infer=not no_infer,
        excluded=_exclusion(exclude, config),
        keyword=keyword,
        timeout=_either(timeout, config, "timeout", _timeout) or Request.timeout,
        budget=None if budget is None else _timeout(budget, "--budget"),
        memory=limit,
        jobs=jobs or cores(),
        in_process=in_process,
        stop_after=1 if stop_at_first else maxfail,
        stopped_by="-x" if stop_at_first else f"--maxfail {maxfail}",
        slowest=durations,
        shard=_shard(shard),
        dump=dump_folder(dump),
        mutate=mutate,
        extra_arguments=(
            *_repeated(config, specs, settings, rtol, atol),
            *(("--memory", str(limit)) if limit else ()),
        ),
    )


def lint_request_of(
    targets: list[str] | None,
    config: Config,
    exclude: list[str] | None,
    select: list[str] | None,
    ignore: list[str] | None,
) -> LintRequest:
    """Read what `lint` is asked for. `select` of the configuration counts where it names a static rule.

    Raises `UsageError` for values that mean nothing.
    """
    from gradverify.session.linting import STATIC, LintRequest  # noqa: PLC0415 - with every static rule

    selections, _ = parse_targets(targets or _configured_targets(config, "lint"))
    chosen = _codes(select, config.select, config, "select")
    static = tuple(prefix for prefix in chosen if any(c.startswith(prefix.upper()) for c in STATIC))
    if select is not None and chosen and not static:
        raise UsageError(f"--select: {', '.join(chosen)} is no static rule: those begin with GV8")
    return LintRequest(
        selections=selections,
        excluded=_exclusion(exclude, config),
        select=tuple(prefix.upper() for prefix in static),
        ignore=tuple(prefix.upper() for prefix in _codes(ignore, config.ignore, config, "ignore")),
    )


def _refuse_limits(timeout: float | None, memory: int | None, budget: float | None) -> None:
    """Refuse limits that nothing enforces."""
    for option, value in (("--timeout", timeout), ("--memory", memory), ("--budget", budget)):
        if value:
            raise UsageError(f"{option} needs a process of its own: it cannot be used with --in-process")


def _settings(
    config: Config,
    device: str | None,
    select: list[str] | None,
    ignore: list[str] | None,
    rtol: float | None,
    atol: float | None,
) -> Settings:
    asked = _either(device, config, "device", _device) or "cpu"
    return Settings(
        device="cpu" if asked == EVERY_DEVICE else asked,
        every_device=asked == EVERY_DEVICE,
        select=_codes(select, config.select, config, "select"),
        ignore=_codes(ignore, config.ignore, config, "ignore"),
        rtol=_tolerance_or(Settings.rtol, rtol, config, "rtol"),
        atol=_tolerance_or(Settings.atol, atol, config, "atol"),
    )


def _repeated(
    config: Config, specs: tuple[Path, ...], settings: Settings, rtol: float | None, atol: float | None
) -> tuple[str, ...]:
    """Options that a command reproducing a finding must repeat."""
    words = ["--config", config.file.as_posix()] if config.named and config.file is not None else []
    words += [word for path in specs for word in ("--spec", path.as_posix())]
    words += ["--device", EVERY_DEVICE] if settings.every_device else []
    words += ["--device", settings.device] if settings.device != "cpu" else []
    words += [word for dtype in settings.dtypes for word in ("--dtype", dtype)]
    words += ["--autocast"] if settings.autocast else []
    words += ["--effort", settings.effort.value] if settings.effort is not Effort.NORMAL else []
    words += ["--rtol", f"{rtol:g}"] if rtol is not None else []
    words += ["--atol", f"{atol:g}"] if atol is not None else []
    words += ["--engine", settings.engine.value] if settings.engine is not Engine.PROBE else []
    return tuple(words)


def _configured_targets(config: Config, command: str = "check") -> list[str]:
    """`paths` of the configuration: relative to its file where such a path exists there.

    Raises `UsageError` where there are none.
    """
    if not config.paths:
        raise UsageError(
            f"nothing to {command}: name a module, as in `gradverify {command} mymodule.py`, or set `paths` "
            "in [tool.gradverify] of pyproject.toml"
        )
    there = {path: _configured_path(config, path.partition("::")[0]) for path in config.paths}
    return [
        path if not there[path].exists() else "::".join([str(there[path]), *path.split("::", 1)[1:]])
        for path in config.paths
    ]


def _configured_path(config: Config, path: str) -> Path:
    """A path of the configuration, as seen from the current folder."""
    here = Path.cwd()
    found = Path(os.path.normpath(config.folder.absolute() / path))
    return found.relative_to(here) if found.is_relative_to(here) else found


def _exclusion(exclude: list[str] | None, config: Config) -> Callable[[Path], bool]:
    if exclude:
        return exclusion([(Path.cwd(), pattern) for pattern in exclude])
    return exclusion([(config.folder, pattern) for pattern in config.exclude or ()])


def _either(given: T | None, config: Config, key: str, check: Callable[[T, str], T]) -> T | None:
    """A checked value of the command line, else of the configuration."""
    if given is not None:
        return check(given, f"--{key}")
    configured = getattr(config, key)
    return check(configured, config.name_of(key)) if configured is not None else None


def _tolerance_or(default: float, given: float | None, config: Config, key: str) -> float:
    value = _either(given, config, key, _tolerance)
    return default if value is None else value


def _codes(
    given: list[str] | None, configured: tuple[str, ...] | None, config: Config, key: str
) -> tuple[str, ...]:
    if given is None:
        return check_codes(configured or (), config.name_of(key))
    return check_codes([code.strip() for part in given for code in part.split(",")], f"--{key}")


def _seed(text: str, option: str) -> int:
    if text == "random":
        return random_seed()
    if not (text.isascii() and text.isdecimal()) or len(text) > LONGEST_SEED:
        raise UsageError(
            f"{option}: `{text}` is neither a whole number of at most {LONGEST_SEED} digits nor `random`"
        )
    return int(text)


def random_seed() -> int:
    """What `--seed random` stands for in this run."""
    return secrets.randbelow(RANDOM_SEEDS)


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return Request.shard
    parts = text.split("/")
    if len(parts) != 2 or not all(p.isascii() and p.isdecimal() and len(p) < LONGEST_SEED for p in parts):
        raise UsageError(f"--shard: `{text}` is not I/N, as 1/4")
    which, count = map(int, parts)
    if not 1 <= which <= count:
        raise UsageError(f"--shard: {which} is not between 1 and {count}")
    return which, count


def _device(text: str, option: str) -> str:
    if text == EVERY_DEVICE:
        return text
    kind, _, index = text.partition(":")
    good_index = index.isascii() and index.isdecimal() and len(index) < LONGEST_SEED
    if kind not in {"cpu", "cuda"} or (":" in text and (kind == "cpu" or not good_index)):
        raise UsageError(f"{option}: `{text}` is not supported: use cpu, cuda, cuda:INDEX or all")
    return text


def _dtypes(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in DTYPES:
            near = difflib.get_close_matches(name, DTYPES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(DTYPES)}"
            raise UsageError(f"--dtype: there is no dtype {name!r} to judge in; {hint}")
    return tuple(dict.fromkeys(names))


def _tolerance(value: float, option: str) -> float:
    if not 0 <= value < 1:
        raise UsageError(f"{option}: {value:g} is not between 0 and 1")
    return value


def _timeout(seconds: float, option: str) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"{option}: {seconds:g} is not a number of seconds")
    return min(seconds, LONGEST_WAIT)
