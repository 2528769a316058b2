"""Reports as a notebook and an interpreter show them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gradverify import __version__
from gradverify.model import Report, Settings, TargetReport
from gradverify.report.console import TextStyle
from gradverify.report.html import render_fragment
from gradverify.report.text import render_text
from gradverify.session.outcome import summary_of


@dataclass(frozen=True, repr=False)
class ShownReport(Report):
    """A report that prints as the command's, and in a notebook as the HTML page."""

    note: str = ""
    """Where it was made, if not in processes of its own."""

    def __repr__(self) -> str:
        """Return the text of the report."""
        return render_text(self, TextStyle()) + (f"{self.note}\n" if self.note else "")

    def _repr_html_(self) -> str:
        return render_fragment(self, self.note)


@dataclass(frozen=True, repr=False)
class ShownTarget(TargetReport):
    """The report on one target, shown in the same way."""

    def __repr__(self) -> str:
        """Return the text of its report."""
        return render_text(self._report, TextStyle())

    def _repr_html_(self) -> str:
        return render_fragment(self._report)

    @property
    def _report(self) -> Report:
        return Report(Settings(), (self,), gradverify_version=__version__, summary=summary_of((self,)))


def shown(report: Report, note: str = "") -> ShownReport:
    """The same report."""
    return ShownReport(**_values(report), note=note)


def shown_target(report: TargetReport) -> ShownTarget:
    """The same report."""
    return ShownTarget(**_values(report))


def _values(value: Report | TargetReport) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
