"""How many wrong backwards are found, and how often the cause that is named is the true one.

    python benchmarks/diagnosis.py [--set first|second] [--seeds 1] [--verbose]

Functions as authors write them, each right and with mistakes that authors make (`wrong_backwards/`), through
the command with a spec. `first` is the set that the hypotheses were improved on, `second` was written after
they were frozen. Prints Markdown. "no cause" is a finding without a cause; "wrong cause" names one that is
not in the set's list. Right Functions must pass at every seed.
"""

from __future__ import annotations

import argparse
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

HEAD = '"""A set of wrong backwards, or the right ones of it."""\n\nimport math\n\nimport torch\n'

TWICE_DIFFERENTIABLE = ("StaleBuffer", "ClassState")
"""Functions that are verified at second order too: the others save intermediates, as layers do."""


@dataclass(frozen=True)
class Wrong:
    """One wrong backward, and the causes that are right."""

    name: str
    causes: frozenset[str]
    admitted: frozenset[str]
    """Causes that were admitted after the first run."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--set", choices=["first", "second"], action="append")
    arguments.add_argument("--seeds", type=int, default=1, help="seeds of the right Functions")
    arguments.add_argument("--verbose", action="store_true", help="list what has no cause, or a wrong one")
    options = arguments.parse_args()
    print(
        "| set | wrong backwards | found | right cause | no cause | wrong cause | right, alarms | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    told: list[str] = []
    for name in options.set or ["first", "second"]:
        with tempfile.TemporaryDirectory() as folder:
            told += row(name, Path(folder), options.seeds)
    if options.verbose:
        print("\n" + "\n".join(told))


def row(name: str, folder: Path, seeds: int) -> list[str]:
    """Run one set, print its row, and say what was not named rightly."""
    manifest = written(name, folder)
    begun = time.perf_counter()
    targets = checked(folder, "wrong.py", 0)
    seconds = time.perf_counter() - begun
    judged = {t["name"]: judgement(manifest[t["name"]], t) for t in targets}
    counts = {kind: sum(j == kind for j in judged.values()) for kind in ("right", "none", "wrong", "missed")}
    runs = [t for seed in range(seeds) for t in checked(folder, "right.py", seed)]
    alarms = sum(t["status"] != "passed" for t in runs)
    found = len(judged) - counts["missed"]
    print(
        f"| {name} | {len(judged)} | {found} | {counts['right']} | {counts['none']} | {counts['wrong']} "
        f"| {alarms} of {len(runs)} | {seconds:.0f} |"
    )
    return [f"{name} {t}: {judged[t]}" for t in sorted(judged) if judged[t] != "right"]


def judgement(wrong: Wrong, target: dict[str, Any]) -> str:
    """right, none, wrong or missed."""
    if target["status"] != "failed":
        return "missed"
    errors = [f for f in target["findings"] if f["severity"] == "error"]
    named = {f.get("cause") for f in errors} - {None, ""}
    if named - wrong.causes - wrong.admitted:
        return "wrong"
    return "right" if named else "none"


def written(name: str, folder: Path) -> dict[str, Wrong]:
    """Write the right and the wrong module of a set with their specs."""
    loaded = runpy.run_path(str(SETS / f"{name}.py"))
    sizes = dict(pair.split(": ") for pair in loaded["SIZES"].split(", "))
    right, wrong, manifest = [HEAD], [HEAD], {}
    specs = {stem: f"gradverify: 1\nmodule: {stem}.py\nfunctions:\n" for stem in ("right", "wrong")}
    for function, inputs, source, bugs in loaded["FUNCTIONS"]:
        right.append(a_class(function, source))
        specs["right"] += spec_of(function, inputs, sizes)
        for bug, old, new, causes in bugs:
            called = f"{function}_{bug.replace('-', '_')}"
            wrong.append(a_class(called, replaced(source, old, new)))
            specs["wrong"] += spec_of(called, inputs, sizes)
            words = causes.split()
            manifest[called] = Wrong(
                called,
                frozenset(w for w in words if not w.startswith("=")),
                frozenset(w[1:] for w in words if w.startswith("=")),
            )
    for stem, classes in (("right", right), ("wrong", wrong)):
        (folder / f"{stem}.py").write_text("".join(classes))
        (folder / f"{stem}.gradverify.yaml").write_text(specs[stem])
    return manifest


def a_class(name: str, body: str) -> str:
    return f"\n\nclass {name}(torch.autograd.Function):{body.rstrip()}\n"


def replaced(source: str, old: str | tuple[str, ...], new: str | tuple[str, ...]) -> str:
    """The source with a mistake, which may need several places."""
    pairs = zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]
    for before, after in pairs:
        if source.count(before) != 1:
            raise ValueError(f"`{before}` stands {source.count(before)} times in the source")
        source = source.replace(before, after)
    return source


def spec_of(name: str, inputs: str, sizes: dict[str, str]) -> str:
    """The entry of a Function in a spec, with the sizes that its shapes use."""
    shapes = " ".join(re.findall(r"\[[^\]]*\]", inputs))
    used = ", ".join(f"{s}: {n}" for s, n in sizes.items() if re.search(rf"\b{s}\b", shapes))
    lines = [f"  {name}:", f"    sizes: {{{used}}}", "    inputs:"]
    lines += [f"      {line}" for line in inputs.strip().splitlines()]
    if name.split("_", maxsplit=1)[0] not in TWICE_DIFFERENTIABLE:
        lines.append('    ignore: {GV2: "first order only"}')
    return "\n".join(lines) + "\n"


def checked(folder: Path, module: str, seed: int) -> list[dict[str, Any]]:
    """The targets of a report."""
    command = [sys.executable, "-m", "gradverify", "check", module, "--format", "json", "--seed", str(seed)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not ran.stdout:
        raise RuntimeError(ran.stderr)
    return json.loads(ran.stdout)["targets"]


if __name__ == "__main__":
    main()
