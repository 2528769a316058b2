"""Cost, detection and location of the drop-in against torch's slow and fast mode, Function by Function.

    python benchmarks/cost_and_detection.py [--sizes 100,1000] [--repeats 3] [--slow-up-to 1000]
                                            [--detect-at 100] [--seeds 3]

Two Markdown tables, measured in one process: the time of a pass for N input entries (only the ratios mean
anything), and which planted faults each of the three notices, with how often ours names exactly the entry, or
the input, that was changed. Faults are those of `gradverify selftest`, planted in the gradient of one input.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd import Function

import gradverify
from gradverify.verifier.mutation.faults import FAULTS, Fault, Scope
from gradverify.verifier.mutation.planting import Planted, planting

Inputs = tuple[Tensor, ...]


class GELU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        density = torch.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        return g * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(centred * scale, scale, weight)
        return centred * scale * weight

    @staticmethod
    def backward(ctx, g):
        y, scale, weight = ctx.saved_tensors
        h = g * weight
        through = h - h.mean(-1, keepdim=True) - y * (h * y).mean(-1, keepdim=True)
        return scale * through, (g * y).sum(0)


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.mT @ x


class CumulativeSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(-1).cumsum(-1).flip(-1)


def drawn(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def subjects(size: int, seed: int = 0) -> Iterator[tuple[type[Function], Inputs]]:
    """Every Function with inputs of about `size` entries."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = max(2, round(math.sqrt(size / 2))), max(3, round(math.sqrt(size * 2)))
    for function in (GELU, Softmax, CumulativeSum):
        yield function, (drawn(rows, columns, generator=generator),)
    weight = drawn(columns, generator=generator)
    yield LayerNorm, (drawn(rows, columns, generator=generator), weight)
    half = max(2, round(math.sqrt(size / 2)))
    yield Linear, (drawn(half, half, generator=generator), drawn(half + 1, half, generator=generator))


def seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def cost(options: argparse.Namespace) -> None:
    print("| Function | N | ours, ms | ours / fast | slow / ours |\n|---|---|---|---|---|")
    check = torch.autograd.gradcheck
    for size in options.sizes:
        for function, inputs in subjects(size):
            entries = sum(x.numel() for x in inputs)

            def ours(function=function, inputs=inputs):
                return gradverify.gradcheck(function.apply, inputs)

            def fast(function=function, inputs=inputs):
                return check(function.apply, inputs, fast_mode=True)

            def slow(function=function, inputs=inputs):
                return check(function.apply, inputs)

            ours(), fast()
            own, quick = seconds(ours, options.repeats), seconds(fast, options.repeats)
            long = f"{seconds(slow, 1) / own:.0f}" if entries <= 1.5 * options.slow_up_to else ""
            row = (function.__name__, entries, f"{1e3 * own:.1f}", f"{own / quick:.2f}", long)
            print(f"| {' | '.join(map(str, row))} |", flush=True)


def faults_of(inputs: Inputs) -> Iterator[tuple[Fault, int]]:
    for fault in FAULTS:
        for position, x in enumerate(inputs):
            if fault.scope is Scope.GRADIENT and fault.fits(tuple(x.shape)):
                yield fault, position


def detection(options: argparse.Namespace) -> None:
    planted: Counter[str] = Counter()
    noticed: Counter[tuple[str, str]] = Counter()
    exact: Counter[str] = Counter()
    for seed in range(options.seeds):
        for function, inputs in subjects(options.detect_at, seed):
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
    print(f"\n| fault, N = {options.detect_at} | planted | ours | located | fast | slow |")
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


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    numbers = {"type": lambda text: [int(float(n)) for n in text.split(",")]}
    parser.add_argument("--sizes", default=[100, 1000], **numbers)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-up-to", type=int, default=1000)
    parser.add_argument("--detect-at", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, median of {options.repeats}\n")
    cost(options)
    detection(options)


if __name__ == "__main__":
    main()
