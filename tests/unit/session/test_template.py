"""The template process: what it forks is as good as new, and nothing outlives the front."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import forked_command
import pytest

from gradverify.model import Settings
from gradverify.session import template as of_session
from gradverify.session.template import Template, can_fork, template_for
from gradverify.session.worker import Worker
from gradverify.session.worker_ended import WorkerDiedError

pytestmark = pytest.mark.skipif(not can_fork(Settings()), reason="workers are not forked here")

SECONDS = 60.0
"""For what takes milliseconds, on a busy machine."""


def until(condition):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def alive(pid):
    """Whether a process still runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def field(pid, number):
    """A field of `/proc/PID/stat` behind the name: 1 is the parent, 3 the session."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number])


def parent(pid):
    return field(pid, 1)


@contextmanager
def worker_of(template):
    with Worker(template=template) as worker:
        worker.ready()
        yield worker


MODULE = """
import json, os, subprocess, sys, threading
from pathlib import Path

from torch.autograd import Function

left = None
if os.environ.get("LEAVES"):
    left = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
Path("told.json").write_text(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "threads": threading.active_count(),
    "folder": os.getcwd(), "mine": os.environ.get("MINE"), "path": sys.path[0], "left": left,
    "loaded": [n for n in sys.modules if n.startswith(("triton", "torch._dynamo", "torch._inductor"))],
}))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODULE)
    return tmp_path


def reported(worker, folder):
    """What a module says of the worker that imports it."""
    from gradverify.events import Collect  # noqa: PLC0415 - with what is asked of it

    list(worker.ask(Collect(str(folder / "m.py"), "m.py"), SECONDS))
    return json.loads((folder / "told.json").read_text())


@pytest.fixture(scope="module")
def template():
    with Template() as one:
        yield one


def test_a_worker_is_the_templates_child_with_the_fronts_folder_and_variables(template, folder, monkeypatch):
    monkeypatch.setenv("MINE", "set since")
    with worker_of(template) as worker:
        said = reported(worker, folder)
    assert said["pid"] == said["session"]
    assert said["parent"] == template._process.pid
    assert (said["folder"], said["mine"]) == (str(folder), "set since")


@pytest.mark.parametrize("name", ["PYTHONPATH", "OMP_NUM_THREADS", "TORCH_LOGS"])
def test_what_libraries_read_at_their_start_makes_a_worker_start_afresh(template, monkeypatch, name):
    monkeypatch.setenv(name, "7")
    with tempfile.TemporaryFile() as log:
        assert template.fork(log.fileno(), log.fileno()) is None


def test_what_a_preloaded_worker_has_loaded_reads_no_variable_of_a_module(folder):
    with Template() as template:
        template.preload()
        with worker_of(template) as worker:
            said = reported(worker, folder)
    assert said["parent"] == template._process.pid
    assert said["loaded"] == []


def test_what_a_worker_leaves_in_a_session_of_its_own_ends_with_it(template, folder, monkeypatch):
    monkeypatch.setenv("LEAVES", "1")
    with worker_of(template) as worker:
        left = reported(worker, folder)["left"]
        assert alive(left)
        os.kill(worker._process.pid, signal.SIGKILL)
        assert worker._process.wait(SECONDS) == -signal.SIGKILL
    assert until(lambda: not alive(left))


def test_what_a_worker_ended_with_is_reported(template):
    with worker_of(template) as worker:
        os.kill(worker._process.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDiedError, match="killed by SIGSEGV"):
            worker._next(worker._clock() + SECONDS)


def test_where_the_template_was_killed_workers_start_afresh(folder):
    with Template() as template:
        template._process.kill()
        template._process.wait(SECONDS)
        with worker_of(template) as worker:
            assert reported(worker, folder)["parent"] == os.getpid()


def test_where_the_template_is_killed_its_workers_are_taken_for_dead(folder):
    with Template() as template, worker_of(template) as worker:
        template._process.kill()
        assert worker._process.wait(SECONDS) == -signal.SIGKILL
        assert not worker.running


def test_a_template_with_a_second_thread_forks_nothing_and_its_front_starts_afresh(folder, monkeypatch):
    """A fork would copy the locks of the other thread, which nobody lets go."""
    begin = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); "

    def with_a_thread(lifeline, run, *options):
        return bootstrap(lifeline, begin + run, *options)

    bootstrap = of_session.bootstrap
    monkeypatch.setattr(of_session, "bootstrap", with_a_thread)
    monkeypatch.setattr(of_session, "begun", forked_command.started)
    with Template() as template, worker_of(template) as worker:
        assert reported(worker, folder)["parent"] == os.getpid()
        assert template._process.poll() is None


FRONT = """
import sys, time
from gradverify.session.worker import Worker
from gradverify.session.template import Template
with Template() as template, Worker(template=template) as worker:
    worker.ready()
    print(template._process.pid, worker._process.pid, flush=True)
    time.sleep(600)
"""


def test_a_template_and_its_workers_end_with_a_front_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True) as front:
        pids = list(map(int, front.stdout.readline().split()))
        assert len(pids) == 2
        assert parent(pids[1]) == pids[0]
        front.kill()
    assert until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("settings", [Settings(device="cuda:0"), Settings(every_device=True)])
def test_who_uses_an_accelerator_is_never_forked(settings):
    assert not can_fork(settings)
    assert template_for(settings) is None


def test_where_there_is_no_handle_of_a_process_nothing_is_forked(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    assert not can_fork(Settings())
