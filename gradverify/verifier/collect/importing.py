"""Importing a file as Python itself would, so that its relative imports and its data files work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any


def import_file(path: Path) -> ModuleType:
    """Import a module from its file.

    Inside a package (folders with `__init__.py`, or whatever its relative imports climb) it is imported under
    its dotted name from the folder above the package; a lone file under its own name, with its folder on the
    path. `__name__` is never `__main__`. Raises whatever the module raises.
    """
    path = path.resolve()
    name, root = dotted_name(path)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file(loaded, path):
        return loaded
    if "." in name or (loaded is None and name not in sys.stdlib_module_names):
        module = importlib.import_module(name)
        if _is_file(module, path):
            return module
    # Its name belongs to another module (`random.py` beside the user's code): load it under one of its own.
    return _load_under(f"_gradverify_target_{name.replace('.', '_')}", path)


def dotted_name(path: Path) -> tuple[str, Path]:
    """The name a file is imported by, and the folder that has to be on the path for it."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    missing = _levels(path) - (len(path.parts) - len(folder.parts) - 1)
    if missing > 0:
        folder, above = _above_namespace(folder, missing)
        parts = [*above, *parts]
    return ".".join(parts) or path.stem, folder


def _levels(path: Path) -> int:
    """How many packages the relative imports of a file climb; 0 for a file that has none, or is no Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def _above_namespace(folder: Path, missing: int) -> tuple[Path, list[str]]:
    """The folder above a package without `__init__.py`, and the names of the folders in between.

    It is one that Python looks into already or the current one, else just what the imports need.
    """
    roots = {Path(entry or ".").resolve() for entry in sys.path} | {Path.cwd()}
    above = folder.parents[missing - 1 :]
    if not above:
        return folder, []
    named = (p for p in above if all(part.isidentifier() for part in folder.relative_to(p).parts))
    root = next((parent for parent in named if parent in roots), above[0])
    return root, list(folder.relative_to(root).parts)


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
        if _exists(where):
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


def _exists(module_name: str) -> bool:
    if module_name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


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
