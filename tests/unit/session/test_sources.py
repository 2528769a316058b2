"""Which definitions differ between two sources, as far as reading tells."""

import pytest

from gradverify.session.changed import Changes
from gradverify.session.sources import changed_names, imported_files

BEFORE, AFTER = "class A:\n    x = 1\n", "class A:\n    x = 2\n"


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("", {"A"}),
        ("a = A.apply", {"A", "a"}),
        ("a = A.apply\nb = c = a", {"A", "a", "b", "c"}),
        ("a = B.apply", {"A"}),
        ("a = A.apply()", None),
        ("a, b = A.apply", None),
        ("a = {1: A.apply}", None),
        ("register(A)", None),
        ("B.a = A.apply", None),
    ],
)
def test_another_name_differs_with_what_it_names(statement, changed):
    assert changed_names(f"{BEFORE}{statement}\n", f"{AFTER}{statement}\n") == changed


MODULE = """
from pathlib import Path

try:
    from fast import kernel
except ImportError:
    from slow import kernel

TABLE = (Path(__file__).parent / "table.npz").read_bytes()
"""


@pytest.fixture
def project(tmp_path):
    for name, text in {"m.py": MODULE, "slow.py": "import deep", "deep.py": "", "other.py": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "table.npz").write_bytes(bytes(range(256)))
    return tmp_path.resolve()


def test_a_module_depends_on_what_it_imports_and_on_files_that_it_names(project):
    found = imported_files([project / "m.py"], [project])
    assert {file.name for file in found} == {"m.py", "slow.py", "deep.py", "table.npz"}


def around(project, *names):
    files = frozenset(project / name for name in names)
    return Changes("HEAD", project, "c", files).around(project / "m.py", None)


@pytest.mark.parametrize(
    ("names", "may_differ"),
    [
        (["table.npz"], True),
        (["deep.py"], True),
        (["other.py"], False),
        (["fast.py"], True),
        (["gone.py"], False),
        (["m.gradverify.yaml"], True),
    ],
    ids=str,
)
def test_what_is_gone_differs_where_something_still_asks_for_it(project, names, may_differ):
    assert around(project, *names) is may_differ
