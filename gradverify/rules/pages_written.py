"""Pages of the codes that are about memory: what forward and backward write into, and what they keep."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV401",
        name="grad-output-mutated",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="backward writes into grad_output",
        checks=(
            "Whether grad_output is the same before and after backward: bit by bit, and by torch's version"
            " counter. Writes through NumPy or a raw pointer do not move the counter."
        ),
        matters=(
            "Autograd may hand one grad_output to several branches of a model, and callers keep theirs. The"
            " next one to read it gets another gradient, without an error; torch's gradcheck passes it"
            " (pytorch/audio#1532, where a loss edits its gradients in place)."
        ),
        example="""\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.mul_(2)  # in place
""",
        remedy=(
            "Compute out of place, `grad_output * 2`. Where a kernel must write into it, clone it first."
        ),
    ),
    Rule(
        code="GV402",
        name="input-mutated",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="an input is written to, undeclared",
        checks=(
            "Whether the arguments of forward are the same after it, and after backward: bit by bit, and by"
            " torch's version counter. It is an error for an input that requires grad or that backward"
            " reads, else a warning; what `ctx.mark_dirty` declares, and what the spec calls"
            " `mutated: true`, is meant."
        ),
        matters=(
            "Whoever computed the input still needs it: a cross entropy that stored its gradient in its"
            " input corrupted the softmax before it, and no error was raised"
            " (linkedin/Liger-Kernel#272, linkedin/Liger-Kernel#1251, unslothai/unsloth#5001)."
        ),
        example="""\
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x += 1  # the caller's tensor
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
""",
        remedy=(
            "Work on a copy. If the write is the point, call `ctx.mark_dirty(x)` and return `x` itself; a"
            " running buffer is declared in the spec with `mutated: true`."
        ),
    ),
    Rule(
        code="GV403",
        name="saved-tensor-mutated",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="backward writes into what forward saved",
        checks=(
            "Whether saved tensors and the output are the same before and after backward: bit by bit, and"
            " by torch's version counter."
        ),
        matters=(
            "A second backward through the same graph, with `retain_graph=True` or several losses, then"
            " gives another gradient or stops. A saved input is the caller's own tensor besides, as with"
            " the rotary embedding that overwrites its queries (unslothai/unsloth#5001)."
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
        return x.data.mul_(2) * grad_output  # x is the input itself
""",
        remedy="Compute out of place, or clone the saved tensor before a kernel writes into it.",
    ),
    Rule(
        code="GV411",
        name="tensor-on-ctx",
        severity=Severity.WARNING,
        family=Family.CONTRACT,
        summary="a tensor is kept outside the graph",
        checks=(
            "Whether an input or output of the call is an attribute of `ctx`; that is a warning. It is an"
            " error when every one of several calls leaves tensors alive after its graph is gone."
        ),
        matters=(
            "An output on `ctx` makes a cycle that only the garbage collector frees, an input skips the"
            " check for in-place changes, and saved-tensor hooks (offloading, checkpoints) see neither."
            " Training runs out of memory (pytorch/pytorch#25340, asappresearch/sru#171)."
        ),
        example="""\
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()  # the output refers to ctx, ctx to the output
        return ctx.y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.y
""",
        remedy=(
            "Save inputs and outputs with `ctx.save_for_backward`. Where memory grows, look for a list, a"
            " dict or an attribute of the class or module that holds them."
        ),
    ),
    Rule(
        code="GV413",
        name="saved-tensor-hooks",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="is wrong with saved tensors recomputed",
        checks=(
            "Whether backward gives the same gradient where saved tensors come back as other objects: through"
            " `torch.autograd.graph.saved_tensors_hooks`, as activation offloading uses them, and from a"
            " second forward, as in `torch.utils.checkpoint`. A refusal is a note."
        ),
        matters=(
            "Large models are trained with both. An attribute of a saved tensor, its identity, or what a call"
            " leaves in a cache is not there then, and the gradient is wrong in that configuration alone."
        ),
        example="""\
class Threshold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp_min(0.5)
        y.mask = x > 0.5  # hangs on this tensor object
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * getattr(y, "mask", 1.0)
""",
        remedy="Save every tensor that backward reads with `ctx.save_for_backward`, the mask too.",
    ),
)
