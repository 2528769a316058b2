"""What the command line selects: files, folders, modules and spec files, targets in them, cases, codes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradverify.cases.selecting import matches
from gradverify.errors import SpecError, UsageError, did_you_mean
from gradverify.model import shown_path
from gradverify.rules import RULES, matching, nearest_code

if TYPE_CHECKING:
    from gradverify.model import Case, Mistake, Target

_TARGET = re.compile(r"(?P<path>.+?)(?:::(?P<name>[^\[\]]*)(?:\[(?P<case>.*)\])?)?")

SPEC_SUFFIXES = frozenset({".yaml", ".yml"})
"""Of files that are read as specs. Only for those pydantic is loaded: `lint` has no need of it."""

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Selection:
    """One TARGET of the command line."""

    path: Path
    """A module, or a folder of modules."""
    name: str = ""
    """A target's name; empty for the whole module."""
    case: str = ""
    """A case id or part of one; empty for all cases."""
    of_spec: bool = False
    """A spec file was named, not the module: what the spec does not name is not selected."""


def split_target(text: str) -> tuple[str, str, str]:
    """Split `path::Name[case]` into its parts; what is not given is empty.

    Raises `UsageError` for what is not of this form.
    """
    match = _TARGET.fullmatch(text)
    if match is None or (match["name"] == "" and "::" in text):
        raise UsageError(
            f"`{text}` is not a target: write module.py, module.py::Name or 'module.py::Name[case]'"
        )
    return match["path"], match["name"] or "", match["case"] or ""


def parse_target(text: str) -> Selection:
    """Read `module.py`, `module.py::Name` or `module.py::Name[b=3,mode=sum]`.

    Raises `UsageError` with a sentence for anything else, or a file that is not there.
    """
    where, name, case = split_target(text)
    path = Path(where)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"`{where}` is a link to `{path.readlink()}`, which is not there")
    file, colon, after = where.rpartition(":")
    if not path.exists() and colon and Path(file).is_file():
        raise UsageError(f"there is no file `{where}`; write the name after two colons: `{file}::{after}`")
    if path.suffix == ".ipynb" and path.is_file():
        raise UsageError(
            f"`{where}` is a notebook: call `gradverify.check(Name)` in a cell of it, or write its Functions "
            f"into a module (`jupyter nbconvert --to script {path.name}`) and check that"
        )
    if not path.exists():
        raise UsageError(f"there is no file `{where}`{_nearest_file(path)}")
    if path.suffix != ".py":
        raise UsageError(f"`{where}` is not a Python module (.py)")
    return Selection(path, name, case)


def check_codes(prefixes: Sequence[str], option: str) -> tuple[str, ...]:
    """Accept code prefixes that match some code.

    Raises `UsageError` with the nearest code for one that matches none: a typo must not pass CI.
    """
    for prefix in prefixes:
        if not prefix or not matching(prefix):
            near = nearest_code(prefix)
            meant = f"; did you mean `{near}`?" if near else ""
            raise UsageError(f"{option}: no code starts with `{prefix}`{meant} (see `gradverify rules`)")
    return tuple(prefixes)


def select_named(targets: Sequence[Target], name: str, shown_path: str) -> tuple[Target, ...]:
    """The targets a `::Name` selects: by name, or every spec entry of a class (`Linear@nobias`).

    Raises `UsageError` with the nearest name where there is none.
    """
    if not name:
        return tuple(targets)
    found = tuple(t for t in targets if t.name == name) or tuple(
        t for t in targets if t.name.split("@")[0] == name
    )
    if not found:
        meant = did_you_mean(name, [t.name for t in targets])
        raise UsageError(f"{shown_path} has no target `{name}`{meant}")
    return found


def select_cases(cases: Sequence[Case], wanted: str, target: str) -> tuple[Case, ...]:
    """The cases whose id holds every `name=value` of a filter; `base` selects the case with nothing bound.

    Raises `UsageError` where no case matches.
    """
    if not wanted:
        return tuple(cases)
    found = tuple(c for c in cases if matches(c.id, wanted))
    if not found:
        known = ", ".join(f"[{c.id}]" for c in list(cases)[:4])
        raise UsageError(f"{target} has no case [{wanted}]; its cases: {known or 'none'}")
    return found


_CALLS = re.compile(r"(w\d+|\))\s*\(|\(\s*\)")
"""What Python would read as a call or an empty tuple."""


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """Compile a `-k` expression: names joined by `and`, `or`, `not` and parentheses, matched as substrings.

    Raises `UsageError` where it cannot be read.
    """
    if not expression:
        return lambda _: True
    words: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        if match[0] in {"and", "or", "not"}:
            return match[0]
        words.append(match[0].lower())
        return f"w{len(words) - 1}"

    source = re.sub(r"[^\s()]+", placeholder, expression)
    try:
        code = compile(source, "-k", "eval")
    except SyntaxError:
        code = None
    if code is None or _CALLS.search(source):
        raise UsageError(f"-k: `{expression}` is not an expression of names, and, or, not and parentheses")

    def chosen(text: str) -> bool:
        found = {f"w{k}": word in text.lower() for k, word in enumerate(words)}
        return bool(eval(code, {"__builtins__": {}}, found))  # noqa: S307 - of names and operators alone

    return chosen


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no folder `{path.parent}`)"
    suffixes = {".py", path.suffix}
    # By their stems: `.py` makes any two short names alike.
    named = {p.stem: p.name for p in path.parent.iterdir() if p.suffix in suffixes}
    near = difflib.get_close_matches(path.stem, named, 1, 0.5)
    return f"; did you mean `{named[near[0]]}`?" if near else ""


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
    from gradverify.module_files import find_module  # noqa: PLC0415 - only a dotted name is looked up

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
