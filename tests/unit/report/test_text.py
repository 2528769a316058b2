"""Whole screens, and the promises that every screen keeps."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from gradverify.model import (
    Closeness,
    Domain,
    Entries,
    Entry,
    Finding,
    InputSource,
    JacobianMap,
    ModuleReport,
    Outcome,
    Precision,
    Settings,
    Severity,
    Swept,
    Verdict,
)
from gradverify.report.console import TextStyle
from gradverify.report.text import render_text

SCREENS = ["EVERYTHING", "GREEN", "NOTHING"]
STYLES = {
    "80": TextStyle(width=80),
    "120": TextStyle(width=120),
    "pipe": TextStyle(),
    "color": TextStyle(width=80, color=True),
    "ascii": TextStyle(width=80, unicode=False),
    "quiet": TextStyle(width=80, verbosity=-1),
    "verbose": TextStyle(width=80, verbosity=1),
    "verbose-pipe": TextStyle(verbosity=1),
}
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("look", STYLES)
@pytest.mark.parametrize("screen", SCREENS)
def test_screens(samples, screen, look, snapshot):
    assert render_text(getattr(samples, screen), STYLES[look]) == snapshot


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_colour_adds_nothing_but_colour(samples, screen, verbosity):
    report = getattr(samples, screen)
    plain = render_text(report, TextStyle(width=80, verbosity=verbosity))
    coloured = render_text(report, TextStyle(width=80, color=True, verbosity=verbosity))
    assert "\x1b" not in plain
    assert ESCAPE.sub("", coloured) == plain


@pytest.mark.parametrize("screen", SCREENS)
def test_ascii_means_ascii(samples, screen):
    render_text(getattr(samples, screen), TextStyle(width=80, unicode=False, verbosity=1)).encode("ascii")


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_only_commands_overflow_the_width(samples, width, verbosity):
    text = render_text(samples.EVERYTHING, TextStyle(width=width, verbosity=verbosity))
    wide = [line for line in text.splitlines() if cell_len(line) > width]
    source = ("- ", "+ ")  # lines of a fix, too, stay in one piece
    assert all("gradverify check" in line or line.lstrip().startswith(source) for line in wide)


def test_commands_and_paths_stay_in_one_piece(samples):
    text = render_text(samples.EVERYTHING, TextStyle(width=40))
    assert samples.MISMATCH.reproduce in text
    assert "mymodule.gradverify.yaml" in text


def test_a_pipe_wraps_nothing(samples):
    text = render_text(samples.EVERYTHING, TextStyle())
    assert samples.NOISY.message in text
    assert samples.MISMATCH.hint in text
    assert samples.BOOM.reproduce in text


def test_it_is_deterministic_and_has_no_trailing_spaces(samples):
    style = TextStyle(width=80, verbosity=1)
    text = render_text(samples.EVERYTHING, style)
    assert text == render_text(samples.EVERYTHING, style)
    assert text.endswith("\n")
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert "\n\n\n" not in text


def test_every_target_has_its_line(samples):
    text = render_text(samples.EVERYTHING, TextStyle())
    for report in samples.EVERYTHING.targets:
        assert re.search(rf"^  {report.target.name} ", text, re.MULTILINE)


def test_a_note_hides_no_code_that_was_expected(samples):
    expected = next(r for r in samples.EVERYTHING.targets if r.status is Verdict.XFAILED)
    noted = replace(expected, findings=(*expected.findings, Finding("GV817", Severity.NOTE, "a note")))
    (before,), (after,) = (
        re.findall("expected failure .*", render_text(samples.report(one), TextStyle()))
        for one in (expected, noted)
    )
    assert before == after
    assert before.startswith("expected failure GV")


def test_a_pass_says_what_it_does_not_say(samples):
    assert "Not judged everywhere: float32" in render_text(samples.GREEN, TextStyle())
    assert "Not judged everywhere" not in render_text(samples.report(samples.FAILED), TextStyle())
    assert "Not judged everywhere" not in render_text(samples.GREEN, TextStyle(verbosity=-1))


def test_the_summary_comes_last_and_counts(samples):
    last = render_text(samples.EVERYTHING, TextStyle()).splitlines()[-1]
    assert last.startswith(
        "10 functions: 2 passed, 3 failed, 1 inconclusive, 2 unchecked, 1 skipped, 1 xfailed"
    )
    assert "1 module could not be imported" in last
    assert "GV101 x1" in last, "the expected GV101 of round_ste is not counted"
    assert last.endswith("2 notes (-v shows them)")


def test_notes_are_counted_and_shown_when_verbose(samples):
    report = samples.report(samples.WARNED)
    assert "GV103" not in render_text(report, TextStyle())
    assert "GV203" not in render_text(report, TextStyle())
    assert "GV203      note: second derivatives are refused" in render_text(report, TextStyle(verbosity=1))
    assert "GV103      note: gradient of `bias`" in render_text(report, TextStyle(verbosity=1))


def test_quiet_keeps_findings_and_summary_only(samples):
    text = render_text(samples.GREEN, TextStyle(verbosity=-1))
    assert text == "3 functions: 1 passed, 1 skipped, 1 xfailed\n"


def test_what_explains_the_others_heads_the_block(samples):
    findings = (samples.IMPRECISE, samples.IGNORED, samples.MISMATCH)
    text = render_text(samples.report(replace(samples.FAILED, findings=findings)), TextStyle())
    assert text.count("mymodule.py:44:") == 1
    places = [text.index(title) for title in ("GV106 softmax:", "also GV101:", "also GV110 warning:")]
    assert places == sorted(places)


@pytest.mark.parametrize("code", ["GV401", "GV403"])
@pytest.mark.parametrize("makes_right", [True, False])
def test_a_write_heads_the_block_where_the_values_are_right_without_it(samples, code, makes_right):
    written = Finding(code, Severity.ERROR, "it writes", changes=samples.MISMATCH.changes)
    wrong = samples.MISMATCH if makes_right else replace(samples.MISMATCH, changes=())
    text = render_text(samples.report(replace(samples.FAILED, findings=(written, wrong))), TextStyle())
    head, after = (code, "GV101") if makes_right else ("GV101", code)
    assert f"mymodule.py:44: {head} " in text
    assert f"also       {after}" in text or f"also {after}" in text


def test_a_code_is_explained_once(samples):
    again = replace(samples.FAILED, target=samples.target("other", 70))
    text = render_text(samples.report(samples.FAILED, again), TextStyle())
    assert text.count("gradverify explain GV101") == 1


def test_the_same_inputs_are_shown_once(samples):
    text = render_text(samples.report(samples.FAILED), TextStyle())
    assert text.count(samples.X.text) == 1


def test_three_worst_entries_unless_verbose(samples):
    report = samples.report(replace(samples.FAILED, findings=(samples.MISMATCH,)))
    assert "and 15 more entries" in render_text(report, TextStyle())
    assert "and 14 more entries" in render_text(report, TextStyle(verbosity=1))


def test_close_numbers_get_the_digits_that_tell_them_apart(samples):
    text = render_text(samples.report(samples.WARNED), TextStyle(verbosity=1))
    assert "1.128379170  1.128379167" in text
    assert "factor 1.000000003" in text


def test_settings_that_weaken_a_pass_are_in_the_heading(samples):
    settings = Settings(seed=7, device="cuda:0", select=("GV1", "GV3"), ignore=("GV110",))
    text = render_text(replace(samples.GREEN, settings=settings), TextStyle())
    heading = "mymodule.py  3 functions, 8 cases, seed 7, float64, cuda:0, only GV1, GV3, without GV110"
    assert text.splitlines()[0] == heading


def test_a_pass_without_numbers_says_so(samples):
    checks = samples.outcomes("not-run", "not-run", "not-run", "passed")
    report = samples.target_report("ste", Verdict.PASSED, checks=checks)
    assert "ste  ✓  3 cases  contract only" in render_text(samples.report(report), TextStyle())


def test_partly_verified_cases_are_counted(samples):
    report = replace(samples.PASSED, cases_verified=5)
    assert "5 of 6 cases" in render_text(samples.report(report), TextStyle())


def test_a_failure_without_findings_still_says_something(samples):
    report = replace(samples.FAILED, findings=(), reason="the worker gave no answer")
    assert "softmax: failed: the worker gave no answer" in render_text(samples.report(report), TextStyle())


def test_inferred_inputs_say_how_to_pin_them(samples):
    text = render_text(
        samples.report(replace(samples.PASSED, inputs=InputSource.INFERRED)), TextStyle(width=80)
    )
    assert "reference, inputs inferred; sees errors" in text
    assert "gradverify init <module> writes them into a spec" in text


def test_inferred_inputs_are_shown_when_asked_for(samples):
    report = replace(samples.PASSED, inputs=InputSource.INFERRED, spec_file="", deduced="x [n, d], eps 1e-05")
    assert "inferred, x [n, d], eps 1e-05" in render_text(samples.report(report), TextStyle(verbosity=1))


def test_import_errors_alone_are_the_whole_report(samples):
    text = render_text(samples.report(errors=(samples.IMPORT_ERROR,)), TextStyle())
    assert text.startswith("broken.py:2: cannot be imported")
    assert text.endswith("\n\n1 module could not be imported; nothing was checked\n")


def test_no_module_at_all(samples):
    assert render_text(samples.report(), TextStyle()) == "no module to check\n\nnothing was checked\n"


def test_nothing_quietly(samples):
    text = render_text(samples.NOTHING, TextStyle(verbosity=-1))
    assert text == "utils.py: no function to check\n\nempty.py: no function to check\n\nnothing was checked\n"


def test_modules_without_targets_take_one_line_beside_others(samples):
    report = replace(samples.GREEN, modules=(ModuleReport("utils.py", 0),))
    assert "\nutils.py: no function to check\n" in render_text(report, TextStyle())


def test_unknown_severity_words_do_not_repeat_the_verdict(samples):
    finding = Finding("GV902", Severity.WARNING, "no answer within 60 seconds")
    report = samples.target_report("slow", Verdict.UNCHECKED, findings=(finding,))
    assert "    GV902      no answer within 60 seconds\n" in render_text(samples.report(report), TextStyle())


@pytest.mark.parametrize(
    ("code", "fields", "entry", "compared_with", "name"),
    [
        ("GV101", {"output": 0, "input": "x"}, ((0, 2), (1,)), "numerical", "d y[0,2] / d x[1]"),
        ("GV101", {"output": 2, "input": "x"}, ((), ()), "numerical", "d y2 / d x"),
        ("GV201", {"output": 0, "input": "x"}, ((0,), (1,)), "numerical", "d grad[0] / d x[1]"),
        ("GV301", {"output": 1}, ((0, 2), None), "reference", "y1[0,2]"),
        ("GV302", {"output": 0, "input": "x"}, ((), (0, 2)), "reference", "grad x[0,2]"),
        ("GV302", {"input": "x"}, ((0, 2), None), "reference", "grad x[0,2]"),
        ("GV303", {"output": 0, "input": "x"}, ((1,), (0,)), "reference", "d y[1] / d x[0]"),
    ],
)
def test_entries_are_named_as_a_user_would_write_them(samples, code, fields, entry, compared_with, name):
    entries = Entries(1, 1, (Entry(*entry, 1.0, 2.0, 0.0),), compared_with)
    finding = Finding(code, Severity.ERROR, "wrong", entries=entries, **fields)
    report = samples.target_report("f", Verdict.FAILED, findings=(finding,))
    assert f"             {name}  " in render_text(samples.report(report), TextStyle())


def test_entries_are_named_as_the_map_names_them(samples):
    picture = JacobianMap(("g_x[0]", "g_x[1]"), ("x[0]",), ((1,), (0,)), (0.1, 0.2, 0.3))
    entries = Entries(1, 2, (Entry((0,), (0,), 1.0, 2.0, 0.0),))
    finding = Finding("GV201", Severity.ERROR, "wrong", output=0, input="x", entries=entries, map=picture)
    report = samples.target_report("f", Verdict.FAILED, findings=(finding,))
    assert "d g_x[0] / d x[0]" in render_text(samples.report(report), TextStyle())


def test_a_hint_that_several_findings_share_is_said_once(samples):
    without_fix = replace(samples.MISMATCH, changes=())
    first, second = replace(without_fix, input="a"), replace(without_fix, input="b")
    between = replace(without_fix, input="c", hint="Another thing to try.")
    report = replace(samples.FAILED, findings=(first, between, second))
    text = render_text(samples.report(report), TextStyle())
    assert text.count(samples.MISMATCH.hint) == 1
    assert "Another thing to try." in text
    assert render_text(samples.report(report), TextStyle(verbosity=1)).count(samples.MISMATCH.hint) == 2


def test_findings_that_one_fix_makes_right_are_reported_as_one(samples):
    found = [replace(samples.MISMATCH, input=name) for name in ("a", "b", "c")]
    other = replace(samples.MISMATCH, input="d", changes=())
    report = samples.report(replace(samples.FAILED, findings=(*found, other)))
    text = render_text(report, TextStyle())
    assert "also       GV101 for `b` and `c`: the fix makes that right, too\n" in text
    assert text.count("also GV101") == 1
    assert render_text(report, TextStyle(verbosity=1)).count("also GV101") == 3


@pytest.mark.parametrize(
    ("unicode", "words"), [(True, "1st order ✓, 2nd order ✗"), (False, "1st order ok, 2nd order FAIL")]
)
def test_a_right_first_order_is_credited(samples, unicode, words):
    right, wrong = Outcome.PASSED, Outcome.FAILED
    alone = replace(
        samples.FAILED,
        checks=samples.outcomes(right, wrong, Outcome.NOT_RUN, right),
        findings=(samples.SECOND,),
    )
    both = replace(alone, checks=samples.outcomes(wrong, wrong, Outcome.NOT_RUN, right))
    beside = replace(alone, findings=(samples.SECOND, samples.IGNORED))
    texts = [
        render_text(replace(samples.GREEN, targets=(one,)), TextStyle(unicode=unicode))
        for one in (alone, both, beside)
    ]
    assert [words in text for text in texts] == [True, False, False]


@pytest.mark.parametrize(
    ("domain", "inputs", "words"),
    [
        (Domain(("real",), real_alone=True), InputSource.SPEC, ", real inputs only, "),
        (
            Domain(("real",), ranges=("`x` positive",)),
            InputSource.INFERRED,
            ", inputs inferred, `x` positive, ",
        ),
        (Domain(("real",), ranges=("`x` positive",)), InputSource.SPEC, "reference, 3 layouts"),
        (Domain(("real",), constants=("w", "b")), InputSource.SPEC, ", `w` and `b` constant, "),
        (Domain(("real",), sizes="n=3"), InputSource.SPEC, ", one size only, "),
    ],
)
def test_a_pass_says_its_domain_where_it_is_narrow(samples, domain, inputs, words):
    report = replace(samples.PASSED, domain=domain, inputs=inputs)
    assert words in render_text(replace(samples.GREEN, targets=(report,)), TextStyle())


@pytest.mark.parametrize(
    ("closeness", "hides", "said"),
    [
        (Closeness.WITHIN, 1.2, ", float32 (sees errors > 1.2)"),
        (Closeness.WITHIN, 1e-6, ", float32"),
        (Closeness.ROUNDED, 0.5, ", float32 rounded (sees errors > 0.5)"),
    ],
)
def test_a_pass_says_in_which_dtype_a_mistake_would_not_show(samples, closeness, hides, said):
    swept = Swept(precision=(Precision("float32", "x", closeness, hides=hides),))
    target = replace(samples.PASSED, swept=swept, smallest_visible_error=None)
    report = replace(samples.GREEN, targets=(target,))
    line = next(one for one in render_text(report, TextStyle()).splitlines() if "linear" in one)
    assert line.endswith(said)
