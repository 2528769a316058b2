"""When it is certain that ranks are out of step, and when it is not."""

import pytest

from gradverify.verifier.ranks.collectives import Record, out_of_step, waiting
from gradverify.verifier.ranks.messages import Entered

WORLD = (0, 1)


def at(operation="all_reduce", peer=-1, members=WORLD, group="world"):
    return Entered(operation, group, members, peer, "f.py:3")


RETURNED = "has gone on"


@pytest.mark.parametrize(
    "records",
    [
        [Record([at()]), Record([])],
        [Record([at()]), Record([at()])],
        [Record([at()], RETURNED), Record([at()])],
        [Record([at("send", 1)]), Record([], RETURNED)],
        [Record([at(group="a")]), Record([at("all_gather", group="b")])],
        [Record([at("recv", 1)]), Record([at("send", 0)], RETURNED)],
    ],
)
def test_what_may_still_go_on(records):
    assert out_of_step(records) == ""


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (
            [Record([at()]), Record([], RETURNED)],
            "rank 0 is in all_reduce (f.py:3), rank 1 has gone on without it",
        ),
        (
            [Record([at()]), Record([at("all_gather")])],
            "rank 0 is in all_reduce (f.py:3), rank 1 is in all_gather (f.py:3)",
        ),
        (
            [Record([at(members=(-1, 0, 1))]), Record([])],
            "rank 0 is in all_reduce (f.py:3), in another group than the one it was given",
        ),
    ],
)
def test_what_will_never_go_on(records, said):
    assert out_of_step(records) == said


def test_where_all_wait():
    records = [Record([at("recv", 1)]), Record([at("recv", 0)])]
    assert out_of_step(records) == ""
    assert (
        waiting(records) == "rank 0 is in recv from rank 1 (f.py:3), rank 1 is in recv from rank 0 (f.py:3)"
    )
