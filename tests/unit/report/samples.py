"""Reports built by hand: every status, every field, and names that try to break out."""

from gradverify.model import (
    Case,
    CasePoint,
    Entries,
    Entry,
    Evaluations,
    Finding,
    Frame,
    InputSource,
    JacobianMap,
    LinePatch,
    Location,
    Mistake,
    ModuleReport,
    Outcome,
    PassedOver,
    Point,
    RaisedError,
    Report,
    Settings,
    Severity,
    ShownInput,
    SourceChange,
    Swept,
    Target,
    TargetKind,
    TargetPlan,
    TargetReport,
    Verdict,
)
from gradverify.report.listing import ListedTarget

CHECKS = ("gradcheck", "gradgradcheck", "reference", "contract")
LONG = (10, 3, 25, 24)


def outcomes(*values):
    return tuple(zip(CHECKS, values, strict=True))


ALL_PASSED = outcomes(*[Outcome.PASSED] * 4)
NONE_RUN = outcomes(*[Outcome.NOT_RUN] * 4)
FIRST_ONLY = outcomes(Outcome.PASSED, Outcome.NOT_RUN, Outcome.NOT_RUN, Outcome.PASSED)


def target(name, line=1, file="mymodule.py", kind=TargetKind.FUNCTION):
    return Target(name, name, kind, file, line)


def target_report(name, status, line=1, file="mymodule.py", **fields):
    checks = NONE_RUN if status in (Verdict.SKIPPED, Verdict.UNCHECKED) else ALL_PASSED
    given = {"inputs": InputSource.SPEC, "cases": 3, "cases_verified": 3, "checks": checks} | fields
    return TargetReport(target(name, line, file), status, **given)


def report(*targets, **fields):
    statuses = [each.status for each in targets]
    summary = (("targets", len(targets)), *((verdict.value, statuses.count(verdict)) for verdict in Verdict))
    given = {
        "settings": Settings(),
        "summary": summary,
        "gradverify_version": "0.1.0",
        "torch_version": "2.13.0",
        "exit_code": 1,
    }
    return Report(targets=targets, **(given | fields))


def softmax_map():
    return JacobianMap(
        tuple(f"y[{row},{column}]" for row in range(2) for column in range(3)),
        tuple(f"x[{row},{column}]" for row in range(2) for column in range(3)),
        (
            (1, 1, 2, 0, 0, 0),
            (1, 2, 3, 0, 0, 0),
            (2, 3, 4, 0, 0, 0),
            (0, 0, 0, 3, 2, 4),
            (0, 0, 0, 2, 2, 3),
            (0, 0, 0, 4, 3, 4),
        ),
        (1e-2, 5e-2, 0.15),
    )


POINT = CasePoint("b=2,n=3", (("b", 2), ("n", 3)))
X = ShownInput("x", "[[-1.25, 0.5, 2.0], [0.75, -0.25, 1.5]]")

FIX = LinePatch(
    "mymodule.py",
    14,
    ("        return grad_output * y",),
    (
        "        total = (grad_output * y).sum(1, keepdim=True)",
        "        return y * (grad_output - total)  # <b>::warning::</b>",
    ),
    ("    def backward(ctx, grad_output):", "        (y,) = ctx.saved_tensors"),
    is_unterminated=True,
    points=9,
)
MISMATCH = Finding(
    "GV101",
    Severity.ERROR,
    "gradient of output 0 with respect to `x` is wrong at 18 of 36 entries",
    hint="Backward is diagonal, the function is not: entries within a row interact. Look for a missing sum.",
    output=0,
    input="x",
    case=POINT,
    cases_affected=4,
    entries=Entries(
        18,
        36,
        (
            Entry((0, 2), (0, 2), 0.79251, 0.16452, 1.7e-8),
            Entry((1, 2), (1, 2), -0.5214, 0.0012, 1.6e-8),
            Entry((0, 1), (0, 2), 0.0, -0.1431, 1.7e-8),
            Entry((1, 0), (1, 2), 0.0, -0.12, 1.7e-8),
        ),
    ),
    map=softmax_map(),
    shown_inputs=(X,),
    cause="diagonal-only",
    changes=(SourceChange("mymodule.py", 14, "return grad_output * y", "return y * (g - t)", FIX),),
    badness=6e6,
    reproduce="gradverify check 'mymodule.py::softmax[b=2,n=3]' --select GV101 --seed 0",
)
IGNORED = Finding(
    "GV106",
    Severity.ERROR,
    "backward returns the same gradient for every grad_output",
    hint="Multiply by grad_output.",
    input="x",
    case=POINT,
    shown_inputs=(X,),
    badness=2.0,
    reproduce="gradverify check 'mymodule.py::softmax[b=2,n=3]' --select GV106 --seed 0",
)
IMPRECISE = Finding(
    "GV110",
    Severity.WARNING,
    "gradient of output 0 with respect to `x` is off by a factor of 1 + 2.6e-09 at every entry",
    hint="A constant with 9 digits, or float32 inside backward.",
    output=0,
    input="x",
    case=CasePoint("n=5", (("n", 5),), (), Point.WIDE, 1),
    entries=Entries(5, 5, (Entry((0,), (0,), 1.12837917, 1.1283791670955126, 1e-12),)),
    cause="constant-factor",
    factor=1.0000000026,
)
NOISY = Finding(
    "GV109",
    Severity.WARNING,
    "gradient of output 0 with respect to `p` cannot be judged at 12 of 12 entries:"
    " forward is only accurate to 3e-08, as if it computed in float32",
    hint="Let forward compute in the dtype of its inputs, or give a reference in the spec.",
    output=0,
    input="p",
    case=POINT,
)
REFUSED = Finding("GV203", Severity.NOTE, "second derivatives are refused: backward is @once_differentiable")
SHAPED = Finding("GV103", Severity.NOTE, "gradient of `bias` has shape [3, 4], the engine sums it to [4]")
BOOM = Finding(
    "GV002",
    Severity.ERROR,
    "forward raised RuntimeError",
    case=CasePoint("b=2,mode=sum", (("b", 2),), (("mode", "sum"), ("p", float("inf")), ("bias", None))),
    raised=RaisedError(
        "RuntimeError",
        "shape '[4, 4]' is invalid for input of size 6\nsecond line of the message",
        (
            Frame("mymodule.py", 40, "forward", "return reshape(x)", (7, 17)),
            Frame("helpers.py", 3, "reshape", "return x.view(4, 4)", (7, 19)),
        ),
    ),
    shown_inputs=(X, ShownInput("weight", "float64[128, 64]")),
    captured="loading kernel\nsize: 6\n" + "\n".join(f"step {step}" for step in range(12)),
    location=Location("helpers.py", 3),
    reproduce="gradverify check 'mymodule.py::boom[b=2,mode=sum]' --select GV002 --seed 0",
)
NONFINITE = Finding(
    "GV108",
    Severity.ERROR,
    "gradient of output 1 with respect to `weight` is NaN at 2 of 4 entries",
    output=1,
    input="weight",
    entries=Entries(
        2,
        4,
        (
            Entry(LONG, LONG, float("nan"), 0.25, 0.0),
            Entry(LONG, LONG, float("inf"), float("-inf"), float("inf")),
        ),
    ),
    case=POINT,
)
DIFFERS = Finding(
    "GV301",
    Severity.ERROR,
    "output 0 differs from torch.var",
    output=0,
    entries=Entries(1, 1, (Entry((), None, 0.75, 1.0, 0.0),), "reference"),
    case=CasePoint("base"),
)
GRADIENT_DIFFERS = Finding(
    "GV302",
    Severity.ERROR,
    "gradient of `x` differs from that of torch.var",
    input="x",
    output=0,
    entries=Entries(1, 3, (Entry((), (1,), 2.0, -2.0, 0.0),), "reference"),
    case=CasePoint("base"),
)
SECOND = Finding(
    "GV201",
    Severity.ERROR,
    "second derivative is wrong: gradient of `x`, differentiated by `x`",
    output=0,
    input="x",
    entries=Entries(1, 9, (Entry((0,), (0,), 0.0, 2.0, 1e-9),)),
    case=CasePoint("base"),
)

PASSED = target_report(
    "linear",
    Verdict.PASSED,
    12,
    cases=6,
    cases_verified=6,
    infeasible=2,
    evaluations=Evaluations(480, 36),
    smallest_visible_error=3e-10,
    sizes_swept=4,
    points=18,
    devices=("cpu",),
    capabilities=(("double_backward", "yes"), ("jvp", "no"), ("vmap", "not-run")),
    spec_file="mymodule.gradverify.yaml",
    swept=Swept(
        layouts=("grad_output transposed", "grad_output expanded", "inputs transposed"),
        requires_grad=("x,weight", "x"),
        calls=("backward twice",),
    ),
)
WARNED = target_report(
    "gelu",
    Verdict.PASSED,
    30,
    inputs=InputSource.INFERRED,
    checks=FIRST_ONLY,
    smallest_visible_error=1.234e-9,
    findings=(IMPRECISE, SHAPED, REFUSED),
    ignored=(("GV2", "first order only, #12"),),
)
FAILED = target_report(
    "softmax",
    Verdict.FAILED,
    44,
    checks=outcomes(Outcome.FAILED, Outcome.PASSED, Outcome.NOT_RUN, Outcome.PASSED),
    findings=(MISMATCH, IGNORED, IMPRECISE),
)
CRASHED = target_report("boom", Verdict.FAILED, 60, findings=(BOOM,), checks=NONE_RUN)
INCONCLUSIVE = target_report(
    "sampler",
    Verdict.INCONCLUSIVE,
    75,
    cases_verified=2,
    checks=outcomes(Outcome.INCONCLUSIVE, Outcome.PASSED, Outcome.NOT_RUN, Outcome.PASSED),
    findings=(NOISY,),
)
UNCHECKED = target_report(
    "roi_align",
    Verdict.UNCHECKED,
    90,
    inputs=InputSource.NONE,
    cases=0,
    cases_verified=0,
    findings=(
        Finding(
            "GV001",
            Severity.WARNING,
            "no inputs are known for `rois`: it is a tensor of unknown shape",
            hint="Describe it in mymodule.gradverify.yaml.",
        ),
    ),
    reason="no inputs are known for `rois`: it is a tensor of unknown shape",
)
STOPPED = target_report("later", Verdict.UNCHECKED, 95, reason="stopped by -x before it was reached")
SKIPPED = target_report("legacy", Verdict.SKIPPED, 99, cases=0, reason="replaced by linear in 0.4")
XFAILED = target_report(
    "round_ste",
    Verdict.XFAILED,
    120,
    cases=2,
    reason="straight-through by design",
    findings=(Finding("GV101", Severity.ERROR, "gradient is 1, derivative is 0", expected=True),),
)
NUMBERS = target_report(
    "numbers", Verdict.FAILED, 5, file="other.py", findings=(NONFINITE, SECOND, DIFFERS, GRADIENT_DIFFERS)
)
IMPORT_ERROR = Mistake(
    "cannot be imported: ModuleNotFoundError",
    Location("broken.py", 2),
    source_line="import missing_package",
    kind="import",
    raised=RaisedError(
        "ModuleNotFoundError",
        "No module named 'missing_package'",
        (Frame("broken.py", 2, "<module>", "import missing_package"),),
    ),
    captured="importing",
)
SPEC_ERRORS = (
    Mistake(
        "unknown key `shpe` in functions.softmax.inputs.w; did you mean `shape`?",
        Location("mymodule.gradverify.yaml", 7, 11),
        "      w: {shpe: [3]}",
        4,
    ),
    Mistake(
        "`softmx` is not defined in mymodule.py; did you mean `softmax`?",
        Location("mymodule.gradverify.yaml", 9, 3),
        "  softmx:",
        6,
    ),
)
EVERYTHING = report(
    PASSED,
    WARNED,
    FAILED,
    CRASHED,
    INCONCLUSIVE,
    UNCHECKED,
    STOPPED,
    SKIPPED,
    XFAILED,
    NUMBERS,
    errors=(IMPORT_ERROR,),
    modules=(
        ModuleReport("mymodule.py", 9),
        ModuleReport("other.py", 1),
        ModuleReport("utils.py", 0, (PassedOver("mse", 40, "a plain function: no spec names it"),)),
    ),
    stopped_early=True,
)
GREEN = report(PASSED, SKIPPED, XFAILED, exit_code=0)
NOTHING = report(
    modules=(
        ModuleReport(
            "utils.py",
            0,
            (
                PassedOver("load_config", 4, "no tensor argument"),
                PassedOver("Trainer", 21, "class, neither nn.Module nor autograd.Function"),
                PassedOver("mse", 40, "a plain function: no spec names it"),
            ),
        ),
        ModuleReport("empty.py", 0),
    ),
    exit_code=5,
)

LISTED = (
    ListedTarget(
        target("linear", 12),
        TargetPlan(
            "linear",
            "linear",
            InputSource.SPEC,
            tuple(Case(f"b=3,n={n},bias=None", n) for n in range(6)),
            2,
            "torch.nn.functional.linear",
            (("GV303", "first order reference"),),
            spec_file="mymodule.gradverify.yaml",
            spec_line=7,
        ),
        ("gradcheck", "gradgradcheck", "reference", "contract"),
    ),
    ListedTarget(
        target("gelu", 30),
        TargetPlan("gelu", "gelu", InputSource.INFERRED, (Case("base", 1),)),
        ("gradcheck", "gradgradcheck", "contract"),
    ),
    ListedTarget(target("roi_align", 90), reason="no inputs are known for `rois`"),
    ListedTarget(
        target("legacy", 99), TargetPlan("legacy", "legacy", InputSource.SPEC, skip="replaced in 0.4")
    ),
)
