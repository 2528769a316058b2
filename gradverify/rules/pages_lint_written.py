"""Pages of the static rules about tensors that are not backward's or forward's to change."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV804",
        name="grad-output-in-place",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="backward modifies its grad_output in place",
        checks=(
            "Whether backward writes into a grad_output: a method such as `mul_`, `grad *= 2`, `grad[mask]"
            " = 0`, `out=grad`, also through a view or `.contiguous()`, which returns the tensor itself in"
            " the ordinary case. After a copy nothing is said."
        ),
        matters=(
            "The same tensor may be handed to other nodes, whose gradients are then wrong without any"
            " error; torch forbids it, and gradcheck passes it. warp-transducer edited gradients in place"
            " (pytorch/audio#1532). `check` judges the same as GV401."
        ),
        example="""\
class ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_output[x < 0] = 0
        return grad_output
""",
        remedy=(
            "Write into a copy: `grad_x = grad_output.clone()`, or use the operation that returns a new"
            " tensor (`grad_output * (x >= 0)`)."
        ),
    ),
    Rule(
        code="GV809",
        name="grad-output-strides",
        severity=Severity.WARNING,
        family=Family.LINT,
        summary="taken for contiguous",
        checks=(
            "Whether a grad_output that came as it is, not through `.contiguous()` or `.reshape`, has its"
            " address taken with `data_ptr()`, or goes through a `.view` that merges dimensions. A backward"
            " that asks for strides is left alone."
        ),
        matters=(
            "`.sum().backward()` sends stride 0, a transpose or `torch.cat` other strides: a kernel then"
            " reads the wrong entries (Dao-AILab/flash-attention#355, open-mmlab/mmcv#737) and `.view`"
            " raises. gradcheck only sends contiguous gradients. `check` judges the same as GV404."
        ),
        example="""\
class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output.view(-1).view(ctx.shape)
""",
        remedy=(
            "Write `.reshape(...)`, which copies only where it must, and `grad_output ="
            " grad_output.contiguous()` before an address is taken."
        ),
    ),
    Rule(
        code="GV811",
        name="input-in-place",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="forward modifies an input without mark_dirty",
        checks=(
            "Whether forward writes into an input that gets a gradient, or into a view of it, without any"
            " call of `ctx.mark_dirty`. Buffers whose gradient is None are left alone."
        ),
        matters=(
            "Without it autograd does not know that the input changed: what was computed from it before"
            " gets wrong gradients. A cross entropy that stored its gradient in its input corrupted the"
            " softmax before it, without an error (linkedin/Liger-Kernel#272, linkedin/Liger-Kernel#1251)."
            " `check` judges the same as GV402."
        ),
        example="""\
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        return x * 2

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2
""",
        remedy=(
            "Work on a copy. If the input is to be overwritten, call `ctx.mark_dirty(x)` and return x itself."
        ),
    ),
)
