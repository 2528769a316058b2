"""`check --watch` as a process: a save, the verdict that follows it, and how it ends."""

import os
import queue
import re
import signal
import sys
import threading
import time

import pytest

PATIENCE = 600.0
"""Seconds for a verdict, however busy the machine is."""

SOURCE = """\
from torch.autograd import Function


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""
SPEC = "gradverify: 1\nmodule: m.py\nfunctions: {Double: {inputs: {x: [2]}}}\n"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its pipes cannot be polled")


class Lines:
    """The lines of a stream as they come."""

    def __init__(self, stream):
        self._queue = queue.SimpleQueue()
        self._stream = stream
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self._stream:
            self._queue.put(line.decode().rstrip("\n"))

    def until(self, pattern):
        """All lines up to the first that matches."""
        end, lines = time.monotonic() + PATIENCE, []
        while not (lines and re.search(pattern, lines[-1])):
            lines.append(self._queue.get(timeout=max(0.0, end - time.monotonic())))
        return lines


@pytest.fixture
def here(place):
    here = place("screens")
    for old in here.folder.iterdir():
        old.unlink()
    (here.folder / "m.py").write_text(SOURCE)
    (here.folder / "m.gradverify.yaml").write_text(SPEC)
    return here


def test_saves_and_the_verdicts_after_them(here):
    with here.start("check", "m.py", "--watch", "--report", "json=r.json") as process:
        try:
            out, err = Lines(process.stdout), Lines(process.stderr)
            assert out.until("^1 function: ")[-1] == "1 function: 1 passed"
            assert re.search("checked 1 of 1 target in ", err.until("checked")[-1])

            (here.folder / "m.py").write_text(SOURCE.replace("2 * grad", "3 * grad"))
            assert "failed: GV101" in "".join(out.until("^1 function: "))
            assert "m.py::Double: passed → failed" in err.until("checked")
            assert '"exit_code": 1' in (here.folder / "r.json").read_text()

            (here.folder / "m.py").write_text(SOURCE + "(")
            lines = "".join(out.until("^1 function: "))
            assert "SyntaxError" in lines
            assert "its module cannot be imported now; failed as of" in lines
            err.until("checked 0 of 1 target")

            # Bytecode tells a source by its size and the second: neither changes here.
            (here.folder / "m.py").write_text(SOURCE)
            assert out.until("^1 function: ")[-1] == "1 function: 1 passed"
            err.until("checked")
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_it_ends_when_nobody_reads_it_any_more(here):
    ours, theirs = os.pipe()
    with here.start("check", "m.py", "--watch", stdout=theirs) as process:
        os.close(theirs)
        read = b""
        while b"1 function: " not in read:
            read += os.read(ours, 1024)
        os.close(ours)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "json"], "--watch prints report after report: use --report json=PATH"),
        (["-x"], "-x cannot be used with --watch"),
        (["--in-process"], "--in-process cannot be used with --watch"),
        (["--changed=HEAD"], "--changed cannot be used with --watch"),
    ],
    ids=str,
)
def test_what_makes_no_sense_here(here, options, words):
    ran = here("check", "m.py", "--watch", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
