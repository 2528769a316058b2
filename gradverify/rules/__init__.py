"""The table of codes: what each one means and how severe it is; the page of one is `pages/<code>.md`.

Codes are never reused. A code has one default severity; a check may lower it for a single finding
where the numbers say that the gradient itself is right, and then says so in the message.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from gradverify.errors import UsageError
from gradverify.model import Severity

PAGES = Path(__file__).parent / "pages"
"""One Markdown page for each code, for `explain`, the documentation and code scanning."""

_PAGE = re.compile(
    r"# .+?\n## What it checks\n\n(?P<checks>.+?)\n\n## Why it matters\n\n(?P<matters>.+?)\n\n"
    r"## Example\n.+?\n```python\n(?P<example>.+?)```\n\n## Remedy\n\n(?P<remedy>.+)\n",
    re.DOTALL,
)

_TABLE = """
GV001  no-inputs                   warning  run            inputs cannot be built or inferred
GV002  forward-raised              error    gradcheck      forward raises on valid inputs
GV003  not-differentiable          error    gradcheck      a float output has no derivative
GV004  unexpected-pass             error    run            an expected failure does not fail
GV101  jacobian-mismatch           error    gradcheck      backward is not the derivative of forward
GV102  backward-raised             error    gradcheck      backward raises
GV103  wrong-gradient-shape        error    contract       a gradient has the wrong shape
GV104  wrong-gradient-dtype        error    contract       a gradient has the wrong dtype
GV105  wrong-gradient-count        error    contract       the number of gradients is wrong
GV106  grad-output-ignored         error    gradcheck      backward is not linear in grad_output
GV107  missing-gradient            error    gradcheck      None or zeros for a derivative that is not 0
GV108  nonfinite-gradient          error    gradcheck      NaN or infinity for a finite derivative
GV109  inconclusive                warning  gradcheck      backward could not be judged
GV110  imprecise-gradient          warning  gradcheck      right, but not to float64 accuracy
GV201  second-derivative-mismatch  error    gradgradcheck  the derivative of backward is wrong
GV202  second-derivative-detached  error    gradgradcheck  backward is silently cut off
GV203  second-derivative-raised    note     gradgradcheck  second derivative raises, as meant
GV301  forward-differs             error    reference      forward differs from the reference
GV302  gradient-differs            error    reference      the gradient differs from the reference
GV303  second-derivative-differs   warning  reference      the second derivative differs
GV401  grad-output-mutated         error    contract       backward writes into grad_output
GV402  input-mutated               error    contract       an input is written to, undeclared
GV403  saved-tensor-mutated        error    contract       backward writes into what forward saved
GV404  grad-output-layout          error    contract       wrong or raises for a grad_output layout
GV405  input-layout                error    contract       wrong for an input layout
GV406  requires-grad-subset        error    contract       depends on which inputs require grad
GV407  undefined-grad              error    contract       wrong or raises for an undefined grad_output
GV408  repeat-call                 error    contract       calls of the Function share something
GV409  repeat-backward             error    contract       a second backward differs
GV410  nondeterministic            error    contract       runs of the same call differ
GV411  tensor-on-ctx               warning  contract       a tensor is kept outside the graph
GV412  degenerate-size             error    contract       is wrong at size 0, which the spec lists
GV413  saved-tensor-hooks          error    contract       is wrong with saved tensors recomputed
GV414  leaf-inputs                 error    contract       wrong for parameters, or in their .grad
GV501  jvp-mismatch                error    contract       forward mode is not the derivative
GV502  vmap-mismatch               error    contract       vmap is not a loop over the batch
GV503  compile-mismatch            error    contract       wrong under torch.compile
GV504  opcheck                     error    contract       an operator's registration is wrong
GV601  precision-loss              error    precision      a native dtype loses more than rounding
GV602  low-precision-nonfinite     error    precision      NaN or inf where the truth fits the dtype
GV603  autocast                    error    precision      wrong or raises under torch.autocast
GV701  device-mismatch             error    contract       another device gives another gradient
GV721  replicated-output-differs   error    contract       ranks disagree on an output they share
GV722  replicated-gradient-differs error    contract       ranks disagree on a gradient they share
GV723  ranks-out-of-step           error    contract       ranks wait for each other for ever
GV724  other-process-group         error    contract       wrong in a group that is not the world
GV803  gradient-count              error    lint           a return without one gradient per input
GV809  grad-output-strides         warning  lint           grad_output taken for contiguous
GV810  old-style-function          warning  contract       a method lacks @staticmethod
GV811  input-in-place              error    lint           forward modifies an input without mark_dirty
GV812  unset-ctx-attribute         error    lint           backward reads what forward never sets
GV813  saved-tensor-count          error    lint           more or fewer tensors unpacked than saved
GV814  grad-output-count           error    lint           backward's parameters are not the outputs
GV816  state-outside-ctx           warning  lint           state kept outside ctx
GV817  differentiates-forward      note     lint           backward differentiates forward again
GV901  crashed                     error    run            the process died while verifying the target
GV902  timed-out                   warning  run            verifying exceeded the time limit
GV903  out-of-memory               warning  run            verifying took too much memory
"""
"""Code, name, default severity, family of checks, and what is wrong (it fits 80 columns beside any name)."""


class Family(StrEnum):
    """The family of checks a code belongs to: the keys of `checks` in the JSON report."""

    GRADCHECK = "gradcheck"
    GRADGRADCHECK = "gradgradcheck"
    REFERENCE = "reference"
    CONTRACT = "contract"
    PRECISION = "precision"
    """What becomes of a verified gradient in native dtypes."""
    LINT = "lint"
    """Read off the source by `gradverify lint`; no outcome of `check` depends on it."""
    RUN = "run"
    """Not a check: inputs that cannot be built, processes that die."""


CHECK_FAMILIES = (
    Family.GRADCHECK,
    Family.GRADGRADCHECK,
    Family.REFERENCE,
    Family.CONTRACT,
    Family.PRECISION,
)
"""Those that have an outcome at each case."""


@dataclass(frozen=True)
class Page:
    """The page of a code: Markdown, and its four sections."""

    markdown: str
    checks: str
    """What it checks."""
    matters: str
    """Why it matters."""
    example: str
    """A minimal wrong example, Python source in which `torch` is already imported."""
    remedy: str
    """What to do about it."""


@dataclass(frozen=True)
class Rule:
    """One code."""

    code: str
    name: str
    severity: Severity
    family: Family
    summary: str
    """What is wrong, in a few words."""

    @cached_property
    def page(self) -> Page:
        """The page of the code; a `ValueError` if a section is missing or in another place."""
        text = (PAGES / f"{self.code}.md").read_text(encoding="utf-8")
        sections = _PAGE.fullmatch(text)
        if sections is None:
            raise ValueError(f"the page of {self.code} lacks a section")
        return Page(text, **sections.groupdict())


def _entry(row: str) -> Rule:
    code, name, severity, family, summary = row.split(maxsplit=4)
    return Rule(code, name, Severity(severity), Family(family), summary)


RULES = tuple(map(_entry, _TABLE.strip().splitlines()))
"""Every code of this version, in order."""

_BY_CODE = {entry.code: entry for entry in RULES}


def rule(code: str) -> Rule:
    """Return the rule of a code, in either case; a code that does not exist is a `UsageError`."""
    found = _BY_CODE.get(code.upper())
    if found is None:
        nearest = nearest_code(code)
        hint = f"did you mean {nearest}?" if nearest else "`gradverify rules` lists every code"
        raise UsageError(f"there is no code {code!r}; {hint}")
    return found


def nearest_code(code: str) -> str:
    """Return the code that a mistyped one was probably meant to be, empty where none is near."""
    wanted = code.upper()
    near = difflib.get_close_matches(wanted, _BY_CODE, n=5, cutoff=0.5)
    # GV110 is nearer to GV11x than GV411 is: what counts is the same character at the same place.
    return max(near, key=lambda known: sum(map(str.__eq__, known, wanted)), default="")


def matching(prefix: str) -> tuple[Rule, ...]:
    """Return the rules whose code starts with a prefix such as `GV1`, in either case; empty if none does."""
    wanted = prefix.upper()
    return tuple(entry for entry in RULES if wanted and entry.code.startswith(wanted))
