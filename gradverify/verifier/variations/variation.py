"""What a variation is: one idea of what must leave the verified gradient unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.checks.result import OTHER_VALUES
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Gradients
from gradverify.verifier.variations.call import Call, backward, is_accident
from gradverify.verifier.variations.verified import Difference, Verified


@dataclass(frozen=True)
class Varied:
    """What one variation found, and what it really swept."""

    findings: tuple[Finding, ...] = ()
    swept: Swept = field(default_factory=Swept)


@dataclass(frozen=True)
class Variation:
    """One idea."""

    run: Callable[[Verified], Varied]
    unless: frozenset[str] = frozenset()
    """Codes that explain what it would find: it is left out where one of them was found."""
    unless_noted: frozenset[str] = frozenset()
    """Codes that do so as a note as well."""
    on_ranks: bool = True
    """It says something of a target on several ranks, whose memory and ctx are in other processes."""
    brief: bool = False
    """It finds what is common, in few calls: it runs where a call is slow, too."""


@dataclass(frozen=True)
class Variant:
    """One way to vary a call, and how what it changes is reported."""

    code: str
    when: str
    """`when grad_output is transposed`: the end of a sentence."""
    hint: str
    than: str = ""
    """What gives the value that was expected: `, which contiguous ones give`."""
    output: int | None = None
    part: str = ""

    def forward(self, base: Verified, outputs: Sequence[Tensor]) -> Finding | None:
        """The finding where forward gives another result."""
        moved = base.forward_difference(outputs)
        if moved is None:
            return None
        said = f"forward gives another result {self.when}: {moved.place} is {moved.values}{self.than}"
        return base.finding(self.code, said, hint=self.hint)

    def both(self, base: Verified, outputs: Sequence[Tensor], gradients: Gradients) -> Finding | None:
        """The finding where forward gives another result, or else backward another gradient."""
        moved = self.forward(base, outputs)
        difference = None if moved is not None else base.difference(gradients, or_unknown=True)
        return moved if difference is None else self.differs(base, difference)

    def gradient(
        self,
        base: Verified,
        call: Call,
        given: Sequence[Tensor] | None = None,
        *,
        wanted: Tensor | None = None,
        u: Tensor | None = None,
        only: frozenset[int] | None = None,
    ) -> Finding | RaisedError | None:
        """The finding where backward gives another gradient than the one wanted; what it raised.

        `given` are the grad_outputs, `u` the values of these if they are not those of the verified call.
        """
        result = backward(base.sample, call, base.grad_outputs(u) if given is None else given)
        if isinstance(result, Raised):
            return result.error
        difference = base.difference(result.value, wanted, u=u, only=only, or_unknown=True)
        return None if difference is None else self.differs(base, difference)

    def differs(self, base: Verified, difference: Difference) -> Finding:
        """The finding on a gradient that is another one; GV109 where its own rounding leaves no digit."""
        if difference.noise:
            return base.finding(
                "GV109",
                f"the gradient of `{difference.name}` could not be verified {self.when}: it is unstable, its "
                f"own rounding moves {difference.place} by {number(difference.noise)}, and it is "
                f"{difference.values}",
                hint=OTHER_VALUES,
                input=difference.name,
                output=self.output,
                part=self.part,
            )
        return base.finding(
            self.code,
            f"the gradient of `{difference.name}` is wrong {self.when}: {difference.place} is "
            f"{difference.values}{self.than}",
            hint=self.hint,
            input=difference.name,
            output=self.output,
            part=self.part,
        )

    def raised(
        self, base: Verified, error: RaisedError, what: str = "backward", *, serious: bool | None = None
    ) -> Finding:
        """The finding on an exception: an error where it is a mistake (`serious`), else a note."""
        is_error = is_accident(error) if serious is None else serious
        return base.finding(
            self.code,
            f"{what} raises {error.type} {self.when}: {first_line(error.message)}",
            hint=self.hint,
            output=self.output,
            raised=error,
            part=self.part,
            severity=Severity.ERROR if is_error else Severity.NOTE,
        )


@dataclass(frozen=True)
class Answer:
    """What one of torch's transforms answers: a line of the capability table, and the findings behind it."""

    capability: str = "not-run"
    """`yes`, `no`, `wrong` or `not-run`."""
    findings: tuple[Finding, ...] = field(default=())


NOT_RUN = Answer()
UNSUPPORTED = Answer("no")


def wrong(finding: Finding) -> Answer:
    """The transform gives another value, or fails by accident."""
    return Answer("wrong", (finding,))


def refusal(base: Verified, code: str, what: str, error: RaisedError) -> Finding:
    """The note that a transform raises, which users see anyway."""
    return base.finding(
        code,
        f"{what} raises {error.type}: {first_line(error.message)}",
        hint="If it is meant to be supported, see the traceback with -vv; else nothing need be done.",
        severity=Severity.NOTE,
        raised=error,
    )
