"""Seeing that files were saved: stamps are compared now and then, until they are at rest again.

Editors write a file twice, rename a new one over it, leave swap files beside it, and formatters follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradverify.session.footing import Contents
from gradverify.session.stamps import Stamp, stamp_of

LOOK_SECONDS = 0.1
"""Between two looks at the files that are watched."""

REST_SECONDS = 0.1
"""For so long nothing may change before a save is taken to be over."""

LONGEST_UNREST_SECONDS = 5.0
"""Files that change all the time are looked at as they are after so long."""


class OvertakenError(Exception):
    """Something was saved while it was verified: nobody waits for that verdict any more."""


@dataclass(frozen=True)
class Watched:
    """What is watched."""

    files: frozenset[Path] = frozenset()
    folders: frozenset[Path] = frozenset()
    """Where files may appear that matter."""

    def look(self) -> Look:
        """The stamps of all of it now."""
        return Look(_stamps(self.files), _stamps(self.folders))


@dataclass(frozen=True)
class Look:
    """What there was at one moment."""

    files: Mapping[Path, Stamp | None]
    folders: Mapping[Path, Stamp | None]

    def but_earlier(self, earlier: Look) -> Look:
        """The same files and folders, as an earlier look saw them where it did."""
        return Look(
            {path: earlier.files.get(path, stamp) for path, stamp in self.files.items()},
            {path: earlier.folders.get(path, stamp) for path, stamp in self.folders.items()},
        )


NOTHING = Look({}, {})
"""Nothing was looked at."""


def at_rest(look: Callable[[], Look], before: Look, wait: Callable[[float], bool]) -> Look | None:
    """Wait until something differs from a look before, and then until it is at rest, which is returned.

    `wait` waits for so many seconds, and tells whether somebody asks for everything: then None is returned.
    """
    now = look()
    while now == before:
        if wait(LOOK_SECONDS):
            return None
        now = look()
    for _ in range(int(LONGEST_UNREST_SECONDS / REST_SECONDS)):
        if wait(REST_SECONDS):
            return None
        last, now = now, look()
        if now == last:
            break
    return now


def differing(before: Look, now: Look) -> list[Path]:
    """The files that are not as they were, by name."""
    return sorted(path for path, stamp in now.files.items() if before.files.get(path) != stamp)


class Overtaking:
    """Raises `OvertakenError` in whoever verifies once one of the files in question has another content."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nothing is in question yet."""
        self._clock, self._looked = clock, clock()
        self._contents = Contents()
        self._digests: dict[Path, bytes] = {}
        self._stamps: Mapping[Path, Stamp | None] = {}

    def begin(self, files: Iterable[Path], contents: Contents) -> None:
        """Hold files against what they contain now; none of them, and nothing is overtaken."""
        self._contents = contents
        self._stamps = _stamps(files)
        self._digests = {path: contents.digest(path) for path in self._stamps}

    def __call__(self) -> None:
        """Look, unless that was a moment ago."""
        if self._clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._clock()
        now = _stamps(self._stamps)
        if now == self._stamps:
            return
        self._stamps = now
        if any(self._contents.digest(path) != digest for path, digest in self._digests.items()):
            raise OvertakenError


def _stamps(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    return {path: stamp_of(path) for path in paths}
