"""Spec files: YAML → cases, with file, line and column for everything that is wrong.

Two stages. *Reading* (`read_spec`, `SpecLookup`) imports nothing: syntax, keys, types, sizes, names
against the module's source. *Binding* (`check_against_targets`) compares with live targets. Both
give `Mistake` values, all of a stage at once. `plan_function` then turns an entry into a plan.
"""

from gradverify.spec.binding import check_against_targets
from gradverify.spec.cases import case_id, case_seed
from gradverify.spec.find import SpecLookup, find_specs, shown_path
from gradverify.spec.function import SpecFunction
from gradverify.spec.gate import NOT_YET, OPEN, Gate
from gradverify.spec.json_schema import json_schema
from gradverify.spec.plan import plan_function
from gradverify.spec.read import SpecFile, read_spec
from gradverify.spec.spares import resized

__all__ = [
    "NOT_YET",
    "OPEN",
    "Gate",
    "SpecFile",
    "SpecFunction",
    "SpecLookup",
    "case_id",
    "case_seed",
    "check_against_targets",
    "find_specs",
    "json_schema",
    "plan_function",
    "read_spec",
    "resized",
    "shown_path",
]
