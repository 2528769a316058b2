"""Pages of the codes that hold a variation of a verified case against its gradient."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV404",
        name="grad-output-layout",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="wrong or raises for a grad_output layout",
        checks=(
            "Backward with the same grad_output lying otherwise in memory: transposed, narrowed out of a"
            " larger tensor, at a storage offset, expanded from one value, channels-last. The gradient must"
            " be that of a contiguous one, and backward must not raise."
        ),
        matters=(
            "`.sum().backward()` sends stride 0 and `torch.cat` sends narrowed gradients, while torch's"
            " gradcheck only sends contiguous ones (pytorch/pytorch#194719). Attention gradients were"
            " silently wrong that way (Dao-AILab/flash-attention#355), RoIAlign's too"
            " (open-mmlab/mmcv#737)."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        flat = grad_output.as_strided((grad_output.numel(),), (1,))
        return 3 * flat.view(grad_output.shape)
""",
        remedy=(
            "Call `grad_output = grad_output.contiguous()` before its memory is read: by a kernel, through"
            " `data_ptr`, `as_strided` or `view`. Or pass its strides to the kernel."
        ),
    ),
    Rule(
        code="GV405",
        name="input-layout",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="wrong for an input layout",
        checks=(
            "Forward and backward with the same inputs lying otherwise in memory, all at once and each"
            " alone, and with one tensor passed for two inputs. Result and gradient must be those of"
            " contiguous inputs; an exception that refuses the layout is a note."
        ),
        matters=(
            "Models transpose, slice and permute. The SSIM of a permuted image got a wrong gradient"
            " (MrNeRF/optimized-fused-ssim#1), a kernel's lengthscale got none for an input that was not"
            " contiguous (cornellius-gp/gpytorch#1543)."
        ),
        example="""\
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x.as_strided(x.shape, (x.shape[1], 1)) * grad_output
""",
        remedy=(
            "Call `x = x.contiguous()` before its memory is read and save that one, or pass the strides to"
            " the kernel. A kernel that takes one tensor's strides for another's is the usual case."
        ),
    ),
    Rule(
        code="GV406",
        name="requires-grad-subset",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="depends on which inputs require grad",
        checks=(
            "Forward and backward with only some of the inputs requiring grad: every subset of up to four"
            " inputs, single ones and all but one of more. The result and each gradient must be those of"
            " the run in which all do."
        ),
        matters=(
            "Freezing a layer is ordinary, and torch's gradcheck never does it: a weight gradient computed"
            " under `ctx.needs_input_grad[0]` is missing as soon as the input is frozen. The bias of a"
            " quantised layer got none for an option that the tests left out (pytorch/ao#4817)."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g * w, g * x) if ctx.needs_input_grad[0] else (None, None)
""",
        remedy=(
            "Test `ctx.needs_input_grad` for each gradient by itself, save what each of them needs whenever"
            " that one is needed, and return every gradient at the place of its own input."
        ),
    ),
    Rule(
        code="GV408",
        name="repeat-call",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="calls of the Function share something",
        checks=(
            "The same call several times, and a second call on other inputs between forward and backward of"
            " the first, also of other sizes and options. The gradient must be that of a call alone, and what"
            " was returned must not change when the next call runs."
        ),
        matters=(
            "A Function used twice in one model runs forward twice before any backward: what is kept on the"
            " class instead of `ctx` is then the second call's. A kernel whose first call left residues"
            " gave gradients that were 5 to 10 % wrong (cherimoya#50)."
        ),
        example="""\
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        Square.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * Square.x * grad_output
""",
        remedy=(
            "Keep what backward needs on `ctx`: tensors with `ctx.save_for_backward`, the rest as"
            " attributes. Return fresh tensors instead of a buffer of the class."
        ),
    ),
    Rule(
        code="GV409",
        name="repeat-backward",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="a second backward gives something else",
        checks="Backward twice through one graph, with `retain_graph=True`: both gradients must be the same.",
        matters=(
            "Several losses over one graph, higher derivatives and `torch.autograd.functional.jacobian` all"
            " run backward more than once. A buffer that forward allocates and backward accumulates into"
            " then holds the sum of both runs (the reentrancy of pytorch/audio#1532)."
        ),
        example="""\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.buffer = torch.zeros_like(x)
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        ctx.buffer += 2 * grad_output  # not zeroed between two runs
        return ctx.buffer.clone()
""",
        remedy=(
            "Allocate in backward what backward accumulates into, or zero it first. Do not delete what"
            " `ctx` holds: autograd frees it with the graph."
        ),
    ),
    Rule(
        code="GV410",
        name="nondeterministic",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="runs of the same call differ",
        checks=(
            "The same call several times, with the random states of torch, NumPy and `random` replayed."
            " Differences within rounding are a note that suggests a `nondet_tol`; beyond, it is an error."
            " One run is where fresh memory is full of NaN: what changes was read before it was written."
            " Where backward draws random numbers, it also runs with other states than forward found."
        ),
        matters=(
            "`Backward is not reentrant` does not tell atomic additions, which only round otherwise, from a"
            " race (pytorch/pytorch#56202). Races corrupted the gradients of attention on new hardware"
            " (Dao-AILab/flash-attention#2481)."
        ),
        example="""\
class Jitter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output + time.time() % 1e-3
""",
        remedy=(
            "Look for a race between threads or blocks, for memory that is read before it is written"
            " (`torch.empty`), for random numbers from a source of their own. Draw a mask in forward,"
            " and save it."
        ),
    ),
)
