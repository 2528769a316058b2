"""`--changed [REF]`: which targets may differ from a git revision; in doubt, they do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradverify.errors import UsageError
from gradverify.model import TargetKind
from gradverify.session.planning import Planned
from gradverify.session.sources import changed_names, imported_files, named_files, reached_names
from gradverify.spec import SpecFile

COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".mm", ".so"})
"""Files of compiled code: nobody can tell from Python which Functions call it, so any may."""


@dataclass(frozen=True)
class Changes:
    """The files that differ from a revision, and where to find what they were."""

    revision: str
    root: Path
    """The top of the repository, absolute."""
    commit: str
    files: frozenset[Path]

    def around(self, module: Path, spec: SpecFile | None) -> bool:
        """Whether something differs on which any target of a module may depend."""
        roots = (*_up_to(self.root, module), self.root / "src", Path.cwd())
        packages = {folder / "__init__.py" for folder in _up_to(self.root, module)}
        start = {module, *packages, *(named_files(spec.path, roots) if spec is not None else ())}
        depends = imported_files(start, roots) | ({spec.path.resolve()} if spec is not None else set())
        return any(file in self.files for file in depends - {module}) or any(
            file.suffix in COMPILED for file in self.files
        )

    def touch(self, module: Path, spec: SpecFile | None) -> bool:
        """Whether some target of a module may differ."""
        return module.resolve() in self.files or self.around(module.resolve(), spec)

    def kept(self, planned: Sequence[Planned]) -> list[Planned]:
        """The targets that may differ."""
        around = {one.module.path: self.around(one.module.path.resolve(), one.module.spec) for one in planned}
        return [
            one for one in planned if around[one.module.path] or self._differs(one.module.path.resolve(), one)
        ]

    def _differs(self, module: Path, one: Planned) -> bool:
        """Whether its source does, or that of something in its module that it names."""
        if module not in self.files:
            return False
        try:
            name = module.relative_to(self.root).as_posix()
            before = _git(self.root, "show", f"{self.commit}:{name}").decode("utf-8")
            after = module.read_text("utf-8")
        except (OSError, ValueError, UsageError):
            return True  # it is new, lies outside, or is not read as text
        changed = changed_names(before, after)
        if changed is None or one.target.kind is TargetKind.CUSTOM_OP:
            return changed is None or bool(changed)  # statements beside it register what belongs to it
        return bool(reached_names(one.target.attribute, after) & changed)


def changes_since(revision: str) -> Changes:
    """Ask git what differs, files that it does not track yet included.

    Raises `UsageError` where there is no git, no repository here, or no such revision.
    """
    root = Path(os.fsdecode(_git(Path.cwd(), "rev-parse", "--show-toplevel")).rstrip("\n")).resolve()
    try:
        asked = f"{revision}^{{commit}}"
        commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", asked).decode().strip()
    except UsageError:
        raise UsageError(f"--changed: git knows no revision `{revision}`") from None
    differing = _git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", commit, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    names = filter(None, (differing + untracked).split(b"\0"))
    return Changes(revision, root, commit, frozenset((root / os.fsdecode(name)).resolve() for name in names))


def _up_to(root: Path, module: Path) -> Iterator[Path]:
    """The folders above a module, up to the top of the repository; its own alone where it lies outside."""
    for folder in module.parents if module.is_relative_to(root) else module.parents[:1]:
        yield folder
        if folder == root:
            return


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)  # noqa: S603, S607
    except OSError:
        raise UsageError("--changed: there is no git here that could be asked") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"--changed: git: {said[0] if said else 'it failed'}")
    return done.stdout
