"""Command lines to go on with from a finding: one that shows it again, and one that drafts a backward."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from gradverify.model import ACROSS_CASES, OTHER_VALUES, Finding, TargetPlan
from gradverify.rules import Family, rule


@dataclass(frozen=True)
class Asked:
    """What the command that made a finding was asked, as far as another must repeat it."""

    target: str
    """Its id, as a command takes it."""
    plan: TargetPlan
    seed: int
    options: tuple[str, ...]
    """Options to repeat, each a word."""


def with_commands(finding: Finding, asked: Asked) -> Finding:
    """Add them to a finding."""
    if rule(finding.code).family is Family.LINT:
        return replace(finding, reproduce=shlex.join(["gradverify", "lint", asked.target]))
    has_fix = any(change.patch is not None for change in finding.changes)
    offered = finding.derivable and not has_fix
    hint = f"{finding.hint} {_offer(asked)}".strip() if offered else finding.hint
    return replace(finding, hint=hint, reproduce=_reproduce(finding, asked))


def _reproduce(finding: Finding, asked: Asked) -> str:
    case_id = finding.case.id if finding.case is not None else ""
    bound = case_id != "base" and any(case.id == case_id for case in asked.plan.cases)
    bound &= finding.part not in {ACROSS_CASES, OTHER_VALUES}
    target = f"{asked.target}[{case_id}]" if bound else asked.target
    words = [
        "gradverify",
        "check",
        target,
        *asked.options,
        "--select",
        finding.code,
        "--seed",
        str(asked.seed),
    ]
    return shlex.join(words)


def _offer(asked: Asked) -> str:
    pairs = zip(asked.options, asked.options[1:], strict=False)
    specs = [path for option, path in pairs if option == "--spec"]
    words = ["gradverify", "suggest", asked.target, *(word for path in specs for word in ("--spec", path))]
    return f"`{shlex.join(words)}` drafts a backward."
