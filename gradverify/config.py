"""`[tool.gradverify]` of a pyproject.toml: read, and refused with its line where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradverify.errors import ConfigError, UsageError, did_you_mean
from gradverify.model import Effort, shown_path
from gradverify.toml_file import TomlFile, read_toml

FILE = "pyproject.toml"
TABLE = "[tool.gradverify]"
WHAT = "configuration"


@dataclass(frozen=True)
class Config:
    """What a configuration file says; None for what it does not."""

    file: Path | None = None
    """None where there is no such file."""
    named: bool = False
    """The command line names the file: a command that repeats a finding must do so too."""
    paths: tuple[str, ...] | None = None
    specs: str | None = None
    exclude: tuple[str, ...] | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    seed: int | str | None = None
    rtol: float | None = None
    atol: float | None = None
    device: str | None = None
    effort: str | None = None
    timeout: float | None = None
    memory: int | None = None

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
    return Config(file.path, **values)


def _complaints(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if key not in KEYS:
            meant = did_you_mean(key, KEYS) or f": it knows {', '.join(KEYS)}"
            yield key, f"unknown key `{key}` in {TABLE}{meant}"
        elif not KEYS[key][0](value):
            yield key, f"`{key}` in {TABLE} must be {KEYS[key][1]}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


Test = Callable[[object], bool]

KEYS: dict[str, tuple[Test, str]] = {
    "paths": (_are_texts, "a list of strings"),
    "specs": (_is_text, "a string: the folder of the spec files"),
    "exclude": (_are_texts, "a list of strings"),
    "select": (_are_texts, "a list of strings"),
    "ignore": (_are_texts, "a list of strings"),
    "seed": (lambda value: value == "random" or _is_count(value), 'a whole number or "random"'),
    "rtol": (_is_number, "a number"),
    "atol": (_is_number, "a number"),
    "effort": (lambda value: value in list(Effort), f"one of {', '.join(Effort)}"),
    "device": (_is_text, "a string"),
    "timeout": (_is_number, "a number of seconds"),
    "memory": (_is_count, "a whole number of MiB"),
}
"""Every key with what it must hold."""
