"""What the shell completes: codes, formats, modules and the names in them. Nothing of the user's is run."""

from __future__ import annotations

from pathlib import Path

from gradverify.report.formats import Format

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Dtypes that targets are judged in; float64 always."""

Completions = list[tuple[str, str]]
"""(what is completed, what it means) pairs."""


def codes(incomplete: str) -> Completions:
    """Codes that begin so."""
    from gradverify.rules import RULES  # noqa: PLC0415 - only the shell asks for them

    return [(rule.code, rule.summary) for rule in RULES if rule.code.startswith(incomplete)]


def code_lists(incomplete: str) -> Completions:
    """Codes behind the last comma; those that the list holds already are left out."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [(f"{before}{comma}{code}", words) for code, words in codes(last) if code not in taken]


def formats(incomplete: str) -> list[str]:
    """Formats that begin so."""
    return [form.value for form in Format if form.startswith(incomplete)]


def dtypes(incomplete: str) -> list[str]:
    """Dtypes that begin so."""
    return [name for name in DTYPES if name.startswith(incomplete)]


def report_files(incomplete: str) -> list[str]:
    """The formats, each with its `=`; behind it the shell completes nothing."""
    return [f"{form}=" for form in formats(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Folders, modules and specs; behind `::` the classes and functions in a module's source."""
    where, found, name = incomplete.partition("::")
    if found:
        return [f"{where}::{known}" for known in _names_in(Path(where)) if known.startswith(name)]
    folder, _, start = where.rpartition("/")
    here = Path(f"{folder}/") if folder or where.startswith("/") else Path()
    prefix = f"{folder}/" if "/" in where else ""
    try:
        entries = sorted(entry for entry in here.iterdir() if entry.name.startswith(start))
    except OSError:
        return []
    shown = [entry for entry in entries if start.startswith(".") or not entry.name.startswith(".")]
    folders = [f"{prefix}{entry.name}/" for entry in shown if entry.is_dir() and entry.name != "__pycache__"]
    files = [f"{prefix}{entry.name}" for entry in shown if entry.name.endswith((".py", ".gradverify.yaml"))]
    return files + folders


def _names_in(file: Path) -> list[str]:
    from gradverify.source import names_to_complete  # noqa: PLC0415 - only the shell asks for them

    try:
        return names_to_complete(file.read_bytes())
    except OSError:
        return []
