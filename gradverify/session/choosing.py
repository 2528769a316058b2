"""Which modules a run imports, and the spec of each: folders are looked through, nothing is imported.

Which spec file belongs to a module: `--spec`, else the specs folder, else the file beside it.

The first place that has one wins and nothing is merged. Two files of one place that name the same
module are a mistake: whichever was passed over, its functions would silently go unchecked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from pathlib import Path as FilePath

from gradverify.errors import SpecError, UsageError, did_you_mean
from gradverify.model import Mistake, shown_path
from gradverify.rules import RULES
from gradverify.session.folders import may_define, python_files
from gradverify.session.request import Request
from gradverify.session.selection import Selection, keyword_filter
from gradverify.source import module_of
from gradverify.spec.read import SpecFile, is_path, module_path, named_modules, names_module, read_document
from gradverify.spec.source import Complaint, Document, load

SUFFIXES = (".yaml", ".yml")
_OWN_KEYS = {"gradverify", "module", "functions"}
"""A YAML file in the specs folder with none of these is somebody else's (OpenAPI keeps `specs/` too)."""


class SpecLookup:
    """Finds and reads spec files, each file once."""

    def __init__(
        self,
        given: Sequence[FilePath],
        folder: FilePath,
        known_codes: Collection[str],
        show: Callable[[FilePath], str] = shown_path,
    ) -> None:
        """`given` are the `--spec` files; `folder` is the specs folder itself and need not exist."""
        self._given = tuple(given)
        self._folder = folder
        self._codes = known_codes
        self._show = show
        self._documents: dict[FilePath, Document] = {}
        self._specs: dict[FilePath, SpecFile] = {}

    def find(self, module: FilePath) -> SpecFile | None:
        """Return the spec of a module, None where it has none.

        Raises SpecError for mistakes in that spec, and for a file of the specs folder of which it
        cannot be reported whose it is: one that is not YAML, or names no file that exists, is never
        silently passed over.
        """
        for place in (self._given, self._in_folder()):
            named = [path for path in place if self._names(path, module)]
            if named:
                return self._only(named, module)
        beside = [path for path in _beside(module) if path.is_file()]
        if not beside:
            return None
        self._refuse_other_module(beside[0], module)
        return self._only(beside, module)

    def unclaimed(self, modules: Iterable[FilePath]) -> tuple[FilePath, ...]:
        """Return the `--spec` files that name none of these modules: a usage error for the caller."""
        checked = tuple(modules)
        return tuple(path for path in self._given if not any(self._names(path, module) for module in checked))

    def read(self, path: FilePath) -> SpecFile:
        """Read one spec file. Raises SpecError."""
        if path not in self._specs:
            self._specs[path] = read_document(self._document(path), path, self._codes)
        return self._specs[path]

    def _in_folder(self) -> tuple[FilePath, ...]:
        if not self._folder.is_dir():
            return ()
        return tuple(
            sorted(path for path in self._folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
        )

    def _names(self, path: FilePath, module: FilePath) -> bool:
        data = self._document(path).data
        modules = named_modules(data)
        foreign = path not in self._given and not (isinstance(data, dict) and _OWN_KEYS & data.keys())
        lost = any(is_path(name) and module_path(name, path.parent) is None for name in modules)
        if lost or (not modules and not foreign):
            # Raises: it says nothing of whose it is, or names a file that does not exist. A typing
            # error in `module:` must not send a module to inferred inputs.
            self.read(path)
        return any(names_module(name, path.parent, module) for name in modules)

    def _only(self, paths: Sequence[FilePath], module: FilePath) -> SpecFile:
        if len(paths) == 1:
            return self.read(paths[0])
        first = self._show(paths[0])
        message = f"{first} names {self._show(module)} as well, and spec files are never merged: keep one"
        document = self._document(paths[1])
        raise SpecError([document.mistake(Complaint(("module",), message))])

    def _refuse_other_module(self, path: FilePath, module: FilePath) -> None:
        modules = named_modules(self._document(path).data)
        if modules and not any(names_module(name, path.parent, module) for name in modules):
            beside = module.name
            message = f"this file lies beside {beside} and names `{modules[0]}`: name {beside}, or move it"
            raise SpecError([self._document(path).mistake(Complaint(("module",), message))])

    def _document(self, path: FilePath) -> Document:
        if path not in self._documents:
            self._documents[path] = load(path, self._show(path))
        return self._documents[path]


def _beside(module: FilePath) -> tuple[FilePath, ...]:
    return tuple(module.with_name(f"{module.stem}.gradverify{suffix}") for suffix in SUFFIXES)


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
    module = module_of(source)
    if not module.lacks(name) or re.search(rf"\b{name}\b", source.decode("utf-8", "replace")):
        return
    meant = did_you_mean(name, [*known, *module.bound])
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
