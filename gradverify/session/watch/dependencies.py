"""What the verdicts on a module depend on, as far as reading tells, and which of them still hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
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
