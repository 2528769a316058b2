"""Every set of cases there is, and the one way to load them: Functions with and without a spec.

| set | Functions |
|---|---|
| `zoo/FOLDER/MODULE` | `tests/zoo`: right ones and their wrong twins, with the verdict each must get |
| `right/MODULE` | right ones in the style of packages and papers, with their specs |
| `wrong/NAME`, `wrong_sets_right/NAME` | right ones and the mistakes that authors make in them, with causes |
| `seeded/MODULE` | those of `right/`, each with a mistake planted in its source |
| `bare/...` | the same without their specs |
| `modules/FOLDER/MODULE` | `tests/modules`: what tests of single kinds of samples and guesses are about |
| `field/FOLDER/MODULE` | `tests/field`: what bug reports and published files found |
| `unseen/MODULE` | by another hand, frozen before they were run; the truth is in a JSON file beside them |
| `attacks/attacks` | 77 that attack the derived witness: W wrong, R right, S an undeclared surrogate |
| `published/PACKAGE` | the specs of `specs/`, where the package is installed |
"""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cases.mutants import chosen, mutants_of
from cases.mutants.by_hand import mutants_by_hand
from gradverify.spec.yaml_core import CoreLoader

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ZOO = ROOT / "tests" / "zoo"
MODULES = ROOT / "tests" / "modules"
FIELD = ROOT / "tests" / "field"

OF_MODULES = (
    "accidents", "constants", "cut", "eight_bits", "guessed", "inference", "kinds", "neighbours", "options",
    "undeclared", "unlisted",
)  # fmt: skip
"""Folders of `tests/modules` whose Functions are verified; the others hang, crash or are no Functions."""

NO_TARGETS = frozenset(
    {
        "__init__",
        "expected",
        "helper",
        "helpers",
        "intended",
        "memory",
        "ranks",
        "references",
        "second_device",
    }
    | {"tools", "truth", "values"}
)
"""Modules that others import, and those that start processes for each case."""

WRONG_SETS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
)
"""In the order in which they were written. `first` is the one that the hypotheses were improved on; each pair
from the seventh on is by an author who knew none of the others."""

HEAD = """'A set of wrong backwards, or the right ones of it.'

import math

import numpy as np
import torch
from torch.autograd.function import once_differentiable
"""

TWICE_DIFFERENTIABLE = ("StaleBuffer", "ClassState")
"""Functions that are verified at second order too: the others save intermediates, as layers do.

A set may name more of its own."""


@dataclass(frozen=True)
class Set:
    """Functions that are checked together."""

    name: str
    write: Callable[[Path], str]
    """Writes their module, and the spec if it has one, into a folder; returns what `check` is given."""


@dataclass(frozen=True)
class Wrong:
    """One wrong backward, and the causes that are right."""

    name: str
    causes: frozenset[str]
    admitted: frozenset[str]
    """Causes that were admitted after the first run."""
    coarser: frozenset[str]
    """Causes that are true and say less than the right one does."""


def sets() -> list[Set]:
    """All of them, in the order in which they are run."""
    right = sorted((HERE / "right").glob("*.py"))
    packages = sorted(path for path in (ROOT / "specs").iterdir() if path.is_dir())
    found = [
        Set(f"zoo/{module.parent.name}/{module.stem}", partial(_of_zoo, module))
        for module in sorted(ZOO.glob("*/*.py"))
        if module.stem not in NO_TARGETS
    ]
    found += [
        Set(f"modules/{folder}/{module.stem}", partial(_of_zoo, module))
        for folder in OF_MODULES
        for module in sorted((MODULES / folder).glob("*.py"))
        if module.stem not in NO_TARGETS
    ]
    found += [
        Set(f"field/{module.relative_to(FIELD).with_suffix('').as_posix()}", partial(_of_field, module))
        for module in sorted(FIELD.glob("*/**/*.py"))
        if module.stem not in NO_TARGETS
    ]
    for module in right:
        found.append(Set(f"right/{module.stem}", partial(copied, module, with_spec=True)))
        found.append(Set(f"bare/right/{module.stem}", partial(copied, module, with_spec=False)))
    for name in WRONG_SETS:
        found.append(Set(f"wrong/{name}", partial(_of_set, name, "wrong", with_spec=True)))
        found.append(Set(f"wrong_sets_right/{name}", partial(_of_set, name, "right", with_spec=True)))
        found.append(Set(f"bare/wrong/{name}", partial(_of_set, name, "wrong", with_spec=False)))
    found += [
        Set(f"bare/zoo/{folder}_{stem}", partial(copied, ZOO / folder / f"{stem}.py", with_spec=False))
        for folder in ("general", "authors")
        for stem in ("right", "wrong")
    ]
    found += [Set(f"seeded/{module.stem}", partial(mutated, module, each=1)) for module in right]
    found += [
        Set(f"{folder}/{module.stem}", partial(copied, module, with_spec=spec_beside(module).exists()))
        for folder in ("unseen", "attacks")
        for module in sorted((HERE / folder).glob("*.py"))
    ]
    return found + [Set(f"published/{path.name}", partial(_published, path)) for path in packages]


def copied(module: Path, folder: Path, *, with_spec: bool) -> str:
    """A module, with the spec that lies beside it."""
    shutil.copy(module, folder)
    if with_spec:
        shutil.copy(spec_beside(module), folder)
    return module.name


def mutated(module: Path, folder: Path, *, each: int, by_hand: bool = True) -> str:
    """A module with mistakes in its Functions: `each` of them chosen by hash, and those by hand."""
    spec = yaml.load(spec_beside(module).read_text(), CoreLoader)  # `off` is a name there
    classes = {n.name: n for n in ast.parse(module.read_text()).body if isinstance(n, ast.ClassDef)}
    texts, functions = [module.read_text()], {}
    for key, entry in spec["functions"].items():
        if key in classes and "skip" not in (entry or {}):
            planted = chosen(mutants_of(classes[key]), each)
            for mutant in (*planted, *(mutants_by_hand(classes[key]) if by_hand else ())):
                texts.append(mutant.source)
                functions[mutant.name] = {k: v for k, v in (entry or {}).items() if k != "target"}
    (folder / module.name).write_text("\n\n".join(texts) + "\n")
    path = folder / spec_beside(module).name
    path.write_text(yaml.safe_dump({**spec, "functions": functions}, sort_keys=False))
    return path.name


def spec_beside(module: Path) -> Path:
    return module.with_name(f"{module.stem}.gradverify.yaml")


def _of_zoo(module: Path, folder: Path) -> str:
    """A module of the zoo among the others of its folder."""
    shutil.copytree(
        module.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    return module.name


def _of_field(module: Path, folder: Path) -> str:
    """A module where the others of its case lie as they do, checked from the folder of the case."""
    shown = module.relative_to(FIELD)
    shutil.copytree(FIELD / shown.parts[0], folder, dirs_exist_ok=True)
    return shown.relative_to(shown.parts[0]).as_posix()


def _of_set(name: str, stem: str, folder: Path, *, with_spec: bool) -> str:
    written(name, folder)
    if not with_spec:
        for spec in folder.glob("*.yaml"):
            spec.unlink()
    return f"{stem}.py"


def _published(package: Path, folder: Path) -> str:
    """The specs of a package that is installed; raises `ModuleNotFoundError` where it is not."""
    for spec in package.glob("*.gradverify.yaml"):
        module = yaml.load(spec.read_text(), CoreLoader)["module"]
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ModuleNotFoundError(module)
    shutil.copytree(package, folder, dirs_exist_ok=True)
    return "."


def written(name: str, folder: Path) -> dict[str, Wrong]:
    """Write `right.py` and `wrong.py` of a set of wrong backwards, with their specs; the causes by target."""
    loaded = runpy.run_path(str(HERE / "wrong" / f"{name}.py"))
    sizes = dict(pair.split(": ") for pair in loaded["SIZES"].split(", "))
    right, wrong, manifest = [HEAD], [HEAD], {}
    specs = {stem: f"gradverify: 1\nmodule: {stem}.py\nfunctions:\n" for stem in ("right", "wrong")}
    twice = (*TWICE_DIFFERENTIABLE, *loaded.get("TWICE_DIFFERENTIABLE", ()))
    for function, inputs, source, bugs in loaded["FUNCTIONS"]:
        right.append(a_class(function, source))
        specs["right"] += spec_of(function, inputs, sizes, twice)
        for bug, old, new, causes in bugs:
            called = f"{function}_{bug.replace('-', '_')}"
            wrong.append(a_class(called, replaced(source, old, new)))
            specs["wrong"] += spec_of(called, inputs, sizes, twice)
            manifest[called] = _wrong(called, causes.split())
    for stem, classes in (("right", right), ("wrong", wrong)):
        (folder / f"{stem}.py").write_text("".join(classes))
        (folder / f"{stem}.gradverify.yaml").write_text(specs[stem])
    return manifest


def _wrong(name: str, words: list[str]) -> Wrong:
    """Causes as a set writes them: `=name` was admitted later, `~name` is coarser."""
    return Wrong(
        name,
        frozenset(w for w in words if w[0] not in "=~"),
        frozenset(w[1:] for w in words if w[0] == "="),
        frozenset(w[1:] for w in words if w[0] == "~"),
    )


def a_class(name: str, body: str) -> str:
    """A Function; `SELF` in its body is its name, and what it needs beside it stands above a line `@@`."""
    above, mark, inside = body.replace("SELF", name).partition("@@\n")
    above, inside = (above.strip("\n"), inside) if mark else ("", above)
    return f"\n\n{above}\n\n\nclass {name}(torch.autograd.Function):\n{inside.strip(chr(10)).rstrip()}\n"


def replaced(source: str, old: str | tuple[str, ...], new: str | tuple[str, ...]) -> str:
    """The source with a mistake, which may need several places."""
    pairs = zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]
    for before, after in pairs:
        if source.count(before) != 1:
            raise ValueError(f"`{before}` stands {source.count(before)} times in the source")
        source = source.replace(before, after)
    return source


def spec_of(name: str, inputs: str, sizes: dict[str, str], twice: tuple[str, ...]) -> str:
    """The entry of a Function in a spec, with the sizes that its shapes use."""
    shapes = " ".join(re.findall(r"\[[^\]]*\]", inputs))
    used = ", ".join(f"{s}: {n}" for s, n in sizes.items() if re.search(rf"\b{s}\b", shapes))
    lines = [f"  {name}:", f"    sizes: {{{used}}}", "    inputs:"]
    lines += [f"      {line}" for line in inputs.strip().splitlines()]
    if name.split("_", maxsplit=1)[0] not in twice:
        lines.append('    ignore: {GV2: "first order only"}')
    return "\n".join(lines) + "\n"


def judgement(wrong: Wrong, status: str, findings: list[dict[str, Any]]) -> str:
    """One of `right`, `coarser`, `none`, `wrong`, `missed`: how a wrong backward was named."""
    named = {f["cause"] for f in findings if f["severity"] == "error" and f.get("cause")}
    if status != "failed":
        return "missed"
    if named - wrong.causes - wrong.admitted - wrong.coarser:
        return "wrong"
    if named & wrong.coarser:
        return "coarser"
    return "right" if named else "none"
