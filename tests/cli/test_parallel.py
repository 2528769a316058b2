"""`-j N`: the same report whatever N, targets really verified at once, and nothing left running."""

import json
import os
import time
from pathlib import Path
from signal import Signals

import pytest


def alive(pid):
    """Whether a process still runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return done


MEET = """
import os
import time
from pathlib import Path

from torch.autograd import Function


def wait_for(other, mine):
    (Path(os.environ["MARKS"]) / mine).write_text(str(os.getpid()))
    end = time.monotonic() + 30
    while not (Path(os.environ["MARKS"]) / other).exists():
        assert time.monotonic() < end, "nobody came"
        time.sleep(0.01)


class First(Function):
    @staticmethod
    def forward(ctx, x):
        wait_for("second", "first")
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Second(First):
    @staticmethod
    def forward(ctx, x):
        wait_for("first", "second")
        return 2 * x
"""

ONCE = """
import os
from pathlib import Path

from torch.autograd import Function

Path(os.environ["MARKS"], "imported").touch(exist_ok=False)


class First(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Second(First):
    pass


class Third(First):
    pass
"""

SPEC = "gradverify: 1\nmodule: meet.py\nfunctions: {First: {inputs: {x: [2]}}, Second: {inputs: {x: [2]}}}\n"


@pytest.fixture(scope="module")
def here(place):
    return place("screens")


@pytest.mark.parametrize(
    "arguments", [("right.py", "broken.py", "statuses.py"), ("wrong.py", "statuses.py", "--maxfail", "2")]
)
def test_the_report_is_the_same(here, arguments):
    files = ("--report", "text=report.txt", "--format", "json")
    alone = here("check", *arguments, *files)
    text = (here.folder / "report.txt").read_text()
    assert here("check", *arguments, *files, "-j", "3") == alone
    assert (here.folder / "report.txt").read_text() == text


def test_a_crash_costs_one_target_its_verdict(place):
    arguments = ("check", "crashing.py", "-k", "SegfaultInForward or Before", "--format", "json")
    here = place()
    assert here(*arguments, "-j", "3") == here(*arguments)


def test_targets_of_one_module_are_verified_at_once(place, tmp_path):
    here = place("screens")
    (here.folder / "meet.py").write_text(MEET)
    (here.folder / "meet.gradverify.yaml").write_text(SPEC)
    ran = here("check", "meet.py", "-j", "2", "--format", "json", "--timeout", "60", MARKS=str(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    assert [t["name"] for t in json.loads(ran.out)["targets"]] == ["First", "Second"]
    pids = {(tmp_path / name).read_text() for name in ("first", "second")}
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_a_module_that_can_be_imported_once_is_verified_by_one(place, tmp_path):
    here = place("screens")
    (here.folder / "once.py").write_text(ONCE)
    ran = here("check", "once.py", "-j", "3", "--format", "json", MARKS=str(tmp_path))
    assert ran.code == 0, ran.out


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_signal(place, name, tmp_path):
    here = place()
    marks = [tmp_path / str(k) for k in (1, 2)]
    source = (here.folder / "signals.py").read_text()
    for mark in marks:
        (here.folder / f"signals_{mark.name}.py").write_text(
            source.replace('os.environ["MARK"]', repr(str(mark)))
        )
    process = here.start("check", "signals_1.py", "signals_2.py", "-j", "2", env={**os.environ})
    assert until(lambda: all(mark.exists() and mark.read_text() for mark in marks), 600)
    pids = [int(word) for mark in marks for word in mark.read_text().split()]
    assert len(set(pids)) >= 2
    process.send_signal(Signals[name])
    out, err = process.communicate(timeout=900)
    assert until(lambda: not any(map(alive, pids)), 60)
    assert out == b""
    if name != "SIGKILL":
        assert (process.returncode, err) == (130, b"gradverify: interrupted; nothing is left running\n")


def test_not_in_this_process(here):
    ran = here("check", "right.py", "-j", "2", "--in-process")
    assert (ran.code, ran.out) == (2, "")
    assert "-j needs processes of their own: it cannot be used with --in-process" in ran.err
