"""Writes `tests/cover/functions.txt`: the cheapest Functions that hold everything that decides a verdict.

    python benchmarks/oracle.py --reports REPORTS --into LINES
    python benchmarks/cover.py REPORTS [--with-spec 300] [--bare 100]

Every word of `decided.HELD`, every code at each severity, every cause and every kind of sample is held by two
Functions of different sets, and by a right one: the counterpart of a wrong one, which must not be given what
the wrong one is given. Where a word is held without a wrong Function (a note, an inconclusive verdict) it is
the same with right ones. All Functions of published bug reports are in. What is left of the limits is filled
from all sets in turn, the cheapest of each first. Words that are held by fewer Functions are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "cover" / "functions.txt"
sys.path.append(str(ROOT / "tests" / "support"))

import decided  # noqa: E402 - on the path now
import zoo  # noqa: E402

HEAD = """# The Functions of the test command: SET::NAME | verdict | what it is there for.
# Written by benchmarks/cover.py; test_cover.py asserts what a line asks. Sets are those of benchmarks/cases.
"""

PUBLISHED = "zoo/reported/"

ASK_FOR_OPTIONS = ("zoo/autocast/", "zoo/devices/", "zoo/triton/", "zoo/ranks/")
"""Sets that mean nothing without an option or start processes each: tests of their own have some of them."""

MOST_SECONDS = 8.0
"""What a Function may take to be chosen where another one would do."""

CHEAP = 3.0
"""Seconds below which a Function is taken for its kind alone."""

SPEC = {False: "under its spec", True: "without a spec"}
"""What is said of a Function that is there for its kind alone, by whether it has no spec."""

HOLDERS = 2
"""Functions that hold a word themselves; the right one beside them is the third."""


@dataclass
class Candidate:
    """A Function of some set, as it was reported."""

    set: str
    name: str
    status: str
    is_right: bool
    held: set[str]
    seconds: float
    twin: tuple[str, str] | None
    reasons: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        return self.set, self.name

    @property
    def is_bare(self) -> bool:
        return "inferred" in " ".join(word for word in self.held if ", " in word)

    @property
    def kind(self) -> str:
        """Functions of one kind were written together."""
        return self.set.rpartition("/")[0] if self.set.startswith("zoo/") else self.set


def candidates(reports: Path) -> Iterator[Candidate]:
    """Every Function of every report whose verdict is the one that it must get."""
    for path in sorted(reports.rglob("*.0.json")):
        name = path.relative_to(reports).as_posix().removesuffix(".0.json")
        for target in json.loads(path.read_text("utf-8"))["targets"]:
            if not name.startswith((*ASK_FOR_OPTIONS, "field/")):
                yield from _candidate(name, target)


def _candidate(name: str, target: dict) -> Iterator[Candidate]:
    twin, is_right = None, name.startswith(("right/", "wrong_sets_right/", "bare/right/"))
    if name.startswith("zoo/"):
        _, folder, module = name.split("/")
        row = zoo.rows_of(folder, module).get(target["name"])
        if row is None or zoo.complaints(target, row):
            return
        is_right = row["status"] != "failed"
        if row.get("twin"):
            stem, _, other = row["twin"].partition(":")
            twin = f"zoo/{folder}/{stem}", other
    elif name.startswith("modules/"):  # whose tests, in the long list, say what each must get
        is_right = target["status"] != "failed"
    elif target["status"] == ("failed" if is_right else "passed"):
        return
    yield Candidate(
        name, target["name"], target["status"], is_right, decided.held(target), target["duration_s"], twin
    )


def choose(found: dict[tuple[str, str], Candidate]) -> None:
    """Give reasons to those that are chosen."""
    for one in found.values():
        if one.set.startswith(PUBLISHED):
            one.reasons.append("published")
    words = sorted({word for one in found.values() for word in one.held})
    holders = {word: [one for one in found.values() if word in one.held] for word in words}
    for word in sorted(words, key=lambda word: len(holders[word])):  # rare ones leave no choice
        _hold(word, holders[word], found)
        if len({one.kind for one in holders[word]}) < HOLDERS:
            print(f"of one kind alone: {word}: {', '.join(f'{o.set}::{o.name}' for o in holders[word])}")
    print("held nowhere:", *sorted(decided.HELD.keys() - set(words)), sep="\n  ")


def _hold(word: str, holders: list[Candidate], found: dict[tuple[str, str], Candidate]) -> None:
    wrong = [one for one in holders if not one.is_right] or holders
    kept: list[Candidate] = []
    for one in sorted(wrong, key=lambda one: (_costs(one, word), one.key)):
        is_new = one.kind not in {other.kind for other in kept}
        if len(kept) < HOLDERS and (is_new or len({o.kind for o in wrong}) < HOLDERS):
            kept.append(one)
    beside = [one for one in holders if one.is_right and one not in kept]
    for one in kept:
        one.reasons.append(word)
    if beside:
        min(beside, key=lambda one: (_costs(one, word), one.key)).reasons.append(word)
        return
    twins = [found[one.twin] for one in kept if one.twin in found and found[one.twin].is_right]
    if twins:
        twin = min(twins, key=lambda one: (_costs(one, word), one.key))
        twin.reasons.append(f"right beside {word}")


def _costs(one: Candidate, word: str) -> tuple[bool, float]:
    """What it costs more to have it: nothing where it is chosen already, for a cause least."""
    seconds = one.seconds if word.startswith("cause") or one.is_right else one.seconds / 4
    has_cause = any(reason.startswith("cause") for reason in one.reasons)
    if one.reasons and (has_cause or not word.startswith("cause")):
        seconds = 0.0
    return seconds > MOST_SECONDS, seconds


def fill(found: dict[tuple[str, str], Candidate], with_spec: int, bare: int) -> None:
    """Take from all sets in turn, the cheapest Function first, up to so many."""
    for wanted, most in ((False, with_spec), (True, bare)):
        ours = [one for one in found.values() if one.is_bare == wanted and one.status != "skipped"]
        count = sum(bool(one.reasons) for one in ours)
        left: dict[str, list[Candidate]] = {}
        for one in sorted(ours, key=lambda one: (_costs(one, ""), one.key), reverse=True):
            if not one.reasons and _costs(one, "")[1] < CHEAP:
                left.setdefault(one.set, []).append(one)
        while count < most and left:
            for ones in list(left.values())[: most - count]:
                one = ones.pop()
                one.reasons.append(f"{'right' if one.is_right else 'wrong'} {SPEC[wanted]}")
                count += 1
            left = {name: ones for name, ones in left.items() if ones}


def main() -> None:
    """Write the list, and print how much it holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path)
    parser.add_argument("--with-spec", type=int, default=300)
    parser.add_argument("--bare", type=int, default=100)
    given = parser.parse_args()
    found = {one.key: one for one in candidates(given.reports)}
    choose(found)
    needed = [one for one in found.values() if one.reasons]
    print(f"needed: {len(needed)}, of them without a spec {sum(one.is_bare for one in needed)}")
    fill(found, given.with_spec, given.bare)
    lines = [
        f"{one.set}::{one.name} | {one.status} | {'; '.join(one.reasons)}\n"
        for one in sorted(found.values(), key=lambda one: one.key)
        if one.reasons
    ]
    LIST.write_text(HEAD + "".join(lines), "utf-8")
    print(f"{len(lines)} of {len(found)} Functions")


if __name__ == "__main__":
    main()
