"""--in-process: the same verdicts, with a debugger that works."""

import json
import subprocess
import sys

import pytest

STOPS = """\
from torch.autograd import Function

class Stops(Function):
    @staticmethod
    def forward(ctx, x):
        print("here it is")
        breakpoint()
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""


@pytest.fixture(scope="module")
def here(place):
    here = place("screens")
    (here.folder / "stops.py").write_text(STOPS)
    return here


def test_the_same_report(here):
    files = ("wrong.py", "right.py", "wrong_syntax.py")
    apart, within = (
        here("check", *files, *more, "--report", "json=o.json") for more in ((), ("--in-process",))
    )
    assert (apart.code, within.code, within.err) == (2, 2, "")
    assert "x is 1 tensor" in within.out  # as it is printed, not with the finding
    report = json.loads((here.folder / "o.json").read_text())
    assert [target["status"] for target in report["targets"]].count("failed") == 2
    here("check", *files, "--report", "json=apart.json")
    expected = json.loads((here.folder / "apart.json").read_text())
    for finding in (f for target in expected["targets"] for f in target["findings"]):
        finding.pop("captured", None)
    assert report == expected


def test_breakpoint(here):
    """The debugger reads stdin; leaving it ends the run, though user code may catch everything else."""
    process = here.start("check", "stops.py", "--in-process", stdin=subprocess.PIPE)
    out, err = process.communicate(b"p x.dim()\np 'alive'\nq\n", timeout=900)
    assert b"here it is" in out
    assert b"'alive'" in out
    assert (process.returncode, err) == (130, b"gradverify: interrupted; nothing is left running\n")


def test_neither_a_pass_nor_a_failure_loads_a_compiler(here):
    """It takes longer than everything else that a small module needs."""
    code = (
        "import sys; sys.argv = 'gradverify check right.py wrong.py::Product --in-process -q'.split()\n"
        "from gradverify.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, {'torch._dynamo', 'sympy'} & {*sys.modules})"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=here.folder, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "1 set()"
