"""Pages of the codes that hold one device against another."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV701",
        name="device-mismatch",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="another device gives another gradient",
        checks=(
            "With `--device all`, each verified case once more on the accelerator that torch sees, and on its"
            " last device where there are several: result and gradient must be those of the CPU at the same"
            " float64 inputs, to within the measured rounding of both and the tolerance. TF32 is off, runs"
            " are repeated, and fresh memory is full of NaN. Where forward does not run there, the target is"
            " inconclusive; without a second device nothing is compared, and the report says so."
        ),
        matters=(
            "A kernel has two sources, and tests often run one. The gradients of a transducer loss differed"
            " between CPU and CUDA (HawkAaron/warp-transducer#93), and races in backward kernels show on the"
            " device alone (NVlabs/Sana#414)."
        ),
        example="""\
class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        # The kernel of the device forgets the lower end.
        inside = x < 1 if x.is_cuda else x.abs() < 1
        return torch.where(inside, g, 0)
""",
        remedy=(
            "Compare the two implementations where the report shows them to differ. Launch kernels on the"
            " device of their tensors (`torch.cuda.device_of`), allocate with `device=x.device`, and"
            " synchronise what blocks share. A target for some devices alone says so in its spec:"
            " `devices: [cuda]`."
        ),
    ),
)
