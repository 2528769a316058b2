"""--memory: a target that takes too much is stopped, the others are judged."""

import os
import subprocess
import sys

import pytest

from gradverify.cases.further import bytes_of
from gradverify.model import Case, TensorInput, Verdict
from gradverify.session import memory
from gradverify.session.request import Request
from gradverify.session.run import check
from gradverify.session.selection import parse_target

HUNGRY = """
import time
from torch.autograd import Function

class Hungry(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        kept = []
        while len(kept) < 64:
            kept.append(bytearray(64 << 20))
            time.sleep(0.02)
        return 2 * grad

class Modest(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""


def test_too_much(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(HUNGRY)
    report = check(Request((parse_target("m.py"),), memory=1024, extra_arguments=("--memory", "1024")))
    hungry, modest = report.targets
    assert (hungry.status, modest.status) == (Verdict.UNCHECKED, Verdict.PASSED)
    (finding,) = hungry.findings
    assert finding.code == "GV903"
    taken = int(finding.message.removeprefix("it took ").split()[0])
    assert 1024 < taken < 4096
    assert "MiB of memory, more than the 1024 MiB allowed: it was stopped in backward" in finding.message
    assert ", at m.py:" in finding.message
    assert finding.raised.frames[-1].function == "backward"
    assert "--memory 1024" in finding.reproduce


def test_what_takes_more_than_is_left_of_this_machine_is_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "bytes_left", lambda: 1 << 30)
    monkeypatch.setattr(memory, "all_bytes", lambda: 1 << 40)
    (tmp_path / "m.py").write_text(HUNGRY)
    hungry, modest = check(Request((parse_target("m.py"),), timeout=600)).targets
    assert (hungry.status, modest.status) == (Verdict.UNCHECKED, Verdict.PASSED)
    (finding,) = hungry.findings
    assert finding.code == "GV903"
    assert "and 1024 MiB are left of all: it was stopped in backward" in finding.message
    assert finding.hint == "Use smaller sizes."


def test_a_case_that_cannot_fit_is_reported_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(HUNGRY)
    (tmp_path / "m.gradverify.yaml").write_text(
        "module: m.py\nfunctions: {Modest: {sizes: {n: [3, 1000000000]}, inputs: {x: [n]}}}\n"
    )
    (modest,) = check(Request((parse_target("m.py::Modest"),), memory=1024)).targets
    assert [case.status for case in modest.case_reports] == [Verdict.PASSED, Verdict.UNCHECKED]
    (finding,) = modest.findings
    assert (modest.status, finding.code, finding.case.id) == (Verdict.UNCHECKED, "GV903", "n=1000000000")
    assert finding.message == (
        "the inputs of case n=1000000000 take 7.45 GiB (`x` is [1000000000]): verifying it needs at least "
        "59.6 GiB, more than the 1 GiB that --memory allows"
    )


@pytest.mark.parametrize(
    ("dtype", "taken"), [("float64", 24), ("complex64", 24), ("bfloat16", 6), ("int8", 3), ("bool", 3)]
)
def test_bytes_of_a_case(dtype, taken):
    assert bytes_of(Case("base", 1, inputs=(TensorInput("x", (3,), dtype=dtype),))) == taken


def test_memory_of_a_group():
    """A process and its child, both counted."""
    code = "import os, sys; os.fork(); x = bytearray(os.urandom(50 << 20)); os.write(1, bytes(1)); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes) as process:
        try:
            assert process.stdout.read(2) == bytes(2)
            assert 100 <= memory.resident_mib(process.pid) < 250
        finally:
            os.killpg(process.pid, 9)
