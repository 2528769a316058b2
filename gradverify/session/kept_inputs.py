"""What was inferred for a target, kept from run to run while all that it was inferred from is the same.

It is read off the module, what that imports, other files of its package that call the target, and off what
forward and backward answer. It is valid while the module's source, the files of its package, the files that
importing it loaded, the files and environment variables that its source names, gradverify, torch and Python
are the same. Where one differs, or that is not known, it is inferred again.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gradverify
from gradverify.deduced import Attempt, Deduced
from gradverify.events import Infer, Inferred, NotInferred, decode, encode
from gradverify.model import Target
from gradverify.session.cache import stamp_of, write_beside
from gradverify.session.modules import Module
from gradverify.session.request import Request
from gradverify.session.sources import COMPILED, data_files

INPUTS = "inputs"
"""The folder within that of the cache."""

MOST_KEPT = 1000
"""Targets whose inputs are kept; of more, those written last. Each takes about 2 KB."""

MOST_FILES = 3000
"""Files of a package that are looked at; inputs for a larger one are inferred each time."""

OF_TORCH = ("TORCH", "PYTORCH", "TRITON", "CUDA")
"""What the names of environment variables begin with that change what torch does."""


@dataclass(frozen=True)
class KeptInputs:
    """The inputs of one target, as they were inferred last."""

    folder: Path | None = None
    """Where caches lie; None where nothing is kept."""
    name: str = ""
    """Of the file there."""
    key: str = ""
    """A digest of all that the inputs hang on."""

    def read(self) -> Deduced | tuple[Attempt, ...] | None:
        """What was inferred; None where that is not known, or may be another now."""
        if self.folder is None:
            return None
        try:
            seal, line = (self.folder / self.name).read_text("utf-8").split("\n")
            event = decode(line) if seal == self._sealed(line) else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None  # none, or of another version, or written by something else
        match event:
            case Inferred(Deduced() as deduced):
                return deduced
            case NotInferred(tuple() as attempts) if all(isinstance(a, Attempt) for a in attempts):
                return attempts
            case _:
                return None

    def write(self, found: Deduced | tuple[Attempt, ...]) -> None:
        """Keep what was inferred, but not what this machine lacks, which it may have next time."""
        lacking = not isinstance(found, Deduced) and any(a.missing for a in found)
        if self.folder is None or lacking:
            return
        event = Inferred(found) if isinstance(found, Deduced) else NotInferred(found)
        with contextlib.suppress(OSError, UnicodeError):
            line = encode(event)
            write_beside(self.folder, self.name, f"{self._sealed(line)}\n{line}")
            _drop_oldest(self.folder / INPUTS)

    def _sealed(self, line: str) -> str:
        """A digest of what is kept and of what it hangs on: a file that was damaged has another one."""
        return hashlib.sha256(f"{self.key}\n{line}".encode()).hexdigest()


def kept_inputs(module: Module, target: Target, request: Request) -> KeptInputs:
    """Those of a target, as all that they hang on is now: to be asked for before they are inferred."""
    if request.in_process or request.cache is None:
        return KeptInputs()
    key = _key(module, Infer(target, device=request.settings.device))
    of_target = hashlib.sha256(f"{module.path.resolve()}::{target.name}".encode()).hexdigest()
    return KeptInputs(request.cache, f"{INPUTS}/{of_target[:32]}.json", key) if key else KeptInputs()


def _key(module: Module, asked: Infer) -> str:
    """A digest of all that inputs are inferred from; empty where it is not known."""
    files = list(_stamps(module))
    if not module.source or not module.loaded or len(files) > MOST_FILES:
        return ""
    versions = (gradverify.__version__, _own_code(), module.torch_version, str(module.cuda_devices))
    system = (sys.version, platform.machine(), str(module.path.resolve()))
    parts = (*versions, *system, module.source, module.loaded, *files, *_environment(module.source))
    return hashlib.sha256("\0".join((*parts, encode(asked))).encode()).hexdigest()


def _stamps(module: Module) -> Iterator[str]:
    """Source files of the module's package, or folder, and files that it names, with size and time."""
    top = own = module.path.resolve().parent
    while (top / "__init__.py").is_file() and (top.parent / "__init__.py").is_file():
        top = top.parent
    whole = (top / "__init__.py").is_file()
    count = 0
    for folder, below, names in os.walk(top):
        below[:] = sorted(b for b in below if whole and not b.startswith((".", "__pycache__")))
        for name in sorted(names):
            if name.endswith(".py") or os.path.splitext(name)[1] in COMPILED:  # noqa: PTH122 - many names
                yield _stamped(Path(folder, name))
                count += 1
        if count > MOST_FILES:
            return
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        named = data_files(ast.parse(module.source), (own, Path.cwd()))
        yield from (_stamped(path) for path in sorted(named))


def _stamped(path: Path) -> str:
    return f"{path} {stamp_of(path)}"


def _environment(source: str) -> Iterator[str]:
    """The environment variables that a source names, and those that are torch's."""
    words = set(re.findall(r"\w+", source))
    for name, value in sorted(os.environ.items()):
        if name in words or name.startswith(OF_TORCH):
            yield f"{name}={value}"


@cache
def _own_code() -> str:
    """Stamps of our own files: a version number stays the same while one is written."""
    digest = hashlib.sha256()
    for folder, below, names in os.walk(Path(gradverify.__file__).parent):
        below.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                digest.update(_stamped(Path(folder, name)).encode())
    return digest.hexdigest()


def _drop_oldest(folder: Path) -> None:
    """Keep what was written last."""
    entries = list(os.scandir(folder))
    if len(entries) > MOST_KEPT:
        written = sorted(entries, key=lambda entry: entry.stat().st_mtime_ns)
        for entry in written[: len(entries) - MOST_KEPT]:
            Path(entry.path).unlink(missing_ok=True)
