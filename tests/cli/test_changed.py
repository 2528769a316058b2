"""`--changed [REF]`: the targets that may differ from a revision, and in doubt all."""

import json
import shutil
import subprocess

import pytest

SOURCE = """
from torch.autograd import Function

from package import scaling


def twice(x):
    return 2 * x


class First(Function):
    @staticmethod
    def forward(ctx, x):
        return scaling.factor() * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Second(Function):
    @staticmethod
    def forward(ctx, x):
        return twice(x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""
ALL = ["First", "Second"]
SCALING = "def factor():\n    return 2\n"
FILES = {
    "m.py": SOURCE,
    "alone.py": SOURCE.replace("from package import scaling\n", "").replace("scaling.factor()", "2"),
    "package/__init__.py": "",
    "package/scaling.py": SCALING,
    "kernel.cu": "",
}
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@pytest.fixture(scope="module")
def here(place):
    here = place("screens")
    for old in here.folder.iterdir():
        old.unlink()
    (here.folder / "package").mkdir()
    reset(here)
    git(here, "init", "-q", "-b", "main")
    git(here, "add", "-A")
    git(here, "commit", "-q", "-m", "first")
    git(here, "tag", "v1")
    return here


def git(here, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=here.folder, check=True)


def reset(here):
    for name, text in FILES.items():
        (here.folder / name).write_text(text)


def changed(here, *arguments):
    ran = here("check", *arguments, "--no-infer", "--format", "json")
    assert "Traceback" not in ran.err
    found = {}
    for target in json.loads(ran.out)["targets"]:
        found.setdefault(target["file"], []).append(target["name"])
    return ran, found


CHANGES = {
    "a body": ({"m.py": SOURCE.replace("scaling.factor() * x", "2 * x")}, {"m.py": ["First"]}),
    "a helper": ({"m.py": SOURCE.replace("return 2 * x", "return x + x")}, {"m.py": ["Second"]}),
    "a statement": ({"m.py": SOURCE + "\nFirst.more = 1\n"}, {"m.py": ALL}),
    "a comment": ({"m.py": SOURCE + "\n# more\n"}, {}),
    "an import": ({"package/scaling.py": SCALING + "\n\nMORE = 1\n"}, {"m.py": ALL}),
    "a kernel": ({"kernel.cu": "// more"}, {"m.py": ALL, "alone.py": ALL}),
    "a new spec": (
        {"m.gradverify.yaml": "gradverify: 1\nmodule: m.py\nfunctions: {First: {inputs: {x: [2]}}}\n"},
        {"m.py": ALL},
    ),
    "a new file": ({"new.py": FILES["alone.py"]}, {"new.py": ALL}),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_may_differ(here, name):
    files, expected = CHANGES[name]
    try:
        for file, text in files.items():
            (here.folder / file).write_text(text)
        ran, found = changed(here, ".", "--changed")
        assert found == expected
        if not expected:
            assert ran.code == 5
            assert "--changed: no" in ran.err
    finally:
        for file in files:
            (here.folder / file).unlink()
        reset(here)


def test_a_bare_option_takes_no_target_for_its_revision(here):
    (here.folder / "alone.py").write_text(FILES["alone.py"].replace("2 * x", "x * 2"))
    try:
        git(here, "commit", "-q", "-a", "-m", "second")
        assert changed(here, "--changed", "alone.py")[1] == {}
        assert changed(here, "--changed", "v1", "alone.py")[1] == {"alone.py": ALL}
        assert changed(here, "alone.py", "--changed=v1")[1] == {"alone.py": ALL}
    finally:
        git(here, "reset", "-q", "--hard", "v1")


def test_mistakes(here, tmp_path):
    unknown = here("check", "m.py", "--changed", "nowhere")
    assert (unknown.code, unknown.err) == (2, "gradverify: --changed: git knows no revision `nowhere`\n")
    without = here("check", "m.py", "--changed", PATH=str(tmp_path))
    assert (without.code, without.err) == (
        2,
        "gradverify: --changed needs git, which was not found\n",
    )


def test_no_repository(place):
    ran = place("screens")("check", "right.py", "--changed")
    assert ran.code == 2
    assert ran.err.startswith("gradverify: --changed: git: fatal: not a git repository")
