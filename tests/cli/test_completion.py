"""Shell completion as a shell asks for it: by environment variables; torch is not loaded, nothing is run."""

import pytest

ASKED = [
    ("explain GV30", ["GV301", "GV302", "GV303"]),
    ("check --select GV106,GV10", ["GV106,GV101", "GV106,GV102", "GV106,GV103"]),
    ("check --ignore GW", []),
    ("check --format ju", ["junit"]),
    ("check --report sa", ["sarif="]),
    ("check wro", ["wrong.py", "wrong.gradverify.yaml", "wrong_syntax.py"]),
    ("check wrong.py::", ["wrong.py::Product", "wrong.py::Raises", "wrong.py::Noisy"]),
    ("check wrong.py::Rai", ["wrong.py::Raises"]),
    ("check wrong_syntax.py::", []),
    ("check nowhere/", []),
]


@pytest.fixture(scope="module")
def here(place):
    here = place("screens")
    (here.folder / "poison" / "torch").mkdir(parents=True)
    (here.folder / "poison" / "torch" / "__init__.py").write_text("raise ImportError('poisoned')\n")
    return here


@pytest.mark.parametrize(("line", "expected"), ASKED, ids=[line for line, _ in ASKED])
def test_completion(here, line, expected):
    asked = {
        "_GRADVERIFY_COMPLETE": "complete_bash",
        "COMP_WORDS": f"gradverify {line}",
        "COMP_CWORD": str(len(line.split())),
        "PYTHONPATH": str(here.folder / "poison"),
    }
    ran = here(**asked)
    assert ran.code == 0, ran.err
    completed = ran.out.split()
    assert [word for word in expected if word not in completed] == []
    if len(expected) < 3:
        assert completed == expected
