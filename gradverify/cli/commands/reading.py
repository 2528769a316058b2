"""What gradverify knows by heart: its codes, the schema of its specs."""

from __future__ import annotations

import sys

from gradverify import options
from gradverify.cli.screen import reported, style_for, write
from gradverify.options import Color
from gradverify.report.formats import Format


def explain(code: options.Code) -> None:
    """Say what a code means, why it matters, with an example and the remedy."""
    from gradverify.report.explain import render_rule  # noqa: PLC0415 - loads rich

    with reported(style_for(Color.AUTO, 0), Format.TEXT):
        write(sys.stdout, render_rule(code))


def rules() -> None:
    """Show the table of codes."""
    from gradverify.report.explain import render_rules_table  # noqa: PLC0415 - loads rich

    with reported(style_for(Color.AUTO, 0)):
        write(sys.stdout, render_rules_table())


def schema() -> None:
    """Print the JSON Schema of spec files, for editors."""
    import json  # noqa: PLC0415 - `--help` prints none

    from gradverify.spec.schema import json_schema  # noqa: PLC0415 - `explain` needs none of it

    with reported(style_for(Color.AUTO, 0)):
        write(sys.stdout, json.dumps(json_schema(), indent=2) + "\n")
