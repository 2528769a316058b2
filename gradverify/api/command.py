"""`check`: what the command does, workers included, for a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gradverify.api.shown import ShownReport, shown
from gradverify.config import load_config
from gradverify.errors import UsageError
from gradverify.model import Report, shown_path
from gradverify.requested import request_of
from gradverify.session.outcome import exit_code, summary_of
from gradverify.session.run import check as run_check

HERE = "."
"""A target that stands for none: objects are asked about one by one."""

IN_PROCESS = "Verified in this process: without isolation, --timeout and --memory."
"""What a report says of objects that no file defines."""


def check(  # noqa: PLR0913 - one keyword for each option
    *targets: Any,  # noqa: ANN401 - what is no target is refused
    spec: Sequence[str | os.PathLike[str]] = (),
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    device: str | None = None,
    dtypes: Sequence[str] = (),
    autocast: bool = False,
    seed: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    strict: bool = False,
    infer: bool = True,
) -> ShownReport:
    """Verify what `gradverify check TARGET...` verifies, under the same configuration, and return its report.

    Targets are what the command takes: files, folders, dotted modules, `module.py::Name`; or modules and
    Function classes themselves. Each module runs in a process of its own. What a cell of a notebook or a
    script or a function defines runs in this one, on inferred inputs, without `timeout` and `memory`, and the
    report says so.
    `timeout` is in seconds and `memory` in MiB, for each target. `dtypes` are judged beside float64; float32
    is where none are given. `autocast` judges under `torch.autocast` too.

    Raises `UsageError` and `SpecError` (both of `gradverify.errors`) where nothing can be verified. A module
    that cannot be imported is in `Report.errors`; `Report.exit_code` is the command's.
    """
    named = [(_as_text(target), target) for target in targets]
    texts, live = [text for text, _ in named if text], [_behind(one) for text, one in named if not text]
    if live and spec:
        raise UsageError("check: a spec names a module, and a Function without a file is in none: use verify")
    given = {
        "targets": texts or ([HERE] if live else []),
        "spec": [Path(file) for file in spec],
        "no_infer": not infer,
        "select": _listed(select),
        "ignore": _listed(ignore),
        "device": device,
        "dtype": list(dtypes),
        "autocast": autocast,
        "seed": seed,
        "rtol": rtol,
        "atol": atol,
        "timeout": timeout,
        "memory": memory,
        "strict": strict,
    }
    request = request_of(given, load_config())
    reports = [run_check(request)] if texts or not targets else []
    if live:
        from gradverify.api.cells import check_cell  # noqa: PLC0415 - loads torch, in this process

        reports += [check_cell(target, request) for target in live]
    return shown(_joined(reports) if live else reports[0], IN_PROCESS if live else "")


def _as_text(target: Any) -> str:  # noqa: ANN401 - whatever the caller gives
    """How the command would be given a target; empty for what it cannot import again.

    Raises `UsageError` for what is no target.
    """
    if isinstance(target, str | os.PathLike):
        return os.fspath(target)
    if isinstance(target, ModuleType):
        if file := getattr(target, "__file__", None):
            return shown_path(Path(file))
        raise UsageError(f"check: the module {target.__name__} has no file")
    value = _behind(target)
    if not (isinstance(value, type) and hasattr(value, "forward")):
        raise UsageError(
            f"check: {target!r} is no file, module or Function; verify takes a callable with its inputs"
        )
    module = sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None)
    if value.__module__ == "__main__" or not file or "<locals>" in value.__qualname__:
        return ""
    return f"{shown_path(Path(file))}::{value.__qualname__}"


def _behind(target: Any) -> Any:  # noqa: ANN401 - whatever the caller gives
    """The Function class where `apply` was given; found without torch, which is not loaded for files."""
    owner = getattr(target, "__self__", None)
    return owner if isinstance(owner, type) and getattr(target, "__name__", "") == "apply" else target


def _joined(reports: Sequence[Report]) -> Report:
    """Several reports as one."""
    targets = tuple(target for report in reports for target in report.targets)
    errors = tuple(error for report in reports for error in report.errors)
    bugs = tuple(bug for report in reports for bug in report.bugs)
    return replace(
        reports[0],
        targets=targets,
        errors=errors,
        bugs=bugs,
        modules=tuple(module for report in reports for module in report.modules),
        summary=summary_of(targets),
        exit_code=exit_code(targets, user_errors=bool(errors), bugs=bool(bugs)),
    )


def _listed(given: Sequence[str] | None) -> list[str] | None:
    return None if given is None else list(given)
