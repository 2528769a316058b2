"""Bugs planted in the source of right backwards: which of them `gradverify check` does not see.

    python benchmarks/seeded_bugs.py [--each 6] [--source new] [--seed 0] [--no-spec] [--by-hand] [--keep DIR]

The right Functions of `cases/right`, of the zoo and of the sets of wrong backwards are changed at one place
(`cases/mutants`), --each of them per Function, chosen by hash, and, --by-hand, as `cases/mutants/by_hand.py`
says. The command judges all; of those that do not fail, plain autograd (`cases/mutants/truth.py`) says which
have other gradients, and where. Prints Markdown, and lists every mutant that stays green though its gradients
are others. --keep leaves modules and reports in a folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from cases import HERE, WRONG_SETS, ZOO, mutated, spec_beside, written
from oracle import environment

from gradverify.spec.yaml_core import CoreLoader

EFFECTS = ("gradient", "use", "second derivative", "other sizes", "below 1e-6", "none", "not asked")


def sources(made: Path) -> Iterator[tuple[str, Path]]:
    """Modules of right Functions with a spec beside them, by name."""
    for code in sorted((HERE / "right").glob("*.py")):
        yield f"right-{code.stem}", code
    for code in sorted(ZOO.glob("*/right.py")):
        yield f"zoo-{code.parent.name}", code
    for name in WRONG_SETS:
        (folder := made / name).mkdir()
        written(name, folder)
        yield f"set-{name}", folder / "right.py"


def judged(module: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each mutant of a module: its status, and what differs where it does not fail."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / mutated(module, folder, each=options.each, by_hand=options.by_hand)
    names = list(yaml.load(spec.read_text(), CoreLoader)["functions"])
    what = [f"{module.name}::{name}" for name in names] if options.no_spec else [spec.name]
    kept = spec.read_text()
    if options.no_spec:
        spec.unlink()
    command = [sys.executable, "-m", "gradverify", "check", *what, "--format", "json"]
    command += [
        "--effort",
        "quick",
        "--seed",
        str(options.seed),
        *([] if options.no_spec else ["--no-infer"]),
    ]
    ran = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    (folder / f"{module.stem}.json").write_text(ran.stdout)
    targets = {t["name"]: t["status"] for t in json.loads(ran.stdout)["targets"]}
    spec.write_text(kept)
    unseen = [name for name in names if targets.get(name) != "failed"]
    truth = differences(spec, spec_beside(module), unseen)
    return [
        {"name": n, "status": targets.get(n, "absent"), "effect": truth.get(n, "not asked")} for n in names
    ]


def differences(spec: Path, original: Path, names: list[str]) -> dict[str, str]:
    """In what each mutant differs from the Function that it came from: one of `EFFECTS`."""
    of_function: dict[str, list[dict[str, str]]] = {}
    for name in names:
        of_function.setdefault(name.rpartition("__")[0].partition("__")[0], []).append({"name": name})
    mutants = spec.with_name("mutants.json")
    mutants.write_text(json.dumps(of_function))
    beside = spec.with_name("original.gradverify.yaml")
    beside.write_text(original.read_text())
    command = [sys.executable, "-m", "cases.mutants.truth", str(beside), str(mutants)]
    ran = subprocess.run(
        command, cwd=HERE.parent, env=environment(), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        print(ran.stderr[-2000:], file=sys.stderr)
        return {}
    return {name: effect_of(found) for name, found in json.loads(ran.stdout.splitlines()[-1]).items()}


def effect_of(truth: dict[str, Any]) -> str:
    """The most ordinary question at which a mutant gives other gradients."""
    declared = truth["declared"]
    if not truth["calls"]:
        return "not asked"
    if "plain" in declared:
        return "gradient"
    if declared.keys() - {"second"}:
        return "use"
    if "second" in declared:
        return "second derivative"
    return "other sizes" if truth["elsewhere"] else "below 1e-6" if truth["fine"] else "none"


def show(rows: list[dict[str, Any]]) -> None:
    failed = sum(row["status"] == "failed" for row in rows)
    print(f"{len(rows)} mutants: {failed} failed\n\n| what differs of the others | {' | '.join(STATUSES)} |")
    print("|---" * (1 + len(STATUSES)) + "|")
    counts = Counter((row["effect"], row["status"]) for row in rows)
    for effect in EFFECTS:
        print(f"| {effect} | {' | '.join(str(counts[effect, status]) for status in STATUSES)} |")
    for row in rows:
        if row["status"] == "passed" and row["effect"] not in {"none", "not asked"}:
            print(f"green: {row['name']} ({row['effect']})")


STATUSES = ("inconclusive", "unchecked", "passed", "absent")


def main() -> None:
    """Judge the mutants of every source."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--each", type=int, default=6, help="mutants of each Function")
    parser.add_argument("--source", action="append", help="only sources whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-spec", action="store_true", help="judge them without a spec")
    parser.add_argument("--by-hand", action="store_true", help="the mistakes by hand too")
    parser.add_argument("--keep", type=Path, help="leave modules and reports here")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for name, module in sources(Path(made)):
            if not options.source or any(part in name for part in options.source):
                rows += judged(module, (options.keep or Path(made) / "judged").resolve() / name, options)
                print(f"{name}: {len(rows)} so far", file=sys.stderr, flush=True)
    show(rows)


if __name__ == "__main__":
    main()
