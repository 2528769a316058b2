"""Time of one verified point against torch's slow gradcheck and gradgradcheck, in one process.

    python benchmarks/against_gradcheck.py [REPEATS]

Subjects are the right Functions of tests/zoo/general on their base case. Prints a Markdown table; only
the ratios mean anything.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from gradverify.model import Point, Settings, TargetPlan
from gradverify.rules import RULES, Family
from gradverify.spec import SpecFile, find_specs, plan_function
from gradverify.verifier.checks import run_checks
from gradverify.verifier.checks.reading import reading_backward
from gradverify.verifier.checks.subject import Sample, Subject, prepare
from gradverify.verifier.collect.discover import defaults_of, describe_target
from gradverify.verifier.collect.importing import import_file, resolve
from gradverify.verifier.numerics.problem import returned_tensors, substitute

MODULE = Path(__file__).parents[1] / "tests" / "zoo" / "general" / "right.py"
FAMILIES = frozenset({Family.GRADCHECK, Family.GRADGRADCHECK, Family.CONTRACT})


def main() -> None:
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    module = import_file(MODULE)
    spec = find_specs(MODULE, given=[], folder=Path("specs"), known_codes=[r.code for r in RULES])
    assert spec is not None
    print(f"torch {torch.__version__}, one thread, median of {repeats}\n")
    print("| Function | N | M | torch, ms | gradverify, one point, ms | ratio | torch says |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for key in spec.functions:
        row = measure(module, spec, key, repeats)
        if row is not None:
            ratios.append(row)
    print(f"\nmedian ratio {statistics.median(ratios):.2f} over {len(ratios)} Functions")


def measure(module: object, spec: SpecFile, key: str, repeats: int) -> float | None:
    plan: TargetPlan = plan_function(spec, key)
    value = resolve(plan.attribute, module)
    target = describe_target(value, plan.name, plan.attribute, MODULE.name)
    with ExitStack() as stack:
        reader = stack.enter_context(reading_backward(value))
        subject = Subject(target, value.apply, Settings(), reader, defaults=defaults_of(value))
        sample = prepare(subject, plan.cases[0], Point.TYPICAL, 0)
        if not isinstance(sample, Sample):
            return None
        ours = median_time(lambda: run_checks(sample, FAMILIES), repeats)
    said = []
    theirs = median_time(lambda: said.append(torch_says(sample)), repeats)
    n, m = sample.inputs.size, sample.problem.outputs.size
    print(
        f"| {key} | {n} | {m} | {1e3 * theirs:.1f} | {1e3 * ours:.1f} | {ours / theirs:.2f} | {said[-1]} |",
        flush=True,
    )
    return ours / theirs


def torch_says(sample: Sample) -> str:
    inputs = [p.detach().clone().requires_grad_() for p in sample.problem.primals]

    def function(*primals: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sample.problem.random_states.replay()
        arguments = substitute(sample.arguments, [p.clone() for p in primals])
        returned = returned_tensors(sample.subject.function(*arguments))
        return tuple(returned[p] for p in sample.problem.output_positions)

    words = []
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        try:
            check(function, inputs)
        except Exception as error:  # noqa: BLE001 - what it raises is what it says
            words.append(type(error).__name__)
        else:
            words.append("pass")
    return ", ".join(words)


def median_time(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
