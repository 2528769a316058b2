"""The folder beside the configuration in which runs leave what later ones may use; nobody has to keep it."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = ".gradverify_cache"


def write_beside(folder: Path, name: str, text: str) -> None:
    """Write a file of the folder, whole or not at all: another run may read or write it at the same time.

    `name` may lie in a folder of its own. Raises `OSError`.
    """
    folder.mkdir(exist_ok=True)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text("# Written by gradverify.\n*\n", "utf-8")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, "utf-8")
    part.replace(path)
