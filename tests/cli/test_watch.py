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
            err.until("waiting for a change")

            (here.folder / "m.py").write_text(SOURCE.replace("2 * grad", "3 * grad"))
            assert "failed: GV101" in "".join(out.until("^1 function: "))
            said = err.until("waiting for a change")
            assert "checking again: m.py changed" in said
            assert "m.py::Double: passed → failed" in said
            assert '"exit_code": 1' in (here.folder / "r.json").read_text()

            (here.folder / "m.py").write_text(SOURCE + "(")
            assert "SyntaxError" in "".join(out.until("cannot be imported|^1 error|SyntaxError"))
            err.until("waiting for a change")

            (here.folder / "m.gradverify.yaml").write_text(SPEC.replace("inputs", "imputs"))
            assert "did you mean `inputs`" in "".join(err.until("nothing was checked"))
            err.until("waiting for a change")
            (here.folder / "m.gradverify.yaml").write_text(SPEC)
            err.until("waiting for a change")

            # Bytecode tells a source by its size and the second: neither changes here.
            (here.folder / "m.py").write_text(SOURCE)
            assert out.until("^1 function: ")[-1] == "1 function: 1 passed"
            err.until("waiting for a change")
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
        (["--in-process"], "--in-process cannot be used with --watch"),
    ],
    ids=str,
)
def test_what_makes_no_sense_here(here, options, words):
    ran = here("check", "m.py", "--watch", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_a_missing_watchfiles_is_named_with_how_to_get_it(here):
    (here.folder / "watchfiles.py").write_text("raise ImportError('none here')\n")
    ran = here.alone("check", "m.py", "--watch", PYTHONPATH=str(here.folder))
    assert (ran.code, ran.out) == (2, "")
    assert "pip install watchfiles" in ran.err
