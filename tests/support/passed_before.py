"""Which tests have passed on this revision: a run of the long list goes on where the last one stopped.

The revision is what git would commit now, so that a change of any file starts over. Names are kept in the
cache of pytest; without git, or with `-p no:cacheprovider`, nothing is kept.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

FOLDER = "passed"
"""Of pytest's cache."""


def revision(root: Path) -> str:
    """A name for the content of a checkout: the last commit, and what differs from it; empty without git."""
    parts = []
    for asked in (["rev-parse", "HEAD^{tree}"], ["diff", "HEAD", "--binary"]):
        done = subprocess.run(["git", *asked], cwd=root, capture_output=True, check=False)
        if done.returncode:
            return ""
        parts.append(done.stdout)
    listed = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    others = subprocess.run(listed, cwd=root, capture_output=True, check=True).stdout.split(b"\0")
    for name in sorted(filter(None, others)):
        path = root / name.decode()
        parts += [name, path.read_bytes() if path.is_file() else b""]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


class PassedBefore:
    """A plugin of the process that hears of all results; those of xdist only leave out what it names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = frozenset(path.read_text("utf-8").splitlines()) if path.exists() else frozenset()
        self._called: set[str] = set()

    @classmethod
    def of(cls, config: pytest.Config) -> PassedBefore | None:
        """The record of this revision; None where none can be kept."""
        if not config.pluginmanager.hasplugin("cacheprovider"):
            return None
        name = revision(config.rootpath)
        return cls(config.cache.mkdir(FOLDER) / f"{name}.txt") if name else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        """Tell a process of xdist, which must collect the same tests as the others, whenever it starts."""
        node.workerinput[FOLDER] = sorted(self.names)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test that passed, or failed as it must, once its teardown did."""
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")) and not report.failed:
            self._called.add(report.nodeid)
        elif report.when == "teardown" and report.passed and report.nodeid in self._called:
            with self.path.open("a", encoding="utf-8") as kept:
                kept.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A part that has passed already is no run without tests."""
        if self.names and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
