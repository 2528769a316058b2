"""Whether a mutant's gradients are other ones: plain autograd calls, held against the Function it came from.

    python -m seeded.oracle SPEC.gradverify.yaml MUTANTS.json

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

from gradverify.model import Point
from gradverify.rules import RULES
from gradverify.spec import plan_function, read_spec
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call, build_arguments, paths_of
from gradverify.verifier.inputs.hooks import call_hook

GROSS = 1e-6
"""Relative difference of a gradient from which on a mutant is wrong beyond any tolerance."""
FINE = 1e-10
"""Relative difference below which it is taken for rounding."""
FINITE_DIFFERENCE = 1e-3
"""Relative difference of a second derivative from a central difference that is taken for an error."""
STEP = 1e-5
SEEDS = (0, 1)
CASES = 4
"""Cases of the spec that are looked at."""
CODES = [rule.code for rule in RULES]
ENLARGED: tuple[Callable[[int], int], ...] = (lambda n: n + 1, lambda n: n + 66)
"""Sizes that the spec does not name."""


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    arguments: tuple[Argument, ...]
    declared: bool
    second: bool
    """Whether second derivatives count."""

    @property
    def names(self) -> list[str]:
        return [a.name for a in self.arguments if a.differentiable]


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
        calls = [Asked(c, original, {}) for c in calls_for[function]]
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
        calls[function] = [call for case in seeded for call in drawn(case, True, second)]
        kept = {k: v for k, v in entry.items() if k not in {"sizes", "where", "cases", "target"}}
        name = function.partition("@")[0]
        for number, sizes in enumerate(other_sizes(dict(cases[0].sizes))):
            resized[f"{name}@of{number}"] = {**kept, "target": name, "sizes": sizes}
    path = file.with_name("resized.gradverify.yaml")
    path.write_text(yaml.safe_dump({"gradverify": 1, "module": written["module"], "functions": resized}))
    spec = read_spec(path, shown_path=path.name, known_codes=CODES)
    for key in resized:
        name = key.partition("@")[0]
        for case in plan_function(spec, key, seed=0).cases[:1]:
            calls[name] += drawn(case, False, calls[name][0].second if calls[name] else False)
    return calls


def other_sizes(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    yield {n: ENLARGED[0](v) for n, v in sizes.items()}
    for name in sizes:
        for change in ENLARGED:
            yield {**sizes, name: change(sizes[name])}


def drawn(case: Any, declared: bool, second: bool) -> Iterator[Call]:
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
            claimed = answer(mutant, call, question)
            off = difference(original, asked, question, claimed)
            if max(off, default=0.0) > GROSS:
                place[question] = min(max(place.get(question, 0.0), *off), 1e300)
            elif off and max(off) > FINE and call.declared:
                found["fine"] = max(found["fine"], *off)
            if question == "plain" and question in found["declared"]:
                found["inputs"] = sorted(n for n, o in zip(call.names, off, strict=False) if o > GROSS)
                return found
    return found


@dataclass
class Asked:
    """A call, and what the original answered to the questions that were asked so far."""

    call: Call
    original: Any
    answers: dict[str, list[Tensor | None] | None]

    def truth(self, question: str) -> list[Tensor | None] | None:
        if question not in self.answers:
            self.answers[question] = answer(self.original, self.call, question)
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


def questions(call: Call) -> list[str]:
    """What is asked of a Function at one call, the most ordinary first."""
    always = [
        "plain",
        "again",
        "transposed",
        "expanded",
        "sliced",
        "strided inputs",
        "writes",
        "interleaved",
        "second",
    ]
    several = (
        [f"{how} {k}" for how in ("only", "without") for k in range(len(call.names))]
        if len(call.names) > 1
        else []
    )
    return [*always, *several, "output 0", "output 1"]


def answer(function: Any, call: Call, question: str) -> list[Tensor | None] | None:
    """The tensors that come; None where the Function raises, or has no such output."""
    how, _, number = question.partition(" ")
    every = set(range(len(call.names)))
    ask: dict[str, Callable[[], list[Tensor | None]]] = {
        "plain": lambda: first_order(function, call),
        "again": lambda: first_order(function, call, twice=True),
        "transposed": lambda: first_order(function, call, layout=transposed),
        "expanded": lambda: first_order(function, call, layout=expanded),
        "sliced": lambda: first_order(function, call, layout=sliced),
        "strided": lambda: first_order(function, call, of_inputs=transposed),
        "writes": lambda: first_order(function, call, writes=True),
        "interleaved": lambda: interleaved(function, call),
        "second": lambda: second_order(function, call),
        "only": lambda: first_order(function, call, wanted={int(number)}),
        "without": lambda: first_order(function, call, wanted=every - {int(number)}),
        "output": lambda: first_order(function, call, output=int(number)),
    }
    try:
        return [None if g is None else g.detach() for g in ask[how]()]
    except Exception:  # noqa: BLE001 - whatever a Function raises
        return None


def leaves_of(call: Call, wanted: set[int] | None = None, shift: float = 0.0) -> list[Tensor]:
    leaves = [a.value.detach().clone() + shift for a in call.arguments if a.differentiable]
    return [x.requires_grad_(wanted is None or k in wanted) for k, x in enumerate(leaves)]


def forward(
    function: Any, call: Call, leaves: list[Tensor], of_inputs: Callable[[Tensor], Tensor] | None = None
):
    """Outputs that carry a graph."""
    moved = iter(leaves)
    values = []
    for a in call.arguments:
        if a.differentiable:
            value = a.moved(next(moved).clone())
            values.append(of_inputs(value) if of_inputs is not None and a.step is None else value)
        else:
            values.append(a.value.clone() if isinstance(a.value, Tensor) else a.value)
    torch.manual_seed(0)
    returned = function.apply(*arguments_of_call(call.arguments, values))
    listed = returned if isinstance(returned, (tuple, list)) else [returned]
    return [t for t in listed if isinstance(t, Tensor) and t.requires_grad]


def cotangents(outputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in outputs]


def first_order(
    function, call, layout=None, of_inputs=None, wanted=None, output=None, twice=False, writes=False
):
    leaves = leaves_of(call, wanted)
    outputs = forward(function, call, leaves, of_inputs)
    given = cotangents(outputs)
    if output is not None:
        outputs, given = [outputs[output]], [given[output]]
    given = [g if layout is None else layout(g) for g in given]
    before = [g.clone() for g in given]
    sought = [x for x in leaves if x.requires_grad]
    if twice:
        torch.autograd.grad(outputs, sought, given, retain_graph=True, allow_unused=True)
        given = before
    gradients = list(torch.autograd.grad(outputs, sought, given, allow_unused=True))
    return gradients if not writes else given


def interleaved(function, call):
    leaves = leaves_of(call)
    outputs = forward(function, call, leaves)
    try:
        forward(function, call, leaves_of(call, shift=0.25))
    except Exception:  # noqa: BLE001 - values that it cannot have
        pass
    return list(torch.autograd.grad(outputs, leaves, cotangents(outputs), allow_unused=True))


def second_order(function, call):
    """Gradients by the inputs and by grad_output of the gradients' product with a fixed direction."""
    leaves = leaves_of(call)
    outputs = forward(function, call, leaves)
    given = [g.requires_grad_() for g in cotangents(outputs)]
    gradients = [
        g
        for g in torch.autograd.grad(outputs, leaves, given, create_graph=True, allow_unused=True)
        if g is not None
    ]
    product = against(gradients)
    sought = [*leaves, *given]
    if not product.requires_grad:
        return [torch.zeros_like(x) for x in sought]
    found = torch.autograd.grad(product, sought, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(sought, found, strict=True)]


def against(gradients: list[Tensor]) -> Tensor:
    """A smooth function of the gradients that every entry matters for."""
    total = torch.zeros((), dtype=torch.float64)
    for g, d in zip(gradients, cotangents(gradients), strict=True):
        total = total + (g * d.conj()).sum().real
    return total


def second_by_differences(original, call, given):
    """How far a second derivative is from a central difference of the original's gradient."""
    leaves = leaves_of(call)
    directions = [torch.randn_like(x) for x in leaves]
    products = []
    for sign in (1, -1):
        moved = [
            (x.detach() + sign * STEP * d).requires_grad_() for x, d in zip(leaves, directions, strict=True)
        ]
        try:
            outputs = forward(original, call, moved)
            found = torch.autograd.grad(outputs, moved, cotangents(outputs), allow_unused=True)
        except Exception:  # noqa: BLE001
            return 0.0
        products.append(against([g for g in found if g is not None]).item())
    numerical = (products[0] - products[1]) / (2 * STEP)
    claimed = sum((g * d.conj()).sum().real.item() for g, d in zip(given, directions, strict=False))
    off = abs(claimed - numerical) / max(abs(numerical), 1e-2)
    return off if off > FINITE_DIFFERENCE else 0.0


def transposed(x: Tensor) -> Tensor:
    """The same values with the memory of the transpose."""
    return (
        x.t().contiguous().t()
        if x.dim() == 2
        else x.transpose(0, -1).contiguous().transpose(0, -1)
        if x.dim() > 2
        else sliced(x)
    )


def expanded(x: Tensor) -> Tensor:
    """Stride 0: what `sum().backward()` sends."""
    return torch.full((), 1.5, dtype=x.dtype).expand(x.shape)


def sliced(x: Tensor) -> Tensor:
    """Every second entry of a larger tensor."""
    larger = torch.zeros(*x.shape, 2, dtype=x.dtype)
    larger[..., 0] = x
    return larger[..., 0]


if __name__ == "__main__":
    main()
