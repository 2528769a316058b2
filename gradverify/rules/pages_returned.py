"""Pages of the codes that look at what backward returns, before the autograd engine casts or sums it."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV102",
        name="backward-raised",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="backward raises",
        checks="Whether backward returns on every case on which forward did.",
        matters=(
            "Backward runs long after forward, so the error is met in training and far from its cause:"
            " a reshape that does not fit one image size is an example"
            " (bruel-gabrielsson/TopologyLayer#35)."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors  # only x was saved
        return grad_output * weight, grad_output * x
""",
        remedy=(
            "The report shows the line that raised. Compare what forward saves, and in which order,"
            " with what backward unpacks; look for names and attributes of `ctx` that are set on one"
            " path of forward only."
        ),
    ),
    Rule(
        code="GV103",
        name="wrong-gradient-shape",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="a gradient has not the shape of its input",
        checks=(
            "The shape of each gradient that backward returns, read inside backward. It is lowered to a"
            " warning where the autograd engine sums the gradient down to the right one, as for a bias"
            " that was broadcast."
        ),
        matters=(
            "If the shape does not broadcast, training stops with `returned an invalid gradient`; often"
            " only for some sizes, such as images that are not square (hszhao/SAN#3). If it does"
            " broadcast, the engine sums without a word, and the sum is right only for an input that was"
            " broadcast the same way."
        ),
        example="""\
class MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output @ b.T, grad_output.T @ a  # 2nd: transposed
""",
        remedy=(
            "Return for every input a tensor of exactly its shape: `a.T @ grad_output` here. Sum over"
            " the dimensions that forward broadcast, and verify sizes that all differ: square ones hide"
            " a transpose."
        ),
    ),
    Rule(
        code="GV104",
        name="wrong-gradient-dtype",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="a gradient has not the dtype of its input",
        checks=(
            "The dtype of each gradient that backward returns, read before the autograd engine casts"
            " it. It is an error if forward is accurate in float64; if forward is not either, there is"
            " no float64 path to verify and it is a note."
        ),
        matters=(
            "The engine casts silently, so a gradient that lost half of its digits arrives with the"
            " right dtype. torch's gradcheck passes it. Under autocast the same mistake ran a backward"
            " in float16 whose forward was bfloat16 (pytorch/pytorch#87979)."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 0.1

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.float() * 0.1  # float32 for a float64 input
""",
        remedy=(
            "Take dtypes from the tensors (`x.dtype`, `torch.zeros_like(x)`) instead of naming one."
            " Where a kernel needs float32, convert its inputs in forward and its gradients back in"
            " backward, in both."
        ),
    ),
    Rule(
        code="GV105",
        name="wrong-gradient-count",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="not one gradient for each argument of forward",
        checks=(
            "Whether backward returns one value for each argument of forward, None for those without a"
            " gradient. More values are accepted by torch only if the surplus is None."
        ),
        matters=(
            "torch raises `returned an incorrect number of gradients` at the first backward: an"
            " argument added to forward, and forgotten in backward, got into a release"
            " (state-spaces/mamba#431)."
        ),
        example="""\
class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.n = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.n * x ** (ctx.n - 1)  # None is missing
""",
        remedy=(
            "Return a tuple as long as the list of forward's parameters without `ctx`, in the same"
            " order, with None for every argument that is not a tensor."
        ),
    ),
    Rule(
        code="GV407",
        name="undefined-grad",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="wrong or raises for an undefined grad_output",
        checks=(
            "Backward with some grad_outputs undefined, as autograd passes them for outputs that the"
            " loss does not use. The result must be that of a zero grad_output."
        ),
        matters=(
            "By default torch replaces undefined gradients by zeros. After"
            " `ctx.set_materialize_grads(False)` backward receives None, and the first model that uses"
            " only one of several outputs stops with a TypeError in backward that names no cause."
        ),
        example="""\
class SinCos(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):  # either can be None
        (x,) = ctx.saved_tensors
        return grad_sin * x.cos() - grad_cos * x.sin()
""",
        remedy=(
            "Test each grad_output for None before using it, and return None if all of them are; or"
            " leave out `set_materialize_grads(False)`."
        ),
    ),
)
