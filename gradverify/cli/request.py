"""What the command line and the configuration ask for: values checked, a `Request` made."""

from __future__ import annotations

import difflib
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gradverify.cli.completion import DTYPES
from gradverify.cli.options import Limits, Lint, Numbers, Options
from gradverify.cli.screen import tell
from gradverify.config import Config, load_config
from gradverify.errors import UsageError
from gradverify.model import Effort, Engine, Settings, shown_path
from gradverify.session.folders import exclusion
from gradverify.session.processes import cores
from gradverify.session.request import Request
from gradverify.session.selection import check_codes, parse_targets

if TYPE_CHECKING:
    from gradverify.session.linting import LintRequest

T = TypeVar("T")

TORCH_RTOL, TORCH_ATOL = 1e-3, 1e-5
"""gradcheck's own default tolerances, which `--engine torch` uses unless set otherwise."""

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


def request_of(options: Options, config: Config | None = None) -> Request:
    """Read what the command line asks for; what it does not say, the configuration may.

    Raises `UsageError` for values that mean nothing.
    """
    config = config or Config()
    which, limits, failing, output = options.which, options.limits, options.failing, options.output
    selections, specs_given = parse_targets(which.targets or _configured_targets(config))
    if limits.in_process:
        _refuse_limits(limits)
    memory = (config.memory if limits.memory is None else limits.memory) or 0
    specs = tuple(dict.fromkeys((*(which.spec or ()), *specs_given)))
    settings = _settings(options, config)
    numbers, by_torch = options.numbers, settings.engine is Engine.TORCH
    return Request(
        selections=selections,
        settings=settings,
        seed=_seed(numbers.seed, "--seed") if numbers.seed is not None else None,
        rtol=TORCH_RTOL if numbers.rtol is None and config.rtol is None and by_torch else numbers.rtol,
        atol=TORCH_ATOL if numbers.atol is None and config.atol is None and by_torch else numbers.atol,
        specs=specs,
        specs_folder=_configured_path(config, config.specs or "specs"),
        infer=not which.no_infer,
        excluded=_exclusion(which.exclude, config),
        keyword=which.keyword,
        timeout=_either(limits.timeout, config, "timeout", _timeout) or Request.timeout,
        budget=None if limits.budget is None else _timeout(limits.budget, "--budget"),
        memory=memory,
        jobs=limits.jobs or cores(),
        in_process=limits.in_process,
        stop_after=1 if failing.stop_at_first else failing.maxfail,
        stopped_by="-x" if failing.stop_at_first else f"--maxfail {failing.maxfail}",
        slowest=output.durations,
        extra_arguments=(
            *_repeated(config, specs, settings, numbers),
            *(("--memory", str(memory)) if memory else ()),
        ),
    )


def lint_request_of(options: Lint, config: Config) -> LintRequest:
    """Read what `lint` is asked for. `select` of the configuration counts where it names a static rule.

    Raises `UsageError` for values that mean nothing.
    """
    from gradverify.lint import RULES  # noqa: PLC0415 - with every static rule
    from gradverify.session.linting import LintRequest  # noqa: PLC0415

    selections, _ = parse_targets(options.targets or _configured_targets(config, "lint"))
    chosen = _codes(options.select, config.select, config, "select")
    static = tuple(prefix for prefix in chosen if any(c.startswith(prefix.upper()) for c in RULES))
    if options.select is not None and chosen and not static:
        raise UsageError(f"--select: {', '.join(chosen)} is no static rule: those begin with GV8")
    ignored = _codes(options.ignore, config.ignore, config, "ignore")
    return LintRequest(
        selections=selections,
        excluded=_exclusion(options.exclude, config),
        select=tuple(prefix.upper() for prefix in static),
        ignore=tuple(prefix.upper() for prefix in ignored),
    )


def _refuse_limits(limits: Limits) -> None:
    """Refuse limits that nothing enforces in this process."""
    given = {"--timeout": limits.timeout, "--memory": limits.memory, "--budget": limits.budget}
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} needs a process of its own: it cannot be used with --in-process")
    if limits.jobs != 1:
        raise UsageError("-j needs processes of their own: it cannot be used with --in-process")


def _settings(options: Options, config: Config) -> Settings:
    checks, numbers = options.checks, options.numbers
    device = _either(numbers.device, config, "device", _device) or "cpu"
    return Settings(
        seed=_seed(str(config.seed), config.name_of("seed")) if config.seed is not None else 0,
        rtol=_tolerance_or(Settings.rtol, numbers.rtol, config, "rtol"),
        atol=_tolerance_or(Settings.atol, numbers.atol, config, "atol"),
        engine=checks.engine,
        device="cpu" if device == EVERY_DEVICE else device,
        every_device=device == EVERY_DEVICE,
        select=_codes(checks.select, config.select, config, "select"),
        ignore=_codes(checks.ignore, config.ignore, config, "ignore"),
        effort=checks.effort or Effort(config.effort or Effort.NORMAL),
        price=options.limits.price,
        strict=options.failing.strict,
        dtypes=_dtypes(numbers.dtype or []),
        autocast=numbers.autocast,
    )


def _repeated(
    config: Config, specs: tuple[Path, ...], settings: Settings, numbers: Numbers
) -> tuple[str, ...]:
    """Options that a command reproducing a finding must repeat."""
    words = ["--config", config.file.as_posix()] if config.named and config.file is not None else []
    words += [word for path in specs for word in ("--spec", path.as_posix())]
    words += ["--device", EVERY_DEVICE] if settings.every_device else []
    words += ["--device", settings.device] if settings.device != "cpu" else []
    words += [word for dtype in settings.dtypes for word in ("--dtype", dtype)]
    words += ["--autocast"] if settings.autocast else []
    words += ["--effort", settings.effort.value] if settings.effort is not Effort.NORMAL else []
    words += ["--rtol", f"{numbers.rtol:g}"] if numbers.rtol is not None else []
    words += ["--atol", f"{numbers.atol:g}"] if numbers.atol is not None else []
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
