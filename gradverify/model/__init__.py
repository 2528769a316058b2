# ruff: noqa: F403
"""What flows through gradverify: plain frozen values, numbers and never tensors.

Standard library only. Everything here can cross the border between the front process and the
worker (see `gradverify.events`), be sorted, and be written to any report format. A module is loaded when one
of its names is first asked for: what is not used costs nothing.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradverify.model.case import *
    from gradverify.model.finding import *
    from gradverify.model.plan import *
    from gradverify.model.report import *
    from gradverify.model.words import *

HOMES = {
    "case": (
        "WORLD Annotation Case ConcatInput Input ListInput LiteralInput ObjectInput Tensor TensorInput "
        "tensors_of"
    ),
    "finding": (
        "ACROSS_CASES LIMITING OTHER_VALUES CasePoint Entries Entry Finding Frame JacobianMap RaisedError "
        "CONTEXT LinePatch ShownInput SourceChange"
    ),
    "plan": (
        "ALIGNED POWER_OF_TWO Beyond Companion Doubt ExpectedFailure Ranks Settings SizeConstant TargetPlan"
    ),
    "report": (
        "Closeness Domain Evaluations Precision Swept SEVERAL_RANKS CaseReport LintFinding LintReport "
        "Mistake ModuleReport Report TargetReport"
    ),
    "words": (
        "Location Parameter PassedOver Target Effort Engine InputSource Nested Outcome Part Point Scalar "
        "Severity TargetKind Verdict indexed memory_text shown_path with_parts"
    ),
}
"""The names of each module, with spaces between them."""

NAMES = {name: module for module, names in HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load a name when it is first asked for."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{NAMES[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value
