"""Options of `check` that compare with what was: with the last run, a revision, a baseline."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gradverify.cli.screen import tell
from gradverify.config import Config
from gradverify.errors import UsageError
from gradverify.session.baseline import read_baseline
from gradverify.session.cache import FOLDER
from gradverify.session.request import Request


def compared(
    request: Request,
    config: Config,
    *,
    last_failed: bool,
    no_cache: bool,
    changed: str | None,
    baseline: Path | None,
) -> Request:
    """The request, with where it remembers what was not verified, and with the findings that are known.

    Raises as `read_baseline` does, and `UsageError` for `--lf` without what it reads.
    """
    if last_failed and no_cache:
        raise UsageError("--lf asks for what the last run left in the cache, and --no-cache not to read it")
    file = baseline
    if file is None and config.baseline is not None:
        file = Path(os.path.relpath(config.folder.absolute() / config.baseline))
    return replace(
        request,
        tell=_tell,
        cache=None if no_cache else config.folder / FOLDER,
        last_failed=last_failed,
        changed_since=changed,
        baseline=file,
        known=read_baseline(file) if file is not None else (),
    )


def _tell(sentence: str) -> None:
    tell(f"gradverify: {sentence}\n")
