"""What hand-written tests of kernels say of one Function of `specs/`: a line of JSON, for `kernels.py`.

    python benchmarks/by_hand.py FUNCTION

At one size with a tail, in float32, forward and all gradients for one random grad_output, against the
composite: `torch.testing.assert_close` at 1e-5 (as Liger's tests), the relative error of fla-core's tests
(0.005), and at most twice the error of the composite in float32 (flash-attention). Kernels get the shims that
gradverify gives them in Triton's interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")

import fla_kernels as fla
import liger_kernels as liger
import torch
from torch import Tensor

from gradverify.verifier.interpreter.launches import watch_kernels

LIGER, FLA = "liger_kernel.ops", "fla"
SAME = 1e-5
RATIO = 0.005

IGNORED = torch.tensor([3, -100, 0, 6, 2])


def randn(*shape: int) -> Tensor:
    """A differentiable input."""
    return torch.randn(shape, requires_grad=True)


def rows() -> tuple[Tensor, ...]:
    """`[5, 7]`, twice."""
    return randn(5, 7), randn(5, 7)


CASES = {
    "LigerLayerNormFunction": (
        f"{LIGER}.layer_norm",
        lambda: (randn(5, 7), randn(7), randn(7), 1e-5),
        liger.layer_norm,
    ),
    "LigerRMSNormFunction": (
        f"{LIGER}.rms_norm",
        lambda: (randn(5, 7), randn(7), 1e-5, 0.0, "llama", False),
        lambda x, w, eps, *_: liger.rms_norm(x, w, eps),
    ),
    "LigerGroupNormFunction": (
        f"{LIGER}.group_norm",
        lambda: (randn(2, 4, 5), randn(4), randn(4), 4, 2, 1e-5),
        liger.group_norm,
    ),
    "LigerGELUMulFunction": (f"{LIGER}.geglu", rows, liger.geglu),
    "LigerSiLUMulFunction": (f"{LIGER}.swiglu", rows, liger.swiglu),
    "LigerSoftmaxFunction": (f"{LIGER}.softmax", lambda: rows()[:1], liger.softmax),
    "LigerCrossEntropyFunction": (
        f"{LIGER}.cross_entropy",
        lambda: (randn(5, 7), IGNORED, None, -100),
        liger.cross_entropy,
    ),
    "LigerKLDivLossFunction": (
        f"{LIGER}.kl_div",
        lambda: (randn(5, 7), torch.rand(5, 7) + 0.1),
        liger.kl_div,
    ),
    "LogSigmoidFunction": (f"{FLA}.modules.activations.ops", lambda: (randn(5, 7), 2.0), fla.log_sigmoid),
    "SwiGLUFunction": (f"{FLA}.modules.activations.ops", rows, fla.swiglu),
    "L2NormFunction": (f"{FLA}.modules.norm.l2norm", lambda: (randn(2, 5, 7), 1e-6), fla.l2_norm),
    "LayerNormFunction": (
        f"{FLA}.modules.norm.layernorm",
        lambda: (randn(2, 5, 7), randn(7), randn(7)),
        fla.layer_norm,
    ),
    "LayerNormGatedFunction": (
        f"{FLA}.modules.norm.fused_norm_gate",
        lambda: (randn(2, 5, 7), randn(2, 5, 7), randn(7), randn(7), "swish"),
        lambda x, g, w, b, _: fla.gated_norm(x, g, w, b),
    ),
    "RotaryEmbeddingFunction": (
        f"{FLA}.modules.rotary.ops",
        lambda: (randn(2, 5, 2, 8), torch.randn(5, 4), torch.randn(5, 4)),
        fla.rotary,
    ),
    "FusedCrossEntropyFunction": (
        f"{FLA}.modules.fused_cross_entropy.ops",
        lambda: (randn(5, 7), IGNORED, 0.1),
        fla.cross_entropy,
    ),
    "MeanPoolingFunction": (f"{FLA}.ops.utils.pooling", lambda: (randn(2, 5, 2, 3), 2), fla.mean_pooling),
    "FusedRecurrentHGRNFunction": (
        f"{FLA}.ops.hgrn.fused_recurrent",
        lambda: (randn(2, 5, 7), (-torch.rand(2, 5, 7) - 0.1).requires_grad_(), randn(2, 7), True),
        lambda x, g, state, _: fla.hgrn(x, g, state),
    ),
    "TokenShift": (f"{FLA}.modules.token_shift", lambda: (randn(2, 5, 7),), fla.token_shift),
    "FusedRecurrentFunction": (
        f"{FLA}.ops.delta_rule.fused_recurrent",
        lambda: (
            *(randn(1, 5, 2, 4) for _ in range(3)),
            torch.rand(1, 5, 2).requires_grad_(),
            0.5,
            None,
            False,
        ),
        lambda q, k, v, beta, scale, *_: fla.delta_rule(q, k, v, beta, scale),
    ),
}


def values(function, inputs: tuple, dtype: torch.dtype) -> list[Tensor]:
    """The first output and the gradients, in float64."""
    given = [
        v.detach().to(dtype).requires_grad_(v.requires_grad)
        if isinstance(v, Tensor) and v.is_floating_point()
        else v
        for v in inputs
    ]
    # Some kernels write into their inputs, or into grad_output.
    result = function(*(v.clone() if isinstance(v, Tensor) and v.requires_grad else v for v in given))
    output = result[0] if isinstance(result, tuple) else result
    u = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    leaves = [v for v in given if isinstance(v, Tensor) and v.requires_grad]
    kept = output.detach().clone()
    return [t.double() for t in (kept, *torch.autograd.grad(output, leaves, u))]


def main() -> None:
    """Print which of the three rules tell that the kernel is wrong."""
    name = sys.argv[1]
    module, make, composite = CASES[name]
    torch.manual_seed(0)
    inputs, loaded = make(), importlib.import_module(module)
    watch_kernels()
    try:
        mine = values(getattr(loaded, name).apply, inputs, torch.float32)
    except Exception as error:  # noqa: BLE001 - whatever the kernel raises is seen by every test
        print(
            json.dumps({"assert_close": True, "ratio": True, "twice": True, "raised": type(error).__name__})
        )
        return
    short, true = values(composite, inputs, torch.float32), values(composite, inputs, torch.float64)
    off = [(a - b).abs().max().item() for a, b in zip(mine, short, strict=True)]
    close = all(torch.allclose(a, b, rtol=SAME, atol=SAME) for a, b in zip(mine, short, strict=True))
    ratios = [
        ((a - b).square().mean().sqrt() / b.square().mean().sqrt()).item()
        for a, b in zip(mine, short, strict=True)
    ]
    twice = all(
        (a - t).abs().max() <= 2 * (b - t).abs().max() for a, b, t in zip(mine, short, true, strict=True)
    )
    print(
        json.dumps(
            {"assert_close": not close, "ratio": max(ratios) >= RATIO, "twice": not twice, "off": max(off)}
        )
    )


if __name__ == "__main__":
    main()
