"""`--changed [REF]`: which targets may differ from a git revision; in doubt, they do."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradverify.errors import UsageError
from gradverify.model import ObjectInput, TargetKind, TargetPlan, tensors_of
from gradverify.session.planning import Planned
from gradverify.session.sources import (
    COMPILED,
    changed_names,
    imported_files,
    named_files,
    reached_names,
)
from gradverify.spec.read import SpecFile

SPECS = frozenset({".yaml", ".yml"})
"""A spec that is gone cannot be asked which module was its own."""


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
        gone = frozenset(file for file in self.files if not file.exists())
        if any(file.suffix in SPECS for file in gone) or any(file.suffix in COMPILED for file in self.files):
            return True
        return bool((surroundings(module, spec, self.root, gone) - {module}) & self.files)

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
        roots = (one.target.attribute, *(named_by(one.plan) if one.plan is not None else ()))
        return any(reached_names(root, after) & changed for root in roots)


def surroundings(
    module: Path, spec: SpecFile | None, root: Path, gone: frozenset[Path] = frozenset()
) -> set[Path]:
    """The files of a project below `root` on which a target of a module may depend, its spec among them.

    `gone` are files that there were: what still names one depends on it.
    """
    roots = (*_up_to(root, module), root / "src", Path.cwd())
    packages = {folder / "__init__.py" for folder in _up_to(root, module)}
    start = {module, *packages, *(named_files(spec.path, roots) if spec is not None else ())}
    return imported_files(start, roots, gone) | ({spec.path.resolve()} if spec is not None else set())


def named_by(plan: TargetPlan) -> Iterator[str]:
    """Every identifier in what a plan names beside the target: references, hooks, objects of its inputs."""
    paths = [plan.reference, plan.surrogate.path if plan.surrogate is not None else ""]
    for case in (*plan.cases, *plan.spares):
        paths.append(case.hook)
        for one in case.inputs:
            paths += [one.path] if isinstance(one, ObjectInput) else []
            paths += [tensor.make for tensor in tensors_of(one)]
    for path in dict.fromkeys(paths):
        yield from re.findall(r"\w+", path)


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
        raise UsageError("--changed needs git, which was not found") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"--changed: git: {said[0] if said else 'it failed'}")
    return done.stdout
