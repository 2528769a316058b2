"""Pages of the static rules about what backward takes and returns."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV801",
        name="opaque-backward",
        severity=Severity.WARNING,
        family=Family.LINT,
        summary="opaque, without once_differentiable",
        checks=(
            "Whether a backward that leaves autograd (a kernel launch `kernel[grid](...)`, `data_ptr()`"
            " handed to a call, NumPy, `.data` or `.detach()` of grad_output, a block under"
            " `torch.no_grad()`) is marked"
            " `once_differentiable`. A backward that deals with its own graph, through `enable_grad` or"
            " another Function, is left alone."
        ),
        matters=(
            "Under `create_graph=True` such a backward returns a gradient without a graph, and a loss that"
            " mixes first and second derivatives loses a term in silence (pytorch/pytorch#76185,"
            " NVlabs/tiny-cuda-nn#58). With the mark a second derivative raises. `check` judges the same as"
            " GV202."
        ),
        example="""\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return torch.from_numpy(2 * grad_output.numpy())
""",
        remedy=(
            "Put `@torch.autograd.function.once_differentiable` under `@staticmethod`, or write the"
            " backward in torch operations or as a Function of its own, which gives it a second derivative."
        ),
    ),
    Rule(
        code="GV803",
        name="gradient-count",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="a return without one gradient per input",
        checks=(
            "Whether every `return` of backward whose tuple is written out has one entry for each parameter"
            " of forward. Helper calls, starred names and a forward with `*args` are left to GV105. Further"
            " entries that are None are allowed, as torch allows them."
        ),
        matters=(
            "torch counts only when a training run first takes that path: mamba's mixer and KeOps failed"
            " for users that way (state-spaces/mamba#37, getkeops/keops#116). A path for one option is the"
            " one that tests leave out."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor  # nothing for `factor`
""",
        remedy=(
            "Return one gradient for each parameter after ctx, in order, and None for those that have none:"
            " `return grad_output * ctx.factor, None`."
        ),
    ),
    Rule(
        code="GV805",
        name="needs-input-grad-index",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="needs_input_grad out of step with inputs",
        checks=(
            "Whether each constant index of `ctx.needs_input_grad` is within forward's parameters, and"
            " whether what is computed only under one index is returned at that position (a warning)."
        ),
        matters=(
            "An index that is off raises, or leaves a gradient None as soon as another input is frozen,"
            " which a test that differentiates everything never sees. Tests with `bias=False` hid a missing"
            " bias gradient (pytorch/ao#4817)."
        ),
        example="""\
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x if ctx.needs_input_grad[2] else None
""",
        remedy="Count forward's parameters from 0, ctx left out, literals and flags included.",
    ),
    Rule(
        code="GV806",
        name="no-setup-context",
        severity=Severity.NOTE,
        family=Family.LINT,
        summary="torch.func refuses this style",
        checks=(
            "Whether a Function splits `forward(ctx, ...)` into `forward(...)` and `setup_context(ctx,"
            " inputs, output)`."
        ),
        matters=(
            "`torch.func.grad`, `vmap` and `jvp` refuse the combined style with `you must override the"
            " setup_context staticmethod` (state-spaces/mamba#239, Dao-AILab/flash-attention#1672). A note:"
            " a Function that nobody transforms needs nothing."
        ),
        example="""\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output
""",
        remedy=(
            "Let forward compute and setup_context save: it gets forward's arguments as the tuple `inputs`,"
            " and what forward returned as `output`."
        ),
    ),
    Rule(
        code="GV808",
        name="unpaired-custom-fwd",
        severity=Severity.WARNING,
        family=Family.LINT,
        summary="custom_fwd without custom_bwd",
        checks=("Whether forward has `torch.amp.custom_fwd` exactly where backward has `custom_bwd`."),
        matters=(
            "In backward, `custom_bwd` restores the autocast state that `custom_fwd` kept. Without its"
            " partner a bfloat16 forward got a float16 backward (pytorch/pytorch#87979), or dtypes that do"
            " not match (pytorch/pytorch#132388)."
        ),
        example="""\
class Linear(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod  # and no custom_bwd
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x
""",
        remedy=(
            "Decorate both, with the same `device_type`: `@torch.amp.custom_bwd(device_type='cuda')` on"
            " backward."
        ),
    ),
    Rule(
        code="GV814",
        name="grad-output-count",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="backward's parameters are not the outputs",
        checks=(
            "Whether backward takes one grad_output for each output of a forward whose returns are all"
            " written out as tuples of one length."
        ),
        matters=(
            "Backward is called with one gradient for each output, those of flags and None included, so the"
            " first training step raises TypeError, as in two chamfer distances whose forward also returned"
            " indices (krrish94/chamferdist#1, otaheri/chamfer_distance#7)."
        ),
        example="""\
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm()
        ctx.save_for_backward(x, norm)
        return x / norm, norm

    @staticmethod
    def backward(ctx, grad_output):  # and the gradient of `norm`?
        return grad_output
""",
        remedy=(
            "Give backward a parameter for each output, in order; take no notice of those that are marked"
            " non-differentiable."
        ),
    ),
    Rule(
        code="GV815",
        name="grad-output-unused",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="backward never uses its grad_output",
        checks=(
            "Whether a backward that returns a gradient ever reads a grad_output. One that returns None or"
            " zeros is left alone."
        ),
        matters=(
            "A gradient computed in forward is right only where the output is the loss itself: a scaled or"
            " per-token weighted loss then trains as if it were not (linkedin/Liger-Kernel#968,"
            " pytorch/audio#1532). `check` judges the same as GV106."
        ),
        example="""\
class SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(2 * x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.saved_tensors[0]
""",
        remedy="Multiply by grad_output: `return grad_output * ctx.saved_tensors[0]`.",
    ),
)
