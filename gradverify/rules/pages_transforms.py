"""Pages of the codes that hold what torch's transforms make of a Function against its verified gradient."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV501",
        name="jvp-mismatch",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="forward mode is not the derivative",
        checks=(
            "The `jvp` of a Function, or the forward mode that torch derives for a callable, with random"
            " tangents in each input alone and in all of them. The result must agree with the backward that"
            " was verified before: u·(Jv) = (Jᵀu)·v. A jvp that raises by accident is an error, one that"
            " refuses a note."
        ),
        matters=(
            "Forward mode is what `torch.func.jvp`, `jacfwd` and `hessian` run, and nothing in training"
            " does: a wrong formula in it lies there unseen. A ReLU returned its derivative, not the"
            " derivative times the tangent (pytorch/functorch#207)."
        ),
        example="""\
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.saved_tensors[0] * grad_output

    @staticmethod
    def jvp(ctx, x_tangent):
        return 2 * ctx.saved_tensors[0]  # times x_tangent
""",
        remedy=(
            "Add up one term for each input, derivative times tangent, one result for each output. Keep what"
            " jvp needs with `ctx.save_for_forward`, in addition to `ctx.save_for_backward`."
        ),
    ),
    Rule(
        code="GV502",
        name="vmap-mismatch",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="vmap is not a loop over the batch",
        checks=(
            "`torch.vmap` of a Function with a vmap rule (its own, or `generate_vmap_rule = True`) over a"
            " batch of three: along the first and the last dimension, and with each tensor in turn not"
            " batched. Results and gradients must be those of one call for each element. A refusal is a note."
        ),
        matters=(
            "Per-sample gradients, `jacrev` and ensembles all run through vmap. A rule that reduces over the"
            " batch, or takes it to be the first dimension, gives wrong values without a word. Even the"
            " example of those who introduced such rules took a batch in dimension 0 for none at all"
            " (pytorch/pytorch#90037)."
        ),
        example="""\
class Centred(torch.autograd.Function):
    setup_context = staticmethod(lambda ctx, inputs, output: None)

    @staticmethod
    def forward(x):
        return x - x.mean()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.mean()

    @staticmethod
    def vmap(info, in_dims, x):
        return Centred.apply(x), in_dims[0]  # the mean of the whole batch
""",
        remedy=(
            "Move the batch dimension of each input to a known place, as its entry of `in_dims` says"
            " (None: not batched), and reduce over the others alone. Where forward and backward are made of"
            " torch operations, `generate_vmap_rule = True` does that."
        ),
    ),
    Rule(
        code="GV503",
        name="compile-mismatch",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="wrong under torch.compile",
        checks=(
            "Values and gradient under `torch.compile` with the backend `aot_eager`, which must be those of"
            " the ordinary call. It takes seconds, so it runs only where the source of the module has"
            " `torch.compile`, and with `--select GV503`."
            " What torch cannot compile is a note."
        ),
        matters=(
            "torch.compile traces backward in place of running it: what it reads from Python is fixed at the"
            " first call. It has mistakes of its own, too: half a gradient where one tensor is passed twice"
            " (pytorch/pytorch#183604), a wrong one after an in-place operation (pytorch/pytorch#180642)."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        if torch.compiler.is_compiling():
            return grad_output
        return 3 * grad_output
""",
        remedy=(
            "Pass what changes as an argument, keep it in tensors, and leave branches on"
            " `torch.compiler.is_compiling()` with the same result on both sides. Or exclude the call with"
            " `torch.compiler.disable`."
        ),
    ),
    Rule(
        code="GV505",
        name="func-mismatch",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="wrong under torch.func",
        checks=(
            "A Function with `setup_context` under `torch.func.vjp`. The result and the gradient must be the"
            " verified ones; a refusal is a note. A forward that takes `ctx` is refused by torch.func, which"
            " the table of capabilities says."
        ),
        matters=(
            "torch.func runs forward, setup_context and backward on tensors of another level. What is kept"
            " beside `ctx.save_for_backward` is of the wrong one: gradients were silently incorrect"
            " (pytorch/functorch#207). Users ask for it and meet a refusal (Dao-AILab/flash-attention#2071)."
        ),
        example="""\
class Sine(torch.autograd.Function):
    setup_context = staticmethod(lambda c, x, y: c.save_for_backward(*x))

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if torch._C._functorch.is_gradtrackingtensor(x):
            return grad_output  # no kernel for such a tensor
        return grad_output * x.cos()
""",
        remedy=(
            "Compute in backward from `ctx.saved_tensors` and grad_output alone, keep tensors with"
            " `ctx.save_for_backward`, and do not ask under which transform the code runs."
        ),
    ),
)
