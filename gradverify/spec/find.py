"""Which spec file belongs to a module: `--spec`, else the specs folder, else the file beside it.

The first place that has one wins and nothing is merged. Two files of one place that name the same
module are a mistake: whichever was passed over, its functions would silently go unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path as FilePath

from gradverify.errors import SpecError
from gradverify.model import shown_path
from gradverify.spec.read import SpecFile, is_path, module_path, named_modules, names_module, read_document
from gradverify.spec.source import At, Complaint, Document, load

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
        raise SpecError([document.mistake(Complaint(("module",), message, At.VALUE))])

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
