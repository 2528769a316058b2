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
            " plus 1000 and a thousandth too, where the spec limits no input: a warning, since nobody"
            " declared such values. Where the composite in the same dtype is not finite either, plain torch"
            " would do no better: a warning, and a note at values that nobody declared."
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
    Rule(
        code="GV603",
        name="autocast",
        severity=Severity.ERROR,
        family=Family.PRECISION,
        summary="wrong or raises under torch.autocast",
        checks=(
            "Forward under `torch.autocast` on float32 inputs, and backward after it, as training calls them;"
            " outputs and gradients against the float64 truth, within what rounding to autocast's dtype"
            " explains. It runs with `--autocast` or `--select GV603`, to the 16-bit dtypes of `--dtype` or"
            " the device's own, and without being asked where forward has `@custom_fwd` for the device."
            " A forward that raises refuses: a note. A backward that raises once forward has run is an error."
        ),
        matters=(
            "Autocast makes the products of forward short and leaves what is saved in float32. Backward runs"
            " outside it and meets both: `grad_output @ weight` raises in the first step of training, and a"
            " branch on the dtype is one that no test in float32 or float64 takes."
        ),
        example="""\
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()  # bfloat16 under autocast

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors  # both float32
        return grad_output @ weight, grad_output.t() @ x
""",
        remedy=(
            "Decorate forward with `torch.amp.custom_fwd(device_type=...)` and backward with `custom_bwd`;"
            " with `cast_inputs=torch.float32` both compute in float32. Or cast grad_output to the dtype of"
            " what was saved. Where autocast is not meant, raise in forward."
        ),
    ),
)
