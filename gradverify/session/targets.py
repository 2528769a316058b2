"""What a TARGET of the command line stands for: a file, a folder, a dotted module or a spec file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradverify.errors import SpecError, UsageError, did_you_mean
from gradverify.model import Mistake, shown_path
from gradverify.rules import RULES
from gradverify.session.selection import Selection, parse_target, split_target

SPEC_SUFFIXES = frozenset({".yaml", ".yml"})
"""Of files that are read as specs. Only for those pydantic is loaded: `lint` has no need of it."""

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def parse_targets(texts: Sequence[str]) -> tuple[tuple[Selection, ...], tuple[Path, ...]]:
    """The selections that TARGETs stand for, and the spec files among them.

    Raises `UsageError` for what does not exist, `SpecError` for a spec file with mistakes.
    """
    selections: list[Selection] = []
    specs: list[Path] = []
    mistakes: list[Mistake] = []
    for text in texts:
        where, name, case = split_target(text)
        path = Path(where)
        if path.suffix in SPEC_SUFFIXES and path.is_file():
            try:
                selections += _of_spec(path, name, case)
            except SpecError as error:
                mistakes += error.problems
            specs.append(path)
        elif path.is_dir():
            selections.append(_of_folder(path, name, case))
        elif not path.exists() and _DOTTED.fullmatch(where) and path.suffix not in {".py", *SPEC_SUFFIXES}:
            selections.append(_of_module(where, name, case))
        else:
            selections.append(parse_target(text))
    if mistakes:
        raise SpecError(mistakes)
    return tuple(selections), tuple(specs)


def _of_folder(path: Path, name: str, case: str) -> Selection:
    if name and (path / "__init__.py").is_file():
        return Selection(path / "__init__.py", name, case)
    if name:
        raise UsageError(f"`{path}` is a folder: write ::{name} behind one of its modules")
    return Selection(path)


def _of_module(dotted: str, name: str, case: str) -> Selection:
    """A module by its dotted name; a package stands for its folder. Nothing is imported."""
    from gradverify.spec.module_names import find_module  # noqa: PLC0415 - loads pydantic

    path = find_module(dotted, Path.cwd())
    if path is None:
        files = [found.name for found in Path.cwd().glob("*.py")]
        meant = did_you_mean(f"{dotted}.py", files) or did_you_mean(
            dotted, [n.removesuffix(".py") for n in files]
        )
        raise UsageError(f"`{dotted}` is neither a file or folder nor a module that can be found{meant}")
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return Selection(path.parent) if path.name == "__init__.py" and not name else Selection(path, name, case)


def _of_spec(path: Path, name: str, case: str) -> list[Selection]:
    from gradverify.spec.read import read_spec  # noqa: PLC0415 - loads pydantic

    spec = read_spec(path, shown_path=shown_path(path), known_codes=[rule.code for rule in RULES])
    modules = [
        module
        for module in spec.module_paths()
        if not name or any(name in {f.name, f.name.split("@")[0]} for f in spec.functions_of(module))
    ]
    if not spec.module_paths():
        raise UsageError(f"`{shown_path(path)}` names no module whose source can be found")
    if not modules:
        meant = did_you_mean(name, [function.name for function in spec.functions.values()])
        raise UsageError(f"{shown_path(path)} has no function `{name}`{meant}")
    return [Selection(module, name, case, of_spec=True) for module in modules]
