"""What `--help` says below the options (examples, exit codes, environment, files), and how these are grouped.

Kept as text, since its lines are laid out by hand: 80 columns at most.
"""

from __future__ import annotations

CHECK_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Which targets",
        ("spec", "no_infer", "exclude", "config", "keyword", "last_failed", "changed", "watch", "shard"),
    ),
    ("Which checks", ("select", "ignore", "engine", "effort", "mutate")),
    ("Numbers", ("device", "dtype", "autocast", "seed", "rtol", "atol")),
    ("Processes and limits", ("jobs", "timeout", "budget", "price", "memory", "in_process", "no_cache")),
    ("What fails", ("strict", "baseline", "stop_at_first", "maxfail")),
    ("Report", ("output", "report_to", "quiet", "verbose", "durations", "dump", "color")),
)
"""(heading, parameters) of the options of `check`; what is in none of them stands under `Options`."""

GROUPS = {"check": CHECK_GROUPS}
"""Commands that have so many options that they are grouped."""

SHORT = {
    "check": "Verify backwards against the derivative of their forwards.",
    "list": "Show the targets, where their inputs come from, their cases.",
    "merge": "Join the JSON reports of shards to that of the whole run.",
    "suggest": "Print the right backward of a Function or operator.",
    "init": "Draft a spec beside a module, from the inputs inferred.",
    "lint": "Read the source for what is certainly wrong, without torch.",
    "record": "Run a program, and write a spec of what it called.",
    "explain": "Say what a code means, with an example and the remedy.",
    "rules": "Show the table of codes.",
    "schema": "Print the JSON Schema of spec files, for editors.",
    "demo": "Show the report on a small module that ships with the package.",
    "selftest": "Plant known faults, and show that each is caught.",
}
"""One line for each command, for the list of them."""

EXIT_CODES = """\
Exit codes:
  0    everything verified, or skipped with a written reason
  1    something is wrong, inconclusive or unchecked
  2    usage, configuration or spec error, or a module that cannot be imported
  3    a bug in gradverify
  5    nothing to check
  130  interrupted: what was verified until then is reported
"""

FILES = """\
Files:
  pyproject.toml          [tool.gradverify]: what is the same in every run
  specs/*.yaml, *.yml     specs that name their module
  MODULE.gradverify.yaml  the spec beside a module, where specs/ has none
  .gradverify_cache/      what was not verified last, for --lf, and inputs that
                          were inferred; may be deleted
"""

ENVIRONMENT = """\
Environment:
  NO_COLOR     no colour, if it is set
  FORCE_COLOR  colour, if it is set, also where stdout is no terminal
"""

ROOT = (
    """\
Start with:
  gradverify demo               what a report looks like
  gradverify check module.py    verify your own module
  gradverify COMMAND --help     options, examples and exit codes of a command

A module that is checked is imported and run, in a process of its own. Do not
name one that you do not trust.

"""
    + EXIT_CODES
)

CHECK = "\n".join(
    (
        """\
Examples:
  gradverify check module.py
      every Function of a module; inputs from its spec, else inferred
  gradverify check src/ -k "Norm and not Layer" -x
      a folder, by name, up to the first one that is not verified
  gradverify check 'module.py::Conv[h=6,k=3]' --select GV101 --seed 0
      one case, as the `reproduce` line of a finding writes it
  gradverify check src/ --format github --report sarif=gradverify.sarif
      in CI: annotations on stdout, SARIF into a file
  gradverify check src/ --shard 1/4 --report json=shard-1.json
      a quarter of the targets; `gradverify merge` joins four of these
""",
        EXIT_CODES,
        ENVIRONMENT,
        FILES,
    )
)

LIST = """\
Examples:
  gradverify list module.py
  gradverify list src/ --no-infer     what has no spec yet
  gradverify list m.py -v --effort thorough
                                      what a thorough run would cost

Exit codes:
  0  targets were found
  2  usage or spec error, or a module that cannot be imported
  5  no target was found
"""

MERGE = """\
Example:
  gradverify merge shard-*.json -o report.json

Exit codes:
  that of the whole run; 2 for files that are no reports of one run, and where
  the report of a shard is missing
"""

SUGGEST = """\
Example:
  gradverify suggest module.py::Softmax

Exit codes:
  0  a backward is shown: it was executed and verified
  1  none can be suggested; the reason is on stderr
  2  usage or spec error, or a module that cannot be imported
"""

INIT = """\
Examples:
  gradverify init module.py
  gradverify init module.py::Softmax --stdout

Editors complete the spec once its schema is beside it:
  gradverify schema > gradverify.schema.json

Exit codes:
  0  the spec is written, or there is nothing to add
  2  usage error, or a module that cannot be imported
"""

LINT = """\
Examples:
  gradverify lint src/
  gradverify lint module.py --select GV803 --format concise
  gradverify lint                     the `paths` of [tool.gradverify]

`# noqa: GV803` on the line of a finding waives it. Configuration: `paths`,
`exclude`, `select` and `ignore` of [tool.gradverify].

Exit codes:
  0  no error and no warning
  1  some
  2  usage error, or a file that is not Python
  5  no Function to lint
"""

RECORD = """\
Examples:
  gradverify record -o specs/model.yaml -- python train.py --epochs 1
  gradverify record -o specs/ops.yaml --module mypackage.ops -- pytest tests/

Exit codes:
  the program's own where it failed; what it called until then is written
  0  a spec is written
  2  usage error
  5  nothing was called
"""

EXPLAIN = """\
Examples:
  gradverify explain GV101
  gradverify rules                    every code
"""

RULES = """\
`gradverify explain CODE` prints the page of one of them.
"""

SCHEMA = """\
Example:
  gradverify schema > gradverify.schema.json

A spec whose first line is
  # yaml-language-server: $schema=gradverify.schema.json
is then completed and checked by editors that speak YAML. `init` writes it.
"""

DEMO = """\
Exit codes:
  0  each Function got its intended verdict: the wrong ones are meant to fail
  3  one did not: a bug in gradverify
"""

SELFTEST = """\
Exit codes:
  0  every fault that changes a gradient is caught
  1  one escapes
"""

EPILOGS = {
    "gradverify": ROOT,
    "check": CHECK,
    "list": LIST,
    "merge": MERGE,
    "suggest": SUGGEST,
    "init": INIT,
    "lint": LINT,
    "record": RECORD,
    "explain": EXPLAIN,
    "rules": RULES,
    "schema": SCHEMA,
    "demo": DEMO,
    "selftest": SELFTEST,
}
"""What stands below the options of each command."""
