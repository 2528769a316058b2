"""What is said of a target whose process ended while it was verified."""

from __future__ import annotations

from gradverify.events import CaseStarted
from gradverify.model import CasePoint, Finding, Frame, InputSource, RaisedError
from gradverify.rules import rule
from gradverify.session.aggregate import TargetState
from gradverify.session.modules import FOR_A_BUG, NotImportedAgainError
from gradverify.session.planning import Planned
from gradverify.session.request import Request
from gradverify.session.worker_ended import (
    WorkerBrokenError,
    WorkerDeviceLostError,
    WorkerDisturbedError,
    WorkerError,
    WorkerLostError,
    WorkerTimedOutError,
    WorkerTooBigError,
    fatal_error,
    frames_of,
    spot,
)

STOPPED, ENDED = "it was here when it was stopped", "the process ended here"

STEADY = 3.0
"""Times what the first calls took, in which as many again come if none hangs: twice, and to spare."""

_METHODS = ("forward", "backward", "setup_context", "vjp", "jvp")
"""Methods of a Function that a crash can happen in."""


def take_end(planned: Planned, state: TargetState, error: WorkerError, request: Request) -> str:
    """Note of a target how its worker ended; returns the traceback where that is a bug of ours."""
    if isinstance(error, WorkerBrokenError):
        state.unchecked_because = FOR_A_BUG
        return error.how
    if state.diagnosing:
        state.leave_out(f"the search for a cause: the process {error.how}")
    elif state.beyond is not None:
        _end_beyond(state, error)
    elif isinstance(error, NotImportedAgainError):
        state.unchecked_because = (
            f"after an earlier target had ended its process, the module could not be imported again: "
            f"it {error.how}"
        )
    elif isinstance(error, WorkerDisturbedError):
        frames = error.raised.frames if error.raised is not None else ()
        place = f" ({spot(frames[-1], planned.module.path)})" if frames else ""
        state.unchecked_because = f"its process {error.how}{place}, so none of its results can be trusted"
    else:
        state.findings.append(_finding_of(planned, state, error, request))
    return ""


def _end_beyond(state: TargetState, error: WorkerError) -> None:
    """A case past a constant, which was not requested, has ended the process: what is verified remains."""
    limited = isinstance(error, WorkerTimedOutError | WorkerTooBigError)
    how = "it takes too long or too much memory" if limited else f"the process {error.how}"
    if state.beyond is not None and (state.doubted or not limited):
        doubt = "probes do not agree with backward, and to say where " if state.doubted else ""
        message = f"at {state.beyond.case.id}, backward could not be verified: {doubt}{how}"
        hint = "If such a size is not valid, forbid it with `where:` in the spec, or raise an exception."
        state.findings.append(Finding("GV109", rule("GV109").severity, message, hint))
    state.end_beyond(how)


def _finding_of(planned: Planned, state: TargetState, error: WorkerError, request: Request) -> Finding:
    """The finding to report of a target whose worker owes an answer for good."""
    frames = frames_of(error.trace, planned.module.path)
    stopped = _doing(state, frames) + (f", at {spot(frames[-1], planned.module.path)}" if frames else "")
    match error:
        case WorkerTooBigError():
            message = f"it {error.how}: it was stopped {stopped}"
            larger = ", or a larger --memory: importing torch alone takes some 200 to 400 MiB"
            hint = f"Use smaller sizes{larger * bool(request.memory)}."
            return _finding("GV903", message, hint, state, error, _raised(STOPPED, frames))
        case WorkerTimedOutError(calls=calls, seconds=seconds):
            message = f"not done within {request.timeout:g} s: it was stopped {stopped}"
            hint = f"{_progress(state)}{enough_time(calls, seconds, request.timeout)}"
            return _finding("GV902", message, hint, state, error, _raised(STOPPED, frames))
        case WorkerDeviceLostError():
            return _device_lost(state, error)
        case _:
            return _ended(state, error, frames)


def _device_lost(state: TargetState, error: WorkerDeviceLostError) -> Finding:
    """The next target gets another process: in this one every call of the device would fail."""
    raised = error.raised or RaisedError("RuntimeError", "")
    said = raised.message.strip().splitlines()[0] if raised.message.strip() else "no message"
    message = f"the device was lost {_doing(state, raised.frames)}: {raised.type}: {said}"
    if _is_guessed(state):
        return _of_a_guess(message, state, error, raised)
    hint = (
        "A kernel reads or writes out of bounds, or asserts. Kernels run later than the line that "
        "starts them: set CUDA_LAUNCH_BLOCKING=1 and run the reproducing command, to see which one it is."
    )
    return _finding("GV901", message, hint, state, error, raised)


def _is_guessed(state: TargetState) -> bool:
    """Whether a guess may have made what a kernel did to its arguments, which it need not check."""
    return state.plan.source is InputSource.NONE or (
        state.plan.source is InputSource.INFERRED and bool(_guesses(state))
    )


def _guesses(state: TargetState) -> list[str]:
    return [d.what for d in state.plan.doubts if not d.intent and not d.extreme]


def _of_a_guess(message: str, state: TargetState, error: WorkerError, raised: RaisedError | None) -> Finding:
    guessed = _guesses(state)
    but = f"; but gradverify guessed {guessed[0]}" if guessed else ""
    hint = (
        "Guessed arguments that do not go together may make a kernel leave its memory. Write a spec "
        "with valid ones: `gradverify init` writes the file to fill in."
    )
    code = "GV001" if state.plan.source is InputSource.NONE else "GV109"
    return _finding(code, message + but, hint, state, error, raised)


def _ended(state: TargetState, error: WorkerError, frames: tuple[Frame, ...]) -> Finding:
    """Of a process that has ended: a mistake, unless a guess may have made it."""
    message = f"the process {error.how} {_doing(state, frames)}"
    said = ENDED
    if isinstance(error, WorkerLostError):
        hint = "The code closes descriptors that it has not opened, or writes into them."
    elif "exited" in error.how:
        hint = "Let the code raise an exception instead of ending the process."
    elif "SIGKILL" in error.how:
        hint = "If not the code itself, the system does this where memory runs out: use smaller sizes."
    elif _is_guessed(state):
        return _of_a_guess(message, state, error, _raised(fatal_error(error.trace) or ENDED, frames))
    else:
        why = next((f"{why}: " for signal, why in _WHY_KILLED.items() if signal in error.how), "")
        hint = f"{why}run the reproducing command under a debugger, or with CUDA_LAUNCH_BLOCKING=1 on a GPU."
        hint = hint[:1].upper() + hint[1:]
        said = fatal_error(error.trace) or ENDED
    return _finding("GV901", message, hint, state, error, _raised(said, frames))


_WHY_KILLED = {
    "SIGABRT": "Compiled code gave up: an assertion, an exception of C++, memory that it found damaged",
    "SIGFPE": "Compiled code divides an integer by zero, most likely",
    "SIGSEGV": "Memory is read or written out of bounds",
    "SIGBUS": "Memory is read or written out of bounds",
}
"""What a signal tells of the process that it ends."""


def _raised(said: str, frames: tuple[Frame, ...]) -> RaisedError | None:
    return RaisedError(said, "", frames) if frames else None


def _doing(state: TargetState, frames: tuple[Frame, ...]) -> str:
    """What was going on, as the end of a sentence."""
    method = next((f.function for f in frames if f.function in _METHODS), "")
    where = f"in {method}" if method else "while it was verified"
    if state.plan.source is InputSource.NONE:
        return f"{where}, while inputs for it were looked for" if method else "while inputs were looked for"
    return where


def _progress(state: TargetState) -> str:
    """How many cases are verified already; empty where none was begun, or what follows them was going on."""
    done, count = len({c.case_id for c in state.cases_verified}), len(state.plan.cases)
    if not count or state.diagnosing or state.beyond is not None:
        return ""
    return f"{done} of {count} {'case' if count == 1 else 'cases'} judged. "


def _finding(
    code: str, message: str, hint: str, state: TargetState, error: WorkerError, raised: RaisedError | None
) -> Finding:
    severity, case, captured = rule(code).severity, _case(state.running), error.captured
    return Finding(code, severity, message, hint, case=case, captured=captured, raised=raised)


def _case(running: CaseStarted | None) -> CasePoint | None:
    return CasePoint(running.case_id, point=running.point, draw=running.draw) if running is not None else None


def enough_time(calls: int, seconds: float, limit: float) -> str:
    """What to try after a timeout of `limit` seconds, of which so many calls took so many `seconds`.

    The count is the last power of two that was reached: calls that go on as they began reach the next one in
    as long again.
    """
    if limit > STEADY * seconds:
        return (
            f"A call did not return for about {limit - seconds:.2g} s: is there an endless loop? Otherwise "
            "use smaller sizes, or a longer --timeout."
        )
    took = f"{calls} calls of forward and backward took {seconds:.3g} s, {seconds / calls:.2g} s each."
    return f"{took} Use smaller sizes, or a longer --timeout."
