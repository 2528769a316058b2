"""What verdicts on a module depend on, as far as reading tells; when that was saved; which of them hold.

Stamps of files are compared now and then, until they are at rest again: editors write a file twice, rename a
new one over it, leave swap files beside it, and formatters follow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradverify.model import TargetPlan
from gradverify.session.cache import Stamp, stamp_of
from gradverify.session.changed import named_by, surroundings
from gradverify.session.sources import COMPILED, changed_names, may_inform, reached_names
from gradverify.spec.read import SpecFile

LARGEST_READ = 2**25
"""Bytes up to which the content of a file counts; of a larger one, which is data, its stamp does."""

_PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""What lies in the top folder of a project."""

LOOK_SECONDS = 0.1
"""Between two looks at the files that are watched."""

REST_SECONDS = 0.1
"""For so long nothing may change before a save is taken to be over."""

LONGEST_UNREST_SECONDS = 5.0
"""Files that change all the time are looked at as they are after so long."""

Look = Mapping[Path, Stamp | None]
"""What was watched, as it was at one moment."""


@dataclass(frozen=True)
class Dependencies:
    """The texts and files that what is found out about a module depends on."""

    source: bytes | None
    """The module's own; None where it cannot be read."""
    around: Mapping[Path, bytes]
    """Digests of the files that it imports of its project, those it or its spec names, compiled ones."""
    spec: tuple[Path, bytes] | None = None
    """Its spec file, with the digest."""

    @property
    def files(self) -> frozenset[Path]:
        """All of them but the module itself."""
        return frozenset(self.around) | ({self.spec[0]} if self.spec is not None else frozenset())


@dataclass
class Contents:
    """Digests of files, each read again only where its stamp changed."""

    _known: dict[Path, tuple[Stamp, bytes]] = field(default_factory=dict)

    def digest(self, path: Path) -> bytes:
        """The digest of a file, or what stands for it; empty where it cannot be read."""
        stamp = stamp_of(path)
        if stamp is None:
            return b""
        if path not in self._known or self._known[path][0] != stamp:
            if stamp[1] > LARGEST_READ:
                return repr(stamp).encode()
            try:
                self._known[path] = (stamp, hashlib.sha256(path.read_bytes()).digest())
            except OSError:
                return b""
        return self._known[path][1]

    def dependencies(self, module: Path, spec: SpecFile | None) -> Dependencies:
        """What the verdicts on a module depend on now."""
        own = module.resolve()
        try:
            source = own.read_bytes()
        except OSError:
            source = None
        around = surroundings(own, spec, _project_of(own)) - {own}
        spec_file = None
        if spec is not None:
            path = spec.path.resolve()
            spec_file = path, self.digest(path)
            around -= {path}
        around |= set(_compiled_beside({own, *around}))
        return Dependencies(source, {path: self.digest(path) for path in sorted(around)}, spec_file)


def still_holds(attribute: str, plan: TargetPlan | None, then: Dependencies, now: Dependencies) -> bool:
    """Whether what was found out about a target holds with other dependencies, line numbers apart.

    `plan` is its plan of the spec, the same on both; None where its inputs are inferred, from what the
    module says of it.
    """
    if then.around != now.around or (plan is None and then.spec != now.spec):
        return False
    if then.source == now.source:
        return True
    if then.source is None or now.source is None:
        return False
    try:
        before, after = then.source.decode("utf-8"), now.source.decode("utf-8")
    except UnicodeDecodeError:
        return False
    changed = changed_names(before, after)
    if changed is None or (plan is None and may_inform(attribute, before, after, changed)):
        return False
    roots = (attribute, *(named_by(plan) if plan is not None else ()))
    return not any(reached_names(root, after) & changed for root in roots)


def _project_of(module: Path) -> Path:
    """The top folder of the project that a module belongs to; its own folder where nothing marks one."""
    marked = (folder for folder in module.parents if any((folder / mark).exists() for mark in _PROJECT))
    return next(marked, module.parent)


def _compiled_beside(files: Iterable[Path]) -> Iterator[Path]:
    """Compiled code and its sources, in the folders of some files and one level below."""
    for folder in {file.parent for file in files}:
        for below in (folder, *(Path(entry) for entry in _entries(folder) if entry.is_dir())):
            for entry in _entries(below):
                if os.path.splitext(entry.name)[1] in COMPILED:  # noqa: PTH122 - a path for each is slow
                    yield Path(entry)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:
        return []


class OvertakenError(Exception):
    """Something was saved while it was verified: that verdict is no longer needed."""


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
