"""`--lf`: only what was not verified last time; whatever is not known is verified, and said."""

import json

import pytest


@pytest.fixture
def here(place):
    folder = place("screens")
    (folder.folder / "wrong.gradverify.yaml").unlink()
    (folder.folder / "two.py").write_text(SOURCE)
    return folder


SOURCE = """
from torch.autograd import Function


class Right(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Wrong(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad
"""


def names(ran):
    return [target["name"] for target in json.loads(ran.out)["targets"]]


def test_what_was_not_verified_is_verified_again(here):
    source = here.folder / "two.py"
    lf = ("check", "two.py", "--lf", "--format", "json")
    first = here(*lf)
    assert names(first) == ["Right", "Wrong"]
    assert first.err == "gradverify: --lf: no earlier run is known here, so everything is verified\n"
    cache = here.folder / ".gradverify_cache"
    assert "*" in (cache / ".gitignore").read_text().splitlines()

    second = here(*lf)
    assert (second.code, names(second)) == (1, ["Wrong"])
    assert second.err == "gradverify: --lf: 1 target of those selected, not verified last time\n"

    source.write_text(SOURCE.replace("3 * grad", "2 * grad"))
    narrowed = here("check", "two.py::Wrong", "--select", "GV401")
    assert narrowed.code == 0
    third = here(*lf)
    assert (third.code, names(third)) == (0, ["Wrong"])

    fourth = here(*lf)
    assert (fourth.code, names(fourth)) == (0, ["Right", "Wrong"])
    assert "nothing was left unverified last time, so everything is verified" in fourth.err


def test_a_new_name_and_another_selection_are_not_lost(here):
    assert here("check", "two.py", "broken.py").code == 2
    renamed = SOURCE.replace("class Wrong", "class StillWrong")
    (here.folder / "two.py").write_text(renamed)
    ran = here("check", "two.py", "right.py", "--lf", "--format", "json")
    assert names(ran) == ["Right", "StillWrong"]
    other = here("check", "right.py::Scale", "--lf", "--format", "json")
    assert (other.code, names(other)) == (0, ["Scale"])
    assert "is not selected, so all that is selected is verified" in other.err
    assert here("check", "broken.py", "two.py::StillWrong", "--lf").code == 2


def test_a_cache_of_another_kind_is_none(here):
    cache = here.folder / ".gradverify_cache"
    cache.mkdir()
    (cache / "last_run.json").write_text('{"schema": "other"}')
    ran = here("check", "two.py::Right", "--lf")
    assert (ran.code, "no earlier run is known here" in ran.err) == (0, True)
