"""Show gradverify at work on the module that ships with it."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gradverify.cli import options
from gradverify.cli.commands.verifying import checked
from gradverify.cli.formats import Format
from gradverify.cli.options import Checks, Color, Failing, Options, Targets
from gradverify.cli.request import request_of
from gradverify.cli.screen import print_bugs, print_report, style_for, told, write
from gradverify.model import Report, Verdict
from gradverify.report.mutations import render_selftest
from gradverify.session.outcome import ExitCode


def demo(verbose: options.Verbose = 0, color: options.ColorOption = Color.AUTO) -> None:
    """Check a small module that ships with the package: right and wrong Functions."""
    from gradverify.demo.intended import unintended  # noqa: PLC0415

    style = style_for(color, min(verbose, 2))
    with told(style, Format.TEXT):
        from gradverify import demo as package  # noqa: PLC0415

        request = request_of(Options(Targets([str(Path(package.__path__[0]) / "functions.py")])))
        report = checked(request)
        print_report(report, style, Format.TEXT)
        surprises = unintended(report)
        write(sys.stdout, _closing(report, surprises))
    raise typer.Exit(ExitCode.BUG if surprises else ExitCode.OK)


def selftest(color: options.ColorOption = Color.AUTO) -> None:
    """Plant known faults in right Functions that ship with the package, and show that each is caught."""
    from gradverify.demo.intended import INTENDED  # noqa: PLC0415

    style = style_for(color, 0)
    with told(style, Format.TEXT):
        from gradverify import demo as package  # noqa: PLC0415

        module = Path(package.__path__[0]) / "functions.py"
        right = [name for name, (status, _) in INTENDED.items() if status is Verdict.PASSED]
        targets = Targets([f"{module}::{name}" for name in right])
        planted = Options(targets, checks=Checks(mutate=True), failing=Failing(strict=True))
        report = checked(request_of(planted))
        write(sys.stdout, render_selftest(report, style))
        print_bugs(report.bugs)
    raise typer.Exit(report.exit_code)


def _closing(report: Report, surprises: tuple[str, ...]) -> str:
    if surprises:
        return "".join(f"not as intended: {line}\n" for line in surprises)
    count = len(report.targets)
    return f"\nEach of the {count} Functions got its intended verdict: the wrong ones are wrong on purpose.\n"
