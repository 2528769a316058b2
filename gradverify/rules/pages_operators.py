"""Page of the code that holds what an operator promises torch, its gradient apart."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV504",
        name="opcheck",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="an operator is not registered as it is",
        checks=(
            "The four tests of `torch.library.opcheck`, for custom ops, Triton ops and `torch.ops` whose"
            " gradient is verified: the schema tells every write and alias; autograd stands under an Autograd"
            " key (a warning); the fake kernel describes what the real one returns; tracing forward and"
            " backward gives the same values. A fake kernel that is missing, and a refusal, are notes."
        ),
        matters=(
            "torch.compile and export see an operator only through its registration: a write that the schema"
            " hides is dropped, a wrong fake shape becomes a wrong buffer. opcheck is no gradient check, and"
            " is taken for one (pytorch/pytorch#111931)."
        ),
        example="""\
@torch.library.custom_op("example::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@square.register_fake
def _(x):
    return x.new_empty(x.numel())  # the real one has the shape of x


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, g):
    return 2 * ctx.saved_tensors[0] * g


square.register_autograd(backward, setup_context=keep)
""",
        remedy=(
            "Declare writes in `mutates_args`, return new tensors, register backward by `register_autograd`,"
            " and let `register_fake` return an empty tensor of the result's shape, dtype and strides. What"
            " cannot be traced in backward belongs into an operator of its own."
        ),
    ),
)
