"""What `record` writes, and says of it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from gradverify.cli.screen import refuse_unwritable, tell, write, write_file
from gradverify.errors import UsageError
from gradverify.model import shown_path
from gradverify.report.words import plural
from gradverify.session.outcome import ExitCode
from gradverify.session.recording import Recording

NOTHING_SEEN = (
    "gradverify: no call of an autograd Function was seen. Its class must be defined in a file below the "
    "current folder, or in a module given by --module; a Python started with -I, -E or -S is not recorded, "
    "nor is a call inside torch.compile (TORCHDYNAMO_DISABLE=1 runs the program without).\n"
)

OTHERS_SEEN = (
    "gradverify: no Function of your own was called: none that is defined in a file below the current "
    "folder. These were, of other modules:\n"
)

MOST_NAMED = 6
"""Functions of a module that are named; of more, their number."""


def refuse_output(output: Path, *, replace: bool) -> None:
    """Refuse a file that cannot be written, before the program runs.

    Raises `UsageError`.
    """
    if output.suffix not in {".yaml", ".yml"}:
        raise UsageError(
            f"-o: `{output}` is not named like a spec: write {output.name}.gradverify.yaml or so"
        )
    if output.exists() and not replace:
        raise UsageError(f"-o: `{output}` exists: --force replaces it")
    above = next((folder for folder in output.parents if folder.exists()), output.parent)
    refuse_unwritable(output if output.parent.is_dir() else above / output.name, "-o")


def tell_recording(recording: Recording, output: Path, command: Sequence[str]) -> int:
    """Write the spec, say what was recorded, and return the exit code.

    Raises `UsageError` where it cannot be written.
    """
    if recording.program:
        tell(f"gradverify: the program ended with exit code {recording.program}\n")
    if not recording.functions:
        tell(_others_alone(recording, output, command) if recording.others else NOTHING_SEEN)
        return recording.program or ExitCode.NOTHING
    if recording.written:
        with contextlib.suppress(OSError):  # writing says why
            output.parent.mkdir(parents=True, exist_ok=True)
        write_file(output, recording.text, "-o")
        said = f"written: {plural(recording.written, 'entry', 'entries')}"
    else:  # a spec that names nothing is none
        write(sys.stdout, recording.text)
        said = "is not written: no entry holds without being completed. The draft is above."
    lines = [f"gradverify: {shown_path(output)} {said}"]
    for function in recording.functions:
        calls = f"{plural(function.count, 'call')}, {plural(len(function.calls), 'signature')}"
        lines.append(f"  {shown_path(Path(function.file))}::{function.name}  {calls}")
    lines += [f"  {name} is commented out: {reason}" for name, reason in recording.reasons]
    if recording.untried:
        lines.append(f"  the sizes are as recorded, for they could not be tried: {recording.untried}")
    if recording.others:
        listed = "; ".join(_of_modules(recording))
        lines.append(
            f"  not recorded, for it is not yours: {listed} ({_asking(recording)} records that instead)"
        )
    if recording.written:
        lines.append(f"Try: gradverify check {shlex.quote(shown_path(output))}")
    tell("\n".join(lines) + "\n")
    return recording.program


def _others_alone(recording: Recording, output: Path, command: Sequence[str]) -> str:
    """What was called of other modules, and the command that records it."""
    lines = "".join(f"  {module}\n" for module in _of_modules(recording))
    spec = shlex.quote(shown_path(output))
    again = f"gradverify record -o {spec} {_asking(recording)} -- {shlex.join(command)}"
    return f"{OTHERS_SEEN}{lines}Try: {again}\n"


def _of_modules(recording: Recording) -> list[str]:
    listed = []
    for module in dict.fromkeys(module for module, _ in recording.others):
        names = [name for other, name in recording.others if other == module]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        listed.append(f"{module}: {', '.join(names[:MOST_NAMED])}{more}")
    return listed


def _asking(recording: Recording) -> str:
    packages = dict.fromkeys(module.partition(".")[0] for module, _ in recording.others)
    return " ".join(f"--module {package}" for package in packages)
