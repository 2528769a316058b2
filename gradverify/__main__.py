"""The console script, and `python -m gradverify`: Ctrl-C shows no traceback while the command is loaded.

Without the current folder on the path: a `random.py` there is none of ours.
"""

import contextlib
import os
import signal
import sys

INTERRUPTED = 130

_SAID = b"gradverify: interrupted; nothing is left running\n"


def _leave(*_: object) -> None:
    """Nothing has been started yet."""
    os.write(2, _SAID)
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) in {signal.default_int_handler, signal.SIG_DFL}:
            signal.signal(number, _leave)
    from gradverify.cli import main as run  # noqa: PLC0415 - with what it needs, which takes a while

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.default_int_handler)  # leaves the terminal as it was
    try:
        run()
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            _exit_with(INTERRUPTED)
        raise


def _exit_with(code: int) -> None:
    """Leave with this code: Python would by a signal, if an interrupt ever came while it ran `exec`."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
