"""Mistakes planted into published Triton kernels: what gradverify says of each.

    python benchmarks/kernels.py [NAME ...]     # names of specs: `liger-kernel/softmax`; none means all

Each mistake of `cases/kernels/` goes into a copy of its package, which is checked under the spec
of `specs/` at the default effort and timeout, in Triton's interpreter where there is no GPU. The right
Functions are checked too, and each line has the processor's seconds. Beside it, in the same run, which of the
rules of hand-written tests find it (`by_hand.py`): `close`, `ratio`, `twice`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

HERE = Path(__file__).parent
SPECS = HERE.parent / "specs"


def seconds_of_children() -> float:
    """Processor time that finished child processes have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def checked(spec: str, function: str, first: Path | None) -> tuple[dict, float]:
    """The target's report under its spec, and the processor's seconds; `first` leads the path of imports."""
    paths = [str(p) for p in (first, SPECS) if p is not None]
    path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "gradverify", "check", str(SPECS / f"{spec}.gradverify.yaml")]
    before = seconds_of_children()
    ran = subprocess.run(
        [*command, "-k", function, "--format", "json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    taken = seconds_of_children() - before
    try:
        targets = json.loads(ran.stdout)["targets"]
    except (json.JSONDecodeError, KeyError):
        return {"status": "no report", "findings": [], "stderr": ran.stderr[-500:]}, taken
    return next(t for t in targets if t["name"] == function), taken


def by_hand(function: str, first: Path | None) -> str:
    """Which hand-written rules say that the kernel is wrong, in words."""
    paths = [str(p) for p in (first, SPECS) if p is not None]
    command = [sys.executable, str(HERE / "by_hand.py"), function]
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        reported = json.loads(ran.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return f"by hand: {ran.stderr.strip().splitlines()[-1:]}"
    names = {"assert_close": "close", "ratio": "ratio", "twice": "twice"}
    return "by hand: " + (" ".join(short for key, short in names.items() if reported[key]) or "nothing")


def planted(file: str, bug: dict, into: Path) -> None:
    """A copy of the package with the mistake. Raises `ValueError` where its text is not there."""
    package = file.split("/", maxsplit=1)[0]
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ValueError(f"{package} is not installed")
    shutil.copytree(Path(found.origin).parent, into / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = into / file
    text = path.read_text()
    start = text.index(bug["after"])
    head, tail = text[:start], text[start:]
    if bug["old"] not in tail:
        raise ValueError(f"{file} has no `{bug['old']}` behind `{bug['after']}`")
    path.write_text(head + tail.replace(bug["old"], bug["new"], 1))


def said(target: dict) -> str:
    """Codes of the errors, with the causes that are named."""
    errors = [f for f in target["findings"] if f["severity"] == "error"] or target["findings"]
    return " ".join(dict.fromkeys(f"{f['code']}{' ' + f['cause'] if f.get('cause') else ''}" for f in errors))


def show(function: str, kind: str, target: dict, taken: float, hand: str) -> None:
    """Print the line of one run."""
    print(
        f"{function:32} {kind:10} {target['status']:12} {taken:5.1f} s  {said(target):34} {hand}", flush=True
    )


def main() -> None:
    """Run the cases that are named, and print one line for each."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    files = sorted((HERE / "cases" / "kernels").glob("*.yaml"))
    cases = [case for file in files for case in yaml.safe_load(file.read_text())]
    found = total = alarms = 0
    for case in cases:
        if names and case["spec"] not in names:
            continue
        target, taken = checked(case["spec"], case["function"], None)
        alarms += target["status"] == "failed"
        show(case["function"], "right", target, taken, by_hand(case["function"], None))
        for bug in case["bugs"]:
            with tempfile.TemporaryDirectory() as folder:
                planted(case["file"], bug, Path(folder))
                target, taken = checked(case["spec"], case["function"], Path(folder))
                hand = by_hand(case["function"], Path(folder))
            found, total = found + (target["status"] == "failed"), total + 1
            show(case["function"], bug["kind"], target, taken, hand)
    print(f"{found} of {total} mistakes failed; {alarms} right ones did")


if __name__ == "__main__":
    main()
