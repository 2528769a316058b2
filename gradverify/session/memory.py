"""How much memory there is, how much of it is left, and whether the processes of a worker take too much."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
"""Of a process in a container its own limits (the kernel's documentation of cgroup v2, memory interface)."""

_MACHINE = Path("/proc/meminfo")
"""Read where it is, in kB: to import psutil takes as long as some commands do."""

LEAST_LEFT = 1 / 16
"""Of all memory. With less the system soon ends a process, and not always the one that took it."""


def _number(file: Path, key: str = "") -> int | None:
    """The number in a file, or behind a key in it; None where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = file.read_text("ascii").split()
        return int(words[words.index(key) + 1 if key else 0])
    return None


def all_bytes() -> int:
    """The memory of this machine, or less where the system gives less to this process; 0 if not known."""
    found = [_number(_GROUP / "memory.max") or 0]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((one for one in found if one > 0), default=0)


def bytes_left() -> int:
    """What can be taken before the system ends processes; what it keeps of files it gives back."""
    available = _number(_MACHINE, "MemAvailable:")
    left = _available() if available is None else available << 10
    most, taken = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    if most is not None and taken is not None:
        left = min(left, most - taken + (_number(_GROUP / "memory.stat", "inactive_file") or 0))
    return max(0, left)


def _available() -> int:
    import psutil  # noqa: PLC0415 - where the system has no such file

    return int(psutil.virtual_memory().available)


def resident_mib(group: int) -> int:
    """The resident memory of a process group. Pages that processes share count once: a part for each."""
    import psutil  # noqa: PLC0415 - where memory is limited or runs out

    total = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended meanwhile
            if os.getpgid(process.pid) == group:
                memory = process.memory_full_info()
                total += getattr(memory, "pss", memory.rss)
    return total >> 20


def excess(group: int, allowed: int) -> str:
    """How a process group took too much, as `took 900 MiB of memory, ...`; empty where it did not.

    `allowed` is in MiB. Where that is 0, and beside it, a group takes too much that took more than is left of
    a memory that is nearly spent.
    """
    taken = resident_mib(group) if allowed else 0
    if taken > allowed:
        return f"took {taken} MiB of memory, more than the {allowed} MiB allowed"
    left = bytes_left()
    if left >= LEAST_LEFT * all_bytes():
        return ""
    taken, left = resident_mib(group), left >> 20
    return f"took {taken} MiB of memory, and {left} MiB are left of all" if taken > left else ""
