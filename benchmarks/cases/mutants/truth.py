"""Whether a mutant's gradients are other ones: plain autograd calls, held against the Function it came from.

    python -m cases.mutants.truth SPEC.gradverify.yaml MUTANTS.json

Shares with gradverify only what draws the inputs of a spec. Prints JSON: for each mutant, where it differs.
Left out are ties and other points that no draw meets.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from cases.mutants.questions import Call, answer, questions, second_by_differences
from gradverify.model import Point
from gradverify.rules import RULES
from gradverify.spec.plan import plan_function
from gradverify.spec.read import read_spec
from gradverify.verifier.inputs.arguments import build_arguments, paths_of
from gradverify.verifier.inputs.native_values import call_hook

GROSS = 1e-6
"""Relative difference of a gradient from which on a mutant is wrong beyond any tolerance."""
FINE = 1e-10
"""Relative difference below which it is taken for rounding."""
SEEDS = (0, 1)
CASES = 4
"""Cases of the spec that are looked at."""
CODES = [rule.code for rule in RULES]
ENLARGED: tuple[Callable[[int], int], ...] = (lambda n: n + 1, lambda n: n + 66)
"""Sizes that the spec does not name."""


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    file, listed = Path(sys.argv[1]).resolve(), json.loads(Path(sys.argv[2]).read_text())
    sys.path.insert(0, str(file.parent))
    written = yaml.safe_load(file.read_text())
    module = loaded(file.parent / written["module"])
    result = {}
    calls_for = all_calls(file, written, list(listed))
    for function, mutants in listed.items():
        original = getattr(module, function.partition("@")[0])
        calls = asked_of(original, calls_for[function])
        for mutant in mutants:
            result[mutant["name"]] = differences(original, getattr(module, mutant["name"]), calls)
    print(json.dumps(result))


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def all_calls(file: Path, written: dict[str, Any], functions: list[str]) -> dict[str, list[Call]]:
    """For each Function, calls at the declared sizes, then at others."""
    spec = read_spec(file, shown_path=file.name, known_codes=CODES)
    calls: dict[str, list[Call]] = {}
    resized: dict[str, Any] = {}
    for function in functions:
        entry = written["functions"][function]
        second = not any(code.startswith(("GV2", "GV3")) for code in entry.get("ignore", {}))
        second &= "surrogate" not in entry and "xfail" not in entry
        cases = plan_function(spec, function, seed=0).cases
        seeded = [replace(c, seed=c.seed + seed) for c in cases[:CASES] for seed in SEEDS]
        calls[function] = [call for case in seeded for call in drawn(case, declared=True, second=second)]
        kept = {k: v for k, v in entry.items() if k not in {"sizes", "where", "cases", "target"}}
        name = function.partition("@")[0]
        for number, sizes in enumerate(other_sizes(dict(cases[0].sizes))):
            resized[f"{name}@of{number}"] = {**kept, "target": name, "sizes": sizes}
    path = file.with_name("resized.gradverify.yaml")
    path.write_text(yaml.safe_dump({"gradverify": 1, "module": written["module"], "functions": resized}))
    spec = read_spec(path, shown_path=path.name, known_codes=CODES)
    for key, entry in resized.items():
        name = entry["target"]
        for case in plan_function(spec, key, seed=0).cases[:1]:
            calls[name] += drawn(case, declared=False, second=any(c.second for c in calls[name]))
    return calls


def other_sizes(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    yield {n: ENLARGED[0](v) for n, v in sizes.items()}
    for name, size in sizes.items():
        for change in ENLARGED:
            yield {**sizes, name: change(size)}


def drawn(case: Any, *, declared: bool, second: bool) -> Iterator[Call]:
    try:
        if case.hook:
            names = [i.name for i in case.inputs]
            result = call_hook(named(case.hook), case, 0, "cpu", names)
            arguments = getattr(result, "value", None)
        else:
            live = {path: named(path) for path in paths_of(case)}
            arguments = build_arguments(case, Point.TYPICAL, 0, "cpu", live)
    except Exception:  # noqa: BLE001 - inputs that these sizes do not allow
        return
    if arguments:
        yield Call(tuple(arguments), declared, second)


def named(path: str) -> Any:
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def differences(original: Any, mutant: Any, calls: list[Asked]) -> dict[str, Any]:
    """Where a mutant gives other gradients: by what was asked, at declared and at other sizes.

    Looks no further once an ordinary backward at declared sizes gives another gradient.
    """
    found: dict[str, Any] = {"declared": {}, "elsewhere": {}, "inputs": [], "fine": 0.0, "calls": 0}
    for asked in calls:
        if asked.truth("plain") is None:
            continue
        call = asked.call
        found["calls"] += 1
        place = found["declared" if call.declared else "elsewhere"]
        for question in questions(call):
            claimed = answer(mutant, call, question, asked.other)
            off = difference(original, asked, question, claimed)
            if max(off, default=0.0) > GROSS:
                place[question] = min(max(place.get(question, 0.0), *off), 1e300)
            elif off and max(off) > FINE and call.declared:
                found["fine"] = max(found["fine"], *off)
            if question == "plain" and question in found["declared"]:
                found["inputs"] = sorted(n for n, o in zip(call.names, off, strict=False) if o > GROSS)
                return found
    return found


def asked_of(original: Any, calls: list[Call]) -> list[Asked]:
    """Each call with the one that overlaps it: of another case, where there is one."""
    return [Asked(c, calls[(k + len(SEEDS)) % len(calls)], original, {}) for k, c in enumerate(calls)]


@dataclass
class Asked:
    """A call, and what the original answered to the questions that were asked so far."""

    call: Call
    other: Call
    original: Any
    answers: dict[str, list[Tensor | None] | None]

    def truth(self, question: str) -> list[Tensor | None] | None:
        if question not in self.answers:
            self.answers[question] = answer(self.original, self.call, question, self.other)
        return self.answers[question]


def difference(
    original: Any, asked: Asked, question: str, claimed: list[Tensor | None] | None
) -> list[float]:
    """Relative difference for each gradient; empty where nothing can be compared."""
    expected = asked.truth(question)
    if question == "second" and (claimed is None or not asked.call.second):
        return []
    if question == "second" and expected is None:
        return [second_by_differences(original, asked.call, claimed)]
    if expected is None:
        return []
    if claimed is None:
        return [float("inf")]
    return [relative(e, g, expected) for e, g in zip(expected, claimed, strict=True)]


def relative(expected: Tensor | None, given: Tensor | None, all_expected: list[Tensor | None]) -> float:
    """Largest difference, relative to the largest entry; infinite where one is finite and the other not."""
    if expected is None and given is None:
        return 0.0
    expected = torch.zeros_like(given) if expected is None else expected
    given = torch.zeros_like(expected) if given is None else given
    if expected.shape != given.shape:
        return float("inf")
    both = expected.isfinite() & given.isfinite()
    if not (expected.isfinite() == given.isfinite()).all():
        return float("inf")
    if not both.any():
        return 0.0
    scale = expected[both].abs().max().item() or max(
        (e[e.isfinite()].abs().max().item() for e in all_expected if e is not None and e.isfinite().any()),
        default=0.0,
    )
    off = (expected - given)[both].abs().max().item()
    return off / scale if scale else (float("inf") if off else 0.0)


if __name__ == "__main__":
    main()
