"""Writes `tests/cover/functions.txt`: the cheapest Functions that hold everything that decides a verdict.

    python benchmarks/oracle.py --reports REPORTS --into LINES
    python benchmarks/cover.py REPORTS [--with-spec N] [--bare N]

Every word of `decided.HELD`, every code at each severity and every kind of sample is held by two Functions
of different sets (a cause and a guess by one), and by a right one: the counterpart of a wrong one, which
must not be given what the wrong one is given. Where a word is held without a wrong Function (a note, an
inconclusive verdict) it is the same with right ones. All Functions of published bug reports are in. What is
left of the limits is filled from all sets in turn, the cheapest of each first. Words that fewer Functions
hold are printed.
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

BARE = 4.0
"""How much dearer a Function without a spec counts than it is: where another one would do, it gives way."""

START = 2.0
"""Seconds that a set takes beside its Functions."""

CHEAP = 3.0
"""Seconds below which a Function is taken for its kind alone."""

SPEC = {False: "under its spec", True: "without a spec"}
"""What is said of a Function that is there for its kind alone, by whether it has no spec."""

NOT_ASKED = {
    ("zoo/natively/wrong", "NumpyClamp"): "call: large grad_output",
    ("right/solvers", "LeastSquares"): "warning GV601",
}
"""Words that a report holds of the smallest inputs alone, which are not looked for here, or not always."""

UNSTEADY = {("zoo/kernels/wrong", "LastOutputNotWritten")}
"""Their findings depend on uninitialised memory, and change from run to run."""

HOLDERS = 2
"""Functions that hold a word themselves; the right one beside them is the third."""

OF_ONE = ("cause: ", "guess: ")
"""Beginnings of words of which one holder is enough: to find a cause, or inputs, takes longest."""


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
    held = decided.held(target) - {NOT_ASKED.get((name, target["name"]), "")}
    if (name, target["name"]) not in UNSTEADY:
        yield Candidate(name, target["name"], target["status"], is_right, held, target["duration_s"], twin)


def wanted(word: str) -> int:
    """How many Functions must hold a word themselves."""
    return 1 if word.startswith(OF_ONE) else HOLDERS


class Cover:
    """What is chosen, and whether it holds enough of a word."""

    def __init__(self, found: dict[tuple[str, str], Candidate]) -> None:
        self.found = found
        self.chosen = {key: one for key, one in found.items() if one.set.startswith(PUBLISHED)}
        self.words = sorted({word for one in found.values() for word in one.held})
        self.holders = {word: self._holders(word) for word in self.words}

    def _holders(self, word: str) -> list[Candidate]:
        held = [one for one in self.found.values() if word in one.held]
        return [one for one in held if not one.is_right] or held

    def beside(self, word: str) -> list[Candidate]:
        """Right Functions beside those that hold a word: what holds it itself, or counterparts."""
        direct = [one for one in self.found.values() if word in one.held and one.is_right]
        twins = (
            self.found.get(one.twin) for one in self.holders[word] if one.twin and one.key in self.chosen
        )
        return direct or [twin for twin in twins if twin is not None and twin.is_right]

    def is_enough(self, word: str) -> bool:
        """Whether enough Functions of enough kinds hold it, and a right one is beside them."""
        holders, chosen = self.holders[word], [one for one in self.holders[word] if one.key in self.chosen]
        kinds = {one.kind for one in holders}
        beside = self.beside(word)
        return (
            len(chosen) >= min(wanted(word), len(holders))
            and len({one.kind for one in chosen}) >= min(wanted(word), len(kinds))
            and (not beside or any(one.key in self.chosen for one in beside))
        )

    def cost(self, one: Candidate, word: str) -> float:
        """Seconds that it adds: a cause is looked for only where a line asks for it."""
        whole = one.is_right or word.startswith("cause")
        start = 0.0 if any(one.set == other.set for other in self.chosen.values()) else START
        return (one.seconds if whole else one.seconds / 4) * (BARE if one.is_bare else 1.0) + start

    def add(self, word: str) -> None:
        """Choose the cheapest Functions that are missing."""
        kept = [one for one in self.holders[word] if one.key in self.chosen]
        for one in sorted(self.holders[word], key=lambda one: (self.cost(one, word), one.key)):
            is_new = one.kind not in {other.kind for other in kept}
            if one not in kept and (is_new or len({o.kind for o in self.holders[word]}) < wanted(word)):
                if len(kept) >= wanted(word) and not (is_new and len({o.kind for o in kept}) < wanted(word)):
                    break
                kept.append(one)
                self.chosen[one.key] = one
        beside = self.beside(word)
        if beside and not any(one.key in self.chosen for one in beside):
            one = min(beside, key=lambda one: (self.cost(one, ""), one.key))
            self.chosen[one.key] = one

    def prune(self) -> None:
        """Leave out what others hold as well, the dearest first."""
        for key, one in sorted(self.chosen.items(), key=lambda pair: -pair[1].seconds):
            if one.set.startswith(PUBLISHED):
                continue
            touched = [word for word in self.words if word in one.held]
            touched += [word for word in self.words if any(key == o.key for o in self.beside(word))]
            del self.chosen[key]
            if not all(self.is_enough(word) for word in touched):
                self.chosen[key] = one

    def give_reasons(self) -> None:
        """Say for each what it is there for: of what many hold, the cheapest are asked."""
        for word in self.words:
            chosen = [one for one in self.holders[word] if one.key in self.chosen]
            kinds: set[str] = set()
            for one in sorted(chosen, key=lambda one: (one.seconds, one.key)):
                if len(kinds) < HOLDERS and (
                    one.kind not in kinds or len({o.kind for o in chosen}) < HOLDERS
                ):
                    kinds.add(one.kind)
                    one.reasons.append(word)
            beside = [one for one in self.beside(word) if one.key in self.chosen and word not in one.reasons]
            if beside and not any(word in one.reasons and one.is_right for one in chosen):
                one = min(beside, key=lambda one: (one.seconds, one.key))
                one.reasons.append(word if word in one.held else f"right beside {word}")
        for one in self.chosen.values():
            if not one.reasons or one.set.startswith(PUBLISHED):
                kind = f"{'right' if one.is_right else 'wrong'} {SPEC[one.is_bare]}"
                one.reasons.append("published" if one.set.startswith(PUBLISHED) else kind)

    def fill(self, most: dict[bool, int]) -> None:
        """Take from all sets in turn, the cheapest Function first, up to so many with and without a spec."""
        for is_bare, number in most.items():
            ours = [one for one in self.found.values() if one.is_bare == is_bare and one.status != "skipped"]
            count = sum(one.key in self.chosen for one in ours)
            left: dict[str, list[Candidate]] = {}
            for one in sorted(ours, key=lambda one: (self.cost(one, ""), one.key), reverse=True):
                if one.key not in self.chosen and self.cost(one, "") < CHEAP:
                    left.setdefault(one.set, []).append(one)
            while count < number and left:
                for ones in list(left.values())[: number - count]:
                    one = ones.pop()
                    self.chosen[one.key] = one
                    count += 1
                left = {name: ones for name, ones in left.items() if ones}


def main() -> None:
    """Write the list, and print how much it holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path)
    parser.add_argument("--with-spec", type=int, default=0)
    parser.add_argument("--bare", type=int, default=0)
    given = parser.parse_args()
    cover = Cover({one.key: one for one in candidates(given.reports)})
    for word in sorted(cover.words, key=lambda word: len(cover.holders[word])):  # rare ones leave no choice
        if len({one.kind for one in cover.holders[word]}) < HOLDERS:
            print(f"of one kind alone: {word}: {', '.join(o.name for o in cover.holders[word])}")
        if not cover.is_enough(word):
            cover.add(word)
    cover.prune()
    print("held nowhere:", *sorted(decided.HELD.keys() - set(cover.words)))
    bare = sum(one.is_bare for one in cover.chosen.values())
    print(f"needed: {len(cover.chosen)}, of them without a spec {bare}")
    cover.fill({False: given.with_spec, True: given.bare})
    cover.give_reasons()
    lines = [
        f"{one.set}::{one.name} | {one.status} | {'; '.join(one.reasons)}\n"
        for _, one in sorted(cover.chosen.items())
    ]
    LIST.write_text(HEAD + "".join(lines), "utf-8")
    print(f"{len(lines)} of {len(cover.found)} Functions")


if __name__ == "__main__":
    main()
