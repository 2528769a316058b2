"""What Python source depends on, as far as reading it tells: names of its own file, files of the project."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

COMPILED = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".mm", ".so"})
"""Files of compiled code: nobody can tell from Python which Functions call it, so any may."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+|[A-Za-z_]\w*(?=:[A-Za-z_])")
_FILE_NAME = re.compile(r"[^\s<>:|?*\x00]{0,200}\.\w{1,12}")
"""What a string looks like that may name a file."""

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def changed_names(before: str, after: str) -> frozenset[str] | None:
    """The top-level definitions that differ between two sources; None where everything may.

    Everything may where another statement differs, or uses a definition that does for more than another name
    (which is given then too), and where a decorated one differs: it may have registered itself elsewhere.
    """
    trees = [_parsed(text) for text in (before, after)]
    if trees[0] is None or trees[1] is None:
        return None
    old, new = (_definitions(tree) for tree in trees if tree is not None)
    rests = [[s for s in tree.body if not isinstance(s, _DEFINITIONS)] for tree in trees if tree is not None]
    if [ast.dump(s) for s in rests[0]] != [ast.dump(s) for s in rests[1]]:
        return None
    changed = {name for name in {*old, *new} if _dumps(old.get(name, [])) != _dumps(new.get(name, []))}
    decorated = any(n.decorator_list for name in changed for n in (*old.get(name, []), *new.get(name, [])))
    if decorated:
        return None
    for statement in rests[1]:
        if changed & _used(statement):
            names = _other_names(statement)
            if not names:
                return None
            changed |= names
    return frozenset(changed)


def _other_names(statement: ast.stmt) -> set[str]:
    """Names that a statement gives to what has one already, `f = F.apply`; none where it does more."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Name | ast.Attribute):
        return set()
    if any(not isinstance(n, ast.Name | ast.Attribute | ast.Load) for n in ast.walk(statement.value)):
        return set()
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return names if len(names) == len(statement.targets) else set()


def reached_names(name: str, source: str) -> frozenset[str]:
    """A top-level definition with all the names used in it, in the definitions these name, and so on."""
    tree = _parsed(source)
    definitions = _definitions(tree) if tree is not None else {}
    reached: set[str] = set()
    waiting = [name.partition(".")[0]]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting += [used for node in definitions.get(one, []) for used in _used(node)]
    return frozenset(reached)


def may_inform(name: str, before: str, after: str, changed: Collection[str]) -> bool:
    """Whether some definition that differs may tell what a Function is called with, before or after.

    A function may: it may be its plain version, whatever it uses. A class does where it uses the Function, or
    a name that a statement of the module gives it.
    """
    for source in (before, after):
        tree = _parsed(source)
        if tree is None:
            return True
        names = _names_of(name.partition(".")[0], tree)
        for one in changed:
            for node in _definitions(tree).get(one, []):
                if not isinstance(node, ast.ClassDef) or _used(node) & names:
                    return True
    return False


def _names_of(name: str, tree: ast.Module) -> set[str]:
    """A top-level name with those that statements bind to something made of it, as `f = F.apply`."""
    names = {name}
    for node in tree.body:
        if not isinstance(node, _DEFINITIONS) and _used(node) & names:
            names |= _used(node)
    return names


def imported_files(
    start: Iterable[Path], roots: Sequence[Path], gone: frozenset[Path] = frozenset()
) -> set[Path]:
    """The files that some files import or name below `roots`, those they import in turn, and they themselves.

    Of the files that are gone, those are found that something would still import or open.
    """
    found: set[Path] = set()
    waiting = [file for file in start if file.is_file()]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        tree = (
            _parsed(file.read_text("utf-8", "replace")) if file.suffix == ".py" and file.is_file() else None
        )
        if tree is None:
            continue
        for folders, dotted in _imports(tree, file, roots):
            waiting += _files_of(dotted, folders, gone)
        found |= data_files(tree, (file.parent, *roots), gone)
    return found


def named_files(text: Path, roots: Sequence[Path]) -> set[Path]:
    """The files below `roots` that a spec may name: `package.module`, `module:attribute`, dotted paths."""
    words = _DOTTED.findall(text.read_text("utf-8", "replace"))
    return {file for word in words for file in _files_of(word, (text.parent, *roots))}


def _imports(tree: ast.Module, file: Path, roots: Sequence[Path]) -> Iterator[tuple[Sequence[Path], str]]:
    """(Folders to look in, dotted name) of everything that a file imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((roots, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folders = (file.parents[node.level - 1],) if 0 < node.level <= len(file.parents) else roots
            for alias in node.names:
                yield folders, ".".join(filter(None, (node.module, alias.name)))


def data_files(tree: ast.Module, folders: Sequence[Path], gone: frozenset[Path] = frozenset()) -> set[Path]:
    """The files that a source names in a string, as it does who reads a table or the text of a kernel."""
    words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    named = [folder / word for word in words if _FILE_NAME.fullmatch(word) for folder in folders]
    return {resolved for file in named if _is_or_was((resolved := file.resolve()), gone)}


def _is_or_was(file: Path, gone: frozenset[Path]) -> bool:
    return file in gone or file.is_file()


def _files_of(dotted: str, folders: Sequence[Path], gone: frozenset[Path] = frozenset()) -> list[Path]:
    """The files that importing a dotted name runs; what follows a module in it is an attribute."""
    parts = dotted.split(".")
    found = []
    for folder in folders:
        for count in range(len(parts) + 1):
            path = folder.joinpath(*parts[:count])
            candidates = (path / "__init__.py", path.with_suffix(".py") if count else path / "__init__.py")
            found += [resolved for file in candidates if _is_or_was((resolved := file.resolve()), gone)]
    return found


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _definitions(tree: ast.Module) -> dict[str, list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    found: dict[str, list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for node in tree.body:
        if isinstance(node, _DEFINITIONS):
            found.setdefault(node.name, []).append(node)
    return found


def _dumps(nodes: Sequence[ast.AST]) -> list[str]:
    """Sources without their comments, layout and line numbers."""
    return [ast.dump(node) for node in nodes]


def _used(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
