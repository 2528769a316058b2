"""Signals at random moments: nothing is left running, and what was judged is reported."""

import json
import os
import random
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from extent import extent
from forked_command import plain_environment as environment

SIGNALS = extent(6, 20)
SEED = 21

EARLIEST = 0.2
"""Seconds: until then Python itself starts, on a busy machine."""

LONGEST = 2.5
"""Seconds: the run takes about as long, so that signals come while it starts, imports, judges and ends."""

AT_ONCE = 1.0
"""Seconds after which nothing may be left of a run."""

MODULE = """
import subprocess
import time

from torch.autograd import Function


class First(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Slow(First):
    started = False

    @staticmethod
    def forward(ctx, x):
        if not Slow.started:
            Slow.started = True
            subprocess.Popen(["sleep", "600"])
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(0.01)
        return 2 * x


class Last(First):
    pass
"""


def moments():
    drawn = random.Random(SEED)
    names = ["SIGINT", "SIGTERM", "SIGKILL"]
    return [(names[k % 3], round(drawn.uniform(EARLIEST, LONGEST), 3)) for k in range(SIGNALS)]


def left_of(mark):
    """Processes with a mark among their variables that have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ended = (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] == "Z"
            if not ended and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc here")
@pytest.mark.parametrize(("name", "moment"), moments())
def test_a_signal_at_any_moment(place, name, moment):
    here, mark = place("compiled"), str(uuid.uuid4())
    (here.folder / "m.py").write_text(MODULE)
    report = here.folder / "told.json"
    process = here.start(
        *("check", "m.py", "--report", f"json={report}"), env=environment(GRADVERIFY_TEST_MARK=mark)
    )
    time.sleep(moment)
    process.send_signal(getattr(signal, name))
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        raise
    end = time.monotonic() + AT_ONCE
    while (left := left_of(mark)) and time.monotonic() < end:
        time.sleep(0.01)
    assert left == []
    assert b"Traceback" not in err
    if name == "SIGKILL":
        return
    assert process.returncode in (0, 130)
    if report.exists():
        reported = json.loads(report.read_text())
        assert reported["exit_code"] == process.returncode
        assert {t["name"] for t in reported["targets"]} == {"First", "Slow", "Last"}
