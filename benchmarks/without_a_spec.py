"""What is found of wrong backwards without a spec, and what becomes of right ones.

    python benchmarks/without_a_spec.py [--set zoo|authors|first|...|fourteenth] [--stem right] [--verbose]

The Functions of `tests/zoo/general`, of `tests/zoo/authors` and of `benchmarks/wrong_backwards`, copied away
from their specs. Of wrong ones: `failed` names the mistake, `inconclusive` shows it and asks for a spec,
`unchecked` found no inputs, and `passed` is a false pass. A right one that fails is a false failure. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from diagnosis import SETS_IN_ORDER, written

ZOO = Path(__file__).parents[1] / "tests" / "zoo"

SETS = ("zoo", "authors", *SETS_IN_ORDER)


def modules_of(name: str, folder: Path) -> None:
    """Write `right.py` and `wrong.py` of a set, without their specs."""
    if name in SETS_IN_ORDER:
        written(name, folder, (1, 1))
        for spec in folder.glob("*.yaml"):
            spec.unlink()
        return
    source = ZOO / ("general" if name == "zoo" else name)
    for stem in ("right", "wrong"):
        (folder / f"{stem}.py").write_text((source / f"{stem}.py").read_text())


def checked(folder: Path, module: str) -> list[dict[str, Any]]:
    """The targets of a report."""
    command = [sys.executable, "-m", "gradverify", "check", module, "--ignore", "GV2", "--format", "json"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not ran.stdout:
        raise RuntimeError(ran.stderr)
    return list(json.loads(ran.stdout)["targets"])


def told(name: str, stem: str, target: dict[str, Any]) -> str:
    said = next((f["message"] for f in target["findings"] if f["severity"] in {"error", "warning"}), "")
    return f"{name} {stem} {target['name']}: {target['status']} {said[:240]}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--set", choices=SETS, action="append")
    arguments.add_argument("--stem", choices=("wrong", "right"), action="append")
    arguments.add_argument("--verbose", action="store_true", help="list what is neither found nor right")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    print("| set | Functions | passed | failed | inconclusive | unchecked | other |")
    print("|---|---|---|---|---|---|---|")
    lines: list[str] = []
    kept: dict[str, Any] = {}
    for name in options.set or SETS:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            modules_of(name, Path(folder))
            for stem in options.stem or ("wrong", "right"):
                targets = checked(Path(folder), f"{stem}.py")
                statuses = Counter(t["status"] for t in targets)
                shown = [statuses.pop(s, 0) for s in ("passed", "failed", "inconclusive", "unchecked")]
                cells = [f"{name}, {stem}", len(targets), *shown, sum(statuses.values())]
                print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)
                good = "failed" if stem == "wrong" else "passed"
                lines += [told(name, stem, t) for t in targets if t["status"] != good]
                kept[f"{name} {stem}"] = [(t["name"], t["status"], told(name, stem, t)) for t in targets]
                if options.json:
                    options.json.write_text(json.dumps(kept, indent=1))
    if options.verbose:
        print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
