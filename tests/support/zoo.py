"""The zoo as data: its modules, what each Function must get, and what of a report is not so.

A folder of `tests/zoo` with an `expected.py` belongs to it, and every module that its rows name.
"""

from __future__ import annotations

import functools
import json
import runpy
from collections.abc import Collection, Sequence
from pathlib import Path

import forked_command
import verdicts_only
from extent import ALL_SEEDS

ZOO = Path(__file__).parents[1] / "zoo"

OPTIONS_OF_THEIR_OWN = frozenset({"autocast", "devices", "triton"})
"""Folders that mean nothing without an option: `test_devices.py` runs them."""

TIMEOUT = "600"
"""Seconds for one target: on a busy machine the clock must not decide a row. None of them hangs."""

Row = dict[str, object]


@functools.cache
def expected_of(folder: str) -> dict[tuple[str, str, str], Row]:
    """Rows by (module, name, with or without a spec)."""
    return runpy.run_path(str(ZOO / folder / "expected.py"))["EXPECTED"]


def capabilities_of(folder: str, module: str) -> dict[str, dict[str, str]]:
    """What transforms must say, by name."""
    return runpy.run_path(str(ZOO / folder / "expected.py"))["CAPABILITIES"][module]


def modules(without: Collection[str] = OPTIONS_OF_THEIR_OWN) -> list[tuple[str, str]]:
    """Folder and module; those of most Functions first, so that no runner waits for one at the end."""
    folders = sorted(path.parent.name for path in ZOO.glob("*/expected.py"))
    counts = {
        (folder, module): len(rows_of(folder, module))
        for folder in folders
        if folder not in without
        for module in dict.fromkeys(key[0] for key in expected_of(folder))
    }
    return sorted(counts, key=lambda one: -counts[one])


def rows_of(folder: str, module: str) -> dict[str, Row]:
    """The rows of one module by name."""
    return {name: row for (where, name, _), row in expected_of(folder).items() if where == module}


def checked(
    targets: Sequence[str], folder: Path, *options: str, with_causes: Collection[str] = ()
) -> tuple[int, dict]:
    """The exit code and the JSON report of one command; with the causes of some alone."""
    asked = ("check", *targets, "--format", "json", "--timeout", TIMEOUT, *options)
    done = command(*asked, folder=folder, with_causes=with_causes)
    assert done.out, done.err
    return done.code, json.loads(done.out)


def command(*words: str, folder: Path, with_causes: Collection[str] = ()) -> forked_command.Ended:
    """The command in a folder, with the causes of some targets alone."""
    variables = {} if ALL_SEEDS else {verdicts_only.CAUSES_OF: " ".join(with_causes)}
    return forked_command.run(words, folder, forked_command.plain_environment(**variables))


def codes(target: dict, severity: str) -> set[str]:
    """Codes of its findings."""
    return {f["code"] for f in target["findings"] if f["severity"] == severity}


def complaints(target: dict, row: Row) -> list[str]:
    """What is not as the row says."""
    errors, warnings, notes = (codes(target, severity) for severity in ("error", "warning", "note"))
    may = set(row.get("may", ()))
    asked_errors, any_of = set(row.get("errors", ())), set(row.get("any_of", ()))
    words = " ".join(
        f"{f['message']} {f['hint']} {f.get('raised')} {f.get('fix')}" for f in target["findings"]
    )
    wrong = []
    if target["status"] not in {row["status"], *row.get("or_else", ())}:
        wrong.append(f"status {target['status']}, not {row['status']}")
    wrong += [f"no error {code}" for code in asked_errors - errors]
    wrong += [f"no warning {code}" for code in set(row.get("warnings", ())) - warnings]
    wrong += [f"no note {code}" for code in set(row.get("notes", ())) - notes]
    wrong += [f"none of {sorted(any_of)}"] if any_of and not any_of & errors else []
    wrong += [f"false alarm {code}" for code in errors - asked_errors - any_of - may]
    # Beside an error, or where it is an honest verdict, "this part could not be judged" is no false alarm.
    inconclusive = {"GV109"} if errors or target["status"] in row.get("or_else", ()) else set()
    wrong += [
        f"false warning {code}" for code in warnings - set(row.get("warnings", ())) - may - inconclusive
    ]
    causes = {f.get("cause") for f in target["findings"]} - {None, ""}
    asked_causes = set(row.get("cause", causes)) - {""}
    wrong += [f"causes {causes}"] if causes != asked_causes else []
    wrong += [f"`{name}` is not named" for name in row.get("names", ()) if name not in words]
    return wrong


def all_complaints(report: dict, rows: dict[str, Row]) -> dict[str, list[str]]:
    """By target, what is not as its row says."""
    found = {target["name"]: target for target in report["targets"]}
    assert found.keys() == rows.keys()
    wrong = {name: complaints(found[name], row) for name, row in rows.items()}
    return {name: said for name, said in wrong.items() if said}
