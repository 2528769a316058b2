"""What `record` says on stderr, and the file that it writes: stdout is the program's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gradverify.cli.screen import write, write_file
from gradverify.errors import UsageError
from gradverify.model import shown_path
from gradverify.session.outcome import ExitCode
from gradverify.session.recording import Recording

NOTHING_SEEN = (
    "gradverify: no call of an autograd Function was seen. Its class must be defined in a file below the "
    "current folder, or in a module given by --module; a Python started with -I, -E or -S is not recorded.\n"
)


def refuse_output(output: Path, *, replace: bool) -> None:
    """Refuse a file that cannot be written, before the program runs.

    Raises `UsageError`.
    """
    if output.is_dir():
        raise UsageError(f"-o: `{output}` is a folder")
    if not output.parent.is_dir():
        raise UsageError(f"-o: `{output}` cannot be written: there is no folder `{output.parent}`")
    if output.suffix not in {".yaml", ".yml"}:
        raise UsageError(
            f"-o: `{output}` is not named like a spec: write {output.name}.gradverify.yaml or so"
        )
    if output.exists() and not replace:
        raise UsageError(f"-o: `{output}` exists: --force replaces it")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise UsageError(f"-o: `{output}` cannot be written: permission denied")


def tell_recording(recording: Recording, output: Path) -> int:
    """Write the spec, say what was recorded, and return the exit code.

    Raises `UsageError` where it cannot be written.
    """
    if recording.program:
        write(sys.stderr, f"gradverify: the program ended with exit code {recording.program}\n")
    if not recording.functions:
        write(sys.stderr, NOTHING_SEEN)
        return recording.program or ExitCode.NOTHING
    write_file(output, recording.text, "-o")
    lines = [f"gradverify: {shown_path(output)} written: {_functions(recording.written)}"]
    for function in recording.functions:
        calls = "1 call" if function.count == 1 else f"{function.count} calls"
        signatures = "1 signature" if len(function.calls) == 1 else f"{len(function.calls)} signatures"
        lines.append(f"  {shown_path(Path(function.file))}::{function.name}  {calls}, {signatures}")
    lines += [f"  {name} is commented out: {reason}" for name, reason in recording.reasons]
    if recording.untried:
        lines.append(f"  the sizes are as recorded, for they could not be tried: {recording.untried}")
    if recording.written:
        lines.append(f"Try: gradverify check {_targets(recording)} --spec {shown_path(output)}")
    write(sys.stderr, "\n".join(lines) + "\n")
    return recording.program


def _functions(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _targets(recording: Recording) -> str:
    return " ".join(dict.fromkeys(shown_path(Path(f.file)) for f in recording.functions))
