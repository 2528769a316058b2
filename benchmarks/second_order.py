"""The drop-in's second order against torch's: what it costs, what it finds, and the memory of both orders.

    python benchmarks/second_order.py [--sizes 100,1000] [--repeats 15] [--slow-up-to 150] [--memory 100000]
                                      [--tables cost,detection,memory]

Three Markdown tables. The time of a pass of `gradgradcheck` against fast mode, paired in one process (lower
quartiles; only the ratios mean anything). Faults planted in the double backward, which leave the first
derivative as it is: who notices them (ours by an error or a warning), how often ours names the gradient that
is off, and the entry where it is one, and the CPU seconds of our slowest check. And by how much one check at
N entries raises the peak memory of a fresh process, in MiB, beside one forward and one backward.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

import torch
from cost_and_detection import GELU, CumulativeSum, Inputs, Linear, Softmax, faults_of, subjects
from torch import Tensor
from torch.autograd import Function

import gradverify
from gradverify.model import Finding
from gradverify.verifier.mutation.faults import Fault

TWICE_DIFFERENTIABLE = (GELU, Softmax, CumulativeSum, Linear)
"""LayerNorm keeps an intermediate, which cuts its second derivative: it is no right Function there."""


class Passed(Function):
    """What the first backward hands on, with a fault in how it is differentiated itself."""

    @staticmethod
    def forward(ctx, gradient, fault):
        ctx.fault = fault
        return gradient.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.fault(cotangent), None


class Behind(Function):
    """Identity with a right backward and a faulty double backward."""

    @staticmethod
    def forward(ctx, x, fault):
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return Passed.apply(grad_output, ctx.fault), None


def chosen(size: int) -> list[tuple[type[Function], Inputs]]:
    return [(f, inputs) for f, inputs in subjects(size) if f in TWICE_DIFFERENTIABLE]


def with_fault(
    function: type[Function], change: Callable[[Tensor], Tensor | None], position: int
) -> Callable[..., Tensor]:
    def faulty(*inputs):
        planted = [Behind.apply(x, change) if k == position else x for k, x in enumerate(inputs)]
        return function.apply(*planted)

    return faulty


def cost(options: argparse.Namespace) -> None:
    print("| Function | N | ours, ms | ours / fast |\n|---|---|---|---|")
    for size in options.sizes:
        for function, inputs in chosen(size):
            own: list[float] = []
            fast: list[float] = []
            for _ in range(options.repeats):
                start = time.thread_time()
                gradverify.gradgradcheck(function.apply, inputs)
                between = time.thread_time()
                torch.autograd.gradgradcheck(function.apply, inputs, fast_mode=True)
                own.append(between - start)
                fast.append(time.thread_time() - between)
            ours, theirs = (sorted(times)[len(times) // 4] for times in (own, fast))
            entries = sum(x.numel() for x in inputs)
            row = f"| {function.__name__} | {entries} | {1e3 * ours:.1f} | {ours / theirs:.2f} |"
            print(row, flush=True)


def found_by_us(function: Callable[..., Tensor], inputs: Inputs) -> str:
    """What an error or a warning says; empty where the check passes in silence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gradverify.gradgradcheck(function, inputs)
        except gradverify.GradientError as error:
            return "\n".join(f"{f.message} {places_of(f)}" for f in error.findings)
    return "\n".join(str(w.message) for w in caught if "GV" in str(w.message))


def places_of(finding: Finding) -> set[tuple[int, ...]]:
    """Where in the gradient the worst entries lie."""
    return set() if finding.entries is None else {entry.output for entry in finding.entries.worst}


def locates(told: str, fault: Fault, position: int, inputs: Inputs) -> bool:
    """Whether only that gradient is named, and of a gradient changed in one place only the place."""
    named = set(re.findall(r"gradient of `inputs\[(\d)\]`", told))
    if named != {str(position)}:
        return False
    if fault.place is None or "slightly off" in told:
        return True
    return set(re.findall(r"\{.*\}", told)) == {str({fault.place(tuple(inputs[position].shape))})}


def passes(function: Callable[..., Tensor], inputs: Inputs, *, fast_mode: bool) -> bool:
    check = torch.autograd.gradgradcheck
    try:
        return check(function, inputs, fast_mode=fast_mode, raise_exception=False, check_undefined_grad=False)
    except RuntimeError:  # a fault that autograd itself refuses
        return False


def detection(options: argparse.Namespace) -> None:
    print("\n| fault in the double backward | N | planted | ours | located | ours, s | fast | slow |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        counts: Counter[tuple[str, str]] = Counter()
        longest: dict[str, float] = {}
        slow = size <= options.slow_up_to
        for function, inputs in chosen(size):
            for fault, position in faults_of(inputs):
                faulty = with_fault(function, fault.change, position)
                counts[fault.name, "planted"] += 1
                start = time.thread_time()
                told = found_by_us(faulty, inputs)
                longest[fault.name] = max(longest.get(fault.name, 0.0), time.thread_time() - start)
                counts[fault.name, "ours"] += bool(told)
                counts[fault.name, "located"] += locates(told, fault, position, inputs)
                counts[fault.name, "fast"] += not passes(faulty, inputs, fast_mode=True)
                counts[fault.name, "slow"] += slow and not passes(faulty, inputs, fast_mode=False)
        for name in dict.fromkeys(name for name, _ in counts):
            ours = [counts[name, who] for who in ("planted", "ours", "located")]
            torchs = [counts[name, "fast"], counts[name, "slow"] if slow else ""]
            cells = [name, size, *ours, f"{longest[name]:.1f}", *torchs]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def peak(who: str, order: str, name: str, size: int) -> None:
    """Print by how many MiB one check raises this process's peak, after a small one."""
    library = gradverify if who == "ours" else torch.autograd
    more = {"fast_mode": True} if who == "fast" else {}
    check = run_once if who == "plain" else getattr(library, order)
    small, large = (next(i for f, i in chosen(n) if f.__name__ == name) for n in (30, size))
    function = next(f for f in TWICE_DIFFERENTIABLE if f.__name__ == name)
    check(function.apply, small, **more)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(function.apply, large, **more)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def run_once(function: Callable[..., Tensor], inputs: Inputs) -> None:
    """Forward and backward, nothing else."""
    result = function(*inputs)
    torch.autograd.grad(result, inputs, torch.ones_like(result))


def memory(options: argparse.Namespace) -> None:
    print(f"\n| Function, N = {options.memory} | order | ours, MiB | fast, MiB | forward and backward, MiB |")
    print("|---|---|---|---|---|")
    for function in TWICE_DIFFERENTIABLE:
        for order in ("gradcheck", "gradgradcheck"):
            asked = (order, function.__name__, options.memory)
            told = [_of_fresh_process(who, *asked) for who in ("ours", "fast", "plain")]
            cells = " | ".join(f"{growth:.1f}" for growth in told)
            print(f"| {function.__name__} | {order} | {cells} |", flush=True)


def _of_fresh_process(*asked: object) -> float:
    command = [sys.executable, __file__, "--peak", *map(str, asked)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--sizes", default=[100, 1000], type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--slow-up-to", type=int, default=150)
    parser.add_argument("--memory", type=int, default=100_000)
    parser.add_argument("--tables", default="cost,detection,memory")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.peak:
        who, order, name, size = options.peak
        peak(who, order, name, int(size))
        return
    print(f"torch {torch.__version__}, one thread, lower quartile of {options.repeats}\n")
    for table in (cost, detection, memory):
        if table.__name__ in options.tables.split(","):
            table(options)


if __name__ == "__main__":
    main()
