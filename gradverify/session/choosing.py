"""Which modules a run imports, and the spec of each: folders are looked through, nothing is imported."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

from gradverify.errors import SpecError, UsageError, did_you_mean
from gradverify.model import Mistake, shown_path
from gradverify.rules import RULES
from gradverify.session.folders import may_define, python_files
from gradverify.session.request import Request
from gradverify.session.selection import Selection, keyword_filter
from gradverify.spec.find import SpecLookup
from gradverify.spec.module_names import read_names
from gradverify.spec.read import SpecFile


@dataclass
class Chosen:
    """The modules of a run in the order of its TARGETs."""

    modules: dict[Path, list[Selection]] = field(default_factory=dict)
    specs: dict[Path, SpecFile] = field(default_factory=dict)
    empty_folders: tuple[str, ...] = ()
    """Folders that have no module to import, as reports print them."""


def choose(request: Request) -> Chosen:
    """Look through folders and read the specs.

    A file of a folder is taken if its source may define a Function or a spec names it. Raises `SpecError`
    with the mistakes of all specs, and `UsageError`, for a keyword expression that is none too.
    """
    if util.find_spec("torch") is None:
        raise UsageError("gradverify needs PyTorch, and this Python has none: install torch beside it")
    keyword_filter(request.keyword)
    chosen = Chosen()
    folders: dict[Path, list[Path]] = {}
    for selection in request.selections:
        if selection.path.is_dir():
            found = python_files(selection.path, request.excluded)
            folders[selection.path] = [_absolute(file) for file in found]
        elif not request.excluded(selection.path):
            chosen.modules.setdefault(_absolute(selection.path), []).append(selection)
    looked_at = dict.fromkeys((*chosen.modules, *(file for files in folders.values() for file in files)))
    specs = _read_specs(request, list(looked_at))
    for folder, files in folders.items():
        taken = [file for file in files if file in specs or may_define(file)]
        for file in taken:
            chosen.modules[file] = [Selection(file)]
        if not taken:
            chosen.empty_folders += (shown_path(folder).rstrip("/") + "/",)
    chosen.specs = specs
    for path, selections in chosen.modules.items():
        for selection in selections:
            _refuse_unknown_name(path, selection.name.partition("@")[0], specs.get(path))
    return chosen


def _refuse_unknown_name(path: Path, name: str, spec: SpecFile | None) -> None:
    """Raise `UsageError` for a target that a module cannot define: the name is nowhere in its source."""
    known = [function.name for function in spec.functions_of(path)] if spec is not None else []
    if not name.isidentifier() or name in {function.partition("@")[0] for function in known}:
        return
    try:
        source = path.read_bytes()
    except OSError:
        return
    names = read_names(source)
    if names is None or names.dynamic or re.search(rf"\b{name}\b", source.decode("utf-8", "replace")):
        return
    meant = did_you_mean(name, [*known, *names.definitions])
    raise UsageError(f"{shown_path(path)} has no target `{name}`{meant}")


def _absolute(path: Path) -> Path:
    """An absolute path without `..`, unless a link makes that another file."""
    absolute = path.absolute()
    plain = Path(os.path.normpath(absolute))
    return plain if plain.exists() and plain.samefile(absolute) else absolute


def _read_specs(request: Request, modules: list[Path]) -> dict[Path, SpecFile]:
    """The spec of each module; the mistakes of all of them at once."""
    lookup = SpecLookup(request.specs, request.specs_folder, [rule.code for rule in RULES])
    specs: dict[Path, SpecFile] = {}
    mistakes: list[Mistake] = []
    for path in request.specs:
        if not path.is_file():
            raise UsageError(f"--spec: there is no file `{path}`")
    for module in modules:
        try:
            spec = lookup.find(module)
        except SpecError as error:
            mistakes += [m for m in error.problems if m not in mistakes]
        else:
            if spec is not None:
                specs[module] = spec
    if mistakes:
        raise SpecError(mistakes)
    unclaimed = lookup.unclaimed(modules)
    if unclaimed:
        raise UsageError(f"--spec: `{shown_path(unclaimed[0])}` names none of the modules that are checked")
    return specs
