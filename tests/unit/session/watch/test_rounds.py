"""Rounds of `--watch` without a process: what is verified again, and what is reported of the rest."""

import ast
import contextlib
from dataclasses import replace

import pytest

from gradverify.errors import UsageError
from gradverify.model import (
    InputSource,
    Location,
    Mistake,
    Target,
    TargetKind,
    TargetPlan,
    TargetReport,
    Verdict,
)
from gradverify.session.modules import module_at
from gradverify.session.planning import Planned
from gradverify.session.request import Progress, Request
from gradverify.session.run import Session
from gradverify.session.selection import Selection
from gradverify.session.verifying import Judged
from gradverify.session.watch import rounds
from gradverify.session.watch.dependencies import OvertakenError
from gradverify.session.watch.rounds import MOST_OVERTAKEN, Watch

MODULE = """
import helper

class First:
    verdict = "passed"

class Second:
    verdict = "failed"

class Third:
    verdict = "passed"
"""


class Verifier:
    """Stands for workers: a target's verdict is what its class says; counts what it is asked for."""

    def __init__(self):
        self.imported, self.verified, self.overtaken_at = [], [], ""

    def prepare(self, request, progress, chosen, imported):
        session = Session(request, progress)
        for path, selections in chosen.modules.items():
            module = imported.get(path)
            if module is None:
                self.imported.append(path.name)
                module = module_at(path, None, selections)
            session.modules.append(module)
            try:
                classes = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
            except SyntaxError as error:
                module.error = Mistake(error.msg, Location(module.shown_path, error.lineno), kind="import")
                continue
            for node in classes:
                target = Target(node.name, node.name, TargetKind.FUNCTION, module.shown_path, node.lineno)
                plan = TargetPlan(node.name, node.name, InputSource.SPEC)
                session.planned.append(Planned(module, target, plan))
        return contextlib.nullcontext(session)

    def in_order(self, session):
        for one in session.planned:
            if one.target.name == self.overtaken_at:
                raise OvertakenError
            self.verified.append(one.target.name)
            (node,) = [
                n
                for n in ast.parse(one.module.path.read_text()).body
                if isinstance(n, ast.ClassDef) and n.name == one.target.name
            ]
            verdict = Verdict(ast.literal_eval(node.body[0].value))
            yield Judged(TargetReport(one.target, verdict, InputSource.SPEC))


class Here:
    """A folder that is watched."""

    def __init__(self, folder, verifier):
        self.folder, self.verifier, self.now = folder, verifier, 0
        self.watch = Watch(lambda: 0.0, lambda: f"12:00:0{self.now}")
        self.watch.workers.suit = lambda settings: None
        self.watch.workers.refill = lambda: None
        self.request = Request((Selection(folder / "m.py"), Selection(folder / "n.py")))

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def round(self, *names):
        """A round a second later; the names of the targets that it verifies."""
        self.now += 1
        self.verifier.verified.clear()
        self.verifier.imported.clear()
        self.done = self.watch.round(lambda: self.request, Progress())
        assert sorted(self.verifier.verified) == sorted(names)
        assert [name.partition("::")[2] for name in self.done.again] == self.verifier.verified
        return {t.target.name: (str(t.status), t.as_of, t.target.line) for t in self.done.report.targets}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verifier = Verifier()
    monkeypatch.setattr(rounds, "prepare", verifier.prepare)
    monkeypatch.setattr(rounds, "in_order", verifier.in_order)
    here = Here(tmp_path, verifier)
    here.write("pyproject.toml", "")
    here.write("m.py", MODULE)
    here.write("n.py", "class Fourth:\n    verdict = 'passed'\n")
    here.write("helper.py", "")
    here.round("First", "Second", "Third", "Fourth")
    return here


def test_nothing_was_saved(here):
    verdicts = here.round()
    assert verdicts["First"] == ("passed", "12:00:01", 4)
    assert here.verifier.imported == []
    assert here.done.report.exit_code == 1


def test_one_class_was_saved(here):
    """What is not verified is verified again with its module: what it says of lines may have moved."""
    here.write("m.py", MODULE.replace('First:\n    verdict = "passed"', 'First:\n\n    verdict = "failed"'))
    verdicts = here.round("First", "Second")
    assert verdicts["First"] == ("failed", "", 4)
    assert verdicts["Third"] == ("passed", "12:00:01", 11)
    assert here.verifier.imported == ["m.py"]
    assert [(str(before), str(now)) for _, before, now in here.done.turned] == [("passed", "failed")]


def test_an_import_was_saved(here):
    here.write("helper.py", "MORE = 1")
    here.round("First", "Second", "Third")
    assert here.done.turned == ()


def test_a_target_came_and_one_went(here):
    here.write("m.py", MODULE.replace("Third", "Fifth"))
    verdicts = here.round("Second", "Fifth")
    assert list(verdicts) == ["First", "Second", "Fifth", "Fourth"]


def test_a_syntax_error_keeps_what_was_known_readable_and_not_green(here):
    here.write("m.py", MODULE + "(")
    verdicts = here.round()
    assert [status for status, *_ in verdicts.values()] == ["unchecked"] * 3 + ["passed"]
    assert here.done.report.exit_code == 2
    reasons = [target.reason for target in here.done.report.targets]
    assert reasons[0] == "its module cannot be imported now; passed as of 12:00:01"
    here.write("m.py", MODULE)
    verdicts = here.round()
    assert verdicts["First"] == ("passed", "12:00:01", 4)
    assert here.done.report.exit_code == 1


def test_a_deleted_file(here):
    def refused():
        raise UsageError("there is no file `m.py`")

    here.round()
    done = here.watch.round(refused, Progress())
    assert done.report.exit_code == 2
    assert [str(target.status) for target in done.report.targets] == ["unchecked"] * 4
    assert [mistake.message for mistake in done.report.errors] == ["there is no file `m.py`"]
    assert here.round()["Fourth"][0] == "passed"


def test_what_was_verified_before_a_save_overtook_it_is_known(here):
    here.write("helper.py", "MORE = 1")
    here.verifier.overtaken_at = "Second"
    with pytest.raises(OvertakenError):
        here.round()
    here.verifier.overtaken_at = ""
    here.round("Second", "Third")
    here.write("helper.py", "MORE = 2")
    here.round("First", "Second", "Third")


def test_code_that_saves_what_is_watched_gets_a_verdict(here):
    """After some rounds none is overtaken any more."""
    asked = []
    begin = here.watch._overtaking.begin
    here.watch._overtaking.begin = lambda files, contents: (asked.append(set(files)), begin(files, contents))
    here.write("helper.py", "MORE = 1")
    here.verifier.overtaken_at = "First"
    for _ in range(MOST_OVERTAKEN):
        with pytest.raises(OvertakenError):
            here.round()
    here.verifier.overtaken_at = ""
    asked.clear()
    here.round("First", "Second", "Third")
    assert asked[0] == set()


def test_other_terms_or_a_wish_verify_everything(here):
    here.request = replace(here.request, rtol=1e-3)
    here.round("First", "Second", "Third", "Fourth")
    here.watch.forget()
    here.round("First", "Second", "Third", "Fourth")


def test_a_save_while_a_round_reads_is_seen(here):
    """What is waited for differs from what was there before the round read it."""
    before = here.watch.seen
    here.write("helper.py", "MORE = 1")
    here.round("First", "Second", "Third")
    assert here.watch.seen == here.watch.look()
    assert here.watch.seen != before
