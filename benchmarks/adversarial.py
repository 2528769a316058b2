"""False alarms on right functions that are hard to differentiate numerically, over many seeds.

    python benchmarks/adversarial.py [--seeds 20] [--size 12] [--skip-slow] [--second] [--set first|second]

Steep, saturated, cancelling, ill-conditioned, tiny, huge and kinked maps, differentiated by PyTorch itself,
so that each gradient is right. Counts, for each, the seeds on which ours and torch's slow mode fail, and
those on which ours leaves the verdict to torch. Prints Markdown; the alarms of ours must be 0, but for those
that torch's own check decided.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

import gradverify

Map = Callable[[Tensor], Tensor]


def cancelling(x: Tensor) -> Tensor:
    return (x.square() + 1e8) - 1e8


def in_single_precision(x: Tensor) -> Tensor:
    return x.float().sin().double()


def conditioned(x: Tensor) -> Tensor:
    scale = torch.logspace(0, -6, x.numel(), dtype=x.dtype)
    return torch.linalg.inv(torch.diag(scale) + 1e-3 * torch.diag(x * scale)).diagonal()


MAPS: dict[str, tuple[Map, Map]] = {
    "exp of large values": (torch.exp, lambda x: 10 * x),
    "reciprocal near zero": (torch.reciprocal, lambda x: 0.01 * x),
    "log of tiny values": (torch.log, lambda x: 1e-8 * (0.1 + x.abs())),
    "sqrt near zero": (torch.sqrt, lambda x: 1e-6 * (0.1 + x.abs())),
    "acos near one": (torch.acos, lambda x: 1 - 1e-6 * (0.1 + x.abs())),
    "sin(1000 x)": (lambda x: (1000 * x).sin(), lambda x: x),
    "sin(1e5 x)": (lambda x: (1e5 * x).sin(), lambda x: x),
    "cube at 1e6": (lambda x: x**3, lambda x: 1e6 * x),
    "norm of tiny values": (lambda x: x / x.norm(), lambda x: 1e-6 * x),
    "layer norm, small variance": (lambda x: torch.layer_norm(x, x.shape), lambda x: 5 + 1e-4 * x),
    "saturated softmax": (lambda x: x.softmax(0), lambda x: 30 * x),
    "saturated sigmoid": (torch.sigmoid, lambda x: 30 * x),
    "logsumexp of large values": (lambda x: x.logsumexp(0), lambda x: 100 * x),
    "cancellation": (cancelling, lambda x: x),
    "float32 inside": (in_single_precision, lambda x: x),
    "ill-conditioned inverse": (conditioned, lambda x: x),
    "product of all": (lambda x: x.prod(), lambda x: x),
    "kinks nearby": (lambda x: x.relu().sum() + (x - 0.5).abs().sum(), lambda x: x),
    "sorted": (lambda x: x.sort().values, lambda x: x),
    "flat": (lambda x: x.floor() + 0 * x, lambda x: x),
}
"""Name: the map, and where it is differentiated, of standard normal values."""


def inner_products(x: Tensor) -> Tensor:
    return torch.outer(x, x).softmax(-1) @ x


def compensated(x: Tensor) -> Tensor:
    return ((x + 1e6) ** 2 - 1e12) * 1e-6


def recurrence(x: Tensor) -> Tensor:
    state = x
    for _ in range(20):
        state = 3.7 * state.sigmoid() * (1 - state.sigmoid()) + 0.1 * x
    return state


SECOND: dict[str, tuple[Map, Map]] = {
    "softplus, beta 200": (lambda x: torch.nn.functional.softplus(x, beta=200), lambda x: 0.1 * x),
    "erf, steep": (lambda x: torch.erf(50 * x), lambda x: 0.05 * x),
    "tanh far out": (torch.tanh, lambda x: 15 * x),
    "log1p of -1 and a bit": (torch.log1p, lambda x: -1 + 1e-5 * (0.2 + x.abs())),
    "atan2 around the origin": (lambda x: torch.atan2(x, x.roll(1)), lambda x: 1e-7 * x),
    "x log x near zero": (lambda x: torch.xlogy(x, x), lambda x: 1e-9 * (0.1 + x.abs())),
    "gamma function": (torch.lgamma, lambda x: 0.2 + 5 * x.abs()),
    "chaotic recurrence": (recurrence, lambda x: x),
    "cosine of cubes": (lambda x: (x**3).cos(), lambda x: 5 * x),
    "huge offset, squared": (compensated, lambda x: x),
    "variance of nearly equal values": (lambda x: x.var(), lambda x: 1e3 + 1e-3 * x),
    "correlation": (lambda x: torch.corrcoef(torch.stack([x, x.sin()])).reshape(-1), lambda x: x),
    "attention with itself": (inner_products, lambda x: 3 * x),
    "leaky relu of differences": (
        lambda x: torch.nn.functional.leaky_relu(x - x.roll(1), 0.01),
        lambda x: 1e-3 * x,
    ),
    "hard tanh, mostly cut": (torch.nn.functional.hardtanh, lambda x: 4 * x),
    "huber, mostly at its corner": (
        lambda x: torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none"),
        lambda x: x.sign() * (1 + 1e-4 * x),
    ),
    "top values": (lambda x: x.topk(3).values * x.sum(), lambda x: x),
    "cumulative maximum": (lambda x: x.cummax(0).values + x.square(), lambda x: x),
    "cumulative product of sizes apart": (
        lambda x: x.cumprod(0),
        lambda x: 1 + 0.5 * torch.tanh(x),
    ),
    "norm with a tiny epsilon": (lambda x: x / (x.square().sum() + 1e-30).sqrt(), lambda x: 1e-12 * x),
    "sinh of large values": (lambda x: torch.sinh(x) / 1e8, lambda x: 12 * x),
    "sizes 1e10 apart": (
        lambda x: x.sin() * x.flip(0),
        lambda x: x * torch.logspace(-5, 5, x.numel(), dtype=x.dtype),
    ),
    "Bessel function": (torch.special.i0e, lambda x: 30 * x),
    "solve, nearly singular": (
        lambda x: torch.linalg.solve(torch.ones(3, 3).double() + 1e-4 * torch.diag(x[:3]), x[-3:]),
        lambda x: 2 + x.abs(),
    ),
}
"""The same, written when the engine measured wrong Jacobians by few forwards already."""


def said(check: Callable[..., bool], function: Map, x: Tensor) -> tuple[bool, bool]:
    """(passes, the verdict was left to torch)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            passes, text = check(function, (x,)), ""
        except GradcheckError as error:
            passes, text = False, str(error)
    reported = [text, *(str(w.message) for w in caught)]
    return passes, any(
        "torch.autograd.gradcheck's own check" in t or "not verified by" in t for t in reported
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--size", type=int, default=12)
    parser.add_argument("--skip-slow", dest="slow", action="store_false")
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--set", choices=["first", "second"], default="first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = "gradgradcheck" if options.second else "gradcheck"
    ours, theirs = getattr(gradverify, name), getattr(torch.autograd, name)
    print(f"torch {torch.__version__}, {options.seeds} seeds, {options.size} entries, {name}\n")
    print("| right function | ours fails | left to torch | slow fails |\n|---|---|---|---|")
    total = [0, 0, 0]
    for title, (function, at) in (MAPS if options.set == "first" else SECOND).items():
        counts = [0, 0, 0]
        for seed in range(options.seeds):
            generator = torch.Generator().manual_seed(seed)
            x = at(torch.randn(options.size, generator=generator, dtype=torch.float64)).requires_grad_()
            passes, left = said(ours, function, x)
            counts[0] += not passes
            counts[1] += left
            counts[2] += options.slow and not said(theirs, function, x)[0]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        print(f"| {title} | {' | '.join(map(str, counts))} |", flush=True)
    print(f"| all | {' | '.join(map(str, total))} |")


if __name__ == "__main__":
    main()
