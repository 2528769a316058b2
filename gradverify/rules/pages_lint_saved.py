"""Pages of the static rules about what ctx keeps."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV802",
        name="tensor-kept-on-ctx",
        severity=Severity.WARNING,
        family=Family.LINT,
        summary="an input or output kept on ctx",
        checks=(
            "Whether forward keeps an input that gets a gradient, or its output, as an attribute of ctx."
            " Tensors that are neither may be kept so, and so may numbers and shapes."
        ),
        matters=(
            "Only `save_for_backward` breaks the cycle between an output and its own node, sees that a"
            " tensor was modified in the meantime, and obeys saved-tensor hooks; as attributes they filled"
            " the memory of users (pytorch/pytorch#25340, dmlc/dgl#1060). `check` judges the same as GV411."
        ),
        example="""\
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.y
""",
        remedy="`ctx.save_for_backward(y)` in forward, `(y,) = ctx.saved_tensors` in backward.",
    ),
    Rule(
        code="GV807",
        name="misused-save-for-backward",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="replaced, misplaced, or not a tensor",
        checks=(
            "Whether `save_for_backward` is called in forward or setup_context, once on each path, with"
            " tensors and None."
        ),
        matters=(
            "The second call replaces the first, so that backward unpacks other tensors than it thinks or"
            " raises; a number, a tuple or a shape raises TypeError (HuangJunJie2017/BEVDet#8). In backward"
            " it has no effect at all."
        ),
        example="""\
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.save_for_backward(w, x)  # the first call counts for nothing
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x
""",
        remedy=(
            "Save all tensors in one call, and keep what is no tensor as an attribute: `ctx.shape = x.shape`."
        ),
    ),
    Rule(
        code="GV812",
        name="unset-ctx-attribute",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="backward reads what forward never sets",
        checks=(
            "Whether forward or setup_context sets, on some path, each attribute of ctx that backward"
            " reads. Where ctx is handed to other code, or asked with `hasattr`, nothing is said."
        ),
        matters=(
            "The first backward raises AttributeError, often only for the option that reads it. A class"
            " attribute, or one of an instance, does not help: ctx is neither. A gradient reversal met it as"
            " `'GradReverseBackward' object has no attribute 'lambd'` (YU1ut/openset-DA#8)."
        ),
        example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.scale, None
""",
        remedy=(
            "Set the attribute in forward (in setup_context, where there is one), or read the name that is"
            " set."
        ),
    ),
    Rule(
        code="GV813",
        name="saved-tensor-count",
        severity=Severity.ERROR,
        family=Family.LINT,
        summary="more or fewer tensors unpacked than saved",
        checks=(
            "Whether backward unpacks `ctx.saved_tensors` into as many names as some call of"
            " `save_for_backward` saves, and indexes within them. Starred arguments are left alone."
        ),
        matters=(
            "Unpacking raises ValueError in the first backward. It comes with a tensor that was added or"
            " removed on one side only: a flow projection saved two tensors and unpacked three"
            " (baowenbo/DAIN#141)."
        ),
        example="""\
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x
""",
        remedy=("Unpack what was saved, in the same order; None may be saved in place of an absent tensor."),
    ),
)
