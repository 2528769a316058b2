"""Runs whose workers fail in rare ways: the front in this process, real workers."""

import sys
from pathlib import Path

import pytest

from gradverify.model import Verdict
from gradverify.session import processes, run, worker
from gradverify.session.outcome import ExitCode
from gradverify.session.request import Request
from gradverify.session.run import check
from gradverify.session.selection import parse_target
from gradverify.session.template import Template

FUNCTIONS = """
from torch.autograd import Function

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
SABOTEUR = """
import sys
sys.path.append({package!r})
from gradverify.verifier.process import server
from gradverify.verifier.process import worker

honest = server.verify

planted = '''
def verify(request, live):
    if request.target.name == "Second":
        raise RuntimeError("planted")
    yield from honest(request, live)
'''
exec(compile(planted, server.__file__, "exec"), globals())  # as if it stood there

server.verify = verify
server.AS_LOADED = server.Surroundings.take()
worker.main(*{descriptors})
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verdicts(report):
    return {f"{r.target.file}::{r.target.name}": r.status for r in report.targets}


def test_a_bug_of_ours_costs_one_target(here, monkeypatch):
    def command(*descriptors):
        package = str(Path(processes.__file__).parents[2])
        return [sys.executable, "-P", "-c", SABOTEUR.format(package=package, descriptors=descriptors)]

    monkeypatch.setattr(processes, "_command", command)
    (here / "m.py").write_text(FUNCTIONS)
    # Afresh: by the command above.
    afresh = Request((parse_target("m.py"),), started=worker.Worker)
    report = check(afresh)
    assert verdicts(report) == {
        "m.py::First": Verdict.PASSED,
        "m.py::Second": Verdict.UNCHECKED,
        "m.py::Third": Verdict.PASSED,
    }
    assert report.exit_code == ExitCode.BUG
    (bug,) = report.bugs
    assert bug.endswith("RuntimeError: planted\n")
    assert "a bug of ours" in report.targets[1].reason


def test_a_module_that_hangs_on_import(here):
    (here / "m.py").write_text("import time\nprint('waiting')\ntime.sleep(54321)\n")
    report = check(Request((parse_target("m.py"),), import_timeout=1.0))
    (error,) = report.errors
    assert error.message == "cannot be imported: importing it took longer than 1 s"
    assert (error.location.line, error.captured) == (3, "waiting")
    assert report.exit_code == ExitCode.USAGE


def test_a_module_that_can_be_imported_once(here):
    """After the crash of one target the others cannot be verified, and say why."""
    crash = FUNCTIONS.replace("class Second(First):\n    pass", "class Second(First):\n    backward = crash")
    head = (
        "import os\nfrom pathlib import Path\n\nPath('once').mkdir()\n\n"
        "@staticmethod\ndef crash(ctx, grad):\n    os.abort()\n"
    )
    (here / "m.py").write_text(head + crash)
    report = check(Request((parse_target("m.py"),)))
    # On guessed arguments the crash itself is no failure.
    assert list(verdicts(report).values()) == [Verdict.PASSED, Verdict.UNCHECKED, Verdict.UNCHECKED]
    assert "could not be imported again: it raised FileExistsError" in report.targets[2].reason
    assert report.exit_code == ExitCode.FINDINGS


def test_few_workers_are_kept(here, monkeypatch):
    """Each holds a torch of its own; here they are forked, which nobody but the clock notices."""
    running = []
    most = []
    kill_all = processes.kill_all

    def started(*arguments):
        process, channel = template.fork(*arguments)
        running.append(process)
        most.append(len(running))
        return process, channel

    def killed(process, *arguments):
        if process in running:
            running.remove(process)
        kill_all(process, *arguments)

    monkeypatch.setattr(run, "MAX_WARM", 2)
    monkeypatch.setattr(worker, "start", started)
    monkeypatch.setattr(worker, "kill_all", killed)
    names = [f"m{number}.py" for number in range(3)]
    for name in names:
        (here / name).write_text(FUNCTIONS.partition("class Second")[0])
    with Template() as template:
        report = check(Request(tuple(map(parse_target, names)), started=worker.Worker))
    assert verdicts(report) == {f"{name}::First": Verdict.PASSED for name in names}
    assert max(most) == 2
    assert running == []
