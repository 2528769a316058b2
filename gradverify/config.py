"""`[tool.gradverify]` of a pyproject.toml: read, and refused with its line where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradverify.errors import ConfigError, UsageError, did_you_mean
from gradverify.model import shown_path
from gradverify.options import KEYS
from gradverify.toml_file import TomlFile, read_toml

FILE = "pyproject.toml"
TABLE = "[tool.gradverify]"
WHAT = "configuration"


@dataclass(frozen=True)
class Config:
    """What a configuration file says."""

    file: Path | None = None
    """None where there is no such file."""
    named: bool = False
    """The command line names the file: a command that repeats a finding must do so too."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """By key, as checked by `KEYS`; lists are tuples."""

    @property
    def folder(self) -> Path:
        """What the paths in it are relative to."""
        return self.file.parent if self.file is not None else Path.cwd()

    def name_of(self, key: str) -> str:
        """How messages name one of its keys."""
        return f"{shown_path(self.file)}: {key}" if self.file is not None else key


def load_config(given: Path | None = None) -> Config:
    """Read the given file, else the nearest pyproject.toml upward that has the table.

    Raises `ConfigError` with all that is wrong with it, `UsageError` where there is no such file.
    """
    if given is not None:
        if not given.is_file():
            raise UsageError(f"--config: there is no file `{given}`")
        found = read_toml(given, WHAT)
        if (table := _table(found)) is None:
            raise UsageError(f"--config: `{given}` has no table {TABLE}")
        return replace(_read(found, table), named=True)
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / FILE
        if file.is_file() and (table := _table(found := read_toml(file, WHAT))) is not None:
            return _read(found, table)
    return Config()


def _table(file: TomlFile) -> Any:  # noqa: ANN401 - whatever TOML holds there, None for nothing
    tool = file.data.get("tool", {})
    return tool.get("gradverify") if isinstance(tool, dict) else None


def _read(file: TomlFile, table: Any) -> Config:  # noqa: ANN401
    headers = (n for n, line in enumerate(file.text.splitlines(), start=1) if line.strip().startswith(TABLE))
    header = next(headers, 0)
    if not isinstance(table, dict):
        raise ConfigError([file.mistake(f"{TABLE} is not a table", 1)])
    mistakes = [
        file.mistake(text, line if (line := file.line_of(key, header)) != header else 1)
        for key, text in _complaints(table)
    ]
    if mistakes:
        raise ConfigError(mistakes)
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    return Config(file.path, values=values)


def _complaints(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if key not in KEYS:
            meant = did_you_mean(key, KEYS) or f": it knows {', '.join(KEYS)}"
            yield key, f"unknown key `{key}` in {TABLE}{meant}"
        elif not KEYS[key].test(value):
            yield key, f"`{key}` in {TABLE} must be {KEYS[key].words}"
