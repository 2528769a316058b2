"""The console blocks of a page, run as a reader would who follows it from top to bottom.

A `python`, `yaml` or `toml` block whose first line is a comment with a file name is that file, whole. In a
`console` block every line that begins with `$ ` is a command, and what follows is what it prints. There `...`
stands for anything; measured rounding differs between processors, and counts for nothing, as do durations.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"
sys.path.append(str(SUPPORT))
import forked_command  # noqa: E402 - from beside this package, also where `renew.py` runs alone

PROGRAMS = {"gradverify": "gradverify", "pytest": "pytest", "python": ""}
"""What a page may run, with the module behind it."""

LONGEST = 900
"""Seconds that a command may take on a busy machine."""

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\S+\.(?:py|yaml|yml|toml))\n")
MEASURED = (
    (re.compile(r"± \S+ *"), "± BOUND "),
    (re.compile(r"sees errors (>|&#62;) [-.\de]+"), r"sees errors \1 SIZE"),
    (re.compile(r"\bin \d+\.\d+s\b"), "in SECONDS"),
)
"""What is another number at each run or on each machine."""
UNSET = ("NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS", "PYTEST_ADDOPTS", "PY_COLORS", "CI", "BUILD_NUMBER")
"""What makes programs print otherwise than at a desk; in CI, the summary of pytest does not cut its lines."""


@dataclass(frozen=True)
class File:
    """A file that the page gives."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line of the page."""

    line: str
    printed: str
    """What the page says it prints."""
    start: int
    """Where that stands in the page."""


@dataclass(frozen=True)
class Shown:
    """A command with what it really prints."""

    command: Command
    printed: str

    @property
    def is_true(self) -> bool:
        """Whether the page says what happens."""
        pattern = "".join(map(_pattern, _unmeasured(self.command.printed).splitlines(keepends=True)))
        return re.fullmatch(pattern, _unmeasured(self.printed)) is not None


def steps_of(page: str) -> Iterator[File | Command]:
    """What a reader does, from top to bottom."""
    for block in BLOCK.finditer(page):
        language, text = block[1], block[2]
        named = NAMED.match(text)
        if language == "console":
            yield from _commands(text, block.start(2))
        elif named and language in {"python", "yaml", "toml"}:
            yield File(named[1], text)


def followed(page: str, folder: Path) -> Iterator[Shown]:
    """Do in an empty folder what a page says, command by command."""
    programs = _programs(folder.with_name(f"{folder.name}-programs"))
    code = 0
    for step in steps_of(page):
        match step:
            case File():
                file = folder / step.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(step.text, encoding="utf-8")
            case Command():
                printed, code = _run(step.line, folder, programs, code)
                yield Shown(step, printed)


def corrected(page: str, shown: list[Shown]) -> str:
    """The page with what its commands really print, where it says something else."""
    for one in reversed([s for s in shown if not s.is_true]):
        end = one.command.start + len(one.command.printed)
        page = page[: one.command.start] + one.printed + page[end:]
    return page


def _commands(text: str, start: int) -> Iterator[Command]:
    parts = re.split(r"(?m)^(\$ .*\n)", text)
    if parts[0]:
        raise ValueError(f"a console block begins with a command, not with {parts[0]!r}")
    place = start
    for line, printed in zip(parts[1::2], parts[2::2], strict=True):
        place += len(line)
        yield Command(line[2:].strip(), printed, place)
        place += len(printed)


def _programs(folder: Path) -> Path:
    """A folder with the programs by the names under which a reader has them."""
    folder.mkdir(exist_ok=True)
    for name, module in PROGRAMS.items():
        file = folder / name
        option = f"-P -m {module}" if module else ""
        file.write_text(forked_command.script(option), encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


def _run(line: str, folder: Path, programs: Path, code: int) -> tuple[str, int]:
    """Run a command line after one that ended with a code; return what a terminal shows, and its own code."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    more = {"COLUMNS": "80", "TERM": "dumb", "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["/bin/sh", "-c", f"(exit {code})\n{line}"],
        cwd=folder,
        env={**kept, **more, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=LONGEST,
        check=False,
    )
    return done.stdout.replace(f"{folder}/", ""), done.returncode


def _unmeasured(text: str) -> str:
    for pattern, word in MEASURED:
        text = pattern.sub(word, text)
    return re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)


def _pattern(line: str) -> str:
    """One line of a page; `...` alone stands for any lines."""
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    return re.escape(line).replace(r"\.\.\.", ".*?")
