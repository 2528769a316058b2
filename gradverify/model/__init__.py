"""What flows through gradverify: plain frozen values, numbers and never tensors.

Standard library only. Everything here can cross the border between the front process and the
worker (see `gradverify.events`), be sorted, and be written to any report format.
"""

from typing import TYPE_CHECKING

from gradverify.on_demand import on_demand

if TYPE_CHECKING:
    from gradverify.model.beyond import POWER_OF_TWO, Beyond, SizeConstant
    from gradverify.model.case import (
        Annotation,
        Case,
        ConcatInput,
        Input,
        ListInput,
        LiteralInput,
        ObjectInput,
        TensorInput,
        tensors_of,
    )
    from gradverify.model.domain import Domain
    from gradverify.model.finding import (
        ACROSS_CASES,
        LIMITING,
        OTHER_VALUES,
        CasePoint,
        Entries,
        Entry,
        Finding,
        Frame,
        JacobianMap,
        RaisedError,
        ShownInput,
        SourceChange,
    )
    from gradverify.model.place import Location, shown_path
    from gradverify.model.plan import Companion, Doubt, ExpectedFailure, Settings, TargetPlan
    from gradverify.model.precision import Closeness, Precision
    from gradverify.model.price import Allowance, Price, allowance, price_of
    from gradverify.model.report import (
        CaseReport,
        Evaluations,
        Mistake,
        ModuleReport,
        Mutation,
        MutationOutcome,
        Report,
        Swept,
        TargetReport,
    )
    from gradverify.model.static import LintFinding, LintReport
    from gradverify.model.target import Parameter, PassedOver, Target
    from gradverify.model.words import (
        Effort,
        Engine,
        InputSource,
        Nested,
        Outcome,
        Part,
        Point,
        Scalar,
        Severity,
        TargetKind,
        Verdict,
        indexed,
        memory_text,
    )
else:
    __getattr__ = on_demand(
        __name__,
        {
            "beyond": "POWER_OF_TWO Beyond SizeConstant",
            "case": (
                "Annotation Case ConcatInput Input ListInput LiteralInput ObjectInput TensorInput tensors_of"
            ),
            "domain": "Domain",
            "finding": (
                "ACROSS_CASES LIMITING OTHER_VALUES CasePoint Entries Entry Finding Frame JacobianMap "
                "RaisedError ShownInput SourceChange"
            ),
            "place": "Location shown_path",
            "plan": "Companion Doubt ExpectedFailure Settings TargetPlan",
            "precision": "Closeness Precision",
            "price": "Allowance Price allowance price_of",
            "report": (
                "CaseReport Evaluations Mistake ModuleReport Mutation MutationOutcome Report Swept "
                "TargetReport"
            ),
            "static": "LintFinding LintReport",
            "target": "Parameter PassedOver Target",
            "words": (
                "Effort Engine InputSource Nested Outcome Part Point Scalar Severity TargetKind Verdict "
                "indexed memory_text"
            ),
        },
    )

__all__ = [
    "ACROSS_CASES",
    "LIMITING",
    "OTHER_VALUES",
    "POWER_OF_TWO",
    "Allowance",
    "Annotation",
    "Beyond",
    "Case",
    "CasePoint",
    "CaseReport",
    "Closeness",
    "Companion",
    "ConcatInput",
    "Domain",
    "Doubt",
    "Effort",
    "Engine",
    "Entries",
    "Entry",
    "Evaluations",
    "ExpectedFailure",
    "Finding",
    "Frame",
    "Input",
    "InputSource",
    "JacobianMap",
    "LintFinding",
    "LintReport",
    "ListInput",
    "LiteralInput",
    "Location",
    "Mistake",
    "ModuleReport",
    "Mutation",
    "MutationOutcome",
    "Nested",
    "ObjectInput",
    "Outcome",
    "Parameter",
    "Part",
    "PassedOver",
    "Point",
    "Precision",
    "Price",
    "RaisedError",
    "Report",
    "Scalar",
    "Settings",
    "Severity",
    "ShownInput",
    "SizeConstant",
    "SourceChange",
    "Swept",
    "Target",
    "TargetKind",
    "TargetPlan",
    "TargetReport",
    "TensorInput",
    "Verdict",
    "allowance",
    "indexed",
    "memory_text",
    "price_of",
    "shown_path",
    "tensors_of",
]
