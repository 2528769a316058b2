"""Seeing that files were saved: what editors do to a file is one save, and only another content overtakes."""

import itertools

import pytest

from gradverify.session.watch.dependencies import (
    LONGEST_UNREST_SECONDS,
    LOOK_SECONDS,
    Contents,
    OvertakenError,
    Overtaking,
    at_rest,
    but_earlier,
    differing,
    look_at,
)


def look(**stamps):
    return {name: stamp and (stamp, 1, 1) for name, stamp in stamps.items()}


def scripted(*looks):
    """Looks in this order, the last one for ever."""
    return iter([*looks, *itertools.repeat(looks[-1], 1000)]).__next__


class Waits:
    """Counts how often it waits; somebody presses Enter at the given one."""

    def __init__(self, enter=None):
        self.seconds, self._enter = [], enter

    def __call__(self, seconds):
        self.seconds.append(seconds)
        return len(self.seconds) == self._enter


OLD, GONE, HALF, NEW = look(m=1), look(m=None), look(m=2), look(m=3)


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([NEW], 1),
        ([OLD, OLD, NEW], 3),
        ([HALF, NEW], 2),
        ([GONE, NEW], 2),
        ([OLD, GONE, HALF, NEW], 4),
        ([GONE], 1),
    ],
    ids=["at once", "later", "written twice", "renamed over", "all of it", "deleted"],
)
def test_one_save_however_it_is_written(looks, waits):
    wait = Waits()
    assert at_rest(scripted(*looks), OLD, wait) == looks[-1]
    assert len(wait.seconds) == waits


def test_what_was_set_back_is_looked_at_all_the_same():
    assert at_rest(scripted(HALF, OLD), OLD, Waits()) == OLD


def test_somebody_asks_for_everything():
    assert at_rest(scripted(OLD), OLD, Waits(enter=3)) is None
    assert at_rest(scripted(*(look(m=n) for n in range(2, 99))), OLD, Waits(enter=3)) is None


def test_a_file_that_is_never_at_rest_is_looked_at_as_it_is():
    wait = Waits()
    ever = (look(m=n) for n in itertools.count(2))
    assert at_rest(ever.__next__, OLD, wait) is not None
    assert sum(wait.seconds) == pytest.approx(LONGEST_UNREST_SECONDS)


def test_what_is_seen_of_files(tmp_path):
    file, other = tmp_path / "m.py", tmp_path / "new.py"
    file.write_text("a")
    watched = {file, other, tmp_path}
    before = look_at(watched)
    assert look_at(watched) == before
    other.write_text("b")
    after = look_at(watched)
    assert differing(before, after) == [other]
    assert after[tmp_path] != before[tmp_path]
    (tmp_path / ".m.py.swp").write_text("c")
    assert differing(after, look_at(watched)) == []
    file.unlink()
    assert differing(after, look_at(watched)) == [file]


def test_an_earlier_look_goes_before():
    assert but_earlier(look(m=3, n=4), look(m=1, gone=2)) == look(m=1, n=4)
    assert but_earlier(look(m=3), {}) == look(m=3)


@pytest.fixture
def clock():
    now = [0.0]

    def time():
        return now[0]

    time.passes = lambda: now.__setitem__(0, now[0] + 2 * LOOK_SECONDS)
    return time


def test_only_another_content_overtakes(tmp_path, clock):
    file = tmp_path / "m.py"
    file.write_text("a")
    overtaking = Overtaking(clock)
    overtaking.begin([file, tmp_path / "none.py"], Contents())
    clock.passes()
    overtaking()
    file.unlink()
    file.write_text("a")  # another file of the same content
    clock.passes()
    overtaking()
    file.write_text("b")
    overtaking()  # a moment after the last look
    clock.passes()
    with pytest.raises(OvertakenError):
        overtaking()


def test_nothing_in_question_overtakes_nothing(tmp_path, clock):
    file = tmp_path / "m.py"
    file.write_text("a")
    overtaking = Overtaking(clock)
    overtaking.begin([file], Contents())
    overtaking.begin([], Contents())
    file.write_text("b")
    clock.passes()
    overtaking()
