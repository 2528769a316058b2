"""The options of the command line: their names, types and help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gradverify.cli import completion
from gradverify.cli.formats import MACHINES, Format, LintFormat
from gradverify.model import Effort, Engine, Price

__all__ = ["MACHINES", "Color", "Format", "LintFormat"]


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        autocompletion=completion.targets,
        help="module.py, folder/, dotted.module, FILE.gradverify.yaml, module.py::Name or "
        "'module.py::Name[b=3,mode=sum]'. Of a folder, the modules that define a Function are imported; of a "
        "spec, what it names is checked.",
    ),
]
Code = Annotated[
    str, typer.Argument(metavar="CODE", help="A code such as GV101.", autocompletion=completion.codes)
]
Specs = Annotated[
    list[Path] | None, typer.Option("--spec", metavar="FILE", help="Spec file to use (repeatable).")
]
NoInfer = Annotated[
    bool, typer.Option("--no-infer", help="Only specs give inputs: a target that none names is unchecked.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="GLOB",
        help="Leave out files and folders of this name, or with a slash of this path (repeatable).",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read [tool.gradverify] from this file, not from the nearest pyproject.toml upward.",
    ),
]
Keyword = Annotated[
    str,
    typer.Option("-k", metavar="EXPR", help="Only targets whose path::Name matches: names, and, or, not."),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODES",
        help="Report only these codes or prefixes (GV1,GV3).",
        autocompletion=completion.code_lists,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODES",
        help="Do not report these codes or prefixes.",
        autocompletion=completion.code_lists,
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="cpu (default), cuda, cuda:INDEX, or all (compared)."),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Judge in this dtype beside float64 (repeatable): float32 (default), bfloat16, float16; float64 "
        "for none.",
        autocompletion=completion.dtypes,
    ),
]
Autocast = Annotated[
    bool,
    typer.Option(
        "--autocast",
        help="Judge under torch.autocast too: forward inside it on float32 inputs, backward after it. To "
        "the 16-bit dtypes of --dtype, else to the device's own.",
    ),
]
Seed = Annotated[
    str | None, typer.Option("--seed", metavar="INT|random", help="Seed of all input values (default 0).")
]
Rtol = Annotated[
    float | None,
    typer.Option("--rtol", metavar="F", help="Relative tolerance for a derivative (default 1e-7)."),
]
Atol = Annotated[float | None, typer.Option("--atol", metavar="F", help="Absolute tolerance (default 0).")]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Who gives the verdict: probe proves a gradient by a few probes and measures the Jacobian where "
        "that does not close; jacobian always measures it; "
        "torch asks torch.autograd.gradcheck, with its tolerances.",
    ),
]
EffortOption = Annotated[
    Effort | None,
    typer.Option(
        "--effort",
        metavar="LEVEL",
        help="quick: typical values of the base case; normal (default): pairwise cases, large, small and "
        "special values too; thorough: every combination, more draws, always full Jacobians.",
        show_default=False,
    ),
]
PriceOption = Annotated[
    Price | None,
    typer.Option(
        "--price",
        metavar="LEVEL",
        help="What one call is taken to cost, where else it is measured: below 10ms, 100ms or 1s, or more. "
        "By it a cause, and smaller inputs that show it, are looked for in so many calls.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="Limit for each target (default 60)."),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="SECONDS",
        help="After so long no further case of a target begins; it is unchecked then, for what is left.",
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        "--memory",
        metavar="MIB",
        min=0,
        help="Limit for the processes of each target, torch included (default 0: none).",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=0,
        help="Verify N targets at once, each in a process of its own with one thread (0: one for each core); "
        "the report is the same.",
        show_default=False,
    ),
]
InThisProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="Verify in this process: breakpoint() works, nothing is captured, there are no limits, "
        "and a crash ends everything.",
    ),
]
StopAtFirst = Annotated[bool, typer.Option("-x", help="Stop after the first target that is not verified.")]
MaxFail = Annotated[
    int | None,
    typer.Option("--maxfail", metavar="N", min=1, help="Stop after N targets that are not verified."),
]
LastFailed = Annotated[
    bool,
    typer.Option(
        "--lf",
        "--last-failed",
        help="Only what was not verified when it was checked last; all if nothing was.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Neither read nor write what runs leave in .gradverify_cache/: what --lf asks for, and inferred "
        "inputs, which are used again while what they were inferred from is the same.",
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="TOML of known findings, which do not fail until a day; for new ones the entry is printed.",
    ),
]
Changed = Annotated[
    str | None,
    typer.Option(
        "--changed",
        metavar="[REF]",
        help="Only what may differ from a git revision (default HEAD): by its source, its spec, or what its "
        "module imports or opens of the project.",
    ),
]
WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Stay, and verify what was saved again: each target whose source, spec, or what its module "
        "imports or opens of the project differs. Ctrl-C ends it with the exit code of the last round.",
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only every N-th target, from the I-th: `gradverify merge` joins N runs.",
    ),
]
Reports = Annotated[
    list[Path], typer.Argument(metavar="REPORT", help="JSON reports: --report json=PATH of each shard.")
]
MergedTo = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="PATH", help="Write it there, not to stdout.")
]
Mutate = Annotated[
    bool,
    typer.Option(
        "--mutate",
        help="Plant known faults in each target that passes and say which its sizes and values would not "
        "notice; with --strict, one that escapes fails it.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings fail their target, as errors do.")]
Durations = Annotated[
    int | None,
    typer.Option(
        "--durations",
        metavar="N",
        min=0,
        help="Name the N slowest targets with their times (0: all); in JSON, `duration_s` of each.",
    ),
]
DumpFolder = Annotated[
    Path | None,
    typer.Option(
        "--dump",
        metavar="DIR",
        help="For every error, write its inputs (.pt) and a script of plain torch that shows it.",
    ),
]
ReportFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="FORMAT=PATH",
        help="Also write the report to a file (repeatable), in any format of --format.",
        autocompletion=completion.report_files,
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only findings and the summary.")]
Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        help="Say everything about every target; -vv: full tracebacks too.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"Format of the report on stdout: {', '.join(Format)}.",
        autocompletion=completion.formats,
    ),
]
ColorOption = Annotated[Color, typer.Option("--color", help="Colour the text report.")]
LintTargets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        autocompletion=completion.targets,
        help="module.py, folder/, dotted.module or module.py::Name. Only read, never imported.",
    ),
]
LintFormatOption = Annotated[LintFormat, typer.Option("--format", help="Format of the findings on stdout.")]
LintVerbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Show notes too.", show_default=False)
]
