"""What differs in every process is left out of user code's text, and nothing else."""

import tempfile
from pathlib import Path

import pytest

from gradverify.repeatable import repeatable


class Plain:
    pass


@pytest.mark.parametrize("value", [Plain(), Plain().__init__, lambda: 0], ids=["object", "method", "lambda"])
def test_addresses(value):
    assert f"{id(value):x}" not in repeatable(repr(value))
    assert " at 0x..." in repeatable(repr(value))


def test_temporary_names():
    with tempfile.TemporaryDirectory() as name, tempfile.NamedTemporaryFile(suffix=".so") as file:
        assert Path(repeatable(name)).name == "tmp..."
        assert Path(repeatable(file.name)).name == "tmp....so"


@pytest.mark.parametrize(
    "text",
    [
        "the mask is 0xdeadbeef",
        "opcode at 0xff",
        "/tmp/template_1.py",
        "/home/me/tmpfolder/m.py",
        "wrong at 3 of 60 entries",
        "tmpabcdefgh",
    ],
)
def test_all_else_stays(text):
    assert repeatable(text) == text
