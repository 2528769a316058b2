"""What the tests fork: it ends as a process of its own would, and never outlives who waits for it."""

import subprocess
import sys
import time
from pathlib import Path

import forked_command
import pytest

pytestmark = pytest.mark.skipif(not forked_command.CAN_FORK, reason="nothing is forked here")

SECONDS = 60.0
"""For what takes milliseconds, on a busy machine."""


def gone(pid):
    """Whether a process has ended within the time."""
    end = time.monotonic() + SECONDS
    stat = Path(f"/proc/{pid}/stat")
    while time.monotonic() < end:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("program", "code", "out", "err"),
    [
        ("import sys; print(sys.argv[1:])", 0, "['a', 'b']\n", ""),
        ("import sys; sys.exit(3)", 3, "", ""),
        ("import sys; sys.exit('no')", 1, "", "no\n"),
        ("import os; os._exit(5)", 5, "", ""),
        ("import os; os.kill(os.getpid(), 9)", -9, "", ""),
    ],
)
def test_a_program_ends_as_it_would_by_itself(tmp_path, program, code, out, err):
    assert forked_command.python(["-c", program, "a", "b"], tmp_path) == forked_command.Ended(code, out, err)


def test_an_exception_is_reported(tmp_path):
    ran = forked_command.python(["-c", "1 / 0"], tmp_path)
    assert ran.code == 1
    assert ran.err.endswith("ZeroDivisionError: division by zero\n")


def test_what_hangs_is_killed_and_shown(tmp_path):
    program = "import os, time; print(os.getpid(), flush=True); open('pid', 'w').write(str(os.getpid()))\n"
    with pytest.raises(AssertionError, match=r"not done within 1.0 s"):
        forked_command.python(["-c", f"{program}time.sleep(600)"], tmp_path, limit=1.0)
    assert gone(int((tmp_path / "pid").read_text()))


RUNNER = f"""
import sys
sys.path.append({str(forked_command.SERVER.parent)!r})
import forked_command
environment = forked_command.plain_environment()
with forked_command.ForkServer(environment, has_torch=False) as server, open("/dev/null", "w") as null:
    words = ["-c", "import time; time.sleep(600)"]
    message = {{"asked": "python", "arguments": words, "folder": "/", "environment": environment}}
    forked = forked_command.Forked(server.address, message, [null.fileno(), null.fileno()])
    print(server._process.pid, forked.pid, flush=True)
    forked.wait()
"""


def test_all_ends_with_who_started_the_server():
    with subprocess.Popen([sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, text=True) as runner:
        server, forked = map(int, runner.stdout.readline().split())
        runner.kill()
    assert gone(server)
    assert gone(forked)
