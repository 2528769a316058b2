"""Shards joined are the whole run, byte for byte; what is no shard of it is refused."""

import json

import pytest


@pytest.fixture(scope="module")
def runs(place):
    here = place("screens")
    names = ("whole.json", "1.json", "2.json")
    options = ([], ["--shard", "1/2"], ["--shard", "2/2"])
    codes = [
        here("check", "right.py", "wrong.py", "broken.py", "--report", f"json={name}", *more).code
        for name, more in zip(names, options, strict=True)
    ]
    assert codes == [2, 2, 2]
    return here


def test_shards_joined_are_the_whole(runs):
    ran = runs("merge", "2.json", "1.json")
    assert ran.out == (runs.folder / "whole.json").read_text()
    assert (ran.code, ran.err) == (2, "")
    one, two = (json.loads((runs.folder / f"{k}.json").read_text())["targets"] for k in (1, 2))
    assert len(one) + len(two) == len(json.loads(ran.out)["targets"])
    assert min(len(one), len(two)) >= 3


def test_the_exit_code_is_that_of_the_whole(runs):
    document = json.loads((runs.folder / "1.json").read_text())
    assert document.pop("shard") == "1/2"
    green = {**document, "errors": [], "targets": [t for t in document["targets"] if t["status"] == "passed"]}
    (runs.folder / "green.json").write_text(json.dumps(green))
    (runs.folder / "empty.json").write_text(json.dumps({**green, "targets": []}))
    (runs.folder / "bug.json").write_text(json.dumps({**green, "targets": [], "exit_code": 3}))
    assert runs("merge", "green.json", "empty.json", "-o", "out.json").code == 0
    assert json.loads((runs.folder / "out.json").read_text())["exit_code"] == 0
    assert runs("merge", "empty.json").code == 5
    assert runs("merge", "green.json", "bug.json").code == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("merge", "1.json", "1.json"), "is in two of the reports"),
        (("merge", "1.json"), "the report of shard 2/2 is missing"),
        (("merge", "1.json", "third.json"), "shards of 2 and of 3"),
        (("merge", "1.json", "unsharded.json"), "`unsharded.json` is the report of no shard"),
        (("merge", "none.json"), "`none.json` cannot be read: No such file or directory"),
        (("merge", "right.py"), "`right.py` is not JSON"),
        (("merge", "other.json"), "`other.json` is no report of"),
        (("merge", "1.json", "seed.json"), "is of another run than `1.json`: their `seed` differ"),
        (
            ("merge", "1.json", "2.json", "-o", "nowhere/out.json"),
            "--output: `nowhere/out.json` cannot be wri",
        ),
        (("check", "right.py", "--shard", "3/2"), "--shard: 3 is not between 1 and 2"),
        (("check", "right.py", "--shard", "0/2"), "--shard: 0 is not between 1 and 2"),
        (("check", "right.py", "--shard", "half"), "--shard: `half` is not I/N"),
    ],
)
def test_mistakes(runs, arguments, words):
    document = json.loads((runs.folder / "2.json").read_text())
    (runs.folder / "seed.json").write_text(json.dumps({**document, "seed": 7}))
    third = {**document, "shard": "3/3", "targets": [], "errors": []}
    (runs.folder / "third.json").write_text(json.dumps(third))
    unsharded = {key: value for key, value in third.items() if key != "shard"}
    (runs.folder / "unsharded.json").write_text(json.dumps(unsharded))
    (runs.folder / "other.json").write_text('{"schema": "gradverify-report/1", "targets": [3], "errors": []}')
    ran = runs(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
