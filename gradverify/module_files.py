"""Where the source of a module lies. Nothing is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import util
from importlib.machinery import PathFinder
from pathlib import Path

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders in which packages of many authors lie beside each other."""


def above_packages(path: Path) -> Path:
    """The folder above the packages that a file lies in."""
    return next((f for f in path.parents if not (f / "__init__.py").is_file()), path.parents[-1])


def dotted_name(path: Path) -> str:
    """Return the dotted name of a source file, from the chain of packages that it lies in."""
    path = path.resolve()
    parts = path.relative_to(above_packages(path)).with_suffix("").parts
    return ".".join(parts[:-1] if path.name == "__init__.py" else parts)


def imported_file(path: Path, level: int, dotted: str) -> Path | None:
    """The file of a module that a file imports from its own package, or from beside it; None for any other.

    `level` is how many dots a relative import has. What is installed beside a package is not its author's.
    """
    if level > len(path.parents):
        return None
    folder, parts = path.parents[level - 1] if level else above_packages(path), dotted.split(".")
    if folder.name in INSTALLED and parts[0] != path.relative_to(folder).parts[0]:
        return None
    found = file_below(folder, parts)
    return found if found != path else None


def find_module(dotted: str, folder: Path) -> Path | None:
    """Find the source of a dotted module beside the spec or above it, else on the path; import nothing."""
    parts = dotted.split(".")
    beside = (file_below(start, parts) for start in (folder, *folder.parents))
    return next(filter(None, beside), None) or _on_path(parts)


def file_below(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file of a module, by the parts of its name below a folder."""
    stem = folder.joinpath(*filter(None, parts))
    candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _on_path(parts: list[str]) -> Path | None:
    """Find a module where imports find it, by a hook too, as that of an editable installation.

    Only its top is asked for: for a submodule `find_spec` would import what is above it.
    """
    try:
        found = util.find_spec(parts[0])
        for count, part in enumerate(parts[1:], start=2):
            if found is None:
                return None
            search = list(found.submodule_search_locations or [])
            # By its last name alone: what a folder without `__init__.py` holds is looked up under the dotted
            # one in the loaded modules.
            inner = PathFinder.find_spec(part, search)
            found = inner or PathFinder.find_spec(".".join(parts[:count]), search)
    except (ImportError, ValueError, OSError):
        return None
    origin = found.origin if found is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None
