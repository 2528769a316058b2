"""ONE reading of source code: nothing is imported or run, and no torch is needed.

Of a file's text: `module_of(text)` is its `Module`, parsed once; `functions_of(text)` gives each `Function`
with its `Method`s, resolved along bases of the same module. What its values and sizes are held against:
`thresholds`, `size_constants`. Of a live function: `Method.of(f)`; `iterates` and `scales_by_sizes`, of it
and its helpers.

Answers are frozen dataclasses; a `Place` is where something stands. Who builds or searches trees (edits, and
the search for inputs) takes them from `definition(f)`, with what reads a node in `gradverify.source.tree`.
"""

from __future__ import annotations

from gradverify.source.function import Function, functions_of
from gradverify.source.live import (
    asks_for_signs,
    definition,
    definitions_behind,
    iterates,
    may_loop_over,
    names_called,
    scales_by_sizes,
)
from gradverify.source.method import Method, returned
from gradverify.source.module import Binders, Import, Module, is_bound_above, module_of
from gradverify.source.names import (
    applied,
    is_not_a_tensor,
    is_sibling,
    may_define,
    names_to_complete,
    parts_of,
    siblings_of,
)
from gradverify.source.reachable import GROUPS, communicates, size_constants, thresholds, uses_complex
from gradverify.source.tree import (
    Place,
    called_name,
    every_parameter,
    integer,
    is_none,
    last_name,
    name_of,
    names_bound,
    parameters_of,
    root_name,
)

__all__ = [
    "GROUPS",
    "Binders",
    "Function",
    "Import",
    "Method",
    "Module",
    "Place",
    "applied",
    "asks_for_signs",
    "called_name",
    "communicates",
    "definition",
    "definitions_behind",
    "every_parameter",
    "functions_of",
    "integer",
    "is_bound_above",
    "is_none",
    "is_not_a_tensor",
    "is_sibling",
    "iterates",
    "last_name",
    "may_define",
    "may_loop_over",
    "module_of",
    "name_of",
    "names_bound",
    "names_called",
    "names_to_complete",
    "parameters_of",
    "parts_of",
    "returned",
    "root_name",
    "scales_by_sizes",
    "siblings_of",
    "size_constants",
    "thresholds",
    "uses_complex",
]
