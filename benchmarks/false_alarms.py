"""False alarms and detection over PyTorch's own operator database.

    python benchmarks/false_alarms.py [--entries 300] [--samples 4] [--seeds 1] [--second] [--plant]
                                      [--no-torch] [--only NAME] [--shard 0/2]

Every float64 sample of `op_db` with at most --entries Jacobian entries is judged as a plain callable, first
order and (--second) second order. What is wrong, imprecise or uncovered is listed, next to what torch's slow
gradcheck says. --plant multiplies one gradient entry of every sample by 1 + 1e-6 instead and lists what was
not found. Needs the `expecttest` package, which torch's own tests import; it is stubbed where it is missing.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
import unittest
import warnings
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.jacobian import KnownColumns
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.round_off import gradient_noise
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged, judge

RTOL = 1e-7
PLANTED = 1e-6


@dataclass
class Figures:
    samples: int = 0
    notes: list[str] = field(default_factory=list)
    tally: Tally[str] = field(default_factory=Tally)
    seconds: float = 0.0
    torch_seconds: float = 0.0


def operators() -> list[Any]:
    try:
        import expecttest  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    return op_db


@dataclass(frozen=True)
class Called:
    """One sample as a map of its differentiable tensors."""

    name: str
    function: Callable[..., Any]
    primals: tuple[Tensor, ...]
    nondeterminism: float = 0.0


def samples_of(op: Any, count: int, entries: int, dtype: torch.dtype = torch.float64) -> Iterator[Called]:
    taken = 0
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=True)):
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [
            i
            for i, x in enumerate(leaves)
            if isinstance(x, Tensor) and x.requires_grad and (x.is_floating_point() or x.is_complex())
        ]
        if not places or any(leaves[i].layout is not torch.strided for i in places):
            continue

        def function(*tensors, leaves=leaves, structure=structure, places=places, sample=sample):
            values = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(values, structure)
            result = op.gradcheck_wrapper(op.get_op(), first, *args, **kwargs)
            if sample.output_process_fn_grad is not None:
                result = sample.output_process_fn_grad(result)
            return tuple(t for t in pytree.tree_flatten(result)[0] if isinstance(t, Tensor))

        size = sum(leaves[i].numel() for i in places)
        if size == 0 or size > entries:
            continue
        taken += 1
        yield Called(
            f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}:{number}",
            function,
            tuple(leaves[i].detach() for i in places),
            op.gradcheck_nondet_tol,
        )
        if taken == count:
            return


class Scaled(torch.autograd.Function):
    """Identity whose gradient has one entry off by PLANTED."""

    @staticmethod
    def forward(ctx, x, place):
        ctx.place = place
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        flat = torch.view_as_real(g).reshape(-1) if g.is_complex() else g.reshape(-1)
        flat[ctx.place] *= 1 + PLANTED
        return g, None


def problem_of(called: Called, seed: int, entries: int) -> CallProblem | str:
    states = guard.RandomStates(seed)
    leaves = [p.clone().requires_grad_() for p in called.primals]
    states.replay()
    result = guard.call(called.function, *[x.clone() for x in leaves])
    if isinstance(result, Raised):
        return f"raised {result.error.type}"
    kept = [i for i, t in enumerate(result.value) if t.requires_grad and t.numel()]
    outputs = Layout.of([result.value[i] for i in kept])
    if not outputs.size:
        return "no differentiable output"
    if outputs.size * Layout.of(called.primals).size > entries:
        return "too large"
    arguments = tuple(Argument(f"x{i}", p, differentiable=True) for i, p in enumerate(called.primals))
    return CallProblem(called.function, arguments, tuple(kept), outputs, states)


def moved(called: Called, seed: int) -> Called:
    """Other values near the sample's own: another seed."""
    if seed == 0:
        return called
    generator = torch.Generator().manual_seed(seed)

    def move(x: Tensor) -> Tensor:
        factor = 1 + 0.03 * torch.rand(x.shape, generator=generator, dtype=torch.float64)
        return x * factor.to(x.dtype)

    return Called(called.name, called.function, tuple(move(p) for p in called.primals), called.nondeterminism)


def slow_passes(called: Called, *, second: bool) -> bool | None:
    leaves = [p.clone().requires_grad_() for p in called.primals]

    def function(*tensors: Tensor) -> Any:
        torch.manual_seed(0)
        outputs = called.function(*[t.clone() for t in tensors])
        return tuple(t for t in outputs if t.requires_grad and t.numel())

    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    try:
        return bool(
            check(function, leaves, raise_exception=False, nondet_tol=max(called.nondeterminism, 1e-12))
        )
    except Exception:  # noqa: BLE001 - torch's own checks raise too
        return None


def describe(judged: Judged) -> str:
    c, parts = judged.comparison, []
    for kind in ("wrong", "imprecise", "nonfinite"):
        mask = getattr(c, kind)
        if mask.any():
            difference = (c.analytical - c.numerical).abs()[mask]
            relative = (difference / c.numerical.abs()[mask].clamp_min(1e-300)).max().item()
            share = f"{int(mask.sum())}/{mask.numel()}"
            parts.append(f"{kind} {share} rel {relative:.1e} abs {difference.max():.1e}")
    uncovered = ~c.covered & ~c.kinks & ~c.wrong
    if uncovered.any():
        infinite = ~judged.measured.error.isfinite() & uncovered
        parts.append(f"uncovered {int(uncovered.sum())}/{uncovered.numel()} ({int(infinite.sum())} unknown)")
    if c.kinks.any():
        parts.append(f"kinks {int(c.kinks.sum())}")
    return ", ".join(parts)


def judge_sample(called: Called, options: argparse.Namespace, figures: Figures, *, seed: int) -> None:
    problem = problem_of(called, seed, options.entries)
    if isinstance(problem, str):
        figures.tally["skipped: " + problem] += 1
        return
    start = time.perf_counter()
    judged = judge(problem, Tolerance(RTOL))
    figures.seconds += time.perf_counter() - start
    report(called, judged, "1st", options, figures, seed)
    if not options.second or not isinstance(judged, Judged):
        return
    generator = torch.Generator().manual_seed(seed + 17)
    u = torch.randn(problem.outputs.size, generator=generator, dtype=torch.float64)
    second = VjpProblem(problem, problem.outputs.unflatten(u))
    size = Layout.of(second.primals).size * Layout.of(problem.primals).size
    if size > options.entries or isinstance(second.graph(second.primals), Raised):
        return
    known = KnownColumns(judged.comparison.analytical.mT, judged.measured.error.mT.nan_to_num(0.0, 0.0, 0.0))
    start = time.perf_counter()
    result = judge(second, Tolerance(RTOL), noise=gradient_noise(second), known=known)
    figures.seconds += time.perf_counter() - start
    report(called, result, "2nd", options, figures, seed)


def report(
    called: Called, judged: Any, order: str, options: argparse.Namespace, figures: Figures, seed: int
) -> None:
    figures.tally[f"{order} judged"] += 1
    if isinstance(judged, Raised):
        said = f"backward raised {judged.error.type}: {judged.error.message[:80]}"
    elif isinstance(judged, NotJudged):
        said = "not judged: " + judged.reason
    else:
        said = describe(judged)
    if not said:
        figures.tally[f"{order} clean"] += 1
        return
    for kind in ("wrong", "imprecise", "nonfinite", "uncovered", "kinks", "not judged", "raised"):
        if kind in said:
            figures.tally[f"{order} {kind}"] += 1
    slow = ""
    if options.torch and ("wrong" in said or "nonfinite" in said):
        passes = slow_passes(called, second=order == "2nd")
        slow = f" [slow {'passes' if passes else 'raises' if passes is None else 'fails'}]"
        if passes:
            figures.tally[f"{order} ALARM (slow passes)"] += 1
    figures.notes.append(f"{order} {called.name} seed {seed}: {said}{slow}")


def plant(called: Called, options: argparse.Namespace, figures: Figures, *, seed: int) -> None:
    problem = problem_of(called, seed, options.entries)
    if isinstance(problem, str):
        return
    before = judge(problem, Tolerance(RTOL))
    if not isinstance(before, Judged) or before.comparison.wrong.any():
        return
    sizes = before.comparison.numerical.abs().max(dim=0).values
    column = int(sizes.nan_to_num(0.0, 0.0, 0.0).argmax())
    inputs = Layout.of(problem.primals)
    which = inputs.block_of(column)
    place = column - inputs.blocks[which].start
    touched = before.comparison.analytical[:, column].abs() * PLANTED
    detectable = (touched > 0) & before.comparison.covered[:, column] & ~before.comparison.kinks[:, column]
    if not detectable.any():
        return

    def function(*tensors: Tensor) -> Any:
        changed = [Scaled.apply(t, place) if i == which else t for i, t in enumerate(tensors)]
        return called.function(*changed)

    planted = problem_of(Called(called.name, function, called.primals), seed, options.entries)
    if isinstance(planted, str):
        return
    after = judge(planted, Tolerance(RTOL))
    figures.tally["planted"] += 1
    found = isinstance(after, Judged) and bool(after.comparison.wrong[:, column].any())
    elsewhere = isinstance(after, Judged) and bool(
        after.comparison.wrong[:, torch.arange(inputs.size) != column].any()
    )
    figures.tally["found"] += found
    if not found or elsewhere:
        bound = (before.comparison.bound[:, column] / touched.clamp_min(1e-300)).min().item()
        figures.notes.append(
            f"{called.name} seed {seed}: {'found' if found else 'MISSED'}"
            f"{', elsewhere too' if elsewhere else ''} (bound/planted {bound:.1e})"
        )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--entries", type=int, default=300)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--only", default="")
    parser.add_argument("--shard", default="0/1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures = Figures()
    part, parts = (int(x) for x in options.shard.split("/"))
    for number, op in enumerate(operators()):
        if number % parts != part or options.only not in op.name or not op.supports_autograd:
            continue
        if torch.float64 not in op.supported_backward_dtypes("cpu"):
            continue
        try:
            chosen = list(samples_of(op, options.samples, options.entries))
        except Exception as error:  # noqa: BLE001 - a sample generator of torch's that does not run here
            figures.tally["no samples"] += 1
            figures.notes.append(f"{op.name}: no samples ({type(error).__name__})")
            continue
        for called in chosen:
            for seed in range(options.seeds):
                figures.samples += 1
                (plant if options.plant else judge_sample)(moved(called, seed), options, figures, seed=seed)
    print("\n".join(figures.notes))
    print(f"\n{figures.samples} samples, {figures.seconds:.1f} s of ours")
    for kind, count in sorted(figures.tally.items()):
        print(f"  {count:6d}  {kind}")


if __name__ == "__main__":
    main()
