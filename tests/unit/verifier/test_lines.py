"""The line of a definition, also where one name is defined twice, nested or decorated."""

import importlib.util
import linecache
import sys

import pytest

from gradverify.verifier.targets.discover import line_of

SOURCE = """import functools

def plain(x):
    return x

def mark(cls):
    return cls

if plain(False):
    class Twice:
        def forward(self):
            return 1
else:
    class Twice:
        def forward(self):
            return 2

try:
    import nothing_of_that_name
except ImportError:
    class Fallback:
        def forward(self):
            return 3

@mark
class Decorated:
    class Inner:
        def forward(self):
            return 4

def build():
    class Local:
        def forward(self):
            return 5
    return Local

class Empty:
    pass

Made = type("Made", (), {})
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    file = tmp_path_factory.mktemp("lines") / "lines_of_it.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("lines_of_it", file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    linecache.checkcache(str(file))
    sys.modules["lines_of_it"] = loaded
    yield loaded
    del sys.modules["lines_of_it"]


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("plain", 3),
        ("Twice", 14),
        ("Fallback", 21),
        ("Decorated", 25),
        ("Decorated.Inner", 27),
        ("build()", 32),
        ("Empty", 37),
        ("Made", 1),
    ],
)
def test_line_of(module, expression, line):
    assert line_of(eval(expression, vars(module))) == line
