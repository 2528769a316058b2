"""The drop-in against torch's gradcheck over PyTorch's own operator database.

    python benchmarks/operator_database.py [--limit N] [--samples N] [--seeds N] [--entries N] [--second]
                                           [--skip-slow] [--only NAME] [--shard 0/2]

Every float64 sample of `op_db` (and every entry of `autograd_function_db`) through the operator's own
`gradcheck_wrapper`: is the verdict that of torch's slow mode, and what do ours, fast and slow cost, in one
process? --limit stops after so many samples, --samples takes so many of each operator, --entries leaves out
samples with a larger Jacobian. Without --skip-slow slow mode runs on every sample, which takes minutes.
Prints Markdown; only the ratios of the times mean anything. An alarm is a sample that slow mode passes and
ours fails.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import gradverify


@dataclass(frozen=True)
class Called:
    """One sample as a function of its differentiable tensors."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    options: dict[str, Any]


@dataclass
class Figures:
    seconds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(slow, ours)."""
    notes: list[str] = field(default_factory=list)
    by_torch: int = 0
    slowest: list[tuple[float, str, str]] = field(default_factory=list)


def operators(only: str) -> list[Any]:
    """Both databases; torch's own tests import `expecttest`, which is stubbed where it is missing."""
    try:
        import expecttest  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.autograd_function_db import autograd_function_db  # noqa: PLC0415
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    found = [op for op in (*op_db, *autograd_function_db) if only in op.name and op.supports_autograd]
    return [op for op in found if torch.float64 in op.supported_backward_dtypes("cpu")]


def samples_of(op: Any, *, second: bool = False) -> Iterator[Called]:
    """The samples as torch's own gradient tests call them."""
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float64, requires_grad=True)):
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
        if not places or sample.broadcasts_input:
            continue

        def function(*tensors, leaves=leaves, structure=structure, places=places, sample=sample):
            values = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(values, structure)
            result = op.gradcheck_wrapper(op.get_op(), first, *args, **kwargs)
            return result if sample.output_process_fn_grad is None else sample.output_process_fn_grad(result)

        variant = f".{op.variant_test_name}" if op.variant_test_name else ""
        yield Called(
            f"{op.name}{variant}:{number}",
            function,
            tuple(leaves[i] for i in places),
            {"nondet_tol": op.gradcheck_nondet_tol, "check_undefined_grad": not second},
        )


def size_of(called: Called) -> int:
    """Entries of its Jacobian; 0 where it raises."""
    try:
        outputs = pytree.tree_flatten(called.function(*called.inputs))[0]
    except Exception:  # noqa: BLE001 - a sample that raises has its verdict in that
        return 0
    rows = sum(o.numel() for o in outputs if isinstance(o, Tensor) and o.requires_grad)
    return rows * sum(x.numel() for x in called.inputs)


def verdict(check: Callable[..., bool], called: Called, **more: Any) -> tuple[str, float, str]:
    """(pass, fail or the name of what was raised; seconds; the message)."""
    torch.manual_seed(0)
    start = time.perf_counter()
    said = ""
    try:
        result = "pass" if check(called.function, called.inputs, **called.options, **more) else "fail"
    except torch.autograd.gradcheck.__globals__["GradcheckError"] as error:
        result, said = "fail", str(error)
    except Exception as error:  # noqa: BLE001 - what a sample raises is its verdict
        result, said = type(error).__name__, str(error)
    return result, time.perf_counter() - start, said


def compare(called: Called, options: argparse.Namespace, figures: Figures) -> None:
    ours = gradverify.gradgradcheck if options.second else gradverify.gradcheck
    theirs = torch.autograd.gradgradcheck if options.second else torch.autograd.gradcheck
    before = figures.seconds["ours"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, figures.seconds["ours"], said = _timed(ours, called, figures, "ours")
    handed_on = [str(w.message) for w in caught if "not verified by gradverify" in str(w.message)]
    figures.by_torch += bool(handed_on)
    fast, figures.seconds["fast"], _ = _timed(theirs, called, figures, "fast", fast_mode=True)
    slow = fast
    if options.slow:
        slow, figures.seconds["slow"], _ = _timed(theirs, called, figures, "slow")
    figures.verdicts[slow, found] += 1
    figures.slowest.append((figures.seconds["ours"] - before, called.name, found))
    if found != slow:
        first = next((line for line in said.splitlines() if line.strip()), "")
        figures.notes.append(
            f"| {called.name} | {slow} | {fast} | {found} | {first[:160].replace('|', '/')} |"
        )
    elif handed_on and options.verbose:
        figures.notes.append(f"| {called.name} | {slow} | {fast} | {found} | {handed_on[0][:160]} |")


def _timed(check, called, figures, name, **more):
    result, seconds, said = verdict(check, called, **more)
    return result, figures.seconds[name] + seconds, said


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--entries", type=int, default=10**9)
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--skip-slow", dest="slow", action="store_false")
    parser.add_argument("--verbose", action="store_true", help="also list what torch's own check decided")
    parser.add_argument("--only", default="")
    parser.add_argument("--shard", default="0/1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    figures, count = Figures(), 0
    part, parts = (int(x) for x in options.shard.split("/"))
    for number, op in enumerate(operators(options.only)):
        if number % parts != part or (options.second and not op.supports_gradgrad):
            continue
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            try:
                chosen = list(samples_of(op, second=options.second))[: options.samples]
            except Exception as error:  # noqa: BLE001 - a sample generator that does not run here
                figures.notes.append(f"| {op.name} | no samples | | | {type(error).__name__} |")
                break
            for called in chosen:
                if count >= options.limit:
                    break
                if options.entries < 10**9 and size_of(called) > options.entries:
                    continue
                count += 1
                compare(called, options, figures)
    show(count, options, figures)


def show(count: int, options: argparse.Namespace, figures: Figures) -> None:
    order = "second" if options.second else "first"
    judge = "slow" if options.slow else "fast"
    print(f"torch {torch.__version__}, one thread, {count} samples, {order} order, {options.seeds} seeds\n")
    print(f"| {judge} mode says | ours says | samples |\n|---|---|---|")
    for (theirs, found), many in sorted(figures.verdicts.items()):
        print(f"| {theirs} | {found} | {many} |")
    alarms = sum(n for (theirs, found), n in figures.verdicts.items() if theirs == "pass" and found != "pass")
    print(
        f"\nalarms on what {judge} mode passes: {alarms}; decided by torch's own check: {figures.by_torch}\n"
    )
    print("| | seconds | ours is |\n|---|---|---|")
    for name in ("ours", "fast", "slow"):
        if name in figures.seconds:
            share = figures.seconds["ours"] / figures.seconds[name]
            print(f"| {name} | {figures.seconds[name]:.2f} | {share:.3f} × |")
    shown = [
        f"{name} {1e3 * seconds:.0f} ms ({found})" for seconds, name, found in sorted(figures.slowest)[:-9:-1]
    ]
    print(f"\nours took longest on {', '.join(shown)}")
    if figures.notes:
        print(f"\n| sample | {judge} | fast | ours | what ours says |\n|---|---|---|---|---|")
        print("\n".join(figures.notes))


if __name__ == "__main__":
    main()
