"""Starting a worker process, the pipes to it, and ending it with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

_PROCESSES = Path("/proc")


class Start(StrEnum):
    """How a worker begins."""

    PLAIN = "plain"
    AHEAD = "ahead"
    """Before there is work for it: it loads all that a verification needs, and leaves no bytecode of the
    modules that it imports. Bytecode is told from a source by whole seconds and the size alone: of two
    saves within a second, that of the first would pass for the second's."""


@dataclass
class Channel:
    """The front's side of the pipes to a worker."""

    requests: IO[str]
    events: int
    lifeline: int
    """Nothing is ever written here: when this end closes, however this process ended, the kernel kills
    the worker and its group."""

    def send(self, line: str) -> None:
        """Write one request.

        Raises `OSError` where the other side is gone.
        """
        self.requests.write(line + "\n")
        self.requests.flush()

    def close(self) -> None:
        """Close every descriptor."""
        with contextlib.suppress(OSError):
            self.requests.close()
        for descriptor in (self.events, self.lifeline):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def start(log: int, faults: int, how: Start = Start.PLAIN) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start a worker whose stdout and stderr go to `log`, and whose last words go to `faults`."""
    request_read, request_write = os.pipe()
    event_read, event_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    passed = (request_read, event_write, faults, lifeline_read)
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        _command(how, *passed),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=passed,
        # What user code prints is captured as UTF-8 whatever the terminal of the front can show.
        env={**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"},
        start_new_session=True,  # Ctrl-C is the front's alone; killing the group takes children along
    )
    for descriptor in (request_read, event_write, lifeline_read):
        os.close(descriptor)
    return process, Channel(os.fdopen(request_write, "w", encoding="utf-8"), event_read, lifeline_write)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kill_all(process: subprocess.Popen[bytes], dump_limit: float = 0.0) -> None:
    """Kill a worker, its process group, and where the system lists them children that left the group.

    Within `dump_limit` seconds faulthandler may write where the process is: its handler needs no
    interpreter that listens.
    """
    children = _descendants(process.pid)
    if dump_limit:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(dump_limit)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
    process.wait()


def resident_mib(group: int) -> int:
    """The resident memory of a process group; pages that its processes share count for each of them."""
    if not _PROCESSES.is_dir():
        return _asked_of_ps(group)
    pages = 0
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int((folder / "statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def worked_seconds(pid: int) -> float | None:
    """What a process has had of the processors, in seconds, all its threads; None where nothing tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (_PROCESSES / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None


def _asked_of_ps(group: int) -> int:
    done = subprocess.run(
        ["ps", "-axo", "pgid=,rss="],  # noqa: S607 - the system's own, wherever it lies
        capture_output=True,
        text=True,
        check=False,
    )
    rows = (line.split() for line in done.stdout.splitlines())
    return sum(int(row[1]) for row in rows if len(row) == 2 and row[0] == str(group)) >> 10


def _descendants(pid: int) -> list[int]:
    """Children of a process, and theirs. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for status in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            # `pid (name) state parent ...`; the name may hold spaces and brackets.
            parent = int(status.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _command(how: Start, requests: int, events: int, faults: int, lifeline: int) -> list[str]:
    package_parent = str(Path(__file__).resolve().parents[2])
    bootstrap = (
        f"import sys; sys.path.append({package_parent!r}); from gradverify.verifier.worker import main; "
    )
    given = f"{requests}, {events}, {faults}, {lifeline}"
    if how is Start.AHEAD:
        bootstrap += "from gradverify.verifier.rehearsal import rehearse; "
        given += ", rehearse"
    # -P: the current folder is not on the path, so a user's `torch.py` or `types.py` shadows nothing here.
    options = ["-P", "-u", "-X", "faulthandler", *(["-B"] if how is Start.AHEAD else [])]
    return [sys.executable, *options, "-c", f"{bootstrap}main({given})"]
