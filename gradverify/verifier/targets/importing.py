"""Importing a file as Python itself would, so that its relative imports and its data files work."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gradverify.source import Import, module_of
from gradverify.verifier.guard.raised_errors import is_importable


@dataclass(frozen=True)
class Imported:
    """A module, and what it was imported without."""

    module: ModuleType
    failed_packages: tuple[FailedPackage, ...] = ()


@dataclass(frozen=True)
class FailedPackage:
    """A package whose `__init__.py` raised, so that the file was imported without it."""

    file: Path
    error: Exception


def import_file(path: Path) -> Imported:
    """Import a module from its file.

    Inside a package it is imported under its dotted name from the folder above the package; a lone file under
    its own name, with its folder on the path. The current folder, and its `src`, are on the path as well.
    `__name__` is never `__main__`. Where a package around it raises, or one that it imports from, the file is
    imported without that package's `__init__.py`. Raises whatever the module itself raises.
    """
    path = path.resolve()
    name, root = dotted_name(path)
    for folder in reversed(folders_of(path)):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file(loaded, path):
        return Imported(loaded)
    if "." in name or (loaded is None and name not in sys.stdlib_module_names):
        failed = list(_enter_packages(name, root))
        module = _imported(name, root, failed)
        if _is_file(module, path):
            return Imported(module, tuple(failed))
    # Its name belongs to another module (`random.py` beside the user's code): load it under one of its own.
    return Imported(_load_under(f"_gradverify_target_{name.replace('.', '_')}", path))


def _imported(name: str, root: Path, failed: list[FailedPackage]) -> ModuleType:
    """The module of a name; `failed` gains packages beside it of which it needs other modules alone.

    Raises what a package raised if it lacks a name that the package would have.
    """
    while True:
        try:
            return importlib.import_module(name)
        except Exception as error:
            lacking = error.name if isinstance(error, ImportError) else ""
            paths = {Path(folder) for folder in getattr(sys.modules.get(lacking or ""), "__path__", ())}
            for one in failed:
                if one.file.parent in paths:
                    raise one.error from None
            package = _raising_package(error, root)
            if package is None or any(one.file == package[1] for one in failed):
                raise
            failed.append(_left_bare(*package, error))


def _raising_package(error: Exception, root: Path) -> tuple[str, Path] | None:
    """The innermost package of the project whose `__init__.py` an exception came through."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file, known = Path(frame.f_code.co_filename), frame.f_globals
        inside = (
            file.name == "__init__.py" and file.is_relative_to(root) and "site-packages" not in file.parts
        )
        if inside and frame.f_code.co_name == "<module>" and "__path__" in known:
            found = str(known["__name__"]), file
    return found


def _left_bare(package: str, file: Path, error: Exception) -> FailedPackage:
    """Give a package its modules, and nothing of its `__init__.py`."""
    bare = ModuleType(package)
    bare.__path__ = [str(file.parent)]
    sys.modules[package] = bare
    return FailedPackage(file, error)


def folders_of(path: Path) -> tuple[Path, ...]:
    """The folders from which a file can import: that above its packages, the current one and its `src`."""
    return tuple(dict.fromkeys((dotted_name(path.resolve())[1], *_current_folders())))


def _enter_packages(name: str, root: Path) -> Iterator[FailedPackage]:
    """Import the packages around a module; one that raises is left without its `__init__.py`."""
    parts = name.split(".")[:-1]
    for count in range(1, len(parts) + 1):
        package, folder = ".".join(parts[:count]), root.joinpath(*parts[:count])
        try:
            importlib.import_module(package)
        except Exception as error:  # noqa: BLE001 - whatever the user's package raises
            yield _left_bare(package, folder / "__init__.py", error)


def _current_folders() -> tuple[Path, ...]:
    """Where `python -c "import ..."` looks for a project: the current folder, and a `src` in it."""
    here = Path.cwd()
    return (here, here / "src") if (here / "src").is_dir() else (here,)


def dotted_name(path: Path) -> tuple[str, Path]:
    """The name a file is imported by, and the folder that has to be on the path for it.

    The packages around it are folders with `__init__.py`; those that its relative imports climb; and those of
    a current folder that its absolute imports, or the packages' own, begin with: `from pkg.inner import x`.
    """
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder, packages = path.parent, [path]
    while (folder / "__init__.py").is_file():
        packages.append(folder / "__init__.py")
        parts.insert(0, folder.name)
        folder = folder.parent
    missing = max((one.level for one in _imports(path)), default=0) - (
        len(path.parts) - len(folder.parts) - 1
    )
    root = (
        _above_namespace(folder, missing)
        if missing > 0
        else _root_of_imports(folder, packages, but=parts[0] if len(packages) > 1 else "")
    )
    return ".".join([*folder.relative_to(root).parts, *parts]) or path.stem, root


def _root_of_imports(folder: Path, files: Sequence[Path], but: str) -> Path:
    """The folder above packages without `__init__.py` that files import from; `folder` if there is none.

    `but` is the package in `folder` that the files are in, which they mean where its repository has its name.
    Nor do they mean it by the name of a module that stands beside them.
    """
    absolute = (one for file in files for one in _imports(file) if not one.level)
    named = {one.module.partition(".")[0] for one in absolute} - {but}
    named -= {name for name in named if (folder / f"{name}.py").is_file()}
    for here in _current_folders():
        if folder.is_relative_to(here):
            inside = folder.relative_to(here).parts
            if inside and inside[0] in named and all(part.isidentifier() for part in inside):
                return here
    return folder


def _imports(path: Path) -> tuple[Import, ...]:
    """What a file imports; nothing where it cannot be read, or is no Python."""
    try:
        return module_of(path.read_bytes()).imports
    except OSError:
        return ()


def _above_namespace(folder: Path, missing: int) -> Path:
    """The folder above a package without `__init__.py`.

    It is one that Python looks into already or the current one, else just what the imports need.
    """
    roots = {Path(entry or ".").resolve() for entry in sys.path} | set(_current_folders())
    above = folder.parents[missing - 1 :]
    if not above:
        return folder
    named = (p for p in above if all(part.isidentifier() for part in folder.relative_to(p).parts))
    return next((parent for parent in named if parent in roots), above[0])


def resolve(name: str, module: ModuleType | None = None) -> Any:  # noqa: ANN401
    """Find what a dotted path, `module:attribute`, or an attribute of `module` names.

    Raises `LookupError` with a sentence where some part does not exist; whatever an import raises passes.
    """
    if ":" in name:
        where, _, attribute = name.partition(":")
        if module is not None and where == module.__name__.rpartition(".")[2]:
            return _attribute(module, attribute)
        return _attribute(importlib.import_module(where), attribute)
    if module is not None and hasattr(module, name.partition(".")[0]):
        return _attribute(module, name)
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        where = ".".join(parts[:count])
        if is_importable(where):
            return _attribute(importlib.import_module(where), ".".join(parts[count:]))
    if module is not None and len(parts) == 1:
        return _attribute(module, name)
    raise LookupError(f"there is no module `{parts[0]}`")


def _attribute(owner: Any, dotted: str) -> Any:  # noqa: ANN401
    for part in dotted.split("."):
        if not hasattr(owner, part):
            raise LookupError(f"`{getattr(owner, '__name__', owner)}` has no attribute `{part}`")
        owner = getattr(owner, part)
    return owner


def _is_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _load_under(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
