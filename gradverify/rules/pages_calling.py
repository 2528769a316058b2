"""Pages of the codes that are about calling a target at all: its inputs, its style, its process."""

from __future__ import annotations

from gradverify.model import Severity
from gradverify.rules.rule import Family, Rule

PAGES = (
    Rule(
        code="GV001",
        name="no-inputs",
        severity=Severity.WARNING,
        family=Family.RUN,
        summary="inputs cannot be built or inferred",
        checks=(
            "Whether arguments are known that forward accepts. They come from a spec file, or are"
            " inferred from the signature of forward. When neither gives any, the target is unchecked."
        ),
        matters=(
            "A check that checks nothing looks like a pass (chainer/chainer#3541, where bad gradients"
            " passed). An unchecked target therefore makes the run exit with 1: it is never green."
        ),
        example="""\
class RoIPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rois, argmax, scale):  # what is a valid roi?
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad_output):
        raise NotImplementedError
""",
        remedy=(
            "Describe the inputs in a spec file beside the module, `<module>.gradverify.yaml`: shapes,"
            " ranges, dtypes or literal values. Where valid inputs follow no simple rule, name a"
            " function that builds them: `arguments: mymodule:make_inputs`."
        ),
    ),
    Rule(
        code="GV004",
        name="unexpected-pass",
        severity=Severity.ERROR,
        family=Family.RUN,
        summary="an expected failure does not fail",
        checks=(
            "Whether each code that an `xfail` of the spec lists still occurs in its target, within the"
            " input and the cases it names, and before its `until`."
        ),
        matters=(
            "A waiver that nobody needs any more hides the next mistake. Expected failures are therefore"
            " strict: the day the backward is mended, or the check stops seeing the mistake, you are told."
        ),
        example="""\
# mymodule.gradverify.yaml has, for a Function that was mended since:
#   xfail: {codes: [GV201], reason: "first order only", until: 2027-01-01}
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output  # right in both orders now
""",
        remedy="Remove the `xfail` from the spec, or narrow it to what still fails.",
    ),
    Rule(
        code="GV002",
        name="forward-raised",
        severity=Severity.ERROR,
        family=Family.GRADCHECK,
        summary="forward raises on valid inputs",
        checks=(
            "Whether forward returns on every case that the spec declares valid, its sizes and options"
            " included."
        ),
        matters=(
            "A backward can only be verified where forward runs, and a size or an option that makes"
            " forward raise is one that users will meet. The report shows the line, the inputs and a"
            " command that raises again."
        ),
        example="""\
class Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(4, 4)  # raises for every x that has not 16 entries

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.view(2, 3)
""",
        remedy=(
            "If the inputs are valid, mend forward. If they are not, narrow the spec: the sizes,"
            " `range`, `domain`, or literal values with `value`."
        ),
    ),
    Rule(
        code="GV810",
        name="old-style-function",
        severity=Severity.WARNING,
        family=Family.CONTRACT,
        summary="a method lacks @staticmethod",
        checks="Whether `forward`, `backward` and `setup_context` of the Function are static methods.",
        matters=(
            "It is the style of PyTorch before 1.5. `.apply` happens to take it still, but calling an"
            " instance raises `Legacy autograd function with non-static forward method is deprecated`,"
            " which stopped many projects at that upgrade (longcw/RoIAlign.pytorch#41,"
            " josipd/torch-two-sample#6)."
        ),
        example="""\
class Double(torch.autograd.Function):
    def forward(self, x):
        return 2 * x

    def backward(self, grad_output):
        return 2 * grad_output
""",
        remedy=(
            "Put `@staticmethod` above each method, call the first parameter `ctx`, keep tensors with"
            " `ctx.save_for_backward`, and call the Function as `Double.apply(x)`."
        ),
    ),
    Rule(
        code="GV901",
        name="crashed",
        severity=Severity.ERROR,
        family=Family.RUN,
        summary="the process died while verifying the target",
        checks=(
            "Whether the worker process survives the target. When it dies (a segmentation fault, an"
            " abort, `os._exit`), this target fails and the others are verified in a new process."
        ),
        matters=(
            "A crash usually means that compiled code reads or writes outside its tensors. Where it"
            " happens not to crash, the same code returns wrong numbers: a layer_norm backward that"
            " assumed 2-D inputs did both on others (flagos-ai/FlagGems#5392)."
        ),
        example="""\
class Raw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad_output):
        return ctypes.cast(8, ctypes.POINTER(ctypes.c_double))[0]
""",
        remedy=(
            "Run the printed command under a debugger, or with `PYTHONFAULTHANDLER=1`. Check the sizes"
            " and strides that the kernel assumes: make tensors contiguous before their pointer is"
            " taken."
        ),
    ),
    Rule(
        code="GV902",
        name="timed-out",
        severity=Severity.WARNING,
        family=Family.RUN,
        summary="verifying exceeded the time limit",
        checks=(
            "Whether the target is verified within the time limit. One that is not is stopped and"
            " unchecked; the others are verified all the same."
        ),
        matters=(
            "Numerical differentiation calls forward a number of times that grows with the number of"
            " input entries. A check that takes hours gets switched off, as PyTorch's own slow gradcheck"
            " job was (pytorch/pytorch#88010)."
        ),
        example="""\
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        while not torch.equal(x, x.sin()):  # creeps to 0, hardly ever ends
            x = x.sin()
        return x
""",
        remedy=(
            "Verify smaller sizes: a few entries per dimension show the same errors. If forward itself"
            " is slow, raise `--timeout`; if it never returned, the last line it ran is where to look."
        ),
    ),
    Rule(
        code="GV903",
        name="out-of-memory",
        severity=Severity.WARNING,
        family=Family.RUN,
        summary="verifying took too much memory",
        checks=(
            "Whether the processes of the target stay below the limit given with `--memory`, torch included."
            " A target that does not is stopped and unchecked; the others are verified all the same."
            " Without `--memory` there is no limit."
        ),
        matters=(
            "On a machine that runs out of memory the system ends some process, often the whole CI job,"
            " and says nothing about which Function it was. A target that grows from call to call leaks:"
            " a tensor kept as an attribute of ctx, or in a list of the module, is the usual reason."
        ),
        example="""\
class Pairwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x[:, None] * x).sum(1)  # n entries take n * n
""",
        remedy=(
            "Verify smaller sizes: a few entries per dimension show the same errors. If the memory is needed,"
            " raise `--memory`; if it grows with the number of calls, look for what keeps the tensors alive."
        ),
    ),
    Rule(
        code="GV412",
        name="degenerate-size",
        severity=Severity.ERROR,
        family=Family.CONTRACT,
        summary="is wrong at size 0, which the spec lists",
        checks=(
            "Whether forward and backward run where a tensor has no entries: there is nothing to measure, but"
            " backward must return gradients of the inputs' shapes, and zeros for inputs that have entries"
            " where the result has none. Size 0 is an error only where the spec lists it, as in"
            " `sizes: {b: [3, 0]}`. Symbolic shapes without `sizes:` leave sizes open, so others are tried, 1"
            " among them: what forward refuses is a note, what backward gets wrong has a code of its own."
            " `--effort thorough` tries 0 and 1 that nobody listed, and warns of what is wrong there."
        ),
        matters=(
            "The last batch of an epoch, an image without boxes, an expert without tokens: empty inputs come"
            " up rarely, and end a training run when they do."
        ),
        example="""\
class Center(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.sum(0) / max(len(x), 1)

    @staticmethod
    def backward(ctx, grad_output):
        mean = grad_output.sum(0) / max(len(grad_output), 1)
        return grad_output - mean.expand_as(grad_output[0])  # no row 0
""",
        remedy=(
            "Return early for empty inputs (`torch.zeros_like(x)`), or guard the division or the kernel"
            " launch that they break. Where they are not valid, leave 0 out of the spec's sizes."
        ),
    ),
)
