"""How exactly wrong entries are located: random mistakes of known place in right Functions, by size.

    python benchmarks/location.py [--sizes 100,1000,10000] [--seeds 5] [--built-up-to 2000]

A Markdown table. Mistakes are planted in what backward returns: one entry of the Jacobian, several columns
of one row, a row, a column (one entry of the gradient), a slice of the gradient, all of it; each by a factor
drawn from `FACTORS`. `exact` counts those of which the entries called wrong are just those that are off by
more than the tolerance. Where the Jacobian is too large to be built, some are named: then it counts those of
which every entry named is off, and a single entry, the columns of a row and a column are named. `forwards` is
the median number of evaluations of forward, `s` the longest CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from cases.ordinary import Inputs, subjects
from torch import Tensor
from torch.autograd import Function

from gradverify.api.orders import arguments_of
from gradverify.verifier import guard
from gradverify.verifier.numerics.large import judge_any_size
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged

RTOL = 1e-7
FACTORS = (2.0, 0.0, -1.0, 1.01, 1 + 1e-5)
SEVERAL = 4
"""Columns that are wrong in one row."""

CLEARLY = 10.0
"""An entry must be called wrong where it is off by this many tolerances."""


@dataclass(frozen=True)
class Plant:
    """What backward does in place of what it should: to grad_output, to the gradient, or an entry more."""

    kind: str
    factor: float
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()

    def of(self, function: type[Function], inputs: Inputs) -> Callable[..., Tensor]:
        """The function with the mistake, in the gradient of its first input."""
        plant = self

        class Wrong(Function):
            @staticmethod
            def forward(ctx, *args):
                ctx.args = args
                return function.apply(*args)

            @staticmethod
            def backward(ctx, grad_output):
                with torch.enable_grad():
                    leaves = [a.detach().requires_grad_() for a in ctx.args]
                    out = function.apply(*leaves)
                    right = torch.autograd.grad(out, leaves, grad_output, retain_graph=True)
                    return plant.changed(right, grad_output, out, leaves)

        return Wrong.apply

    def changed(self, right: tuple[Tensor, ...], u: Tensor, out: Tensor, leaves: list[Tensor]) -> tuple:
        """The gradients with the mistake."""
        first, more = right[0].clone(), self.factor - 1
        flat = first.view(-1)
        match self.kind:
            case "one entry" | "several columns of a row":
                flat[list(self.columns)] += more * u.reshape(-1)[list(self.rows)].sum()
            case "a row":
                scaled = torch.zeros_like(u)
                scaled.view(-1)[list(self.rows)] = more * u.reshape(-1)[list(self.rows)]
                first += torch.autograd.grad(out, leaves[0], scaled)[0]
            case "a column":
                flat[list(self.columns)] *= self.factor
            case "a slice":
                first[..., self.columns[0] % first.shape[-1]] *= self.factor
            case "all":
                first *= self.factor
        return (first, *right[1:])


KINDS = ("one entry", "several columns of a row", "a row", "a column", "a slice", "all")


def drawn(kind: str, inputs: Inputs, rows: int, generator: torch.Generator) -> Plant:
    count = SEVERAL if kind == "several columns of a row" else 1
    columns = torch.randperm(inputs[0].numel(), generator=generator)[:count].tolist()
    factor = FACTORS[int(torch.randint(len(FACTORS), (), generator=generator))]
    row = int(torch.randint(rows, (), generator=generator))
    return Plant(kind, factor, (row,), tuple(sorted(columns)))


def problem_of(function: Callable[..., Tensor], inputs: Inputs) -> CallProblem:
    outputs = Layout.of([function(*(x.detach() for x in inputs))])
    arguments = arguments_of(tuple(x.detach().requires_grad_() for x in inputs), ("x", "weight"))
    return CallProblem(function, arguments, (0,), outputs, guard.RandomStates(0))


def jacobian(function: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    """By backward, M × N."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    rows = []
    for i in range(out.numel()):
        unit = torch.zeros_like(out)
        unit.view(-1)[i] = 1.0
        gradients = torch.autograd.grad(out, leaves, unit, retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in gradients]))
    return torch.stack(rows)


def exact_whole(judged: Judged, right: Tensor, wrong: Tensor) -> bool:
    difference = (wrong - right).abs()
    tolerance = RTOL * (right.abs() + right.abs().median(dim=1, keepdim=True).values)
    resolved = torch.maximum(tolerance, judged.comparison.bound)
    called = judged.comparison.wrong
    missed = ~called & (difference > CLEARLY * resolved)
    return not bool(missed.any()) and not bool((called & (difference == 0)).any())


def named(judged: Judged, inputs: Inputs, out: Tensor) -> set[tuple[int, int]]:
    """Positions of the entries called wrong in the whole Jacobian; columns of the first input only."""
    places = set()
    rows = [
        flat_position(judged.outputs.blocks[0].index(i), tuple(out.shape)) for i in range(judged.outputs.size)
    ]
    first = judged.inputs.blocks[0]
    for i, j in judged.comparison.wrong.nonzero().tolist():
        if not first.start <= j < first.stop:
            return {(-1, -1)}
        places.add((rows[i], flat_position(first.index(j), tuple(inputs[0].shape))))
    return places


def flat_position(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    position = 0
    for k, size in zip(index, shape, strict=True):
        position = position * size + k
    return position


def exact_part(plant: Plant, found: set[tuple[int, int]], inputs: Inputs) -> bool:
    last = inputs[0].shape[-1]
    rows, columns = {i for i, _ in found}, {j for _, j in found}
    match plant.kind:
        case "one entry" | "several columns of a row":
            return found == {(plant.rows[0], j) for j in plant.columns}
        case "a row":
            return rows == set(plant.rows)
        case "a column":
            return columns == set(plant.columns)
        case "a slice":
            return bool(found) and all(j % last == plant.columns[0] % last for j in columns)
    return bool(found)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--sizes", default=[100, 1000], type=lambda t: [int(float(n)) for n in t.split(",")])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--built-up-to", type=int, default=2000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, {options.seeds} seeds\n")
    print("| mistake | N | planted | found | exact | forwards | s |\n|---|---|---|---|---|---|---|")
    for size in options.sizes:
        counts: Counter[tuple[str, str]] = Counter()
        forwards: dict[str, list[int]] = defaultdict(list)
        longest: dict[str, float] = defaultdict(float)
        for kind, plant, function, inputs in plants(size, options.seeds):
            wrong = plant.of(function, inputs)
            problem = problem_of(wrong, inputs)
            start = time.thread_time()
            judged = judge_any_size(problem, Tolerance(RTOL))
            longest[kind] = max(longest[kind], time.thread_time() - start)
            forwards[kind].append(problem.counter.forward)
            counts[kind, "planted"] += 1
            if not isinstance(judged, Judged) or not judged.comparison.wrong.any():
                continue
            counts[kind, "found"] += 1
            if size <= options.built_up_to:
                both = (jacobian(f, inputs) for f in (function.apply, wrong))
                exact = exact_whole(judged, *both)
            else:
                exact = exact_part(plant, named(judged, inputs, function.apply(*inputs)), inputs)
            counts[kind, "exact"] += exact
            if not exact:
                print("  not exact:", function.__name__, plant)
        for kind in KINDS:
            reported = [counts[kind, what] for what in ("planted", "found", "exact")]
            cells = [kind, size, *reported, int(statistics.median(forwards[kind])), f"{longest[kind]:.1f}"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def plants(size: int, seeds: int) -> Iterator[tuple[str, Plant, type[Function], Inputs]]:
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(100 + seed)
        for function, inputs in subjects(size, seed):
            rows = function.apply(*inputs).numel()
            for kind in KINDS:
                yield kind, drawn(kind, inputs, rows, generator), function, inputs


if __name__ == "__main__":
    main()
