"""On a terminal: width, colour, and progress that comes late and goes away."""

import fcntl
import os
import re
import struct
import sys
import termios
import threading

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pty", allow_module_level=True)

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """One end of a pty, read until the other is closed."""

    def __init__(self):
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._read = []
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self):
        try:
            while chunk := os.read(self.ours, 4096):
                self._read.append(chunk)
        except OSError:
            pass

    def text(self):
        """All that was written to it."""
        os.close(self.theirs)
        self._reader.join(30)
        os.close(self.ours)
        return b"".join(self._read).decode().replace("\r\n", "\n")


def on_terminals(place, environment, *arguments):
    """Exit code, stdout and stderr of a run with both on terminals of 80 columns."""
    out, err = Terminal(), Terminal()
    variables = {name: value for name, value in environment.items() if name != "COLUMNS"}
    process = place.start(*arguments, stdout=out.theirs, stderr=err.theirs, env=variables)
    code = process.wait(120)
    return code, out.text(), err.text()


@pytest.fixture(scope="module")
def here(place):
    return place("screens")


@pytest.fixture
def plain():
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR"}}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}


def test_a_run_on_a_terminal(here, plain):
    code, out, err = on_terminals(here, plain, "check", "wrong.py", "right.py")
    assert code == 1
    assert COLOR.search(out)
    lines = ANSI.sub("", out).splitlines()
    unbroken = ("reproduce", "explain")
    assert max(len(line) for line in lines if not line.strip().startswith(unbroken)) <= 80
    # Progress is shown after a second, on stderr, and wiped off at the end.
    assert re.search(r"(importing|\d of \d)", ANSI.sub("", err))
    assert err.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))
    assert "\x1b[2K" in err
    assert "importing" not in out
    # An error is shown as soon as it is certain, before its cause is looked for; the report repeats it.
    shown = ANSI.sub("", err)
    assert re.search(r"wrong\.py:\d+: GV101 .+\n", shown)


@pytest.mark.parametrize(
    ("variables", "arguments", "colored"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
        ({"TERM": "dumb"}, [], False),
    ],
    ids=str,
)
def test_color_on_a_terminal(here, plain, variables, arguments, colored):
    """Of a mistake in a spec, which needs no torch."""
    asked = ("check", "right.py", "--spec", "mistaken.yaml", *arguments)
    code, out, err = on_terminals(here, {**plain, **variables}, *asked)
    assert (code, out) == (2, "")
    assert "did you mean" in err
    assert bool(COLOR.search(err)) is colored


@pytest.mark.parametrize(
    ("variables", "arguments", "colored"),
    [({}, [], False), ({"FORCE_COLOR": "1"}, [], True), ({}, ["--color", "always"], True)],
    ids=str,
)
def test_color_in_a_pipe(here, variables, arguments, colored):
    ran = here("check", "wrong_syntax.py", *arguments, **variables)
    assert bool(COLOR.search(ran.out)) is colored
    assert ran.err == ""
