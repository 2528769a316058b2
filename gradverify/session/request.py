"""What a run is asked to do, and who wants to hear how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradverify.model import Finding, Settings, Target
    from gradverify.session.selection import Selection
    from gradverify.session.worker import Worker


def _settings() -> Settings:
    from gradverify.model import Settings  # noqa: PLC0415 - `--help` needs none

    return Settings()


class Progress:
    """What the run calls as it goes on: here nothing comes of it."""

    def importing(self, file: str) -> None:
        """A module is being imported."""

    def verifying(self, target: str, number: int, total: int, step: str) -> None:
        """A step of the number-th of total targets begins: a case by its id, or what is looked for."""

    def found(self, target: Target, finding: Finding) -> None:
        """An error of a target is certain; its cause and its smallest inputs are looked for from here on."""


@dataclass(frozen=True)
class TargetProgress:
    """Who wants to know how far one target is."""

    progress: Progress
    target: Target
    number: int = 1
    total: int = 1
    """It is the number-th of so many."""

    def at(self, step: str) -> None:
        """A step begins."""
        self.progress.verifying(self.target.id, self.number, self.total, step)

    def found(self, finding: Finding) -> None:
        """An error is certain."""
        self.progress.found(self.target, finding)


@dataclass(frozen=True)
class Request:
    """What a run is asked to do."""

    selections: tuple[Selection, ...]
    settings: Settings = field(default_factory=_settings)
    """`seed`, `rtol` and `atol` here are what applies where neither the command line nor a spec says more."""
    seed: int | None = None
    """From the command line; None leaves it to the spec's defaults."""
    rtol: float | None = None
    atol: float | None = None
    specs: tuple[Path, ...] = ()
    specs_folder: Path = Path("specs")
    infer: bool = True
    """Look for inputs of targets that no spec names; otherwise they are unchecked."""
    excluded: Callable[[Path], bool] = lambda _: False
    """The files and folders that `--exclude` leaves out."""
    keyword: str = ""
    timeout: float = 60.0
    """Seconds for each target."""
    import_timeout: float = 300.0
    memory: int = 0
    """MiB that the processes of a target may take, torch included; 0 for what this machine has."""
    jobs: int = 1
    """How many workers verify at once."""
    in_process: bool = False
    """Verify in this process, where breakpoints work, without any limit."""
    stop_after: int | None = None
    """Stop after so many targets that are not verified."""
    stopped_by: str = "-x"
    """The option that says so."""
    slowest: int | None = None
    """How many of the slowest targets the report names, 0 for all; None for no durations."""
    extra_arguments: tuple[str, ...] = ()
    """Options that a reproducing command must repeat."""
    clock: Callable[[], float] = time.monotonic
    started: Callable[[Callable[[], float]], Worker] | None = None
    """Starts a worker, given the clock; None to have them forked where that is possible."""
    today: date = field(default_factory=date.today)
    """What an `xfail` with an end is held against."""
