"""Which faults planted in right backwards ours and torch notice, and how often ours names the place.

    python benchmarks/detection.py [--size 100] [--seeds 3] [--second-sizes 100,1000] [--slow-up-to 150]

Two Markdown tables. First order: the faults of `faults.py` in the gradient of one input; `located`
counts those of which ours names exactly the input, or the entry, that was changed. Second order: faults in
the double backward, which leave the first derivative as it is; ours notices by an error or a warning, and its
slowest check is shown in CPU seconds.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable

import torch
from cases.ordinary import Inputs, faults_of, planting, subjects, twice_differentiable
from faults import Fault
from planting import Planted
from torch import Tensor
from torch.autograd import Function

import gradverify
from gradverify.model import Finding


def first_order(options: argparse.Namespace) -> None:
    planted: Counter[str] = Counter()
    noticed: Counter[tuple[str, str]] = Counter()
    exact: Counter[str] = Counter()
    for seed in range(options.seeds):
        for function, inputs in subjects(options.size, seed):
            for fault, position in faults_of(inputs):
                mark = Planted(fault, (position,))
                with planting(function, mark):
                    found = finding_of(function, inputs)
                    fast, slow = (fails(function, inputs, fast_mode=mode) for mode in (True, False))
                if not mark.changed:
                    continue
                planted[fault.name] += 1
                noticed[fault.name, "ours"] += found is not None
                noticed[fault.name, "fast"] += fast
                noticed[fault.name, "slow"] += slow
                exact[fault.name] += found is not None and names_it(found, fault, position, inputs)
    print(f"\n| fault, N = {options.size} | planted | ours | located | fast | slow |")
    print("|---|---|---|---|---|---|")
    for name, count in planted.items():
        ours, fast, slow = (noticed[name, mode] for mode in ("ours", "fast", "slow"))
        print(f"| {name} | {count} | {ours} | {exact[name]} | {fast} | {slow} |")
    print(f"\nlocated exactly: {sum(exact.values())} of {sum(planted.values())}")


def finding_of(function: type[Function], inputs: Inputs) -> object:
    """What ours says first, at the tolerance of the command; None where it passes."""
    try:
        gradverify.verify(function, inputs)
    except gradverify.GradientError as error:
        return error.findings[0]
    return None


def names_it(finding, fault: Fault, position: int, inputs: Inputs) -> bool:
    """Whether the finding names the changed input, and only the changed entry where it is one."""
    if finding.input != NAMES[len(inputs)][position]:
        return False
    if fault.place is None or finding.entries is None:
        return True
    place = fault.place(tuple(inputs[position].shape))
    return all(entry.input == place for entry in finding.entries.worst)


NAMES = {1: ("x",), 2: ("x", "weight")}
"""Names of the inputs, by how many there are."""


def fails(function: type[Function], inputs: Inputs, *, fast_mode: bool) -> bool:
    return not torch.autograd.gradcheck(
        function.apply, inputs, fast_mode=fast_mode, raise_exception=False, check_undefined_grad=False
    )


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


def with_fault(
    function: type[Function], change: Callable[[Tensor], Tensor | None], position: int
) -> Callable[..., Tensor]:
    def faulty(*inputs):
        planted = [Behind.apply(x, change) if k == position else x for k, x in enumerate(inputs)]
        return function.apply(*planted)

    return faulty


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


def locates(reported: str, fault: Fault, position: int, inputs: Inputs) -> bool:
    """Whether only that gradient is named, and of a gradient changed in one place only the place."""
    named = set(re.findall(r"gradient of `inputs\[(\d)\]`", reported))
    if named != {str(position)}:
        return False
    if fault.place is None or "slightly off" in reported:
        return True
    return set(re.findall(r"\{.*\}", reported)) == {str({fault.place(tuple(inputs[position].shape))})}


def passes(function: Callable[..., Tensor], inputs: Inputs, *, fast_mode: bool) -> bool:
    check = torch.autograd.gradgradcheck
    try:
        return check(function, inputs, fast_mode=fast_mode, raise_exception=False, check_undefined_grad=False)
    except RuntimeError:  # a fault that autograd itself refuses
        return False


def second_order(options: argparse.Namespace) -> None:
    print("\n| fault in the double backward | N | planted | ours | located | ours, s | fast | slow |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        counts: Counter[tuple[str, str]] = Counter()
        longest: dict[str, float] = {}
        slow = size <= options.slow_up_to
        for function, inputs in twice_differentiable(size):
            for fault, position in faults_of(inputs):
                faulty = with_fault(function, fault.change, position)
                counts[fault.name, "planted"] += 1
                start = time.thread_time()
                reported = found_by_us(faulty, inputs)
                longest[fault.name] = max(longest.get(fault.name, 0.0), time.thread_time() - start)
                counts[fault.name, "ours"] += bool(reported)
                counts[fault.name, "located"] += locates(reported, fault, position, inputs)
                counts[fault.name, "fast"] += not passes(faulty, inputs, fast_mode=True)
                counts[fault.name, "slow"] += slow and not passes(faulty, inputs, fast_mode=False)
        for name in dict.fromkeys(name for name, _ in counts):
            ours = [counts[name, who] for who in ("planted", "ours", "located")]
            torchs = [counts[name, "fast"], counts[name, "slow"] if slow else ""]
            cells = [name, size, *ours, f"{longest[name]:.1f}", *torchs]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    """Print both tables."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--second-sizes",
        dest="sizes",
        default=[100, 1000],
        type=lambda text: [int(n) for n in text.split(",")],
    )
    parser.add_argument("--slow-up-to", type=int, default=150)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread")
    first_order(options)
    second_order(options)


if __name__ == "__main__":
    main()
