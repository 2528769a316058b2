"""PyTorch's own tests with our drop-ins in the place of its gradcheck and gradgradcheck.

    python benchmarks/torch_tests.py CHECKOUT/test FILE... [--timeout SECONDS]

CHECKOUT is a source tree of PyTorch, of about the version that is installed; FILE is relative to its
`test` folder, `test_autograd.py` or `nn/test_pooling.py` say. Its tests need `expecttest`. Each file runs
twice: with torch's own checks, and those tests that called one a second time with ours. Prints Markdown: how
many have the same outcome, the CPU time inside the checks, and each test that differs. Tests that ask for the
words of torch's messages differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHECKS = ("gradcheck", "gradgradcheck")


class Watching:
    """A plugin of the inner runs: puts checks in torch's place, and notes what each test made of them."""

    def __init__(self, *, ours: bool, only: set[str], log: Path) -> None:
        self._only = only
        self._log = log.open("a", buffering=1)
        self._calls, self._depth, self._seconds = 0, 0, 0.0
        import torch  # noqa: PLC0415

        import gradverify  # noqa: PLC0415

        module = sys.modules["torch.autograd.gradcheck"]
        for name in CHECKS:
            timed = self._timed(getattr(gradverify if ours else module, name))
            setattr(module, name, timed)
            setattr(torch.autograd, name, timed)

    def _timed(self, check: Callable[..., bool]) -> Callable[..., bool]:
        def timed(*args: Any, **options: Any) -> bool:
            start, outermost = time.process_time(), self._depth == 0
            self._calls += outermost
            self._depth += 1
            try:
                return check(*args, **options)
            finally:
                self._depth -= 1
                self._seconds += (time.process_time() - start) * outermost

        return timed

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._only:
            items[:] = [item for item in items if item.nodeid in self._only]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.when == "setup":
            self._calls, self._seconds = 0, 0.0
        if call.when == "call" and self._calls:
            said = str(call.excinfo.value).strip().partition("\n")[0] if call.excinfo else ""
            kept = {
                "test": item.nodeid,
                "outcome": report.outcome,
                "seconds": self._seconds,
                "said": said[:200],
            }
            self._log.write(json.dumps(kept) + "\n")
        return report


def run(tests: Path, file: str, *, ours: bool, only: set[str], timeout: int) -> dict[str, dict[str, Any]]:
    """The tests of a file that called a check, by their ids."""
    with tempfile.TemporaryDirectory() as folder:
        log, chosen = Path(folder) / "log", Path(folder) / "only"
        log.touch()
        chosen.write_text("\n".join(only))
        asked = {"GRADVERIFY_INNER": json.dumps([ours, str(chosen), str(log)])}
        command = [sys.executable, str(Path(__file__).resolve()), file]
        try:
            subprocess.run(
                command,
                cwd=tests,
                env={**os.environ, **asked},
                timeout=timeout,
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{file}: ended after {timeout} s", file=sys.stderr)
        return {found["test"]: found for found in map(json.loads, log.read_text().splitlines())}


def inner(file: str) -> int:
    ours, only, log = json.loads(os.environ["GRADVERIFY_INNER"])
    chosen = set(Path(only).read_text().splitlines())
    return pytest.main(
        ["-q", "-p", "no:cacheprovider", file], plugins=[Watching(ours=ours, only=chosen, log=Path(log))]
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("tests", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument(
        "--timeout", type=int, default=1800, help="seconds for one file and one kind of check"
    )
    options = parser.parse_args()
    print("| file | tests that call a check | same outcome | not run | torch's, s | ours, s |")
    print("|---|---|---|---|---|---|")
    differing = []
    for file in options.files:
        theirs = run(options.tests, file, ours=False, only=set(), timeout=options.timeout)
        found = (
            run(options.tests, file, ours=True, only=set(theirs), timeout=options.timeout) if theirs else {}
        )
        both = theirs.keys() & found.keys()
        other = sorted(test for test in both if theirs[test]["outcome"] != found[test]["outcome"])
        differing += [(test, theirs[test], found[test]) for test in other]
        seconds = [sum(run[test]["seconds"] for test in both) for run in (theirs, found)]
        lacking = len(theirs) - len(both)
        counts = f"{len(theirs)} | {len(both) - len(other)} | {lacking}"
        print(f"| {file} | {counts} | {seconds[0]:.1f} | {seconds[1]:.1f} |", flush=True)
    if differing:
        print("\n| test | with torch's | with ours | what it says |\n|---|---|---|---|")
    for test, before, after in differing:
        said = after["said"] or before["said"]
        print(f"| {test} | {before['outcome']} | {after['outcome']} | {said.replace('|', '/')} |")


if __name__ == "__main__":
    if "GRADVERIFY_INNER" in os.environ:
        sys.exit(inner(sys.argv[1]))
    main()
