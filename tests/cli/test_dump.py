"""`--dump`: scripts of plain torch that show each error, until it is mended."""

import json
import re

import forked_command
import pytest

SCRIPTS = {
    "buggy-Product-GV101-b.py": ("analytical", "numerical", "they differ by"),
    "buggy-Cut-GV202-x.py": ("analytical  0\n", "numerical", "they differ by"),
    "buggy-Typo-GV102.py": ("NameError: name 'y' is not defined",),
    "buggy-LogDet-GV101-a.py": ("analytical", "they differ by"),
    "buggy-Rotated-GV101-z.py": ("analytical", "they differ by"),
}


@pytest.fixture(scope="module")
def dumped(place):
    here = place("dumped")
    return here, here("check", "buggy.py", "--dump", "out", "--format", "json")


def run(here, name):
    done = forked_command.python([f"out/{name}"], here.folder)
    return done.code, done.out + done.err


def test_every_error_has_its_script(dumped):
    here, ran = dumped
    assert ran.code == 1
    findings = [f for t in json.loads(ran.out)["targets"] for f in t["findings"] if f["severity"] == "error"]
    assert {f["dump"] for f in findings} == {f"out/{name}" for name in SCRIPTS}
    files = {file.name for file in (here.folder / "out").iterdir()}
    assert files == {name.replace(".py", end) for name in SCRIPTS for end in (".py", ".pt")}


def test_the_scripts_show_the_error_and_then_that_it_is_mended(dumped):
    here, _ = dumped
    for name, words in SCRIPTS.items():
        code, said = run(here, name)
        assert code == 1, (name, said)
        assert all(word in said for word in words), (name, said)
        text = (here.folder / "out" / name).read_text()
        assert "import gradverify" not in text
        assert str(here.folder) not in text
    module = here.folder / "buggy.py"
    module.write_text(re.sub(r"return .*# mend: ", "", module.read_text()))
    for name in SCRIPTS:
        code, said = run(here, name)
        assert code == 0, (name, said)


def test_the_same_files_in_every_run_and_their_names_in_the_text(dumped):
    here, _ = dumped
    wrong = "import torch\n\nclass F(torch.autograd.Function):\n"
    wrong += "    forward = staticmethod(lambda ctx, x: x * 2)\n"
    wrong += "    backward = staticmethod(lambda ctx, g: g * 3)\n"
    (here.folder / "again.py").write_text(wrong)
    one = here("check", "again.py", "--dump", "one")
    two = here("check", "again.py", "--dump", "two", PYTHONHASHSEED="7")
    assert "  dump       one/again-F-GV101-x.py" in one.out
    assert one.out.replace("one/", "two/") == two.out
    script = "again-F-GV101-x.py"
    assert (here.folder / "one" / script).read_text() == (here.folder / "two" / script).read_text()


@pytest.mark.parametrize(
    ("folder", "words"),
    [("buggy.py", "is not a folder"), ("nowhere/below", "cannot be made: No such file or directory")],
)
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(dumped, folder, words):
    here, _ = dumped
    ran = here("check", "buggy.py", "--dump", folder)
    assert (ran.code, ran.out) == (2, "")
    assert f"--dump: `{folder}` {words}" in ran.err
