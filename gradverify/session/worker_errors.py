"""How a worker's process can end while it owes an answer."""

from __future__ import annotations

from gradverify.model import RaisedError

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
