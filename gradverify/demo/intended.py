"""The verdict each Function of the demo is meant to get; `gradverify demo` exits 0 when it does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gradverify.model import Report, Severity, Verdict

INTENDED: Mapping[str, tuple[Verdict, frozenset[str]]] = MappingProxyType(
    {
        "Linear": (Verdict.PASSED, frozenset()),
        "GELU": (Verdict.PASSED, frozenset()),
        "LogSumExp": (Verdict.PASSED, frozenset()),
        "SoftmaxUncoupled": (Verdict.FAILED, frozenset({"GV101"})),
        "LinearTransposed": (Verdict.FAILED, frozenset({"GV103"})),
        "SquaredErrorOnes": (Verdict.FAILED, frozenset({"GV106"})),
        "LeakyReLUOneSided": (Verdict.FAILED, frozenset({"GV101"})),
        "SigmoidDetached": (Verdict.FAILED, frozenset({"GV202"})),
    }
)
"""Name of the Function -> its status and the error codes that give it that status."""


def unintended(report: Report) -> tuple[str, ...]:
    """What differs from the intended verdicts, a sentence each; empty when all is as intended."""
    found = {
        t.target.name: (t.status, frozenset(f.code for f in t.findings if f.severity is Severity.ERROR))
        for t in report.targets
    }
    return tuple(
        f"{name} is {_reported(found.get(name))}, intended: {_reported(INTENDED.get(name))}"
        for name in sorted(INTENDED.keys() | found.keys())
        if found.get(name) != INTENDED.get(name)
    )


def _reported(verdict: tuple[Verdict, frozenset[str]] | None) -> str:
    if verdict is None:
        return "not there"
    status, codes = verdict
    return f"{status.value} {', '.join(sorted(codes))}".rstrip()
