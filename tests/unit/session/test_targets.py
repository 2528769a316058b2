"""What TARGETs stand for, and which files of a folder are worth importing; nothing is imported here."""

import sys
from pathlib import Path

import pytest

from gradverify.errors import SpecError, UsageError
from gradverify.session.choosing import choose
from gradverify.session.folders import exclusion, may_define, python_files
from gradverify.session.request import Request
from gradverify.session.selection import Selection, parse_targets

FUNCTION = "from torch.autograd import Function\nclass F(Function): pass\n"
SPEC = "gradverify: 1\nmodule: {}\nfunctions:\n  F: {{inputs: {{x: [n]}}}}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, **files):
    """Files by their names, `__` standing for a slash."""
    for name, text in files.items():
        path = folder / (name if "/" in name else name.replace("__", "/") + ("" if "." in name else ".py"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def chosen(*targets, exclude=()):
    """The modules that targets lead to, as paths relative to the current folder."""
    selections, specs = parse_targets(targets)
    excluded = exclusion([(Path.cwd(), pattern) for pattern in exclude])
    found = choose(Request(selections, specs=specs, excluded=excluded))
    return [path.relative_to(Path.cwd()).as_posix() for path in found.modules], found


@pytest.mark.parametrize(
    "source",
    [
        FUNCTION,
        "import torch\nif True:\n    class F(torch.autograd.Function): pass\n",
        "from torch.autograd import Function as Base\nclass F(Base): pass\n",
        "from torch.autograd.function import InplaceFunction\nclass F(InplaceFunction): pass\n",
        "from .base import Smooth\nclass F(Smooth):\n    @staticmethod\n    def backward(ctx, g): return g\n",
        "import torch\n@torch.library.custom_op('a::b', mutates_args=())\ndef f(x): return x\n",
        "from torch.library import triton_op\nf = triton_op('a::b', print, mutates_args=())\n",
        "import torch\ntorch.library.register_autograd('a::b', print)\n",
        "import torch.autograd\nclass F(torch.autograd.Function:\n",
    ],
)
def test_source_that_may_define_one(tmp_path, source):
    path = tmp_path / "m.py"
    path.write_text(source)
    assert may_define(path)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "# class F(Function)\ntext = 'backward of a Function'\n",
        "class Layer:\n    def backward(self, g): return g\n",
        "import torch\nclass Net(torch.nn.Module):\n    def backward(self, g): return g\n",
        "from m import F\nF.apply\nFunction = 3\n",
        "def broken(:\n    Function\n",
    ],
)
def test_source_that_defines_none(tmp_path, source):
    path = tmp_path / "m.py"
    path.write_text(source)
    assert not may_define(path)


def test_folders_that_are_passed_over(here):
    names = ("a", "b__c", ".git__d", "env__e", "b__venv__f", "__pycache__/g.py", "b/.hidden/h.py")
    write(
        here, **dict.fromkeys(names, ""), **{"env__pyvenv.cfg": "", "b__venv__pyvenv.cfg": "", "b__t.txt": ""}
    )
    files = [path.as_posix() for path in python_files(Path(), lambda _: False)]
    assert files == ["a.py", "b/c.py"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("old", "new.py src/old.py src/ops/old_ops.py"),
        ("old*", "new.py"),
        ("*.py", ""),
        ("src", "new.py"),
        ("src/", "new.py"),
        ("./src/ops/", "new.py src/old.py"),
        ("src/*.py", "new.py src/ops/old_ops.py"),
        ("src/**/*.py", "new.py"),
        ("**/old*.py", "new.py"),
        ("src/o[kl]?.py", "new.py src/ops/old_ops.py"),
        ("src/o[!l]?.py", "new.py src/old.py src/ops/old_ops.py"),
        ("[", "new.py src/old.py src/ops/old_ops.py"),
    ],
)
def test_exclude(here, pattern, left):
    write(here, new="", src__old="", src__ops__old_ops="")
    found = python_files(Path(), exclusion([(here, pattern)]))
    assert " ".join(path.as_posix() for path in found) == left


def test_a_folder(here):
    """Of its files those that may define a Function, or that a spec names, wherever it lies."""
    write(
        here,
        src__a=FUNCTION,
        src__sub__b=FUNCTION,
        src__none="x = 1\n",
        src__named="F = abs\n",
        src__c="F = abs\n",
    )
    write(
        here,
        **{"src__c.gradverify.yaml": SPEC.format("c.py"), "specs__n.yaml": SPEC.format("../src/named.py")},
    )
    assert chosen("src")[0] == ["src/a.py", "src/c.py", "src/named.py", "src/sub/b.py"]
    assert chosen(".", exclude=["sub", "c.py"])[0] == ["src/a.py", "src/named.py"]
    assert chosen("src/none.py", "src/a.py", exclude=["a.py"])[0] == ["src/none.py"]
    assert chosen("src/sub", "src/sub/b.py")[0] == ["src/sub/b.py"]


def test_a_folder_without_any(here):
    write(here, src__none="x = 1\n")
    files, found = chosen("src/")
    assert (files, found.empty_folders) == ([], ("src/",))


def test_a_spec_with_mistakes_is_not_passed_over(here):
    write(
        here,
        **{"src__a": "F = abs\n", "src__a.gradverify.yaml": SPEC.format("a.py").replace("inputs", "inptus")},
    )
    with pytest.raises(SpecError):
        chosen("src")


def test_dotted_modules(here, monkeypatch):
    write(
        here, **{"pkg/__init__.py": "raise SystemExit\n"}, pkg__mod=FUNCTION, pkg__none="", namespace__mod=""
    )
    write(here, elsewhere__far__away="", elsewhere__far__and__farther="", elsewhere__far__and__off__end="")
    monkeypatch.syspath_prepend(str(here / "elsewhere"))
    assert parse_targets(["pkg.mod::F[b=3]"])[0] == (Selection(Path("pkg/mod.py"), "F", "b=3"),)
    assert parse_targets(["namespace.mod"])[0] == (Selection(Path("namespace/mod.py")),)
    assert parse_targets(["far.away"])[0] == (Selection(Path("elsewhere/far/away.py")),)
    for name in ("and.farther", "and.off.end"):  # no folder of which has an __init__.py
        path = Path("elsewhere/far", *name.split(".")).with_suffix(".py")
        assert parse_targets([f"far.{name}"])[0] == (Selection(path),)
    assert parse_targets(["pkg::F"])[0] == (Selection(Path("pkg/__init__.py"), "F"),)
    assert chosen("pkg")[0] == ["pkg/mod.py"]
    assert "pkg" not in sys.modules
    with pytest.raises(UsageError, match=r"`pkg.mdo` is neither a file or folder nor a module"):
        parse_targets(["pkg.mdo"])


def test_a_spec_file(here):
    write(here, src__a="F = abs\n", src__b="F = abs\n")
    entries = "".join(f"  ../src/{name}.py::F: {{inputs: {{x: [n]}}}}\n" for name in "ab")
    text = f"gradverify: 1\nfunctions:\n{entries}"
    write(here, **{"own__ab.gradverify.yaml": text, "own__lost.yaml": SPEC.format("not_installed_here")})
    files, found = chosen("own/ab.gradverify.yaml")
    assert files == ["src/a.py", "src/b.py"]
    assert {spec.shown_path for spec in found.specs.values()} == {"own/ab.gradverify.yaml"}
    with pytest.raises(UsageError, match="names no module whose source can be found"):
        chosen("own/lost.yaml")
