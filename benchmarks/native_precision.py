"""False alarms of native precision over PyTorch's own operator database.

    python benchmarks/native_precision.py [--dtype D] [--entries 2000] [--samples 2] [--only NAME]

Every float64 sample of `op_db` is judged as a plain callable: its own float64 path is the truth and its own
operations give the noise. A WRONG that comes again for moved inputs and another grad_output would be an
accusation; torch's operators are taken to be right, so each one listed is a false alarm, or a bug of torch's.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter as Tally

import torch
from operators import Called, operators, samples_of

from gradverify.model import Closeness
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem, Layout, returned_tensors
from gradverify.verifier.questions.dtypes.calls import NoCall, Truth, native_call, plainly
from gradverify.verifier.questions.dtypes.judging import Judgement, judge_call

INPUTS = {"complex64": "float32"}
"""What complex samples are rounded to is named by the dtype of their parts."""

SEEDS = (61, 1070)
MOVED = 0.9
"""Where it is measured again: at other values, of the same signs."""


def judged(called: Called, dtype: str, seed: int, factor: float) -> list[Judgement] | str:
    arguments = tuple(
        Argument(f"x{k}", p.detach() * factor, differentiable=True) for k, p in enumerate(called.primals)
    )
    states = guard.RandomStates(0)
    result = guard.call(called.function, *(a.value for a in arguments))
    if isinstance(result, Raised):
        return "raised"
    returned = returned_tensors(result.value)
    with torch.enable_grad():
        leaves = [a.value.clone().requires_grad_() for a in arguments]
        graph = guard.call(called.function, *leaves)
    if isinstance(graph, Raised):
        return "raised"
    returned = returned_tensors(graph.value)
    positions = [k for k, r in enumerate(returned) if isinstance(r, torch.Tensor) and r.requires_grad]
    if not positions:
        return "not differentiable"
    outputs = Layout.of([returned[k] for k in positions])
    problem = CallProblem(called.function, arguments, tuple(positions), outputs, states)
    call = native_call(problem, arguments, plainly(INPUTS.get(dtype, dtype)), seed)
    if isinstance(call, NoCall):
        return call.why if call.error is None else f"refused: {call.error.type}"
    truth = Truth.of(call.exact, call)
    return "raised in float64" if isinstance(truth, Raised) else judge_call(call, truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tally: Tally[str] = Tally()
    given = torch.complex128 if asked.dtype in INPUTS else torch.float64
    begun = time.perf_counter()
    for op in operators():
        if not op.supports_autograd or given not in op.dtypes or (asked.only and asked.only != op.name):
            continue
        try:
            samples = list(samples_of(op, asked.samples, asked.entries, given))
        except Exception:  # noqa: BLE001 - a sample that torch itself cannot draw here
            tally["no samples"] += 1
            continue
        for called in samples:
            found = guard.call(judged, called, asked.dtype, SEEDS[0], 1.0)
            if isinstance(found, Raised):
                print(f"BROKEN {called.name}: {found.error.type}: {found.error.message[:100]}")
                continue
            if isinstance(found.value, str):
                tally[found.value] += 1
                continue
            tally["samples"] += 1
            for one in found.value:
                tally[str(one.closeness)] += 1
                if one.lost.any():
                    tally["not finite"] += 1
                    print(f"not finite {called.name} {one.value.name} at {int(one.lost.sum())} entries")
                if one.closeness is not Closeness.WRONG:
                    continue
                again = judged(called, asked.dtype, SEEDS[1], MOVED)
                same = [j for j in again if j.value.name == one.value.name] if isinstance(again, list) else []
                repeated = any(j.closeness is Closeness.WRONG and j.sure >= one.sure for j in same)
                tally["ACCUSED" if repeated and one.sure else "suspected"] += 1
                word = "ACCUSED" if repeated and one.sure else "suspected"
                shape = list(one.got.shape)
                print(f"{word} {called.name} {one.value.name} {shape}: {one.worst:.3g} sure={one.sure}")
    print(asked.dtype, dict(tally), f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
