"""Inferred inputs are used again while all that they were inferred from is the same, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from gradverify.deduced import Attempt, Deduced, DeducedTensor
from gradverify.events import Inferred, NotInferred
from gradverify.model import Target, TargetKind
from gradverify.session import kept_inputs
from gradverify.session.modules import Module
from gradverify.session.planning import Planned, deduce_inputs
from gradverify.session.request import Request
from gradverify.session.worker_errors import WorkerTimedOutError

TARGET = Target("Twice", "Twice", TargetKind.FUNCTION, "module.py", 1)
FOUND = Deduced((DeducedTensor("x", ("n", "3"), range=("0", "n")),), sizes=(("n", (2, 5)),), tries=7)
NONE = (Attempt("x: float64[2, 3]", "RuntimeError: no"),)
SOURCE = 'import os\nHOME = os.environ.get("OF_THE_USER")\nTABLE = "table.bin"\n'


@dataclass
class Asked:
    """A worker that counts how often it is asked."""

    answer: Deduced | tuple[Attempt, ...] = FOUND
    times: int = 0
    alive: bool = True
    late: bool = False

    def ask(self, *_question: object) -> Iterator[Inferred | NotInferred]:
        self.times += 1
        if self.late:
            raise WorkerTimedOutError("was still running at the limit of its time")
        yield Inferred(self.answer) if isinstance(self.answer, Deduced) else NotInferred(self.answer)


@dataclass
class Here:
    folder: Path
    worker: Asked = field(default_factory=Asked)
    loaded: str = "digest"
    version: str = "2.13.0"
    target: Target = TARGET

    def deduced(self, **changed: Any) -> Deduced | tuple[Attempt, ...]:
        path = self.folder / "module.py"
        module = Module(path, "module.py", (), loaded=self.loaded, torch_version=self.version)
        module.worker = cast("Any", self.worker)
        request = replace(Request((), cache=self.folder / ".gradverify_cache"), **changed)
        return deduce_inputs(Planned(module, self.target, None), request)

    @property
    def kept(self) -> list[Path]:
        return sorted((self.folder / ".gradverify_cache" / "inputs").glob("*"))


@pytest.fixture
def here(tmp_path: Path) -> Here:
    (tmp_path / "module.py").write_text(SOURCE)
    (tmp_path / "calling.py").write_text("Twice.apply(x)\n")
    (tmp_path / "table.bin").write_text("1")
    return Here(tmp_path)


@pytest.mark.parametrize("found", [FOUND, NONE])
def test_they_are_inferred_once(here: Here, found: Deduced | tuple[Attempt, ...]) -> None:
    here.worker.answer = found
    assert [here.deduced(), here.deduced()] == [found, found]
    assert here.worker.times == 1
    assert len(here.kept) == 1


CHANGES: dict[str, Callable[[Here, pytest.MonkeyPatch], Any]] = {
    "source": lambda here, _: (here.folder / "module.py").write_text(SOURCE + "\n"),
    "call site": lambda here, _: (here.folder / "calling.py").write_text("Twice.apply(x, 2)\n"),
    "new file": lambda here, _: (here.folder / "another.py").write_text("Twice.apply(x)\n"),
    "table": lambda here, _: (here.folder / "table.bin").write_text("10"),
    "variable": lambda _, patch: patch.setenv("OF_THE_USER", "another"),
    "imports": lambda here, _: setattr(here, "loaded", "another"),
    "torch": lambda here, _: setattr(here, "version", "2.14.0"),
    "target": lambda here, _: setattr(here, "target", replace(TARGET, line=2)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_where_something_differs_they_are_inferred_again(
    here: Here, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.deduced()
    CHANGES[what](here, monkeypatch)
    here.deduced()
    assert here.worker.times == 2
    assert len(here.kept) == 1


@pytest.mark.parametrize("without", [{"cache": None}, {"in_process": True}])
def test_they_are_not_kept_where_that_is_not_asked_for(here: Here, without: dict[str, Any]) -> None:
    asked = Request((), cache=here.folder / ".gradverify_cache")
    module = Module(here.folder / "module.py", "module.py", (), loaded="digest")
    kept = kept_inputs.kept_inputs(module, TARGET, replace(asked, **without))
    kept.write(FOUND)
    assert kept.read() is None
    assert here.kept == []


def damaged(text: str) -> Iterator[bytes]:
    yield b""
    yield b"\xff\xfe"
    yield text[:-20].encode()
    yield text.replace('"n"', '"m"', 1).encode()
    yield b"null\nnull"
    yield b"[" * 100_000


def test_a_file_that_was_damaged_is_not_believed(here: Here) -> None:
    here.deduced()
    whole = here.kept[0].read_text()
    for number, content in enumerate(damaged(whole)):
        here.kept[0].write_bytes(content)
        assert here.deduced() == FOUND
        assert here.worker.times == number + 2
    assert here.kept[0].read_text() == whole


def test_a_folder_that_cannot_be_written_to_forgets_them(here: Here) -> None:
    (here.folder / ".gradverify_cache").write_text("a file")
    assert [here.deduced(), here.deduced()] == [FOUND, FOUND]
    assert here.worker.times == 2


def test_what_this_machine_lacks_and_what_took_too_long_is_tried_again(here: Here) -> None:
    here.worker.answer = (replace(NONE[0], missing="There is no GPU here."),)
    here.deduced()
    here.worker.late = True
    with pytest.raises(WorkerTimedOutError):
        here.deduced()
    assert here.kept == []


def test_the_oldest_are_dropped(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inputs, "MOST_KEPT", 2)
    for number in range(4):
        here.target = replace(TARGET, name=f"Twice{number}")
        here.deduced()
        for path in here.kept:  # files of one instant have no order
            stamp = path.stat().st_mtime_ns - 10**9
            os.utime(path, ns=(stamp, stamp))
    assert len(here.kept) == 2
    here.deduced()
    assert here.worker.times == 4
