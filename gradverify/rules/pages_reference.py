"""Pages of the codes that compare a target with its composite reference."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV301",
        name="forward-differs",
        severity=Severity.ERROR,
        family=Family.REFERENCE,
        summary="forward differs from the reference",
        checks=(
            "The outputs of forward against those of the `reference` named in the spec, on the same inputs."
        ),
        matters=(
            "A backward can be the exact derivative of a forward that computes something else, and then"
            " every gradient check passes. It also tells a wrong reference from a wrong gradient before"
            " gradients are compared."
        ),
        example="""\
class Variance(torch.autograd.Function):  # reference: torch.var
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x - x.mean()).square().sum() / x.numel()  # not numel - 1

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * (x - x.mean()) / x.numel()
""",
        remedy=(
            "Decide which of the two is meant. Check the defaults of the reference (`correction`,"
            " `eps`, `reduction`, `dim`); where it needs other ones, name a function of your own:"
            " `reference: mymodule:variance`."
        ),
    ),
    Rule(
        code="GV302",
        name="gradient-differs",
        severity=Severity.ERROR,
        family=Family.REFERENCE,
        summary="the gradient differs from the reference",
        checks=(
            "The gradients of the target against those that autograd derives for the reference, for the"
            " same random grad_output. It needs no finite differences, so it also judges where those are"
            " too noisy."
        ),
        matters=(
            "It is how a kernel is compared with the plain formula it replaces. Errors that such a"
            " comparison shows at once: one gradient assigned to the name of another"
            " (fla-org/flash-linear-attention#155), a parallel scan that disagrees with the sequential"
            " one (alxndrTL/mamba.py#65)."
        ),
        example="""\
class MulAdd(torch.autograd.Function):  # reference: torch.addcmul
    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(a, b)
        return x + a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output, grad_output * a, grad_output * b  # swapped
""",
        remedy=(
            "If GV101 is reported too, backward is wrong: mend that. If GV101 passes, forward and the"
            " reference differ in a way that their values do not show, such as a kink or a detached term"
            " in the reference."
        ),
    ),
    Rule(
        code="GV303",
        name="second-derivative-differs",
        severity=Severity.ERROR,
        family=Family.REFERENCE,
        summary="second derivative differs from the reference",
        checks=(
            "The derivative of the target's gradient against that of the reference's gradient, both by"
            " autograd with `create_graph=True`."
        ),
        matters=(
            "Forces, gradient penalties and Hessian products are built from it. A first-order"
            " comparison does not see a term that backward treats as a constant."
        ),
        example="""\
class Exp(torch.autograd.Function):  # reference: torch.exp
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()  # kept outside the graph: a constant to backward
        return ctx.y.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.y
""",
        remedy=(
            "Save with `ctx.save_for_backward` what backward needs, inputs and outputs only, so that"
            " autograd can follow it; or refuse second order with `@once_differentiable`."
        ),
    ),
)
