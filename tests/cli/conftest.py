"""The command as a real process, run in a folder of its own with the modules of `tests/modules`."""

import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import forked_command
import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

MODULES = Path(__file__).parents[1] / "modules"
COMMAND = (sys.executable, "-P", "-m", "gradverify")
environment = forked_command.plain_environment


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    code: int
    out: str
    err: str

    def screen(self, *folders):
        """All of it as one text in which no machine, version or rounding shows."""
        text = f"exit code {self.code}\n\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        for folder in folders:
            text = text.replace(f"{folder}/", "")
        text = re.sub(r"[^\s']*/gradverify/(?=demo/)", "", text)
        text = re.sub(r"torch \d\S*", "torch VERSION", text)
        text = re.sub(r"Python \d\S*", "Python VERSION", text)
        text = re.sub(r"± [-.\de]+ *", "± BOUND ", text)
        return re.sub(r"errors > [-.\de]+", "errors > SIZE", text)


@dataclass(frozen=True)
class Place:
    """A folder with modules, and the command in it."""

    folder: Path

    def start(self, *arguments, **options):
        """Start the command."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # A job in the background of a shell ignores Ctrl-C, and its children with it.
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        more = {"cwd": self.folder, "env": environment(), **streams, **heard, **options}
        return subprocess.Popen([*COMMAND, *map(str, arguments)], **more)

    def alone(self, *arguments, **variables):
        """Run the command to its end in a process that was started for it."""
        with self.start(*arguments, env=environment(**variables)) as process:
            out, err = process.communicate(timeout=forked_command.LIMIT)
        return Ran(process.returncode, out.decode(), err.decode())

    def __call__(self, *arguments, **variables):
        """Run the command to its end, forked where that makes no difference."""
        ran = forked_command.run(arguments, self.folder, environment(**variables))
        return Ran(ran.code, ran.out, ran.err)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy of a folder of `tests/modules`, by its name."""

    def copied(name=""):
        folder = tmp_path_factory.mktemp("place") / "here"
        others = (
            []
            if name
            else [
                "imports",
                "options",
                "accidents",
                "screens",
                "suggesting",
                "inference",
                "recording",
                "lint",
            ]
        )
        ignored = shutil.ignore_patterns("__pycache__", *others)
        shutil.copytree(MODULES / name, folder, ignore=ignored)
        return Place(folder)

    return copied


class TextFile(SingleFileSnapshotExtension):
    """One snapshot a file, as text that a reader can open."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def screen(snapshot):
    """Whole screens, a file each."""
    return snapshot.use_extension(TextFile)
