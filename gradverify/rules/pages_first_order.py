"""Pages of the codes that compare backward with the numerical derivative of forward."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV003",
        name="not-differentiable",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="a float output has no derivative at all",
        checks=(
            "Whether every floating-point output that is not marked non-differentiable has a derivative"
            " with respect to some input."
        ),
        matters=(
            "Such an output carries a gradient that means nothing: a loss that uses it trains nothing,"
            " and no error says so. A projection that was called outside of any autograd Function had"
            " this effect: a zero photometric gradient, without a warning (openvdb/fvdb-core#767)."
        ),
        example="""\
class ReluWithMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)  # a float, but a step function
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad_y, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad_y * mask
""",
        remedy=(
            "If the output is a mask, a count or an index, call `ctx.mark_non_differentiable(mask)` in"
            " forward. If it should have a derivative, look for `.detach()`, `.data`, `.item()` or"
            " rounding in forward."
        ),
    ),
    Rule(
        code="GV101",
        name="jacobian-mismatch",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="backward is not the derivative of forward",
        checks=(
            "Every entry of the Jacobian that backward stands for, against a numerical derivative of"
            " forward in float64 whose own error is measured. An entry is wrong if it differs by more"
            " than that error and by more than the tolerance."
        ),
        matters=(
            "Training goes on with a wrong gradient, only worse, and nothing raises: a Gaussian"
            " projection lacked one factor of the chain rule, and its scale gradients were about 5 times"
            " too large (openvdb/fvdb-core#432). torch's gradcheck lets errors below 1 in 1000 pass and"
            " prints two matrices for the others."
        ),
        example="""\
class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)  # lacks the coupling within a row
""",
        remedy=(
            "Start at the worst entry of the report: derive that one derivative by hand and compare"
            " both numbers with it. If the Function is meant not to return the derivative"
            " (straight-through, reversal), say so in its spec, with the reason: `skip: straight-through"
            " estimator`."
        ),
    ),
    Rule(
        code="GV106",
        name="grad-output-ignored",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="backward is not linear in grad_output",
        checks=(
            "Whether backward is linear in grad_output: scaled and summed grad_outputs must scale and"
            " sum its result."
        ),
        matters=(
            "It is right only for the one grad_output it was written for, mostly that of"
            " `y.sum().backward()`. A loss weight, a mask or a loss scaler then changes nothing or the"
            " wrong thing: a fused cross-entropy gave wrong or zero gradients under per-token weights"
            " (linkedin/Liger-Kernel#968)."
        ),
        example="""\
class SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x - target)
        return (x - target).square()

    @staticmethod
    def backward(ctx, grad_output):
        (d,) = ctx.saved_tensors
        return 2 * d, -2 * d  # grad_output is missing
""",
        remedy=(
            "Multiply by grad_output, entry by entry: `grad_output * 2 * d`. A gradient that forward"
            " computed in advance must keep the dimensions over which grad_output can vary."
        ),
    ),
    Rule(
        code="GV107",
        name="missing-gradient",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="None or zeros for a derivative that is not 0",
        checks=(
            "Whether backward returns None, or only zeros, for an input on which the output does depend."
        ),
        matters=(
            "The parameter silently stays at its initial value. It is common for inputs that tests"
            " leave out: a quantised linear layer returned None for the bias, its tests ran with"
            " `bias=False`, and every bias stayed frozen without an error (pytorch/ao#4817)."
        ),
        example="""\
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.T @ x, None  # the bias
""",
        remedy=(
            "Return the gradient: here `grad_output.sum(0)`. If the input is a constant by design, say"
            " so in the spec with `requires_grad: false`. As a note it names parameters inside of an"
            " argument, as of a module that is handed to a Function: they are no inputs, autograd gives"
            " them no gradient, and nothing verified what backward writes to them. Hand them to `apply`"
            " one by one, and each is judged."
        ),
    ),
    Rule(
        code="GV108",
        name="nonfinite-gradient",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="NaN or infinity for a finite derivative",
        checks=(
            "Whether backward returns NaN or an infinity where forward is finite and has a finite derivative."
        ),
        matters=(
            "One NaN in one gradient makes every weight NaN at the next step. It comes at inputs that"
            " tests avoid: zeros, ties, saturated values. The gradient of a zero norm was such a case in"
            " PyTorch itself (pytorch/pytorch#2421)."
        ),
        example="""\
class SquareViaSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs().sqrt() ** 4

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.abs() * (x / x.abs())  # 0 / 0 at x = 0
""",
        remedy=(
            "Rewrite the formula so that no intermediate is 0/0, 0*inf or inf-inf: cancel by hand, use"
            " `torch.sign`, subtract the maximum before `exp`."
        ),
    ),
    Rule(
        code="GV109",
        name="inconclusive",
        severity=Severity.WARNING,
        family=Family.GRADCHECK,
        summary="backward could not be judged",
        checks=(
            "Whether backward can be judged. Without a spec the commonest reason why not is a guessed"
            " input: `inputs inferred: ... but that `d` and `m` may differ was guessed` is a mismatch at"
            " inputs that may not be valid, and is gone at another plausible guess. With a spec it is the"
            " numerical derivative, where it is not known closely enough at any typical point: rounding"
            " inside forward (float32, or large numbers that cancel), a jump, a slope without limit, values"
            " that are not finite, or a saturated function that leaves no digit of the gradient."
        ),
        matters=(
            "A checker that is not sure must not say `wrong`: users have been chasing a `Jacobian"
            " mismatch` that came from float32 inputs for years (CharlesShang/DCNv2#13). Nor may it say"
            " `passed`: an inconclusive target makes the run exit with 1."
        ),
        example="""\
class HalfInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().sin().double()  # float32 inside: noise of 1e-7

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()
""",
        remedy=(
            "A guessed input: `gradverify init MODULE` writes what was inferred into a spec; correct what"
            " it says of the guess, and check again: what stays wrong there fails. Rounding: let forward"
            " compute in the dtype it is given, or name a `reference`: that judges it in its own precision."
            " A jump or a kink: `avoid: [0]`, or `surrogate` if a straight-through gradient is meant. Values"
            " that are not finite, too steep or saturated: a narrower `range` or a `domain`. Too slow:"
            " smaller sizes, or a larger `--timeout`."
        ),
    ),
    Rule(
        code="GV110",
        name="imprecise-gradient",
        severity=Severity.WARNING,
        family=Family.GRADCHECK,
        summary="right, but not to float64 accuracy",
        checks=(
            "Whether backward agrees with the numerical derivative as closely as that derivative is"
            " known. A difference that is reproducible and larger than the measured error, but within"
            " the tolerance, is reported here."
        ),
        matters=(
            "It is mostly harmless and always a fact about the code: a constant typed with eight"
            " digits, or float32 inside backward. Where the same expression cancels, such an error grows"
            " to a wrong gradient."
        ),
        example="""\
class Erf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.erf(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 1.12837917 * (-x * x).exp()  # 2/sqrt(pi)
""",
        remedy=(
            "Write the constant as an expression (`2 / math.sqrt(math.pi)`), and compute in the dtype"
            " of the inputs. If the accuracy is intended, ignore the code in the spec, with the reason."
        ),
    ),
)
