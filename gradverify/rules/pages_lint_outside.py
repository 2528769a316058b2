"""Pages of the static rules about what forward and backward do beside their arguments and ctx."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV816",
        name="state-outside-ctx",
        severity=Severity.WARNING,
        family=Family.LINT,
        summary="state kept outside ctx",
        checks=(
            "`lint` reads whether forward, backward or a helper of the module writes an attribute of a class,"
            " a global or a container at module level, and whether it reads the process around it: the call"
            " stack, `os.environ`, `sys.argv`, `sys.modules`. `check` compares the module before and after"
            " the calls, its classes, the defaults and the closures of its functions included, and names"
            " what changed, which threads and processes still run, and which functions of torch or Python"
            " the module replaced when it was imported."
        ),
        matters=(
            "A verdict holds for the calls that were made. Code that counts its calls, keeps results of"
            " earlier ones or asks who is calling may compute something else later. A cache may be right: in"
            " `check` this is a note, which is shown beside the verdict, since it limits what a pass is"
            " worth. A wrong gradient that comes of it is GV408."
        ),
        example="""\
class Scale(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Scale.calls += 1
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output if Scale.calls < 2000 else grad_output
""",
        remedy="Keep what backward needs on ctx, and give what it depends on as an argument.",
    ),
    Rule(
        code="GV817",
        name="differentiates-forward",
        severity=Severity.NOTE,
        family=Family.LINT,
        summary="backward differentiates forward again",
        checks=(
            "Whether backward calls `torch.autograd.grad`, `.backward()` or a transform of `torch.func`: then"
            " its gradient is torch's own, of operations that it runs again."
        ),
        matters=(
            "Such a backward is right as far as torch's operations are, and is what `checkpoint` does to"
            " save memory. It is no hand-written derivative, and not faster than the composite: who asked"
            " for a faster one wants to know."
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
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            y = again * again
        return torch.autograd.grad(y, again, grad_output)[0]
""",
        remedy="Write the derivative itself where speed or memory is the point; else leave it.",
    ),
)
