"""How many wrong backwards are found, and how often the cause that is named is the true one.

    python benchmarks/diagnosis.py [--set first|...|fourteenth] [--seeds 1] [--verbose]
                                   [--shard 1/4] [--timeout 300] [--keep FOLDER]

Functions as authors write them, each right and with mistakes that authors make (`wrong_backwards/`), through
the command with a spec. `first` is the set that the hypotheses were improved on, `second` was written after
they were frozen, `third` by another hand that did not know them, `fourth` after they were improved and frozen
once more, by the hand that did it, `fifth`, `sixth`, and the pairs of `seventh` and `eighth`, of `ninth` and
`tenth`, of `eleventh` and `twelfth`, and of `thirteenth` and `fourteenth`, by six more that knew none of the
others. Prints Markdown. "no cause" is a finding without a cause; "coarser" is one that is true but says less
than the right one; "wrong cause" names one that is not in the set's list. Right Functions must pass at every
seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETS = Path(__file__).parent / "wrong_backwards"

SETS_IN_ORDER = (
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
)

HEAD = """'A set of wrong backwards, or the right ones of it.'

import math

import numpy as np
import torch
from torch.autograd.function import once_differentiable
"""

KINDS = ("right", "coarser", "none", "wrong", "missed")

TWICE_DIFFERENTIABLE = ("StaleBuffer", "ClassState")
"""Functions that are verified at second order too: the others save intermediates, as layers do.

A set may name more of its own."""


@dataclass(frozen=True)
class Wrong:
    """One wrong backward, and the causes that are right."""

    name: str
    causes: frozenset[str]
    admitted: frozenset[str]
    """Causes that were admitted after the first run."""
    coarser: frozenset[str]
    """Causes that are true and say less than the right one does."""


@dataclass(frozen=True)
class Part:
    """Which of a set's Functions are run, and how."""

    shard: tuple[int, int]
    """This part, from 1 on, of so many."""
    seeds: int
    timeout: str
    """Seconds for one target, as the command takes them."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--set", choices=list(SETS_IN_ORDER), action="append")
    arguments.add_argument("--seeds", type=int, default=1, help="seeds of the right Functions")
    arguments.add_argument("--verbose", action="store_true", help="list what has no cause, or a wrong one")
    arguments.add_argument(
        "--shard", default="1/1", help="I/N: every Nth wrong and right one, from the Ith on"
    )
    arguments.add_argument("--timeout", default="60", help="seconds for one target")
    arguments.add_argument("--keep", type=Path, help="a folder for the modules and their reports")
    options = arguments.parse_args()
    first, last = options.shard.split("/")
    part = Part((int(first), int(last)), options.seeds, options.timeout)
    print(
        "| set | wrong backwards | found | right cause | coarser | no cause | wrong cause "
        "| right, alarms | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    told: list[str] = []
    for name in options.set or SETS_IN_ORDER:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.keep / f"{name}-{first}" if options.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            told += row(name, folder, part)
    if options.verbose:
        print("\n" + "\n".join(told))


def row(name: str, folder: Path, part: Part) -> list[str]:
    """Run one set, print its row, and say what was not named rightly."""
    manifest = written(name, folder, part.shard)
    begun = time.perf_counter()
    targets = checked(folder, "wrong.py", 0, part.timeout)
    seconds = time.perf_counter() - begun
    judged = {t["name"]: judgement(manifest[t["name"]], t) for t in targets}
    counts = {kind: sum(j == kind for j in judged.values()) for kind in KINDS}
    runs = [(seed, t) for seed in range(part.seeds) for t in checked(folder, "right.py", seed, part.timeout)]
    alarms = [
        f"{name} {t['name']}, seed {seed}: {t['status']}" for seed, t in runs if t["status"] != "passed"
    ]
    found = len(judged) - counts["missed"]
    print(
        f"| {name} | {len(judged)} | {found} | {counts['right']} | {counts['coarser']} | {counts['none']} "
        f"| {counts['wrong']} | {len(alarms)} of {len(runs)} | {seconds:.0f} |"
    )
    said = {t["name"]: ", ".join(sorted(causes_named(t))) for t in targets}
    told = [f"{name} {t}: {judged[t]} {said[t]}".rstrip() for t in sorted(judged) if judged[t] != "right"]
    return told + alarms


def judgement(wrong: Wrong, target: dict[str, Any]) -> str:
    """One of `KINDS`."""
    if target["status"] != "failed":
        return "missed"
    named = causes_named(target)
    if named - wrong.causes - wrong.admitted - wrong.coarser:
        return "wrong"
    if named & wrong.coarser:
        return "coarser"
    return "right" if named else "none"


def causes_named(target: dict[str, Any]) -> set[str]:
    """The causes in a target's errors."""
    return {f["cause"] for f in target["findings"] if f["severity"] == "error" and f.get("cause")}


def written(name: str, folder: Path, shard: tuple[int, int]) -> dict[str, Wrong]:
    """Write the right and the wrong module of a set, or of a part of it, with their specs."""
    loaded = runpy.run_path(str(SETS / f"{name}.py"))
    sizes = dict(pair.split(": ") for pair in loaded["SIZES"].split(", "))
    right, wrong, manifest = [HEAD], [HEAD], {}
    specs = {stem: f"gradverify: 1\nmodule: {stem}.py\nfunctions:\n" for stem in ("right", "wrong")}
    planted = itertools.count(1 - shard[0])
    twice = (*TWICE_DIFFERENTIABLE, *loaded.get("TWICE_DIFFERENTIABLE", ()))
    for place, (function, inputs, source, bugs) in enumerate(loaded["FUNCTIONS"], 1 - shard[0]):
        if place % shard[1] == 0:
            right.append(a_class(function, source))
            specs["right"] += spec_of(function, inputs, sizes, twice)
        for bug, old, new, causes in bugs:
            if next(planted) % shard[1]:
                continue
            called = f"{function}_{bug.replace('-', '_')}"
            wrong.append(a_class(called, replaced(source, old, new)))
            specs["wrong"] += spec_of(called, inputs, sizes, twice)
            words = causes.split()
            manifest[called] = Wrong(
                called,
                frozenset(w for w in words if w[0] not in "=~"),
                frozenset(w[1:] for w in words if w[0] == "="),
                frozenset(w[1:] for w in words if w[0] == "~"),
            )
    for stem, classes in (("right", right), ("wrong", wrong)):
        (folder / f"{stem}.py").write_text("".join(classes))
        (folder / f"{stem}.gradverify.yaml").write_text(specs[stem])
    return manifest


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


def checked(folder: Path, module: str, seed: int, timeout: str) -> list[dict[str, Any]]:
    """The targets of a report, which is left beside the module."""
    spec = module.replace(".py", ".gradverify.yaml")
    command = [sys.executable, "-m", "gradverify", "check", spec, "--format", "json", "--seed", str(seed)]
    command += ["--timeout", timeout]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not ran.stdout:
        raise RuntimeError(ran.stderr)
    (folder / f"{module}.{seed}.json").write_text(ran.stdout)
    return json.loads(ran.stdout)["targets"]


if __name__ == "__main__":
    main()
