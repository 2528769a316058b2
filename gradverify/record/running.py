"""Running the user's program with the hook in it: its arguments, streams and exit code are its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradverify.record.hook.installing import VARIABLE

INJECTED = Path(__file__).parent / "injected"


def run_program(command: Sequence[str], folder: Path, modules: Sequence[str]) -> int:
    """Run a command until it ends; what it calls is noted in files of `folder`.

    Returns its exit code, 128 + the number of the signal that ended it. Raises `OSError` where it cannot be
    started.
    """
    asked = {"folder": str(folder), "root": str(Path.cwd().resolve()), "modules": list(modules)}
    path = os.pathsep.join(filter(None, (str(INJECTED), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: json.dumps(asked)}
    with subprocess.Popen(command, env=environment) as program, _signals_for(program):  # noqa: S603 - what the user asks for
        code = program.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_for(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the program decide what an interrupt means: the terminal sends Ctrl-C to it as well."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: program.send_signal(number)),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
