"""What processes cost, with all that they start: user time, wall time, memory. Linux, by wait4 and /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes whose parent has ended become ours, and so their time is reported to us."""

LINGERING = 5.0
"""Seconds that a process may outlive the command that started it before its time is given up."""


@dataclass(frozen=True)
class Cost:
    """What one run took, in seconds."""

    cpu: float
    wall: float


def adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, so that `measured` knows of them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def environment() -> dict[str, str]:
    """One thread; bytecode is kept, as an installed package's is."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measured(command: Sequence[str], folder: Path, code: int = 0) -> Cost:
    """The cost of one run, which must end with `code`, and of every process that it has started."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    wait_for_orphans()
    return Cost(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime, wall)


def wait_for_orphans() -> None:
    """Workers that end after their front are ours by then."""
    until = time.perf_counter() + LINGERING
    with contextlib.suppress(ChildProcessError):
        while time.perf_counter() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)


def tree(root: int) -> list[int]:
    """A process and all that it has started, and these."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(fields(stat)[1]), []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def fields(stat: Path) -> list[str]:
    """What stands behind `pid (name)`; the name may hold spaces and brackets."""
    return stat.read_text("utf-8", "replace").rpartition(")")[2].split()


def user_seconds(root: int) -> float:
    """User time of a tree of processes, with children that have ended."""
    ticks = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            of_process = fields(Path(f"/proc/{pid}/stat"))
            ticks += int(of_process[11]) + int(of_process[13])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_of(process: subprocess.Popen[bytes]) -> float:
    """The most memory in bytes that the processes below this one held at a time.

    Pages that processes share count once; what a single process held at its most is known exactly.
    """
    most = 0.0
    while process.poll() is None:
        below = tree(process.pid)[1:]
        together = sum(kilobytes(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in below)
        most = max(most, together, *(kilobytes(f"/proc/{pid}/status", "VmHWM:") for pid in below), 0.0)
        time.sleep(0.03)
    return 1024 * most


def kilobytes(path: str, name: str) -> float:
    """A line of a file of /proc; 0 where the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(path).read_text("ascii", "replace").splitlines():
            if line.startswith(name):
                return float(line.split()[1])
    return 0.0


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many endless loops beside."""
    loops = [subprocess.Popen((sys.executable, "-c", "while True: pass")) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
