"""What gradverify says of every Function of every case set, kept to see what a change changes.

    python benchmarks/oracle.py [SET ...] [--seeds 0 1] [--shard 1/2] [--again] [--into FOLDER]
        [--reports FOLDER] [--engine ENGINE] [--select CODES]
    python benchmarks/oracle.py [SET ...] --difference [OTHER] [--into FOLDER] [--select CODES]
    python benchmarks/oracle.py [SET ...] --table [--into FOLDER]

Sets are those of `cases/`: `zoo/general/right`, `wrong/first`, ...; a prefix (`zoo`) names all below it, none
names all. Each is one file of FOLDER (`benchmarks/oracle` by default): a line of JSON for each target and
seed, with its status, its findings (severity, code, output, input, cause, factor), what it was swept over,
and its calls. A set whose file is there is not run again without --again, so that a run can be continued.
--reports keeps the whole JSON report of each set and seed as well, with seconds: `cover.py` reads them.

--engine is handed to the command. --select, such as GV1,GV2,GV3, is not: a verdict is made of the findings
with these codes, and of what says that nothing could be told: one run serves every selection.

--difference runs nothing: it shows which lines of FOLDER differ from those of OTHER, a folder or a revision
of git (the last commit by default), and the totals of calls. --table counts statuses, and of wrong backwards
how often the cause that is named is one of those that were written down before (`coarser`: true, but it says
less; `none`: no cause; `wrong`: another one; `missed`: not failed).
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

from cases import ROOT, Set, judgement, sets, written

KEPT = Path(__file__).parent / "oracle"

TIMEOUT = "300"
"""Seconds for one target: the clock must not decide a line."""

SHOWN = ("severity", "code", "output", "input", "cause", "factor")
"""Fields of a finding that a line holds."""

NAMED = ("right", "coarser", "none", "wrong", "missed")
"""What a cause can be, in the order of the table."""

ALWAYS = ("GV001", "GV002", "GV109", "GV9")
"""Codes that tell of the run itself."""

Lines = dict[tuple[str, int], dict[str, Any]]


def lines_of(asked: Set, seed: int, reports: Path | None, engine: str) -> list[dict[str, Any]]:
    """Check a set; a line for each target."""
    with tempfile.TemporaryDirectory() as made:
        what = asked.write(Path(made))
        command = [sys.executable, "-m", "gradverify", "check", what, "--format", "json"]
        command += ["--seed", str(seed), "--timeout", TIMEOUT, "--jobs", "1"]
        command += ["--durations", "0"] if reports else []
        command += ["--engine", engine] if engine else []
        command += ["--no-infer"] if asked.name.startswith(("seeded/", "published/")) else []
        ran = subprocess.run(
            command, cwd=made, env=environment(), capture_output=True, text=True, check=False
        )
    if not ran.stdout:
        raise RuntimeError(f"{asked.name}: {ran.stderr[-2000:]}")
    if reports:
        path = reports / f"{asked.name}.{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ran.stdout)
    return [line_of(target, seed) for target in json.loads(ran.stdout)["targets"]]


def environment() -> dict[str, str]:
    """This checkout first, and the helpers of published specs."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "specs"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def line_of(target: dict[str, Any], seed: int) -> dict[str, Any]:
    """What is kept of a target of the report."""
    findings = [{k: f[k] for k in SHOWN if f.get(k) is not None} for f in target["findings"]]
    return {
        "target": target["name"],
        "seed": seed,
        "status": target["status"],
        "inputs": target["inputs"],
        "findings": sorted(findings, key=lambda f: json.dumps(f, sort_keys=True)),
        "calls": target["evaluations"],
        "swept": target["swept"],
        "smallest_visible_error": target["smallest_visible_error"],
        "not_judged": target["not_judged"],
    }


def run(
    asked: list[Set], seeds: list[int], folder: Path, reports: Path | None, engine: str, *, again: bool
) -> None:
    """Check what is not there yet."""
    for one in asked:
        path = folder / f"{one.name}.jsonl"
        if path.exists() and not again:
            continue
        try:
            lines = [line for seed in seeds for line in lines_of(one, seed, reports, engine)]
        except ModuleNotFoundError as missing:
            print(f"{one.name}: {missing} is not installed", flush=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
        print(f"{one.name}: {dict(Counter(line['status'] for line in lines))}", flush=True)


def kept(folder: Path | str, name: str) -> Lines:
    """The lines of a set by target and seed, in a folder or at a revision of git; may be empty."""
    if Path(folder).is_dir():
        path = Path(folder) / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
    else:
        held = ["git", "show", f"{folder}:benchmarks/oracle/{name}.jsonl"]
        text = subprocess.run(held, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    return {(line["target"], line["seed"]): line for line in lines}


def of_codes(line: dict[str, Any] | None, select: tuple[str, ...]) -> dict[str, Any] | None:
    """A line as these codes alone make it."""
    if line is None or not select or line["status"] in {"skipped", "xfailed"}:
        return line
    findings = [f for f in line["findings"] if f["code"].startswith((*select, *ALWAYS))]
    found = {f["code"] for f in findings}
    errors = any(f["severity"] == "error" for f in findings)
    status = "failed" if errors else "unchecked" if found & {"GV001", "GV902", "GV903"} else "passed"
    status = "inconclusive" if status == "passed" and "GV109" in found else status
    return {**line, "status": status, "findings": findings}


def said(line: dict[str, Any] | None) -> str:
    """A line's verdict in words."""
    if line is None:
        return "absent"
    codes = {
        " ".join(str(f[k]) for k in ("code", "output", "input", "cause", "factor") if k in f)
        for f in line["findings"]
        if f["severity"] != "note"
    }
    return f"{line['status']} [{', '.join(sorted(codes))}]"


def notes_of(line: dict[str, Any] | None) -> list[str]:
    """Codes of its notes."""
    return sorted(f["code"] for f in line["findings"] if f["severity"] == "note") if line else []


def differences(asked: list[Set], folder: Path, other: str, select: tuple[str, ...]) -> None:
    """Print every target whose verdict is another, and how many calls there are in all."""
    calls = {"before": Counter[str](), "now": Counter[str]()}
    moved = Counter[str]()
    compared = 0
    for one in asked:
        before, after = kept(other, one.name), kept(folder, one.name)
        if not before or not after:
            continue
        for key in sorted(before.keys() | after.keys()):
            was, now = (of_codes(lines.get(key), select) for lines in (before, after))
            compared += 1
            for total, line in zip(calls.values(), (was, now), strict=True):
                total.update((line or {"calls": {}})["calls"])
            if said(was) != said(now):
                moved[f"{was and was['status']} -> {now and now['status']}"] += 1
                print(f"{one.name} {key[0]}:\n  - {said(was)}\n  + {said(now)}")
            elif notes_of(was) != notes_of(now):
                print(f"{one.name} {key[0]}: notes {notes_of(was)} -> {notes_of(now)}")
    print(f"\n{moved.total()} of {compared} verdicts differ {dict(moved) if moved else ''}")
    for when, total in calls.items():
        print(f"calls {when}: {dict(total)}")


def table(asked: list[Set], folder: Path) -> None:
    """Print a row for each set."""
    statuses = ("passed", "failed", "inconclusive", "unchecked")
    print("| set | targets | " + " | ".join(statuses) + " | " + " | ".join(NAMED) + " |")
    print("|---" * (2 + len(statuses) + len(NAMED)) + "|")
    for one in asked:
        lines = kept(folder, one.name)
        if not lines:
            continue
        counts = Counter(line["status"] for line in lines.values())
        named = Counter[str]()
        if one.name.startswith("wrong/"):
            with tempfile.TemporaryDirectory() as made:
                manifest = written(one.name.removeprefix("wrong/"), Path(made))
            named.update(
                judgement(manifest[name], line["status"], line["findings"])
                for (name, _), line in lines.items()
            )
        causes = [named[kind] if named else "" for kind in NAMED]
        cells = [one.name, len(lines), *(counts[s] for s in statuses), *causes]
        print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    """Run sets, or show what is kept of them."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth set, from the Ith on")
    parser.add_argument("--again", action="store_true", help="run sets whose file is there")
    parser.add_argument("--into", type=Path, default=KEPT, metavar="FOLDER")
    parser.add_argument("--reports", type=Path, metavar="FOLDER")
    parser.add_argument("--engine", default="")
    parser.add_argument("--select", default="", metavar="CODES")
    parser.add_argument("--difference", nargs="?", const="HEAD", metavar="OTHER")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    asked = [one for one in sets() if not options.sets or one.name.startswith(tuple(options.sets))]
    part, parts = (int(number) for number in options.shard.split("/"))
    asked = asked[part - 1 :: parts]
    if options.difference:
        differences(asked, options.into, options.difference, tuple(filter(None, options.select.split(","))))
    elif options.table:
        table(asked, options.into)
    else:
        run(asked, options.seeds, options.into, options.reports, options.engine, again=options.again)


if __name__ == "__main__":
    main()
