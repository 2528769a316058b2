"""What a pass of the drop-in costs against torch's fast mode: on the operator database, on single Functions.

    python benchmarks/drop_in_speed.py [--stride 3] [--samples 2] [--seeds 1] [--repeats 5] [--only NAME]
                                       [--entries N] [--second] [--sizes 100,1000] [--slow] [--verbose]

Ours and fast mode take turns on every sample, the one that begins changes, and the least of each counts: on
a shared machine that is the time without the others' work. Times are the thread's own (CPU), and wall time
beside them. Only samples that both pass count towards the times; disagreements are listed. --stride takes
every n-th operator, 0 none; --samples so many of each, --entries leaves out larger Jacobians, --second asks
gradgradcheck. --slow also runs slow mode, once, on the single Functions, which an empty --sizes leaves out.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from cases.ordinary import subjects, twice_differentiable
from operator_database import Called, operators, samples_of, size_of, verdict

import gradverify


@dataclass(frozen=True)
class Cost:
    """The least seconds of several runs."""

    cpu: float
    wall: float


@dataclass
class Database:
    """What was seen over the samples of the database."""

    asked: int = 0
    ours: list[Cost] = field(default_factory=list)
    fast: list[Cost] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)


def taking_turns(runs: tuple[Callable[[], object], ...], repeats: int) -> tuple[Cost, ...]:
    """The least cost of each, run one after the other so many times, in changing order."""
    cpu, wall = [[float("inf")] * len(runs) for _ in range(2)]
    for turn in range(repeats):
        for place in range(len(runs)):
            who = (place + turn) % len(runs)
            start, started = time.perf_counter(), time.thread_time()
            runs[who]()
            cpu[who] = min(cpu[who], time.thread_time() - started)
            wall[who] = min(wall[who], time.perf_counter() - start)
    return tuple(map(Cost, cpu, wall))


def checks(*, second: bool) -> tuple[Callable[..., bool], Callable[..., bool]]:
    """Ours and torch's."""
    name = "gradgradcheck" if second else "gradcheck"
    return getattr(gradverify, name), getattr(torch.autograd, name)


def samples(options: argparse.Namespace) -> Iterator[Called]:
    for op in operators(options.only)[:: options.stride]:
        if options.second and not op.supports_gradgrad:
            continue
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            try:
                found = list(samples_of(op, second=options.second))[: options.samples]
                yield from (called for called in found if size_of(called) <= options.entries)
            except Exception as error:  # noqa: BLE001 - a sample generator that does not run here
                print(f"(no samples of {op.name}: {type(error).__name__})")
                break


def database(options: argparse.Namespace) -> Database:
    ours, theirs = checks(second=options.second)
    seen = Database()
    for called in samples(options):
        seen.asked += 1
        fast, _, _ = verdict(theirs, called, fast_mode=True)
        own, _, said = verdict(ours, called)
        if own != fast:
            seen.disagreements.append(f"| {called.name} | {fast} | {own} | {first_words(said)} |")
        if not own == fast == "pass":
            continue

        def of(check: Callable[..., bool], called: Called = called, **more: Any) -> Callable[[], bool]:
            return lambda: check(called.function, called.inputs, **called.options, **more)

        try:
            own_cost, fast_cost = taking_turns((of(ours), of(theirs, fast_mode=True)), options.repeats)
        except Exception as error:  # noqa: BLE001 - a random grad_output may be the first one that fails
            seen.disagreements.append(f"| {called.name} | unsteady | | {first_words(str(error))} |")
            continue
        seen.ours.append(own_cost)
        seen.fast.append(fast_cost)
        seen.names.append(called.name)
    return seen


def first_words(said: str) -> str:
    return next((line for line in said.splitlines() if line.strip()), "")[:120].replace("|", "/")


def show_database(seen: Database, options: argparse.Namespace) -> None:
    print(f"\n{seen.asked} samples: both pass {len(seen.ours)}\n")
    print("| time | ours, s | fast, s | ours / fast | median | p10 | p90 |\n|---|---|---|---|---|---|---|")
    for kind in ("cpu", "wall"):
        own, quick = ([getattr(cost, kind) for cost in costs] for costs in (seen.ours, seen.fast))
        ratios = [a / b for a, b in zip(own, quick, strict=True)]
        tenths = statistics.quantiles(ratios, n=10)
        row = (sum(own) / sum(quick), statistics.median(ratios), tenths[0], tenths[-1])
        figures = " | ".join(f"{value:.2f}" for value in row)
        print(f"| {kind} | {sum(own):.3f} | {sum(quick):.3f} | {figures} |")
    if seen.disagreements:
        print("\n| sample | fast | ours | what ours says |\n|---|---|---|---|")
        print("\n".join(seen.disagreements))
    if options.verbose:
        print("\n| sample | ours, ms | ours / fast |\n|---|---|---|")
        rows = zip(seen.names, seen.ours, seen.fast, strict=True)
        for name, own, quick in sorted(rows, key=lambda row: row[2].cpu - 2 * row[1].cpu):
            print(f"| {name} | {1e3 * own.cpu:.2f} | {own.cpu / quick.cpu:.2f} |")


def single_functions(options: argparse.Namespace) -> None:
    """One Function at a time, the median over its draws of the least of several runs."""
    ours, theirs = checks(second=options.second)
    print("\n| Function | N | ours, ms | ours / fast | slow / ours |\n|---|---|---|---|---|")
    for size in options.sizes:
        for function, inputs in twice_differentiable(size) if options.second else subjects(size):

            def of(check: Callable[..., bool], function=function, inputs=inputs, **more: Any):
                return lambda: check(function.apply, inputs, **more)

            runs = (of(ours), of(theirs, fast_mode=True))
            own, fast = taking_turns(runs, 20 * options.repeats)
            slow = f"{taking_turns((of(theirs),), 1)[0].cpu / own.cpu:.0f}" if options.slow else ""
            entries = sum(x.numel() for x in inputs)
            row = (function.__name__, entries, f"{1e3 * own.cpu:.2f}", f"{own.cpu / fast.cpu:.2f}", slow)
            print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--stride", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--entries", type=float, default=1e12, help="leave out larger Jacobians")
    parser.add_argument("--only", default="")
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="also list every sample, the dearest first")
    numbers = {"type": lambda text: [int(float(n)) for n in text.split(",") if n]}
    parser.add_argument("--sizes", default=[100, 1000], **numbers)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    order = "second" if options.second else "first"
    print(f"torch {torch.__version__}, one thread, {order} order, least of {options.repeats} runs in turn")
    if options.stride:
        show_database(database(options), options)
    single_functions(options)


if __name__ == "__main__":
    main()
