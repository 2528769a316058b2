"""The folder beside the configuration in which runs leave what later ones may use; it may be deleted."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradverify.model import Effort
from gradverify.session.outcome import NOT_VERIFIED
from gradverify.session.request import Request

if TYPE_CHECKING:
    from gradverify.model import TargetReport
    from gradverify.session.modules import Module
    from gradverify.session.planning import Planned

FOLDER = ".gradverify_cache"
_FILE = "last_run.json"
_SCHEMA = "gradverify-last-run/1"

LeftOver = Mapping[Path, frozenset[str]]
"""Names of targets that were not verified, by module; none where the whole module could not be imported."""

Stamp = tuple[int, int, int]
"""(modification time in ns, size, inode) of a file: where none of them changed, its content did not."""


def write_beside(folder: Path, name: str, text: str) -> None:
    """Write a file of the folder, whole or not at all: another run may read or write it at the same time.

    `name` may lie in a folder of its own. Raises `OSError`.
    """
    folder.mkdir(exist_ok=True)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text("# Written by gradverify.\n*\n", "utf-8")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, "utf-8")
    part.replace(path)


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file or folder; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def left_over(request: Request, modules: Sequence[Path]) -> LeftOver | None:
    """For `--lf`: what was not verified last time; None, said through `tell`, to verify everything."""
    if not request.last_failed or request.cache is None:
        return None
    known = _read(request.cache)
    if known is None:
        request.tell("--lf: no earlier run is known here, so everything is verified")
        return None
    if not known:
        request.tell("--lf: nothing was left unverified last time, so everything is verified")
        return None
    here = {path: known[path] for path in modules if path in known}
    if not here:
        request.tell(
            "--lf: what was not verified last time is not selected, so all that is selected is verified"
        )
        return None
    return here


def kept(planned: Sequence[Planned], left: LeftOver) -> list[Planned]:
    """The targets that were not verified; a whole module where a name is gone, which may be a new name's."""

    def is_left(one: Planned) -> bool:
        names = left[one.module.path]
        there = {target.name for target in one.module.targets}
        return not names or one.target.name in names or not names <= there

    return [one for one in planned if is_left(one)]


def remember(request: Request, modules: Sequence[Module], reports: Sequence[TargetReport]) -> None:
    """Write down what is not verified now. A folder that cannot be written to forgets it.

    What passed in a part of its cases or checks, or was not among the selected, is as it was before.
    """
    if request.cache is None:
        return
    before = _read(request.cache) or {}
    left = {path: names for path, names in before.items() if path.exists()}
    for module in modules:
        own = [r for r in reports if r.target.file == module.shown_path]
        failed = {r.target.name for r in own if r.status in NOT_VERIFIED}
        cleared = set() if _narrowed(request) else {r.target.name for r in own} - failed
        there = {target.name for target in module.targets}
        names = (before.get(module.path, frozenset()) & there - cleared) | failed
        if names or module.error is not None:
            left[module.path] = frozenset(names)
        else:
            left.pop(module.path, None)
    with contextlib.suppress(OSError):
        _write(request.cache, left)


def _narrowed(request: Request) -> bool:
    """Whether a pass says less than that of a whole run."""
    cases = any(selection.case for selection in request.selections)
    return cases or bool(request.settings.select) or request.settings.effort is Effort.QUICK


def _read(folder: Path) -> dict[Path, frozenset[str]] | None:
    try:
        document = json.loads((folder / _FILE).read_text("utf-8"))
        if document["schema"] != _SCHEMA:
            return None
        return {
            Path(os.path.normpath(folder.parent.absolute() / path)): frozenset(map(str, names))
            for path, names in document["not_verified"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # none, or of another version, or written by something else


def _write(folder: Path, left: LeftOver) -> None:
    root = folder.parent.absolute()
    named = {Path(os.path.relpath(path, root)).as_posix(): sorted(names) for path, names in left.items()}
    text = json.dumps({"schema": _SCHEMA, "not_verified": dict(sorted(named.items()))}, indent=1) + "\n"
    write_beside(folder, _FILE, text)
