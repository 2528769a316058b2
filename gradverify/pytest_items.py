"""What `pytest --gradverify` collects: an item for each case of a spec file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gradverify.cases.further import with_cases
from gradverify.config import load_config
from gradverify.errors import SpecError, UsageError
from gradverify.model import Report, Settings, Verdict, shown_path
from gradverify.report.console import TextStyle
from gradverify.report.text import render_mistakes, render_text
from gradverify.requested import request_of
from gradverify.rules import RULES
from gradverify.session.planning import Planned
from gradverify.session.request import Progress, TargetProgress
from gradverify.session.run import Session, prepare, report_of
from gradverify.session.template import Template, template_for
from gradverify.session.verifying import verify_target
from gradverify.session.worker import Worker
from gradverify.spec.function import SpecFunction
from gradverify.spec.read import SpecFile, read_spec

TEMPLATE = pytest.StashKey[Template | None]()
"""Where a session of pytest keeps the process that its workers are forked from."""


def _template_of(config: pytest.Config, settings: Settings) -> Template | None:
    """The template of this session of pytest: one for all of its spec files."""
    if TEMPLATE not in config.stash:
        config.stash[TEMPLATE] = template_for(settings)
    return config.stash[TEMPLATE]


class NotVerifiedError(Exception):
    """An item whose gradient is not verified; its text is the report on it."""


class GradverifySpec(pytest.File):
    """A spec file. Its modules are imported, each in a worker of its own, when the first item runs."""

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - pytest's own
        """Nothing is read before pytest collects it."""
        super().__init__(**arguments)
        self._session: Session | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """One item for each case; one for a target that is skipped or expected to fail."""
        codes = [rule.code for rule in RULES]
        try:
            spec = read_spec(self.path, shown_path=shown_path(self.path), known_codes=codes)
        except SpecError as error:
            raise self.CollectError(render_mistakes(error.problems, TextStyle())) from None
        yield from self._items(spec)

    def verified(self, module: Path, name: str, case: str) -> Report:
        """Verify one case of a target, or all where `case` is empty.

        Raises `NotVerifiedError` where its module cannot be imported or does not fit the spec.
        """
        session = self._prepared()
        planned = next((p for p in session.planned if _is(p, module, name)), None)
        if planned is None:
            return report_of(replace(session, planned=[]), [])
        if case and planned.plan is not None and planned.plan.asked is not None:
            plan = with_cases(planned.plan, replace(planned.plan.asked, case=case))
            planned = replace(planned, plan=plan, case_filter=case)
        judged = verify_target(planned, session.request, TargetProgress(session.progress, planned.target))
        return report_of(replace(session, planned=[planned]), [judged])

    def teardown(self) -> None:
        """End the workers, once the last item of this file has run."""
        if self._session is not None:
            self._session.__exit__()
            self._session = None

    def _items(self, spec: SpecFile) -> Iterator[pytest.Item]:
        modules = spec.module_paths()
        for module in modules:
            for function in spec.functions_of(module):
                line = spec.document.line_of(("functions", function.key))
                stem = f"{module.stem}." if len(modules) > 1 else ""
                for case in _cases(function):
                    shown = f"[{case}]" if case not in {"", "base"} else ""
                    item = GradverifyItem.from_parent(self, name=f"{stem}{function.name}{shown}")
                    item.asked, item.line = (module, function.name, case), line
                    yield item

    def _prepared(self) -> Session:

        if self._session is None:
            try:
                request = request_of({"targets": [str(self.path)]}, load_config())
                template = _template_of(self.config, request.settings)
                request = replace(request, started=partial(Worker, template=template))
                self._session = prepare(request, Progress())
            except SpecError as error:
                raise NotVerifiedError(render_mistakes(error.problems, TextStyle())) from None
            except UsageError as error:
                raise NotVerifiedError(str(error)) from None
        return self._session


class GradverifyItem(pytest.Item):
    """One case of a target, or a whole target."""

    asked: tuple[Path, str, str] = (Path(), "", "")
    """Module, target and case; an empty case stands for all."""
    line: int = 1
    """Line of the target in the spec file."""

    def runtest(self) -> None:
        """Verify it. What is not verified is never a pass."""
        spec = self.parent
        if not isinstance(spec, GradverifySpec):
            raise TypeError(f"{self.nodeid} does not belong to a spec file")
        report = spec.verified(*self.asked)
        verbosity = min(2, max(0, self.config.get_verbosity()))
        status = report.targets[0].status if report.targets and not report.bugs else None
        match status:
            case Verdict.PASSED:
                return
            case Verdict.SKIPPED:
                pytest.skip(report.targets[0].reason)
            case Verdict.XFAILED:
                pytest.xfail(report.targets[0].reason)
            case _:
                text = render_text(report, TextStyle(verbosity=verbosity))
                raise NotVerifiedError("\n".join((text, *report.bugs)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ANN401
        """Show the report instead of a traceback of ours."""
        if isinstance(excinfo.value, NotVerifiedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it is: the target's line in the spec file."""
        return self.path, self.line - 1, self.name


def _cases(function: SpecFunction) -> Iterable[str]:
    """The ids of its cases; one empty id where the target is one item."""
    if function.plan.skip or function.plan.expected_failures or not function.cases:
        return ("",)
    return [case.id for case in function.cases]


def _is(planned: Planned, module: Path, name: str) -> bool:
    return planned.target.name == name and planned.module.path.resolve() == module.resolve()
