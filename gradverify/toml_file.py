"""A TOML file of the user's: what it holds, and the line of what is wrong in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradverify.errors import ConfigError, UsageError
from gradverify.model import shown_path

if TYPE_CHECKING:
    from gradverify.model import Mistake


@dataclass(frozen=True)
class TomlFile:
    """A file that was read."""

    path: Path
    text: str
    data: dict[str, Any]

    def mistake(self, message: str, line: int, column: int = 0) -> Mistake:
        """What is wrong with a line."""
        return _mistake(self.path, self.text, message, line, column)

    def line_of(self, key: str, start: int = 0) -> int:
        """The line of a key, below a header on line `start` as far as the next one; else `start`, or 1."""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if number > start and start and line.lstrip().startswith("["):
                break
            if (
                number > start
                and key
                and re.match(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\]=.]""", line)
            ):
                return number
        return start or 1


def read_toml(path: Path, what: str) -> TomlFile:
    """Read a file; `what` is how messages call it.

    Raises `UsageError` where it cannot be read, `ConfigError` where it is no TOML.
    """
    import tomllib  # noqa: PLC0415 - `--help` reads no file

    try:
        text = path.read_text("utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except OSError as error:
        raise UsageError(f"the {what} `{shown_path(path)}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the {what} `{shown_path(path)}` is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (len(text.splitlines()) or 1, 0)
        message = str(error)[: place.start()] if place else str(error)
        raise ConfigError([_mistake(path, text, f"is not TOML: {message}", line, column)]) from None


def _mistake(path: Path, text: str, message: str, line: int, column: int) -> Mistake:
    from gradverify.model import Location, Mistake  # noqa: PLC0415 - where there is one

    lines = text.splitlines()
    source = lines[line - 1] if 0 < line <= len(lines) else ""
    return Mistake(message, Location(shown_path(path), line, column), source, kind="config")
