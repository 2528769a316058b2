"""What `init` writes, and says of it."""

from __future__ import annotations

import sys

from gradverify.cli.screen import tell, write
from gradverify.errors import UsageError
from gradverify.model import shown_path
from gradverify.report.console import harmless
from gradverify.session.drafting import Draft


def write_draft(draft: Draft) -> None:
    """Write a drafted spec, and say what is in it.

    Raises `UsageError` where it cannot be written.
    """
    shown, count = shown_path(draft.path), len(draft.entries)
    if not draft.entries:
        write(sys.stdout, harmless(f"{shown}: nothing to add\n"))
        return
    if not draft.is_spec:
        write(sys.stdout, draft.text)
        sentence = f"{shown} is not written: no entry holds without being confirmed. The draft is above.\n"
        tell(f"gradverify: {sentence}")
        return
    try:
        draft.path.write_text(draft.text, "utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"`{shown}` cannot be written: {error.strerror}") from None
    done = "completed" if draft.existed else "written"
    functions = f"{count} function{'' if count == 1 else 's'}"
    confirm = f", {draft.to_confirm} commented out: to be confirmed" if draft.to_confirm else ""
    write(sys.stdout, harmless(f"{shown} {done}: {functions}{confirm}\n"))
