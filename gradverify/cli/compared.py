"""Options of `check` that compare with what was: with the last run."""

from __future__ import annotations

import sys
from dataclasses import replace

from gradverify.cli.screen import write
from gradverify.config import Config
from gradverify.session.last_run import FOLDER
from gradverify.session.request import Request


def compared(request: Request, config: Config, *, last_failed: bool) -> Request:
    """The request, with where it remembers what was not verified."""
    return replace(request, tell=_tell, cache=config.folder / FOLDER, last_failed=last_failed)


def _tell(sentence: str) -> None:
    write(sys.stderr, f"gradverify: {sentence}\n")
