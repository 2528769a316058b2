"""What the source says beside the verdict of a run: state outside ctx, a backward without a formula."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gradverify.lint.alarm import Alarm, Rule
from gradverify.source import Function
from gradverify.source.outside import used_outside

_HINT_STATE = "Keep it on ctx, or give it as an argument: what outlives a call reaches the next one."
_HINT_PROCESS = "Read it once, when the module is imported, or give it as an argument."


CALLED = ("forward", "setup_context", "backward", "vjp")
"""Methods that a gradient hangs on."""

_MUTATING = frozenset(
    {"append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"}
    | {"remove", "setdefault", "update"}
)
"""Methods by which containers of Python change."""

MUTATING = {True: _MUTATING, False: _MUTATING | {"add"}}
"""The same by whether the result is used: `add` of a tensor returns a sum, that of a set nothing."""

PROCESS = frozenset(
    {"gc.get_objects", "gc.get_referrers", "inspect.currentframe", "inspect.stack", "inspect.trace"}
    | {"os.environ", "os.getenv", "os.getpid", "os.getppid", "socket.gethostname", "sys._current_frames"}
    | {"sys._getframe", "sys.argv", "sys.gettrace", "sys.modules", "sys.orig_argv"}
    | {"threading.current_thread", "threading.enumerate", "traceback.extract_stack"}
    | {"traceback.format_stack", "traceback.walk_stack"}
)
"""What tells of the process, its callers and its variables."""


def outside_ctx(function: Function) -> Iterator[Alarm]:
    """GV816: state outside ctx that forward or backward writes, or reads of their process."""
    reported: set[str] = set()
    for use in used_outside(function, CALLED, MUTATING, PROCESS):
        said = (
            f"writes `{use.shown}`, which is not on ctx"
            if use.written
            else f"reads `{use.shown}` of the process around it"
        )
        if said not in reported:
            reported.add(said)
            yield Alarm(use.place, f"{use.by} {said}", _HINT_STATE if use.written else _HINT_PROCESS)


_HINT_SAME = (
    "That is as right as what it differentiates, and no faster than torch's own gradient of the same "
    "operations."
)

DIFFERENTIATING = frozenset(
    {"torch.autograd.grad", "torch.autograd.backward", "torch.autograd.functional.vjp"}
    | {"torch.func.grad", "torch.func.vjp", "torch.func.jacrev", "torch.func.jacfwd"}
)


def differentiates_forward(function: Function) -> Iterator[Alarm]:
    """GV817: backward has no formula of its own, but has torch differentiate what it computes."""
    backward = function.backward
    if backward is None:
        return
    for place, shown in islice(backward.calls(DIFFERENTIATING, "backward", function.module.imported), 1):
        said = f"{backward.name} has torch differentiate what it computes (`{shown}`)"
        yield Alarm(place, said, _HINT_SAME)


NOTES: dict[str, Rule] = {"GV816": outside_ctx, "GV817": differentiates_forward}
"""By code."""
