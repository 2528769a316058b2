"""The process that ranks are forked from: it has imported torch and the verifier, and runs neither.

Started afresh by whoever verifies, beside the template of the workers: a worker has run backwards by then,
and what forks from it cannot run one. It ends with the process that started it, and its ranks with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from gradverify.verifier.ranks.messages import Setup

_STARTED: list[subprocess.Popen[bytes]] = []
"""The process that this one has started, and forks ranks from."""

PR_SET_PDEATHSIG = 1
"""`prctl(2)`: the signal that this process gets when its parent ends."""


def fork(setup: Setup) -> None:
    """Fork the ranks of a world. Raises `OSError` where no process can be started."""
    started = next((process for process in _STARTED if process.poll() is None), None)
    if started is None:
        started = _begun()
        _STARTED[:] = [started]
        atexit.register(started.communicate)  # after this:
        atexit.register(started.kill)
    requests = started.stdin
    assert requests is not None  # noqa: S101 - it is a pipe
    pickle.dump(setup, requests)
    requests.flush()


def _begun() -> subprocess.Popen[bytes]:
    """Start it; requests are pickles on its stdin."""
    parent = str(Path(__file__).resolve().parents[3])
    run = f"import sys, warnings; sys.path.append({parent!r})\n"
    run += "with warnings.catch_warnings(action='ignore'): "  # torch's would be shown as the target's
    run += "from gradverify.verifier.ranks.starter import main\nmain(sys.stdin.buffer)"
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-P", "-u", "-c", run], stdin=subprocess.PIPE, stdout=None, stderr=None
    )


def main(requests: BinaryIO) -> None:
    """Fork the ranks of every world that is asked for, until none can be asked for any more."""
    from gradverify.verifier.ranks import rank  # noqa: PLC0415 - it imports the verifier

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for
    with contextlib.suppress(EOFError):
        while True:
            setup: Setup = pickle.load(requests)  # noqa: S301 - our own processes
            for number in range(-setup.idle_ranks, setup.world):
                if os.fork() == 0:
                    _end_with_parent()
                    try:
                        rank.main(setup, number)
                    finally:
                        os._exit(1)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
