"""Pages of the codes that differentiate backward itself."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV201",
        name="second-derivative-mismatch",
        severity=Severity.ERROR,
        family=Family.GRADGRADCHECK,
        summary="the derivative of backward is wrong",
        checks=(
            "The derivative of backward, as autograd gives it under `create_graph=True`, against a"
            " numerical derivative of backward: what torch calls gradgradcheck."
        ),
        matters=(
            "Gradient penalties, physics losses and meta-learning differentiate backward. What forward"
            " saved is a constant to that derivative unless it is an input or an output, and then a term"
            " is missing without any error (pytorch/pytorch#76185, pytorch/pytorch#58509)."
        ),
        example="""\
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(2 * x)  # neither an input nor an output
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return grad_output * slope
""",
        remedy=(
            "Save inputs and outputs only, and compute what depends on them in backward with torch"
            " operations. If second derivatives are not meant to work, put `@once_differentiable` above"
            " backward: it then raises instead of being wrong."
        ),
    ),
    Rule(
        code="GV202",
        name="second-derivative-detached",
        severity=Severity.ERROR,
        family=Family.GRADGRADCHECK,
        summary="backward is silently cut off",
        checks=(
            "Whether the result of backward under `create_graph=True` depends on what it should, where"
            " the second derivative is not zero. `.detach()`, `.data`, `no_grad`, NumPy and raw kernels"
            " cut it."
        ),
        matters=(
            "A second derivative that is cut is zero or None, and a loss of several terms silently"
            " loses one. Users of segment reductions got None for their Hessians"
            " (rusty1s/pytorch_scatter#299); an error for tensors saved outside the graph is only"
            " proposed (pytorch/pytorch#104040)."
        ),
        example="""\
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x.detach() ** 2
""",
        remedy=(
            "Write backward with torch operations on the saved tensors themselves, or make it call a"
            " second Function. If first order is all that is meant: `@once_differentiable` above"
            " backward, or `ignore: {GV2: first order only}` in the spec."
        ),
    ),
    Rule(
        code="GV203",
        name="second-derivative-raised",
        severity=Severity.NOTE,
        family=Family.GRADGRADCHECK,
        summary="the second derivative raises, as meant",
        checks="Whether differentiating backward raises on purpose, as `@once_differentiable` makes it do.",
        matters=(
            "It is not a mistake: a clear refusal is what a Function without second derivatives should"
            " give, and the note says that nothing of second order was verified. Users do ask for it,"
            " for example in NVlabs/tiny-cuda-nn#58."
        ),
        example="""\
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        return grad_output * ctx.y
""",
        remedy=(
            "Nothing, if first order is enough: `ignore: {GV2: first order only}` in the spec silences"
            " the note. Otherwise write backward with torch operations and remove"
            " `@once_differentiable`."
        ),
    ),
)
