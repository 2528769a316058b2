"""Seeing that files were saved: stamps are compared now and then, until they are at rest again.

Editors write a file twice, rename a new one over it, leave swap files beside it, and formatters follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gradverify.session.cache import Stamp, stamp_of
from gradverify.session.watch.dependencies import Contents

LOOK_SECONDS = 0.1
"""Between two looks at the files that are watched."""

REST_SECONDS = 0.1
"""For so long nothing may change before a save is taken to be over."""

LONGEST_UNREST_SECONDS = 5.0
"""Files that change all the time are looked at as they are after so long."""


Look = Mapping[Path, Stamp | None]
"""What was watched, as it was at one moment."""


class OvertakenError(Exception):
    """Something was saved while it was verified: nobody waits for that verdict any more."""


def look_at(paths: Iterable[Path]) -> Look:
    """The stamps of files, and of folders where files may appear, as they are now."""
    return {path: stamp_of(path) for path in paths}


def but_earlier(look: Look, earlier: Look) -> Look:
    """The same files and folders, as an earlier look saw them where it did."""
    return {path: earlier.get(path, stamp) for path, stamp in look.items()}


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
    other = (path for path, stamp in now.items() if before.get(path) != stamp)
    return sorted(path for path in other if not path.is_dir())


class Overtaking:
    """Raises `OvertakenError` in whoever verifies once one of the files in question has another content."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nothing is in question yet."""
        self._clock, self._looked = clock, clock()
        self._contents = Contents()
        self._digests: dict[Path, bytes] = {}
        self._stamps: Look = {}

    def begin(self, files: Iterable[Path], contents: Contents) -> None:
        """Hold files against what they contain now; none of them, and nothing is overtaken."""
        self._contents = contents
        self._stamps = look_at(files)
        self._digests = {path: contents.digest(path) for path in self._stamps}

    def __call__(self) -> None:
        """Look, unless that was a moment ago."""
        if self._clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._clock()
        now = look_at(self._stamps)
        if now == self._stamps:
            return
        self._stamps = now
        if any(self._contents.digest(path) != digest for path, digest in self._digests.items()):
            raise OvertakenError
