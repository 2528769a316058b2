"""ONE reading of source code, by `ast` alone: nothing is imported or run, and no torch is needed.

Of a module's text: `functions_of(tree_of(text))` gives each `Function` with its `Method`s, resolved along
bases of the same module; `statements_behind`, `size_constants` and `uses_complex` say what a target uses.
Of a live function: `Method.of(f)`, or `definition(f)` for the tree alone, and `definitions_behind(f)` for
those of its helpers, too; None or empty where there is no source. Trees are shared: copy before a change.

A `Method` knows its parameters, ctx, bindings, what it sets, reads and saves on ctx; `returned(method)` what
each path returns; `steps` and `Aliases` which names share memory with a parameter. What the nodes of an
expression are: `called_name`, `last_name`, `root_name`, `dotted`, `names_read`, `names_bound`, `integer`,
`is_none`; what runs in a body: `own_nodes_of`, `blocks`; what a tuple is unpacked to: `paired`, `parts_of`.
"""

from __future__ import annotations

from gradverify.source.function import Function, functions_of
from gradverify.source.imports import import_line, is_bound_above
from gradverify.source.method import Method
from gradverify.source.reachable import GROUPS, communicates, statements_behind, uses_complex
from gradverify.source.returned import returned
from gradverify.source.scaling import scales_by_sizes
from gradverify.source.siblings import is_sibling
from gradverify.source.size_constants import size_constants
from gradverify.source.thresholds import thresholds
from gradverify.source.tree import (
    blocks,
    called_name,
    definition,
    definitions_behind,
    dotted,
    every_parameter,
    integer,
    is_none,
    iterates,
    last_name,
    names_bound,
    names_read,
    own_nodes,
    own_nodes_of,
    parameters_of,
    root_name,
    tree_of,
)
from gradverify.source.unpacking import applied, paired, parts_of

__all__ = [
    "GROUPS",
    "Function",
    "Method",
    "applied",
    "blocks",
    "called_name",
    "communicates",
    "definition",
    "definitions_behind",
    "dotted",
    "every_parameter",
    "functions_of",
    "import_line",
    "integer",
    "is_bound_above",
    "is_none",
    "is_sibling",
    "iterates",
    "last_name",
    "names_bound",
    "names_read",
    "own_nodes",
    "own_nodes_of",
    "paired",
    "parameters_of",
    "parts_of",
    "returned",
    "root_name",
    "scales_by_sizes",
    "size_constants",
    "statements_behind",
    "thresholds",
    "tree_of",
    "uses_complex",
]
