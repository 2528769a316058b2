"""What command line, Python or pytest ask for, and where they say nothing the configuration: a `Request`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradverify.config import Config
from gradverify.errors import UsageError
from gradverify.model import Effort, Engine
from gradverify.options import EVERY_DEVICE, OPTIONS, repeated_words
from gradverify.session.folders import exclusion
from gradverify.session.processes import cores
from gradverify.session.request import Request
from gradverify.session.selection import parse_targets

if TYPE_CHECKING:
    from gradverify.model import Settings
    from gradverify.session.linting import LintRequest

TORCH_RTOL, TORCH_ATOL = 1e-3, 1e-5
"""gradcheck's own default tolerances, which `--engine torch` uses unless set otherwise."""

Given = Mapping[str, Any]
"""Values of options, by the names of their parameters; what is absent, None or empty was not given."""


@dataclass(frozen=True)
class _Asked:
    """What was given goes before the configuration."""

    given: Given
    config: Config

    def was_given(self, name: str) -> bool:
        """Whether the command line, or the caller, says something of it."""
        return self.given.get(name) not in (None, [], ())

    def __call__(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever the option holds
        """The checked value of an option. Raises `UsageError` for one that means nothing."""
        option = OPTIONS[name]
        if self.was_given(name):
            return option.setting.check(self.given[name], option.flag)
        configured = self.config.values.get(option.setting.key)
        if configured is None:
            return default
        return option.setting.check(configured, self.config.name_of(option.setting.key))


def request_of(given: Given, config: Config | None = None) -> Request:
    """Read what is asked for; what is not given, the configuration may say.

    Raises `UsageError` for values that mean nothing.
    """
    config = config or Config()
    asked = _Asked(given, config)
    selections, specs_given = parse_targets(
        given.get("targets") or _specs_alone(given) or _configured_targets(config)
    )
    if given.get("in_process"):
        _refuse_limits(asked)
    specs = tuple(dict.fromkeys((*(given.get("spec") or ()), *specs_given)))
    settings = _settings(asked)
    stop_at_first, maxfail = given.get("stop_at_first", False), given.get("maxfail")
    rtol, atol = (asked(key) if asked.was_given(key) else None for key in ("rtol", "atol"))
    if settings.engine is Engine.TORCH:
        rtol = TORCH_RTOL if asked("rtol") is None else rtol
        atol = TORCH_ATOL if asked("atol") is None else atol
    return Request(
        selections=selections,
        settings=settings,
        seed=asked("seed") if asked.was_given("seed") else None,
        rtol=rtol,
        atol=atol,
        specs=specs,
        specs_folder=_configured_path(config, config.values.get("specs") or "specs"),
        infer=not given.get("no_infer"),
        excluded=_exclusion(given, config),
        keyword=given.get("keyword") or "",
        timeout=asked("timeout", Request.timeout),
        memory=asked("memory", 0),
        jobs=given.get("jobs", 1) or cores(),
        in_process=bool(given.get("in_process")),
        stop_after=1 if stop_at_first else maxfail,
        stopped_by="-x" if stop_at_first else f"--maxfail {maxfail}",
        slowest=given.get("durations"),
        extra_arguments=(
            *(("--config", config.file.as_posix()) if config.named and config.file is not None else ()),
            *(word for path in specs for word in ("--spec", path.as_posix())),
            *repeated_words(given),
        ),
    )


def lint_request_of(given: Given, config: Config) -> LintRequest:
    """Read what `lint` is asked for. `select` of the configuration counts where it names a static rule.

    Raises `UsageError` for values that mean nothing.
    """
    from gradverify.lint import RULES  # noqa: PLC0415 - with every static rule
    from gradverify.session.linting import LintRequest  # noqa: PLC0415

    asked = _Asked(given, config)
    selections, _ = parse_targets(given.get("targets") or _configured_targets(config, "lint"))
    chosen = asked("select", ())
    static = tuple(prefix for prefix in chosen if any(c.startswith(prefix.upper()) for c in RULES))
    if asked.was_given("select") and chosen and not static:
        raise UsageError(f"--select: {', '.join(chosen)} is no static rule: those begin with GV8")
    return LintRequest(
        selections=selections,
        excluded=_exclusion(given, config),
        select=tuple(prefix.upper() for prefix in static),
        ignore=tuple(prefix.upper() for prefix in asked("ignore", ())),
    )


def _refuse_limits(asked: _Asked) -> None:
    """Refuse limits that nothing enforces in this process."""
    for name in ("timeout", "memory"):
        if asked.given.get(name):
            flag = OPTIONS[name].flag
            raise UsageError(f"{flag} needs a process of its own: it cannot be used with --in-process")
    if asked.given.get("jobs", 1) != 1:
        raise UsageError("-j needs processes of their own: it cannot be used with --in-process")


def _settings(asked: _Asked) -> Settings:
    from gradverify.model import Settings  # noqa: PLC0415 - `--help` needs none

    device, given = asked("device", "cpu"), asked.given
    configured = _Asked({}, asked.config)
    return Settings(
        seed=configured("seed", 0),
        rtol=asked("rtol", Settings.rtol),
        atol=asked("atol", Settings.atol),
        engine=given.get("engine", Engine.WITNESSES),
        device="cpu" if device == EVERY_DEVICE else device,
        every_device=device == EVERY_DEVICE,
        select=asked("select", ()),
        ignore=asked("ignore", ()),
        effort=Effort(asked("effort", Effort.NORMAL)),
        strict=given.get("strict", False),
        dtypes=asked("dtype", ()),
        autocast=given.get("autocast", False),
    )


def _specs_alone(given: Given) -> list[str]:
    """The spec files of `--spec` where no target is named: what they name is checked."""
    return [path.as_posix() for path in given.get("spec") or ()]


def _configured_targets(config: Config, command: str = "check") -> list[str]:
    """`paths` of the configuration: relative to its file where such a path exists there.

    Raises `UsageError` where there are none.
    """
    paths = config.values.get("paths")
    if not paths:
        raise UsageError(
            f"nothing to {command}: name a module, as in `gradverify {command} mymodule.py`, or set `paths` "
            "in [tool.gradverify] of pyproject.toml"
        )
    there = {path: _configured_path(config, path.partition("::")[0]) for path in paths}
    return [
        path if not there[path].exists() else "::".join([str(there[path]), *path.split("::", 1)[1:]])
        for path in paths
    ]


def _configured_path(config: Config, path: str) -> Path:
    """A path of the configuration, as seen from the current folder."""
    here = Path.cwd()
    found = Path(os.path.normpath(config.folder.absolute() / path))
    return found.relative_to(here) if found.is_relative_to(here) else found


def _exclusion(given: Given, config: Config) -> Callable[[Path], bool]:
    if exclude := given.get("exclude"):
        return exclusion([(Path.cwd(), pattern) for pattern in exclude])
    return exclusion([(config.folder, pattern) for pattern in config.values.get("exclude", ())])
