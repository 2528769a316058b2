"""Pages of the codes that judge a verified gradient in its native dtypes."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV601",
        name="precision-loss",
        severity=Severity.ERROR,
        family=Family.PRECISION,
        summary="a native dtype loses more than rounding",
        checks=(
            "Outputs and gradients in float32 and in every dtype of `--dtype` or `dtypes:`, against the"
            " float64 truth at the same rounded inputs. What rounding may do is measured on a composite in"
            " which every operation errs at random. A value is correctly rounded (the truth, rounded once),"
            " rounded (rounding intermediates explains it: a pass, with what could hide; a failure under"
            " `internals: float32`), or wrong: an error once it repeats itself, a warning at values that no"
            " spec declares."
        ),
        matters=(
            "Training runs in these dtypes and gradcheck does not. A sum kept in bfloat16, a cast through"
            " float16 or a factor in one branch of a kernel passes every float64 check. A fixed tolerance"
            " finds neither a factor of 1.003 nor forgives a kernel that cancels; the noise here is measured."
        ),
        example="""\
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum(dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        factor = 2 if x.dtype is torch.float64 else 2.02
        return factor * x * grad_output[..., None]
""",
        remedy=(
            "Compute in float32 inside (sums above all) and round once at the end; subtract the mean before"
            " squaring and the maximum before exp. If a kernel rounds on purpose, leave out `internals:`."
        ),
    ),
    Rule(
        code="GV602",
        name="low-precision-nonfinite",
        severity=Severity.ERROR,
        family=Family.PRECISION,
        summary="NaN or inf where the truth fits the dtype",
        checks=(
            "Every entry of outputs and gradients in a native dtype: it must be finite wherever the float64"
            " truth is a number of that dtype. Dtypes that were listed are tried at 60 times the values,"
            " plus 1000 and a thousandth too, where the spec limits no input. Where the composite in the"
            " same dtype is not finite either, it is a warning: plain torch would do no better."
        ),
        matters=(
            "Numbers of float16 end at 65504: exp(12) overflows, and so does the square of 256. One NaN in a"
            " gradient ends a training run, hours after the step that caused it."
        ),
        example="""\
class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        e = torch.exp(x)  # without the maximum
        y = e / e.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        inner = (grad_output * y).sum(dim=-1, keepdim=True)
        return y * (grad_output - inner)
""",
        remedy=(
            "Subtract the maximum before exp, divide by the largest entry before squaring, keep sums in"
            " float32. If such values are not valid, say so with `range`."
        ),
    ),
)
