"""How a worker's process can end while it owes an answer, and what it left behind: text, and frames."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from gradverify.model import Frame, Location, RaisedError, shown_path
from gradverify.repeatable import repeatable

LOST_DEVICE = "lost the context of its device"
DISTURBED = "was disturbed: "
LOST = "lost its connection to gradverify"


class WorkerError(Exception):
    """A worker owes an answer that will never come: its process is dead."""

    def __init__(self, how: str, captured: str = "", trace: str = "") -> None:
        """`how` is a phrase for a sentence about the process: `was killed by SIGSEGV`."""
        super().__init__(how)
        self.how = how
        self.captured = captured
        """What user code printed since the request."""
        self.trace = trace
        """What faulthandler wrote when the process ended."""


class WorkerDiedError(WorkerError):
    """User code took the process down."""


class WorkerLostError(WorkerDiedError):
    """User code closed the channel, or wrote into it."""


class WorkerDeviceLostError(WorkerDiedError):
    """An accelerator's context is lost, and the process with it."""

    raised: RaisedError | None = None


class WorkerDisturbedError(WorkerError):
    """User code has replaced or broken what answers depend on; `how` says what."""

    raised: RaisedError | None = None


class WorkerTimedOutError(WorkerError):
    """No answer within the limit."""

    calls = 0
    """How often user code had been called by the last message about that."""
    seconds = 0.0
    """How long these calls took."""


class WorkerTooBigError(WorkerError):
    """Its processes took more memory than they may; `how` says how much."""


class WorkerBrokenError(WorkerError):
    """gradverify itself failed inside the worker; `how` is the traceback."""


class WorkerStartError(WorkerError):
    """The process did not come as far as reading requests: torch cannot be imported."""


def with_raised(error: WorkerError, raised: RaisedError | None) -> WorkerError:
    """Add to an error what user code raised."""
    if isinstance(error, WorkerDeviceLostError | WorkerDisturbedError):
        error.raised = raised
    return error


CAPTURED_CHARACTERS = 2000
"""Characters kept of what user code printed."""

CAPTURED_BYTES = 1 << 16
"""Bytes read of it, before equal lines are folded."""

LONGEST_BLOCK = 12
"""Lines of the longest block whose repetitions are folded."""

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
"""A line of Python's faulthandler."""

_FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$", re.MULTILINE)

_PACKAGE = str(Path(__file__).resolve().parents[1])

_SERVER = str(Path(_PACKAGE, "verifier", "process", "worker.py")), "main"
"""File and function of the worker's server: what called it is never the user's."""


def read_tail(descriptor: int, since: int, until: int | None = None) -> str:
    """The end of a file, from an offset on; a file that a process still writes keeps its own position.

    `until` is an offset to take for the end. It is made repeatable: equal lines are folded later.
    """
    size = os.fstat(descriptor).st_size if until is None else until
    first = max(since, size - CAPTURED_BYTES)
    text = os.pread(descriptor, max(0, size - first), first).decode("utf-8", "replace")
    return repeatable(text if first == since else text.partition("\n")[2])


def fold(text: str) -> str:
    """Fold lines that repeat, since a print in forward comes once for each of many calls; keep the end."""
    lines = text.splitlines()
    folded: list[str] = []
    at = 0
    while at < len(lines):
        length, times = _repeated(lines, at)
        block = lines[at : at + length]
        if times > 1:
            what = "" if length == 1 else f"these {length} lines "
            block[-1] += f"  ({what}x{times})"
        folded += block
        at += length * times
    kept = "\n".join(folded)
    if len(kept) <= CAPTURED_CHARACTERS:
        return kept
    end = kept[-CAPTURED_CHARACTERS:]
    return end.partition("\n")[2] or end


def _repeated(lines: list[str], at: int) -> tuple[int, int]:
    """How many lines from a place on are repeated at once, and how often they occur there."""
    for length in range(1, LONGEST_BLOCK + 1):
        block = lines[at : at + length]
        times = 1
        while lines[at + length * times : at + length * (times + 1)] == block:
            times += 1
        if times > 1:
            return length, times
    return 1, 1


def spot(frame: Frame, module: Path) -> str:
    """A frame's `file:line`, as reports print it."""
    return f"{_shown(frame.file, module)}:{frame.line}"


def frames_of(trace: str, module: Path) -> tuple[Frame, ...]:
    """The user's frames in what faulthandler wrote, outermost first; of the thread that ended the process."""
    threads = sorted(re.split(r"\n(?=\S)", trace), key=lambda part: not part.startswith("Current thread"))
    for thread in threads:
        frames = [
            Frame(m["file"], int(m["line"]), m["function"], _source(m["file"], int(m["line"])))
            for m in takewhile(lambda m: (m["file"], m["function"]) != _SERVER, _FRAME.finditer(thread))
            if _is_users(m["file"], module)
        ]
        if frames:
            return tuple(reversed(frames))
    return ()


def fatal_error(trace: str) -> str:
    """What faulthandler calls the end of the process: `Segmentation fault`; empty where it said nothing."""
    match = _FATAL.search(trace)
    return match["what"] if match is not None else ""


def with_shown_paths(raised: RaisedError | None, module: Path) -> RaisedError | None:
    """An exception with its frames' files as reports print them."""
    if raised is None:
        return None
    return replace(raised, frames=tuple(replace(f, file=_shown(f.file, module)) for f in raised.frames))


def where_raised(raised: RaisedError | None, file: str) -> Location | None:
    """The innermost line of the target's own file; of whatever was called only if there is none."""
    if raised is None or not raised.frames:
        return None
    frame = next((f for f in reversed(raised.frames) if f.file == file), raised.frames[-1])
    return Location(frame.file, frame.line)


def _shown(file: str, module: Path) -> str:
    """The module itself under the name it was given by, even where that is a symbolic link."""
    return shown_path(module if Path(file) == module.resolve() else Path(file))


def _is_users(file: str, module: Path) -> bool:
    if file == str(module.resolve()):
        return True
    paths = sysconfig.get_paths()
    others = (*(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")), _PACKAGE, "<")
    return not file.startswith(others)


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()
