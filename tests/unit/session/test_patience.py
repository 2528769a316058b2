"""How long a search for a cause may take on a machine that is busy."""

import os
import time

import pytest

from gradverify.session import processes
from gradverify.session.patience import patience_of
from gradverify.session.processes import worked_seconds


@pytest.mark.parametrize(
    ("worked", "until"),
    [(24.0, 120.0), (9.0, 135.0), (3.99, 140.01), (3.0, 141.0)],
    ids=["it has worked as long as it may", "it has had a quarter", "hardly begun", "not at all"],
)
def test_a_search_that_other_work_holds_up_goes_on(worked, until):
    had = iter([4.0, worked])
    patience = patience_of(lambda: next(had), 100.0, 120.0, 1000.0)
    assert patience.until(120.0, 120.0) == pytest.approx(until)


def test_never_for_longer_than_four_times_nor_past_the_limit_of_the_target():
    assert patience_of(lambda: 4.0, 100.0, 120.0, 1000.0).until(175.0, 170.0) == 180.0
    assert patience_of(lambda: 4.0, 100.0, 120.0, 130.0).until(120.0, 120.0) == 130.0


def test_by_the_clock_where_nobody_tells_how_long_it_worked():
    assert patience_of(lambda: None, 100.0, 120.0, 1000.0).until(120.0, 120.0) == 120.0


def test_how_long_a_process_has_worked(monkeypatch, tmp_path):
    if not processes._PROCESSES.is_dir():
        pytest.skip("no /proc here")
    before, begun = worked_seconds(os.getpid()), time.process_time()
    while time.process_time() - begun < 0.2:
        pass
    assert 0.1 <= worked_seconds(os.getpid()) - before <= 2.0
    monkeypatch.setattr(processes, "_PROCESSES", tmp_path / "none")
    assert worked_seconds(os.getpid()) is None
