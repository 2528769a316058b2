"""Twelve screens of a terminal of 80 columns: their text for the tests, and pictures for the documentation.

python tests/house/documentation/screens.py    writes docs/screens/*.txt and *.svg as they are today
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "screens"
MODULES = ROOT / "tests" / "modules" / "terminal"
COLUMNS = 80

SCREENS = {
    "right": "check softmax.py",
    "one-mistake": "check gated.py",
    "no-cause": "check spectrum.py",
    "guessed": "check lookup.py",
    "rounded": "check rounded.py",
    "second-order": "check twice.py",
    "hang": "check hang.py --timeout 3",
    "unchecked": "check pool.py",
    "spec-error": "check softmax.py --spec mistaken.yaml",
    "folder": "check layers",
    "watch": "check softmax.py --watch",
    "fix": "check gated.py --fix",
}
"""By the name of the file."""

WATCHED = "waiting for a change"
"""What `--watch` says once it waits: then it is interrupted."""

_PROGRESS = re.compile(r"\d of \d  ")
_TIME = re.compile(r"\d\d:\d\d:\d\d  | in [\d.]+ s")
"""What differs from run to run."""

_MOVES = re.compile(r"\x1b\[[0-9;?]*[a-ln-zA-Z]")


def screen(name: str) -> str:
    """What a terminal shows of a command, colours included."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "here"
        shutil.copytree(MODULES, folder)
        return _run(SCREENS[name].split(), folder)


def plain(text: str) -> str:
    """The same without colours."""
    return Text.from_ansi(text).plain + "\n"


def _run(arguments: list[str], folder: Path) -> str:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    read: list[bytes] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "gradverify", *arguments],
        cwd=folder,
        stdout=theirs,
        stderr=subprocess.DEVNULL if "--watch" not in arguments and "--spec" not in arguments else theirs,
        stdin=subprocess.DEVNULL,
        env=_environment(),
    )
    os.close(theirs)
    reader = threading.Thread(target=_read, args=(ours, read, process if "--watch" in arguments else None))
    reader.start()
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    reader.join(30)
    os.close(ours)
    shown = _MOVES.sub("", b"".join(read).decode().replace("\r\n", "\n"))
    shown = re.sub(r"^.*\r", "", shown, flags=re.MULTILINE)  # progress, which another line takes the place of
    lines = [line for line in shown.split("\n") if not _PROGRESS.search(line)]
    return _TIME.sub("", "\n".join(lines)).strip("\n")


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}


def _read(ours: int, read: list[bytes], to_interrupt: subprocess.Popen[bytes] | None) -> None:
    try:
        while chunk := os.read(ours, 4096):
            read.append(chunk)
            if to_interrupt is not None and WATCHED.encode() in b"".join(read):
                to_interrupt.send_signal(signal.SIGINT)
                to_interrupt = None
    except OSError:
        pass


def _picture(name: str, text: str) -> str:
    console = Console(record=True, width=COLUMNS + 2, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ gradverify {SCREENS[name]}\n{text}"), soft_wrap=False)
    picture = console.export_svg(title="gradverify", unique_id=name)
    return re.sub(r"@font-face \{.*?\n    \}\n", "", picture, flags=re.DOTALL)  # it loads nothing


def main() -> None:
    """Write all texts and pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name in SCREENS:
        text = screen(name)
        (PICTURES / f"{name}.txt").write_text(plain(text), encoding="utf-8")
        (PICTURES / f"{name}.svg").write_text(_picture(name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
