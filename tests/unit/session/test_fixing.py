"""Changes written into files: line ends, a file that has changed, and what is put back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradverify.errors import UsageError
from gradverify.model import (
    Finding,
    InputSource,
    LinePatch,
    Report,
    Settings,
    Severity,
    SourceChange,
    Target,
    TargetKind,
    TargetReport,
    Verdict,
)
from gradverify.session.fixing import _patched, _StaleError, fix
from gradverify.session.request import Request


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_stay(end, last):
    text = end.join(["a", "  old", "c", "old"]) + (end if last else "")
    patches = [LinePatch("m.py", 2, ("  old",), ("  new", "")), LinePatch("m.py", 4, ("old",), ("x", "y"))]
    expected = end.join(["a", "  new", "", "c", "x", "y"]) + (end if last else "")
    assert _patched(text.encode(), patches) == expected.encode()


def test_another_encoding_is_kept():
    text = "# -*- coding: latin-1 -*-\né = 1\n".encode("latin-1")
    patch = LinePatch("m.py", 2, ("é = 1",), ("é = 2",))
    assert _patched(text, [patch]) == text.replace(b"1\n", b"2\n").replace(b"latin-2", b"latin-1")


def test_other_lines_are_not_replaced():
    with pytest.raises(_StaleError):
        _patched(b"a\nb\n", [LinePatch("m.py", 2, ("c",), ("d",))])


def report(path: Path, **verdicts: Verdict) -> Report:
    """A report on targets, of which each that failed wants `old` to be `new`."""
    targets = []
    for number, (name, verdict) in enumerate(verdicts.items(), start=1):
        target = Target(name, name, TargetKind.FUNCTION, str(path), number)
        patch = LinePatch(str(path), number, ("old",), ("new",))
        error = Finding(
            "GV101", Severity.ERROR, "", changes=(SourceChange("m.py", number, "old", "new", patch),)
        )
        findings = (error,) if verdict is Verdict.FAILED else ()
        targets.append(TargetReport(target, verdict, InputSource.SPEC, findings=findings))
    return Report(Settings(), tuple(targets))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "m.py").write_text("old\nold\n")
    return tmp_path / "m.py"


def test_what_spoils_another_target_is_taken_back(path):
    passed, failed = Verdict.PASSED, Verdict.FAILED

    def check(request: Request) -> Report:
        lines = path.read_text().splitlines()
        # The first change makes its own target right, and a third one wrong.
        return report(
            path,
            One=passed if lines[0] == "new" else failed,
            Two=passed if lines[1] == "new" else failed,
            Three=failed if lines[0] == "new" else passed,
        )

    before = check(Request(()))
    fixes = fix(before, Request(()), check, unsafe=False)
    # Any of the two may be to blame, as far as anybody knows.
    assert [name for name, _ in fixes.left] == ["One", "Two"]
    assert path.read_text() == "old\nold\n"
    assert fixes.report == before


def test_a_target_that_was_not_asked_about_counts_only_if_it_passed_before(path):
    """Only `One` is asked about; `Two` is wrong before and after, `Three` is spoilt."""
    asked: list[bool] = []

    def check(request: Request) -> Report:
        new = path.read_text().startswith("new")
        verdicts = {"One": Verdict.PASSED if new else Verdict.FAILED}
        if request.selections:
            asked.append(new)
            verdicts |= {"Two": Verdict.FAILED, "Three": spoilt if new else Verdict.PASSED}
        return report(path, **verdicts)

    for spoilt in (Verdict.PASSED, Verdict.FAILED):
        fixes = fix(check(Request(())), Request(()), check, unsafe=False)
        assert bool(fixes.written) is (spoilt is Verdict.PASSED)
        assert asked == [True, False]
        asked.clear()
        path.write_text("old\nold\n")


def test_a_target_that_fails_at_the_fresh_seed_anyway_is_not_spoilt(path):
    """`Two` passes at the seed that was asked for, and fails at the other one before and after."""

    def check(request: Request) -> Report:
        new = path.read_text().startswith("new")
        verdicts = {"One": Verdict.PASSED if new else Verdict.FAILED}
        return report(path, **verdicts, Two=Verdict.PASSED if request.seed is None else Verdict.FAILED)

    fixes = fix(check(Request(())), Request(()), check, unsafe=False)
    assert [one.name for one in fixes.written] == ["One"]
    assert fixes.left == ()
    assert path.read_text() == "new\nold\n"


def test_a_whole_file_is_not_verified_again_before_it_is_changed(path):
    runs: list[str] = []

    def check(request: Request) -> Report:
        runs.append(path.read_text()[:3])
        return report(path, One=Verdict.PASSED if runs[-1] == "new" else Verdict.FAILED)

    fix(check(Request(())), Request(()), check, unsafe=False)
    assert runs == ["old", "new", "new"]


def test_what_does_not_help_at_the_fresh_seed_is_taken_back(path):
    def check(request: Request) -> Report:
        right = path.read_text().startswith("new") and request.seed is None
        return report(path, One=Verdict.PASSED if right else Verdict.FAILED)

    fixes = fix(check(Request(())), Request(()), check, unsafe=False)
    assert fixes.left == (("One", "with the change it is failed still, by GV101"),)
    assert path.read_text() == "old\nold\n"


def test_an_interrupt_puts_the_file_back(path):
    first = report(path, One=Verdict.FAILED)

    def check(request: Request) -> Report:
        if "new" in path.read_text():
            raise KeyboardInterrupt
        return first

    with pytest.raises(KeyboardInterrupt):
        fix(first, Request(()), check, unsafe=False)
    assert path.read_text() == "old\nold\n"


def test_what_somebody_saves_meanwhile_is_not_overwritten(path):
    first = report(path, One=Verdict.FAILED)

    def check(request: Request) -> Report:
        if "new" in path.read_text():
            path.write_text("theirs\n")
        return first

    fix(first, Request(()), check, unsafe=False)
    assert path.read_text() == "theirs\n"


def test_a_file_that_has_changed_is_left(path):
    first = report(path, One=Verdict.FAILED)
    path.write_text("other\nold\n")
    fixes = fix(first, Request(()), lambda _: first, unsafe=False)
    assert fixes.written == ()
    assert "has changed" in fixes.left[0][1]


def test_a_file_that_cannot_be_written_is_a_usage_error(path):
    first = report(path, One=Verdict.FAILED)
    path.unlink()
    with pytest.raises(UsageError, match="--fix: cannot write"):
        fix(first, Request(()), lambda _: first, unsafe=False)


def test_what_stands_in_site_packages_is_left(path):
    first = report(path.parent / "site-packages" / "m.py", One=Verdict.FAILED)
    fixes = fix(first, Request(()), lambda _: first, unsafe=True)
    assert fixes.left == (("One", "its file belongs to an installed package"),)


def test_an_error_without_a_change_keeps_the_others_from_being_written(path):
    first = report(path, One=Verdict.FAILED)
    (target,) = first.targets
    more = (*target.findings, Finding("GV401", Severity.ERROR, ""))
    first = replace(first, targets=(replace(target, findings=more),))
    fixes = fix(first, Request(()), lambda _: first, unsafe=True)
    assert fixes.left == (("One", "the change makes some of its errors right, not all"),)
