"""The cover: few Functions that hold what decides the verdicts of all, each with its verdict and codes.

`functions.txt` says of each what it is there for. `benchmarks/cover.py` wrote it from one run of everything;
what is not in it runs with `pytest --all-seeds`. A set of Functions is one command.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import decided
import pytest
import zoo
from extent import ALL_SEEDS

LIST = Path(__file__).with_name("functions.txt")

BENCHMARKS = zoo.ZOO.parents[1] / "benchmarks"

BESIDE = "right beside "
"""Begins what a right Function is there for: what its wrong counterpart holds must not be found in it."""

FOR_ITSELF = (BESIDE, "published", "right ", "wrong ")
"""Beginnings of reasons that ask no more of a report than the verdict."""

CAUSE = "cause: "


@dataclass(frozen=True)
class Chosen:
    """One line of the list."""

    set: str
    name: str
    status: str
    reasons: tuple[str, ...]


def chosen() -> list[Chosen]:
    """The list, in its order."""
    rows = [line.split(" | ") for line in LIST.read_text("utf-8").splitlines() if not line.startswith("#")]
    return [
        Chosen(*target.split("::", 1), status=status, reasons=tuple(reasons.split("; ")))
        for target, status, reasons in rows
    ]


def by_set() -> dict[str, list[Chosen]]:
    """Functions by their set; large sets first, so that no runner waits at the end."""
    found: dict[str, list[Chosen]] = {}
    for one in chosen():
        found.setdefault(one.set, []).append(one)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


@functools.cache
def sets_of_benchmarks():
    """Sets of `benchmarks/cases` by name."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from cases import sets  # noqa: PLC0415 - on the path for this import alone
    finally:
        sys.path.remove(str(BENCHMARKS))
    return {one.name: one for one in sets()}


def complaints(one: Chosen, target: dict) -> list[str]:
    """What a report says of a Function that is not as its line says."""
    held = decided.held(target)
    wrong = [] if target["status"] == one.status else [f"status {target['status']}, not {one.status}"]
    # The smallest example, which is looked for with all causes, says less of where it was found.
    asked = [] if ALL_SEEDS else [reason for reason in one.reasons if not reason.startswith(FOR_ITSELF)]
    wrong += [f"nothing of `{reason}`" for reason in asked if reason not in held]
    if one.set.startswith("zoo/"):
        _, folder, module = one.set.split("/")
        return wrong + zoo.complaints(target, zoo.rows_of(folder, module)[one.name])
    errors = zoo.codes(target, "error") if one.status != "failed" else set()
    return wrong + [f"false alarm {code}" for code in sorted(errors)]


@pytest.mark.parametrize("name", by_set())
def test_cover(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    asked = request.config.getoption("function")
    rows = {one.name: one for one in by_set()[name] if not asked or f"{name}::{one.name}" in asked}
    if not rows:
        pytest.skip("none of its Functions is asked for")
    file = sets_of_benchmarks()[name].write(tmp_path)
    with_causes = [one.name for one in rows.values() if any(r.startswith(CAUSE) for r in one.reasons)]
    code, report = zoo.checked([f"{file}::{row}" for row in rows], tmp_path, with_causes=with_causes)
    found = {target["name"]: target for target in report["targets"]}
    assert found.keys() == rows.keys()
    wrong = {row: complaints(one, found[row]) for row, one in rows.items()}
    if name.startswith("zoo/transforms/"):
        table = zoo.capabilities_of("transforms", name.rpartition("/")[2])
        said = {row: target["capabilities"] for row, target in found.items() if row in table}
        assert said == {row: {**said[row], **table[row]} for row in said}
    assert {row: said for row, said in wrong.items() if said} == {}
    green = {"passed", "skipped", "xfailed"}
    assert code == (0 if {target["status"] for target in found.values()} <= green else 1)


def test_a_pass_says_what_it_was_swept_over() -> None:
    """And no more than that: what was refused, or would draw other random numbers, does not count."""
    names = ("Linear", "Dropout", "SumBoth", "OnlyContiguous", "NeedsBoth")
    _, report = zoo.checked([f"right.py::{name}" for name in names], zoo.ZOO / "sweep")
    swept = {target["name"]: target["swept"] for target in report["targets"]}
    assert (swept["Linear"]["layouts"], swept["Linear"]["requires_grad"]) == (7, 7)
    assert all(row["layouts"] and row["requires_grad"] and row["calls"] for row in swept.values())
    assert swept["Dropout"]["layouts"] < swept["SumBoth"]["layouts"]
    assert swept["OnlyContiguous"]["layouts"] < swept["SumBoth"]["layouts"]
    assert swept["NeedsBoth"]["requires_grad"] == 1


def test_every_reason_is_one_that_a_report_can_hold() -> None:
    code, cause = r"(?:error|warning|note) GV\d{3}", CAUSE + r"[\w-]+"
    known = re.compile(rf"(?:{BESIDE})?(?:{code}|{cause}|sample: \w+ values|\w+, \w+)")
    reasons = {reason for one in chosen() for reason in one.reasons}
    words = {reason for reason in reasons if reason.removeprefix(BESIDE) not in decided.HELD}
    assert not [word for word in words if not known.fullmatch(word) and not word.startswith(FOR_ITSELF)]


def test_nothing_is_listed_twice() -> None:
    names = [(one.set, one.name) for one in chosen()]
    assert len(names) == len(set(names))
