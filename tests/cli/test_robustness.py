"""Whatever user code does costs its own target the verdict; the others are judged, no traceback is ours."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from signal import Signals

import pytest
import verdicts_only


def alive(pid):
    """Whether a process still runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def sleepers(folder):
    """Processes named `sleep` that were started below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text() == "sleep\n" and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


def judged(ran):
    """The targets and errors of a JSON report, by name and by file."""
    assert "Traceback" not in ran.err, ran.err
    report = json.loads(ran.out)
    assert report["exit_code"] == ran.code
    return (
        {target["name"]: target for target in report["targets"]},
        {error["file"]: error for error in report["errors"]},
    )


def only(target):
    """Its only finding that is no note."""
    (finding,) = (found for found in target["findings"] if found["severity"] != "note")
    return finding


CRASHES = {
    "SegfaultInForward": ("killed by SIGSEGV in forward", "forward: return 2 * x + len(ctypes.string_at(0))"),
    "SegfaultInBackward": (
        "killed by SIGSEGV in backward",
        "read_address_zero: return len(ctypes.string_at(0))",
    ),
    "ExitsZero": ("exited with code 0 in backward", "backward: os._exit(0)"),
    "ExitsSeven": ("exited with code 7 in forward", "forward: os._exit(7)"),
    "KilledByTheSystem": ("killed by SIGKILL", ""),
    "BreaksTheChannel": ("lost its connection", ""),
    "WritesIntoTheChannel": ("lost its connection", ""),
}
EXCEPTIONS = {
    "SysExit": "SystemExit",
    "Interrupt": "KeyboardInterrupt",
    "EndlessRecursion": "RecursionError",
    "UnprintableError": "Odd",
    "Raises": "AttributeError",
}


def test_a_crash_on_guessed_arguments_is_no_failure(place):
    ran = place("crashing_on_guesses")("check", "functions.py", "--format", "json")
    targets, _ = judged(ran)
    assert {name: target["status"] for name, target in targets.items()} == {
        "Trusting": "unchecked",
        "Unrelated": "passed",
    }
    finding = only(targets["Trusting"])
    assert finding["code"] == "GV001"
    assert "killed by SIGSEGV in forward, while inputs for it were looked for" in finding["message"]
    assert "Write a spec" in finding["hint"]


def test_crashes(place):
    """One run: what is left of each target whose code ends its process, and of the ones around it."""
    ran = place()("check", "crashing.py", "--format", "json")
    targets, _ = judged(ran)
    assert (ran.code, ran.err) == (1, "")
    assert targets.keys() == {"Before", "Passing", "After", *CRASHES, *EXCEPTIONS}
    assert {targets[name]["status"] for name in ("Before", "Passing", "After")} == {"passed"}
    for name, (words, place_) in CRASHES.items():
        finding = only(targets[name])
        assert (name, targets[name]["status"], finding["code"]) == (name, "failed", "GV901")
        assert words in finding["message"]
        assert finding["case"]["point"] == "typical"
        assert "gradverify/" not in finding.get("captured", "")
        if place_:
            frame = finding["raised"]["frames"][-1]
            assert frame["file"] == "crashing.py"
            assert f"{frame['function']}: {frame['source']}" == place_
    assert only(targets["SegfaultInForward"])["captured"] == "about to read address 0"
    for name, kind in EXCEPTIONS.items():
        finding = only(targets[name])
        assert (name, finding["code"], finding["raised"]["type"]) == (name, "GV102", kind)
        assert [frame["file"] for frame in finding["raised"]["frames"]] == ["crashing.py"]


FORGES_THE_REPORT = """
from pathlib import Path

from torch.autograd import Function


class Wrong(Function):
    @staticmethod
    def forward(ctx, x):
        Path("told.json").write_text('{"exit_code": 0, "targets": []}')
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad
"""


def test_what_code_writes_into_the_report_is_overwritten(place):
    here = place("compiled")
    (here.folder / "forges.py").write_text(FORGES_THE_REPORT)
    (here.folder / "forges.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: forges.py\nfunctions:\n  Wrong: {inputs: {x: [3]}}\n"
    )
    asked = ("check", "forges.py", "--effort", "quick", "--report", "json=told.json")
    ran = here(*asked, **verdicts_only.VARIABLES)
    reported = json.loads((here.folder / "told.json").read_text())
    assert (ran.code, reported["exit_code"]) == (1, 1)
    assert [target["status"] for target in reported["targets"]] == ["failed"]


def test_hanging(place):
    """Endless loops cost three seconds each, say where they were, and take their children along."""
    here = place()
    targets, _ = judged(here("check", "hanging.py", "--timeout", "3", "--format", "json"))
    assert (targets["Double"]["status"], targets["Last"]["status"]) == ("passed", "passed")
    for name in ("LoopsInBackward", "HoldsTheInterpreter", "IgnoresEveryException"):
        finding = only(targets[name])
        assert (targets[name]["status"], finding["code"]) == ("unchecked", "GV902")
        assert "not done within 3 s" in finding["message"]
        assert "hanging.py:" in finding["message"]
    assert until(lambda: not sleepers(here.folder), 60)


def test_rude(place):
    """Functions that disturb streams, threads, switches and folders get their verdicts."""
    targets, _ = judged(place()("check", "rude.py", "--format", "json"))
    wrong = {name for name in targets if name.endswith("IsWrong")}
    assert len(wrong) == 4
    verdicts = {name: target["status"] for name, target in targets.items()}
    assert verdicts == {name: "failed" if name in wrong else "passed" for name in targets}
    for name in wrong:
        for words in ("through print", "through descriptor 1: �", "through stderr ✓"):
            assert words in only(targets[name])["captured"], name


IMPORTS = {
    "raises.py": (7, "KeyError: 'path'"),
    "sys_exits.py": (5, "SystemExit: no GPU, no module"),
    "os_exits.py": (6, "exited with code 0"),
    "segfaults.py": (5, "killed by SIGSEGV"),
    "helper_is_wrong.py": (3, "SyntaxError: '(' was never closed"),
    "wrong_syntax.py": (3, "SyntaxError: '(' was never closed"),
    "binary.py": (1, "null bytes"),
    "latin.py": (1, "SyntaxError"),
    "clears_modules.py": (1, "cannot be imported: KeyError"),
}


def test_imports(place):
    """Whatever a module does on import, the module beside it is judged; exit code 2."""
    ran = place("imports")("check", *IMPORTS, "good.py", "--format", "json")
    targets, errors = judged(ran)
    assert ran.code == 2
    assert targets["Double"]["status"] == "passed"
    assert errors.keys() == IMPORTS.keys()
    for file, (line, words) in IMPORTS.items():
        error = errors[file]
        assert (file, error["kind"], error["line"]) == (file, "import", line)
        assert words in error["message"]
        assert {frame["file"] for frame in error.get("raised", {}).get("frames", [])} <= {file}
    assert errors["raises.py"]["captured"] == "reading the configuration"


def test_names_of_other_modules_and_packages(place):
    """Each is imported as itself, and disturbs neither torch nor gradverify."""
    files = ("random.py", "rich.py", "package/inner/functions.py")
    targets = json.loads(place("imports")("check", *files, "--format", "json").out)["targets"]
    assert {target["file"]: target["status"] for target in targets} == dict.fromkeys(files, "passed")


class TestLeaving:
    """However the front ends, nothing is left running, not even code that never lets another thread run."""

    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
    def test_signal(self, place, name, tmp_path):
        mark = tmp_path / "mark"
        process = place().start("check", "signals.py", env={**os.environ, "MARK": str(mark)})
        assert until(mark.exists, 600)
        pids = [int(word) for word in mark.read_text().split()]
        process.send_signal(Signals[name])
        out, err = process.communicate(timeout=900)
        assert until(lambda: not any(map(alive, pids)), 60)
        assert out == b""
        if name != "SIGKILL":
            assert (process.returncode, err) == (130, b"gradverify: interrupted; nothing is left running\n")

    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
    def test_what_was_judged_before_a_signal_is_reported(self, place, name, tmp_path):
        here, mark = place(), tmp_path / "mark"
        shutil.copy(Path(__file__).parents[1] / "modules" / "screens" / "right.py", here.folder)
        process = here.start(
            *("check", "right.py::Scale", "signals.py", "--report", "json=told.json"),
            env={**os.environ, "MARK": str(mark)},
        )
        assert until(mark.exists, 600)
        process.send_signal(Signals[name])
        out, err = process.communicate(timeout=900)
        assert (process.returncode, err) == (130, b"gradverify: interrupted; nothing is left running\n")
        assert "Stopped early (an interrupt): later functions were not checked." in out.decode()
        report = json.loads((here.folder / "told.json").read_text())
        assert report["exit_code"] == 130
        assert {t["name"]: t["status"] for t in report["targets"]} == {
            "Scale": "passed",
            "Stays": "unchecked",
        }
        assert report["targets"][1]["reason"] == "not reached: an interrupt stopped the run"

    def test_reader_has_seen_enough(self, place):
        process = place("screens").start("check", "right.py")
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=900)
        assert (process.returncode, err) == (0, b"")

    def test_full_disk(self, place):
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        with Path("/dev/full").open("w") as full:
            process = place().start("rules", stdout=full)
            _, err = process.communicate(timeout=900)
        assert (process.returncode, err) == (
            2,
            b"gradverify: the report cannot be written: No space left on device\n",
        )

    def test_ascii(self, place):
        ran = place("screens")("check", "wrong.py::Product", PYTHONIOENCODING="ascii")
        assert ran.code == 1
        assert ran.out.isascii()
        assert "FAIL" in ran.out


def test_closed_streams(place):
    here = place("screens")
    script = f'"{sys.executable}" -m gradverify check wrong.py::Raises <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", script], cwd=here.folder, timeout=900, check=False).returncode == 1
