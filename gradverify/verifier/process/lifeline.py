"""A process ends when the front does, however that ended. Nothing here imports torch: that takes seconds."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys


def end_with(lifeline: int) -> None:
    """Let the kernel kill this process group once the other end of a pipe is closed.

    Code that never gives up the interpreter (a regular expression without an end) keeps Python from noticing
    it. Only Linux can send a signal of our choice; elsewhere the requests' end has to do.
    """
    if sys.platform != "linux":
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was closed before anything could be sent
        os.killpg(os.getpgrp(), signal.SIGKILL)


def outlive(lifeline: int) -> None:
    """Undo `end_with`, for a process that listens by itself from here on."""
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) & ~os.O_ASYNC)
