"""The drop-in against torch's gradcheck over PyTorch's own operator database.

    python benchmarks/operator_database.py [--limit N] [--samples N] [--seeds N] [--entries N] [--second]
                                           [--runs N] [--slow-entries N] [--skip-slow] [--only NAME]
                                           [--shard 0/2]

Every float64 sample of `op_db` (and every entry of `autograd_function_db`) through the operator's own
`gradcheck_wrapper`: is the verdict that of torch's slow mode, and what do ours, fast and slow cost, in one
process? --limit stops after so many samples, --samples takes so many of each operator, --entries leaves out
samples with a larger Jacobian. Slow mode runs on every sample whose Jacobian has no more than --slow-entries,
which takes minutes; the others, and all with --skip-slow, are judged by fast mode and summed apart. Ours and
fast mode take turns, and the least of --runs: the first call of an operator loads what later ones share.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Compared:
    """One sample: what each says of it, and the CPU seconds each took."""

    name: str
    judge: str
    """Who tells whether it is right: "slow", or "fast" where slow mode did not run."""
    verdicts: dict[str, str]
    seconds: dict[str, float]
    said: str
    """The message of ours."""
    handed_on: str
    """The warning of ours that torch's own check decided; empty where ours did."""

    @property
    def expected(self) -> str:
        return self.verdicts[self.judge]

    @property
    def group(self) -> str:
        """The samples that it is summed with."""
        said = {"pass": "passes", "fail": "fails"}.get(self.expected, "raises")
        return f"{self.judge} mode {said}"


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
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        inputs = tuple(x for x in leaves if isinstance(x, Tensor) and x.requires_grad)
        if not inputs or sample.broadcasts_input:
            continue

        def function(*tensors, sample=sample):
            first, args, kwargs = put_back(sample, tensors)
            result = op.gradcheck_wrapper(op.get_op(), first, *args, **kwargs)
            return result if sample.output_process_fn_grad is None else sample.output_process_fn_grad(result)

        variant = f".{op.variant_test_name}" if op.variant_test_name else ""
        yield Called(
            f"{op.name}{variant}:{number}",
            function,
            inputs,
            {"nondet_tol": op.gradcheck_nondet_tol, "check_undefined_grad": True},
        )


def put_back(sample: Any, tensors: Sequence[Tensor]) -> tuple[Any, list[Any], dict[str, Any]]:
    """A sample's arguments with other tensors for those that require grad, as torch's own tests do it.

    Every check calls this each time, so that what it takes counts for all. Raises `ValueError` where some are
    left: they lie deeper than in a list.
    """
    given = iter(tensors)
    first = _put(sample.input, given)
    args = [_put(x, given) for x in sample.args]
    kwargs = {name: _put(x, given) for name, x in sample.kwargs.items()}
    if next(given, None) is not None:
        raise ValueError("a tensor that requires grad lies deeper than in a list")
    return first, args, kwargs


def _put(value: Any, given: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(given) if value.requires_grad else value
    if isinstance(value, list | tuple) and value and all(isinstance(x, Tensor) for x in value):
        return type(value)([next(given) if x.requires_grad else x for x in value])
    return value


def size_of(called: Called) -> int:
    """Entries of its Jacobian; 0 where it raises."""
    try:
        outputs = pytree.tree_flatten(called.function(*called.inputs))[0]
    except Exception:  # noqa: BLE001 - a sample that raises has its verdict in that
        return 0
    rows = sum(o.numel() for o in outputs if isinstance(o, Tensor) and o.requires_grad)
    return rows * sum(x.numel() for x in called.inputs)


def verdict(check: Callable[..., bool], called: Called, **more: Any) -> tuple[str, float, str]:
    """(pass, fail or the name of what was raised; CPU seconds; the message)."""
    torch.manual_seed(0)
    start = time.process_time()
    said = ""
    try:
        result = "pass" if check(called.function, called.inputs, **called.options, **more) else "fail"
    except torch.autograd.gradcheck.__globals__["GradcheckError"] as error:
        result, said = "fail", str(error)
    except Exception as error:  # noqa: BLE001 - what a sample raises is its verdict
        result, said = type(error).__name__, str(error)
    return result, time.process_time() - start, said


def compare(called: Called, number: int, options: argparse.Namespace) -> Compared:
    """Ask all of them; who begins changes with the `number` of the sample, and the first pays first uses."""
    ours = gradverify.gradgradcheck if options.second else gradverify.gradcheck
    theirs = torch.autograd.gradgradcheck if options.second else torch.autograd.gradcheck
    verdicts, seconds, said, handed_on = {}, {}, "", ""

    def ask_ours() -> None:
        nonlocal said, handed_on
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            verdicts["ours"], took, said = verdict(ours, called)
        warned = [str(w.message) for w in caught]
        handed_on = next((text for text in warned if "not verified by gradverify" in text), "")
        seconds["ours"] = min(took, seconds.get("ours", took))

    def ask_fast() -> None:
        verdicts["fast"], took, _ = verdict(theirs, called, fast_mode=True)
        seconds["fast"] = min(took, seconds.get("fast", took))

    for run in range(options.runs):
        turns = (ask_ours, ask_fast) if (number + run) % 2 else (ask_fast, ask_ours)
        for ask in turns:
            ask()
    judge = "slow" if options.slow and size_of(called) <= options.slow_entries else "fast"
    if judge == "slow":
        verdicts["slow"], seconds["slow"], _ = verdict(theirs, called)
    return Compared(called.name, judge, verdicts, seconds, said, handed_on)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--entries", type=int, default=10**9)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--slow-entries", type=int, default=10**8, help="of a Jacobian: 3 GB in slow mode")
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--skip-slow", dest="slow", action="store_false")
    parser.add_argument("--verbose", action="store_true", help="also list what torch's own check decided")
    parser.add_argument("--only", default="")
    parser.add_argument("--shard", default="0/1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: list[Compared] = []
    part, parts = (int(x) for x in options.shard.split("/"))
    for number, op in enumerate(operators(options.only)):
        if number % parts != part or (options.second and not op.supports_gradgrad):
            continue
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            try:
                chosen = list(samples_of(op, second=options.second))[: options.samples]
            except Exception as error:  # noqa: BLE001 - a sample generator that does not run here
                print(f"no samples of {op.name}: {type(error).__name__}")
                break
            for called in chosen:
                if len(found) >= options.limit:
                    break
                if options.entries < 10**9 and size_of(called) > options.entries:
                    continue
                found.append(compare(called, len(found), options))
    order = "second" if options.second else "first"
    print(
        f"torch {torch.__version__}, one thread, {len(found)} samples, {order} order, {options.seeds} seeds\n"
    )
    show(found, verbose=options.verbose)


def show(found: list[Compared], *, verbose: bool) -> None:
    print("| | ours says | samples |\n|---|---|---|")
    for (group, ours), many in sorted(Counter((c.group, c.verdicts["ours"]) for c in found).items()):
        print(f"| {group} | {ours} | {many} |")
    alarms = sum(c.expected == "pass" and c.verdicts["ours"] != "pass" for c in found)
    by_torch = sum(bool(c.handed_on) for c in found)
    print(
        f"\nalarms on what {found[0].judge} mode passes: {alarms}; decided by torch's own check: {by_torch}\n"
    )
    print("| | ours, s | fast, s | slow, s | ours / fast | ours / slow |\n|---|---|---|---|---|---|")
    for group in sorted({c.group for c in found}):
        print(f"| {group} | {_sums([c.seconds for c in found if c.group == group])} |")
    passed = [c for c in found if c.expected == "pass"]
    slowest = sorted(passed, key=lambda c: -c.seconds["ours"])[:12]
    shown = ", ".join(f"{c.name} {_times(c.seconds)}" for c in slowest)
    print(f"\nof what passes, ours took longest on (ms: ours, fast, slow) {shown}")
    noted = [c for c in found if c.verdicts["ours"] != c.expected or (verbose and c.handed_on)]
    if noted:
        print("\n| sample | judge | says | fast | ours | what ours says |\n|---|---|---|---|---|---|")
    for c in noted:
        first = next((line for line in (c.said or c.handed_on).splitlines() if line.strip()), "")
        text = first[:160].replace("|", "/")
        print(
            f"| {c.name} | {c.judge} | {c.expected} | {c.verdicts['fast']} | {c.verdicts['ours']} | {text} |"
        )


def _sums(seconds: list[dict[str, float]]) -> str:
    """What they took together, and ours as a share of the others."""
    ours, fast, slow = (sum(s.get(name, 0.0) for s in seconds) for name in ("ours", "fast", "slow"))
    shares = [f"{ours / fast:.2f}", f"1/{slow / ours:.0f}" if slow else ""]
    return " | ".join([f"{ours:.2f}", f"{fast:.2f}", f"{slow:.1f}" if slow else "", *shares])


def _times(seconds: dict[str, float]) -> str:
    return "(" + ", ".join(f"{1e3 * seconds[n]:.0f}" for n in ("ours", "fast", "slow") if n in seconds) + ")"


if __name__ == "__main__":
    main()
