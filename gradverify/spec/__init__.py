"""Spec files: YAML → cases, with file, line and column for everything that is wrong.

Two stages. *Reading* (`read_spec`, `SpecLookup`) imports nothing: syntax, keys, types, sizes, names
against the module's source. *Binding* (`check_against_targets`) compares with live targets. Both
give `Mistake` values, all of a stage at once. `plan_function` then turns an entry into a plan.
"""

from typing import TYPE_CHECKING

from gradverify.on_demand import on_demand

if TYPE_CHECKING:
    from gradverify.spec.binding import check_against_targets
    from gradverify.spec.cases import case_id, case_seed
    from gradverify.spec.draft import drafted_function, entry_data, function_of, placeholder, shown
    from gradverify.spec.find import SpecLookup, find_specs
    from gradverify.spec.function import SpecFunction
    from gradverify.spec.gate import NOT_YET, OPEN, Gate
    from gradverify.spec.json_schema import json_schema
    from gradverify.spec.left_out import COMPILED, OPEN_SIZES
    from gradverify.spec.module_names import find_module
    from gradverify.spec.plan import plan_beyond, plan_deduced, plan_function
    from gradverify.spec.read import SpecFile, read_spec
    from gradverify.spec.smaller import resizing, sizes_of, smallest
    from gradverify.spec.spares import resized
    from gradverify.spec.writing import (
        DraftedEntry,
        NotExtensibleError,
        extended_spec,
        is_mentioned,
        render_spec,
        render_spec_of_modules,
    )
else:
    __getattr__ = on_demand(
        __name__,
        {
            "binding": "check_against_targets",
            "cases": "case_id case_seed",
            "draft": "drafted_function entry_data function_of placeholder shown",
            "find": "SpecLookup find_specs",
            "function": "SpecFunction",
            "gate": "NOT_YET OPEN Gate",
            "json_schema": "json_schema",
            "left_out": "COMPILED OPEN_SIZES",
            "module_names": "find_module",
            "plan": "plan_beyond plan_deduced plan_function",
            "read": "SpecFile read_spec",
            "smaller": "resizing sizes_of smallest",
            "spares": "resized",
            "writing": (
                "DraftedEntry NotExtensibleError extended_spec is_mentioned render_spec "
                "render_spec_of_modules"
            ),
        },
    )

__all__ = [
    "COMPILED",
    "NOT_YET",
    "OPEN",
    "OPEN_SIZES",
    "DraftedEntry",
    "Gate",
    "NotExtensibleError",
    "SpecFile",
    "SpecFunction",
    "SpecLookup",
    "case_id",
    "case_seed",
    "check_against_targets",
    "drafted_function",
    "entry_data",
    "extended_spec",
    "find_module",
    "find_specs",
    "function_of",
    "is_mentioned",
    "json_schema",
    "placeholder",
    "plan_beyond",
    "plan_deduced",
    "plan_function",
    "read_spec",
    "render_spec",
    "render_spec_of_modules",
    "resized",
    "resizing",
    "shown",
    "sizes_of",
    "smallest",
]
