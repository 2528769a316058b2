"""`check`: what the command does, workers included, for a program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gradverify.cli.options import Checks, Failing, Limits, Numbers, Options, Targets
from gradverify.cli.request import request_of
from gradverify.config import load_config
from gradverify.model import Report
from gradverify.session.run import check as run_check


def check(  # noqa: PLR0913 - one keyword for each option
    *targets: str | os.PathLike[str],
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
) -> Report:
    """Verify what `gradverify check TARGET...` verifies, under the same configuration, and return its report.

    Targets are what the command takes: files, folders, dotted modules, `module.py::Name`. Each module runs
    in a process of its own. `timeout` is in seconds and `memory` in MiB, for each target.
    `dtypes` are judged beside float64; float32 is where none are given. `autocast` judges under
    `torch.autocast` too.

    Raises `UsageError` and `SpecError` (both of `gradverify.errors`) where nothing can be verified. A module
    that cannot be imported is in `Report.errors`; `Report.exit_code` is the command's.
    """
    options = Options(
        Targets([os.fspath(target) for target in targets], [Path(file) for file in spec], no_infer=not infer),
        checks=Checks(select=_listed(select), ignore=_listed(ignore)),
        numbers=Numbers(device, list(dtypes), autocast, None if seed is None else str(seed), rtol, atol),
        limits=Limits(timeout, memory=memory),
        failing=Failing(strict=strict),
    )
    return run_check(request_of(options, load_config()))


def _listed(given: Sequence[str] | None) -> list[str] | None:
    return None if given is None else list(given)
