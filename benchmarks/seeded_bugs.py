"""Bugs planted in the source of right backwards: which of them `gradverify check` does not see.

    python benchmarks/seeded_bugs.py [--each 6] [--source new] [--seeds 0] [--no-spec] [--packages]
                                     [--kind KIND ...] [--by-hand] [--keep DIR]

Right Functions (`seeded/authors.py`, `right_functions/`, the zoo, the right ones of `wrong_backwards/`, and
with --packages the published ones of `specs/`) are changed at one place (`seeded/mutations.py`), --each
of them per Function, chosen by hash, or, --by-hand, as `seeded/by_hand.py` says. A plain oracle
(`seeded/oracle.py`) says which mutants have other gradients, and where; the command then judges them. Prints
Markdown, and lists every mutant that stays green though its gradients are others. With --keep, what was
judged before is not judged again.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from diagnosis import SETS_IN_ORDER
from diagnosis import written as set_written
from seeded.by_hand import mutants_by_hand
from seeded.mutations import Mutant, chosen, mutants_of

from gradverify.spec.yaml_core import CoreLoader

HERE = Path(__file__).parent
ROOT = HERE.parent
ZOO = (
    "authors",
    "general",
    "sweep",
    "precision",
    "sizes",
    "transforms",
    "contract",
    "regimes",
    "tutorial",
    "modules",
    "ops",
)
BATCH = 84
"""Mutants in one module."""


@dataclass(frozen=True)
class Source:
    """A module of right Functions with the spec they pass with."""

    name: str
    code: Path
    spec: Path
    package: str = ""
    """What relative imports are relative to."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--each", type=int, default=6, help="mutants of each Function")
    arguments.add_argument("--source", action="append", help="only sources whose name contains this")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--no-spec", action="store_true", help="judge them without a spec")
    arguments.add_argument("--packages", action="store_true", help="published packages too")
    arguments.add_argument("--keep", type=Path, help="leave modules, verdicts and reports here")
    arguments.add_argument("--by-hand", action="store_true", help="the mistakes of `seeded/by_hand.py`")
    arguments.add_argument("--kind", action="append", help="only mistakes of these kinds")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (options.keep or Path(made)).resolve()
        rows = []
        for source in sources(Path(made), packages=options.packages):
            if options.source and not any(part in source.name for part in options.source):
                continue
            rows += judged(source, folder / source.name, options)
            print(f"{source.name}: {len(rows)} so far", file=sys.stderr, flush=True)
        if options.keep:
            (folder / "rows.json").write_text(json.dumps(rows, indent=1))
        tell(rows)


def sources(made: Path, *, packages: bool) -> Iterator[Source]:
    yield Source("new", HERE / "seeded/authors.py", HERE / "seeded/authors.gradverify.yaml")
    for code in sorted((HERE / "right_functions").glob("*.py")):
        yield Source(f"right-{code.stem}", code, code.with_suffix(".gradverify.yaml"))
    for name in ZOO:
        folder = ROOT / "tests/zoo" / name
        yield Source(f"zoo-{name}", folder / "right.py", folder / "right.gradverify.yaml")
    for name in SETS_IN_ORDER:
        (folder := made / f"set-{name}").mkdir()
        set_written(name, folder, (1, 1))
        yield Source(f"set-{name}", folder / "right.py", folder / "right.gradverify.yaml")
    for file in sorted((ROOT / "specs").glob("*/*.gradverify.yaml")) if packages else ():
        module = yaml.safe_load(file.read_text())["module"]
        try:
            found = importlib.util.find_spec(module)
        except ImportError:  # the package, or what it imports itself, is not installed
            continue
        if found is not None and found.origin:
            yield Source(f"package-{module}", Path(found.origin), file, module.rpartition(".")[0])


def judged(source: Source, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each mutant of a source: what the oracle and the command say."""
    folder.mkdir(parents=True, exist_ok=True)
    written = yaml.load(source.spec.read_text(), CoreLoader)  # `off` is a name there
    tree = absolute(ast.parse(source.code.read_text()), source.package)
    classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n in tree.body}
    by_function: dict[str, list[Mutant]] = {}
    for key, entry in written["functions"].items():
        name = (entry or {}).get("target", key)
        is_usable = name in classes and "skip" not in entry and "reason" not in str(entry.get("surrogate"))
        if is_usable and name == (key if options.by_hand else key.partition("@")[0]):
            made = mutants_by_hand(classes[name]) if options.by_hand else mutants_of(classes[name])
            made = [m for m in made if m.kind in (options.kind or [m.kind])]
            by_function[key] = made if options.by_hand else chosen(made, options.each)
    pairs = [(key, m) for key, mutants in by_function.items() for m in mutants]
    text = ast.unparse(tree)
    (folder / source.code.name).write_text(source.code.read_text() if not source.package else text)
    rows = []
    for number in range(0, len(pairs), BATCH):
        rows += batch(source, folder, written, text, pairs[number : number + BATCH], number // BATCH, options)
    return rows


def absolute(tree: ast.Module, package: str) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and package:
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1]
            node.module, node.level = ".".join([*base, *([node.module] if node.module else [])]), 0
    return tree


def batch(source, folder, written, text, pairs, number, options) -> list[dict[str, Any]]:
    module = f"mutants_{number}.py"
    stem = folder / f"mutants_{number}"
    (folder / module).write_text("\n\n".join([text, *(m.source for _, m in pairs)]) + "\n")
    listed: dict[str, list[dict[str, Any]]] = {}
    functions, seen = {}, dict(written["functions"])
    keys = {}
    for key, mutant in pairs:
        listed.setdefault(key, []).append({"name": mutant.name})
        entry = {k: v for k, v in seen[key].items() if k != "target"}
        keys[mutant.name] = mutant.name
        functions[mutant.name] = entry
    spec = {**written, "module": module}
    oracle_spec = stem.with_name(f"oracle_{number}.gradverify.yaml")
    originals = {
        k: {n: v for n, v in seen[k].items() if n != "target"}
        | ({"target": k.partition("@")[0]} if "@" in k else {})
        for k in listed
    }
    oracle_spec.write_text(yaml.safe_dump({**spec, "functions": originals}, sort_keys=False))
    stem.with_name(f"mutants_{number}.json").write_text(json.dumps(listed))
    truth = printed(
        ["-m", "seeded.oracle", str(oracle_spec), str(stem.with_name(f"mutants_{number}.json"))], HERE
    )
    oracle_spec.unlink()
    file = stem.with_name(f"mutants_{number}.gradverify.yaml")
    file.write_text(yaml.safe_dump({**spec, "functions": functions}, sort_keys=False))
    rows = []
    for seed in options.seeds:
        targets = checked(folder, file, [m.name for _, m in pairs], module, seed, options.no_spec)
        for key, mutant in pairs:
            target = targets.get(mutant.name, {"status": "absent", "findings": []})
            rows.append(row(source, key, mutant, truth.get(mutant.name), target, seed))
    return rows


def checked(folder, file, names, module, seed, no_spec) -> dict[str, dict[str, Any]]:
    report = folder / f"{file.name.partition('.')[0]}_{seed}{'_bare' if no_spec else ''}.jsonl"
    if no_spec:
        bare = folder / "bare"
        bare.mkdir(exist_ok=True)
        for code in folder.glob("*.py"):
            (bare / code.name).write_text(code.read_text())
        folder = bare
    targets = [f"{module}::{name}" for name in names]
    command = [sys.executable, "-m", "seeded.judging", str(report), str(seed), *targets]
    ran = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode:
        print(f"{file}: {ran.stderr[-3000:]}", file=sys.stderr)
    judged = report.read_text().splitlines() if report.exists() else []
    return {t["name"]: t for t in map(json.loads, judged)}


def printed(arguments: list[str], cwd: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        print(ran.stderr[-3000:], file=sys.stderr)
        return {}
    return json.loads(ran.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), str(ROOT / "specs"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def row(source, key, mutant, truth, target, seed) -> dict[str, Any]:
    errors = [f for f in target["findings"] if f["severity"] == "error" and not f.get("expected")]
    return {
        "source": source.name,
        **{k: v for k, v in asdict(mutant).items() if k != "source"},
        "key": key,
        "seed": seed,
        "truth": truth,
        "effect": effect_of(truth),
        "status": target["status"],
        "codes": sorted({f["code"] for f in errors}),
        "warnings": sorted({f["code"] for f in target["findings"] if f["severity"] == "warning"}),
        "causes": sorted({f["cause"] for f in errors if f.get("cause")}),
        "located": sorted({f["input"] for f in errors if f["code"] == "GV101" and f.get("input")}),
    }


def effect_of(truth: dict[str, Any] | None) -> str:
    """In what a mutant differs: the most ordinary question at which it does."""
    if truth is None or not truth["calls"]:
        return "unknown"
    declared = truth["declared"]
    if "plain" in declared:
        return "gradient"
    if declared.keys() - {"second"}:
        return "use"
    if "second" in declared:
        return "second derivative"
    if truth["elsewhere"]:
        return "other sizes"
    return "fine" if truth["fine"] else "none"


EFFECTS = {
    "gradient": "gradient, one ordinary backward",
    "use": "layouts, subsets, repeated or interleaved calls",
    "second derivative": "second derivative alone",
    "other sizes": "only at sizes the spec does not name",
    "fine": "below 1e-6 of the gradient",
}


def tell(rows: list[dict[str, Any]]) -> None:
    print("| what differs | mutants | failed | inconclusive or unchecked | green |")
    print("|---|---|---|---|---|")
    for effect, words in EFFECTS.items():
        of = [r for r in rows if r["effect"] == effect]
        status = Counter(r["status"] for r in of)
        green = status["passed"] + status["xfailed"] + status["skipped"]
        rest = len(of) - status["failed"] - green
        print(f"| {words} | {len(of)} | {status['failed']} | {rest} | {green} |")
    equal = [r for r in rows if r["effect"] in {"none", "unknown"}]
    failed = sum(r["status"] == "failed" for r in equal)
    print(f"\nLeft out, as no gradient differs: {len(equal)}, failed {failed}.")
    for r in rows:
        is_green = r["status"] in {"passed", "xfailed", "skipped"}
        if (is_green and r["effect"] not in {"none", "unknown"}) or r["status"] == "absent":
            print(f"- {r['effect']}: {r['source']} {r['name']} (seed {r['seed']}): {r['line'][:160]}")


if __name__ == "__main__":
    main()
