"""The contract of backward: what it returned before the engine saw it. GV103 to GV105, and GV810.

GV107, a note: parameters that an argument carries into forward, where autograd does not see them.

A Function that is handed a module, as checkpoints and fixed points are, differentiates what its parameters
stand for at most by writing to their `.grad`. They are no inputs, so no check here reaches their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from gradverify.model import Finding, Severity
from gradverify.verifier.questions.findings import CheckResult, FirstOrder, errors_of, listed_names
from gradverify.verifier.questions.reading import Irregularity, Remark
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import options_of

RETURNED = frozenset({"GV103", "GV105"})
"""Codes on what backward returned that hang on no value."""

PLACES = "Return one value for each argument of forward after ctx, in its order: None where none is needed."


SHAPE = "backward returned a gradient of shape {got} for `{name}`, whose shape is {expected}"

ANOTHER = "Return a gradient of the shape of `{name}`: is it that of another input?"

SAID = {
    Irregularity.SHAPE_REFUSED: ("GV103", SHAPE, ANOTHER),
    Irregularity.SHAPE_SUMMED: ("GV103", f"{SHAPE}; the engine sums it", ANOTHER),
    Irregularity.NOT_FOR_TENSOR: (
        "GV105",
        "backward returned {got} for `{name}`, which is not a tensor",
        "Return None in its place, and check the order: that of forward's arguments.",
    ),
    Irregularity.DTYPE: (
        "GV104",
        "backward returned a gradient of {got} for `{name}`, which is {expected}: the engine casts it",
        "Allocate gradients with the dtype of the input (torch.empty_like); of a complex one its `.real`.",
    ),
}
"""By what is irregular: the code, what is said, and what to do."""


def contract(sample: Sample, first: FirstOrder) -> CheckResult:
    """Findings on what backward returned while the first order was measured, and what forward is passed."""
    reader = sample.subject.reader
    findings = [_explain(sample, remark, first) for remark in (reader.remarks.values() if reader else ())]
    if sample.draw == 0:
        findings += _carried_parameters(sample)
    return CheckResult.of(*findings)


def _carried_parameters(sample: Sample) -> Iterator[Finding]:
    """A note for each argument, a module or a method of one, with parameters that are no inputs."""
    for argument in sample.arguments:
        owner, held = getattr(argument.value, "__self__", argument.value), {id(t) for _, t in argument.holds}
        # The base class lists them: a method that an author overrides is not called here.
        every = nn.Module.named_parameters(owner) if isinstance(owner, nn.Module) else ()
        names = [name for name, p in every if p.requires_grad and id(p) not in held]
        if names:
            said = f"`{argument.name}` carries {listed_names(names)}, no input of forward: not verified"
            hint = "Autograd gives a gradient to arguments of `apply` alone: hand them over one by one."
            yield sample.finding("GV107", said, hint=hint, input=argument.name, severity=Severity.NOTE)


def stops_judgement(result: CheckResult) -> bool:
    """Whether the wrong contract leaves nothing for numbers to compare: a count that cannot be assigned."""
    return any(f.code == "GV105" for f in errors_of(result.findings))


def _explain(sample: Sample, remark: Remark, first: FirstOrder) -> Finding:
    got, expected, kind = remark.got, remark.expected, remark.kind
    if kind is Irregularity.COUNT:
        said = f"backward returned {got} gradients, forward takes {expected} arguments"
        return sample.finding("GV105", said, hint=PLACES)
    name = sample.arguments[remark.position].name
    (code, said, hint), severity = SAID[kind], Severity.ERROR
    wrong = {f.input for f in errors_of(first.result.findings)}
    if kind is Irregularity.DTYPE and (first.single_precision or options_of(sample).is_short):
        severity = Severity.NOTE
    elif kind is Irregularity.SHAPE_SUMMED and name not in wrong:
        said, severity = f"{said}, and the sum is right", Severity.WARNING
    said, hint = (text.format(got=got, expected=expected, name=name) for text in (said, hint))
    return sample.finding(code, said, hint=hint, input=name, severity=severity)


def old_style(sample: Sample) -> Finding:
    """GV810: the class lacks `@staticmethod`; it runs through `.apply`, and torch may stop allowing it."""
    return sample.finding(
        "GV810",
        "forward or backward is not a @staticmethod (the old style)",
        hint="Put @staticmethod above forward and backward and call the first parameter ctx.",
        case=None,
        shown_inputs=(),
    )
