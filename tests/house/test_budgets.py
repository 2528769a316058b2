"""The house keeps its size: a budget of lines for each room, short modules and functions, no name twice.

    python tests/house/test_budgets.py            what each room has, and how many modules have one user
    python tests/house/test_budgets.py --renew    lowers the budgets to what there is

A budget rises only by an issue that names the room.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "gradverify"
KEPT = Path(__file__).with_name("budgets.json")

LONGEST_MODULE, LONGEST_FUNCTION = 300, 40
"""Lines; a function's docstring does not count."""

WORDS = 900
"""Of the page on the architecture: fewer."""

STEP = 10
"""Budgets are rounded up to so many lines."""

GOALS = {
    "cli": 1_500, "report": 2_700, "session": 3_600, "spec": 3_900, "rules": 300, "source": 1_500,
    "lint": 1_000, "record": 1_100, "api": 900, "verifier": 1_700, "verifier/collect": 600,
    "verifier/inputs": 1_000, "verifier/numerics": 3_100, "verifier/checks": 2_900, "verifier/doubt": 600,
    "verifier/variations": 3_800, "verifier/infer": 2_900, "verifier/diagnose": 2_800,
    "verifier/suggest": 1_100, "verifier/dump": 400, "verifier/mutation": 300,
}  # fmt: skip
"""Where each room is to go, 40,000 lines in all."""


def files() -> list[Path]:
    """Code, and tables that stand in the place of code."""
    return sorted(
        p for e in ("py", "yaml", "json") for p in HOUSE.rglob(f"*.{e}") if "__pycache__" not in p.parts
    )


def room_of(path: Path) -> str:
    """`spec`, `verifier`, `verifier/infer`; what stands at the top is a room of its own."""
    parts = path.relative_to(HOUSE).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("verifier",) else 1]) or "top"


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


def rooms() -> Counter[str]:
    """Lines of each room."""
    found: Counter[str] = Counter()
    for path in files():
        found[room_of(path)] += length(path)
    return found


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(`room/module.py:Class.function`, lines) of all that are too long, without their docstrings."""

    def below(node: ast.AST, within: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            name = f"{within}.{child.name}".lstrip(".") if hasattr(child, "name") else within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = child.body[0]
                is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                said = first.end_lineno - first.lineno + 1 if is_docstring else 0
                lines = child.end_lineno - child.lineno + 1 - said
                if lines > LONGEST_FUNCTION:
                    yield f"{path.relative_to(HOUSE)}:{name}", lines
            yield from below(child, name)

    yield from below(ast.parse(path.read_text()), "")


def present() -> dict[str, dict[str, int]]:
    """Lines of rooms, rounded up, and of modules and functions that are too long."""
    code = [path for path in files() if path.suffix == ".py"]
    return {
        "rooms": {room: -(-lines // STEP) * STEP for room, lines in sorted(rooms().items())},
        "modules": {str(p.relative_to(HOUSE)): n for p in code if (n := length(p)) > LONGEST_MODULE},
        "functions": dict(found for path in code for found in functions(path)),
    }


BUDGETS = json.loads(KEPT.read_text()) if KEPT.exists() else {}


@pytest.mark.parametrize("kind", ["rooms", "modules", "functions"])
def test_nothing_grows_beyond_its_budget(kind):
    allowed, now = BUDGETS[kind], present()[kind]
    grown = {
        name: f"{lines} lines, {allowed.get(name, 0)} allowed, the goal is {GOALS.get(name, 'less')}"
        for name, lines in now.items()
        if lines > allowed.get(name, 0)
    }
    assert not grown, "shorten it, or name the room in an issue"


@pytest.mark.parametrize("kind", ["rooms", "modules", "functions"])
def test_no_budget_is_left_for_what_is_short_by_now(kind):
    assert not set(BUDGETS[kind]) - set(present()[kind]), f"python {Path(__file__).name} --renew"


def test_no_module_name_stands_twice_in_a_room():
    names = Counter((room_of(p), p.stem) for p in files() if p.suffix == ".py" and p.stem != "__init__")
    assert not [name for name, count in names.items() if count > 1]


def test_the_counting_of_functions_leaves_out_docstrings(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "HOUSE", tmp_path)
    body = "\n".join("    x = 1" for _ in range(LONGEST_FUNCTION - 1))
    (tmp_path / "m.py").write_text(
        f'def short():\n    """Two\n\n    lines."""\n{body}\n\ndef long():\n{body}\n    y = 1\n'
    )
    assert list(functions(tmp_path / "m.py")) == [("m.py:long", LONGEST_FUNCTION + 1)]


def test_the_page_on_the_architecture_is_short_and_names_what_is_there():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(page.split()) < WORDS
    named = set(re.findall(r"`([\w/]+(?:/|\.py|\.md))`", page))
    below = (ROOT, HOUSE, HOUSE / "verifier", HOUSE / "verifier" / "numerics")
    assert named and not [name for name in named if not any((folder / name).exists() for folder in below)]


def users() -> Counter[str]:
    """By how many other modules each is imported."""
    found: Counter[str] = Counter()
    for path in files():
        if path.suffix == ".py":
            names = {n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)}
            found.update(name for name in names if name and name.startswith("gradverify."))
    return found


if __name__ == "__main__":
    now = present()
    for room, lines in rooms().most_common():
        print(f"{room:22} {lines:6} lines   goal {GOALS.get(room, '-')}")
    print(f"{'all':22} {rooms().total():6} lines in {len(files())} files   goal 40000 in 330")
    print(f"{sum(count == 1 for count in users().values())} modules are imported by one other only")
    if "--renew" in sys.argv:
        old = BUDGETS or now
        kept = {
            kind: {name: min(lines, old[kind].get(name, lines)) for name, lines in now[kind].items()}
            for kind in now
        }
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
