"""Importing like Python does, and finding what has a backward."""

from __future__ import annotations

import random
import sys
import textwrap

import pytest
import torch

from gradverify.verifier.targets.discover import defaults_of, discover, is_old_style, parameters_of
from gradverify.verifier.targets.importing import dotted_name, import_file, resolve

SOURCE = """
    import torch
    from torch.autograd import Function
    from torch.utils.checkpoint import CheckpointFunction

    class Base(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    class Heir(Base):
        @staticmethod
        def backward(ctx, g):
            return g * 2

    class Abstract(Function):
        pass

    class New(Function):
        @staticmethod
        def forward(x, scale: float = 2.0, *, flag=True):
            return x * scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g, None

    class Old(Function):
        def forward(self, x, *rest):
            return x

        def backward(self, g):
            return g

    Alias = New

    if __name__ == "__main__":
        raise SystemExit("this must not run")
"""


@pytest.fixture
def restored(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def module(tmp_path, restored):
    file = tmp_path / "gv_subject_module.py"
    file.write_text(textwrap.dedent(SOURCE))
    return import_file(file).module


def test_own_functions_are_found_in_source_order_once(module):
    targets, passed_over = discover(module, "shown.py")
    assert [t.name for t in targets] == ["Heir", "New", "Old"]
    assert [t.line for t in targets] == sorted(t.line for t in targets)
    reasons = {p.name: p.reason for p in passed_over}
    assert reasons.keys() == {"Base", "Abstract", "CheckpointFunction"}
    assert "Heir" in reasons["Base"]
    assert reasons["CheckpointFunction"].startswith("imported from torch")


BASES = """
    from torch.autograd import Function

    class Template(Function):
        @staticmethod
        def forward(ctx, x):
            "To be filled in."
            raise NotImplementedError

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    class Filled(Template):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

    class Loss(Function):
        @classmethod
        def forward(cls, ctx, x):
            return cls.link(x)

        @classmethod
        def backward(cls, ctx, g):
            return g

    class Shift(Loss):
        @staticmethod
        def link(x):
            return x + 1

    class Whole(Function):
        @classmethod
        def forward(cls, ctx, x):
            return x * (cls.scale if hasattr(cls, "scale") else 1)

        @staticmethod
        def backward(ctx, g):
            return g

    class Scaled(Whole):
        scale = 2

    class Alone(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise NotImplementedError
"""


def test_a_base_that_leaves_something_to_its_heirs_is_no_target(tmp_path, restored):
    file = tmp_path / "gv_bases.py"
    file.write_text(textwrap.dedent(BASES))
    targets, passed_over = discover(import_file(file).module, "shown.py")
    assert [t.name for t in targets] == ["Filled", "Loss", "Shift", "Whole", "Scaled", "Alone"]
    assert {p.name: p.reason for p in passed_over} == {
        "Template": "an abstract base of Filled: its forward only raises NotImplementedError",
    }


def test_parameters_leave_ctx_out(module):
    assert [p.name for p in parameters_of(module.New)] == ["x", "scale", "flag"]
    scale = parameters_of(module.New)[1]
    assert (scale.has_default, scale.annotation) == (True, "float")
    assert [(p.name, p.variadic) for p in parameters_of(module.Old)] == [("x", False), ("rest", True)]
    assert defaults_of(module.New) == {"x": ..., "scale": 2.0}


def test_old_style_is_seen(module):
    assert is_old_style(module.Old)
    assert not is_old_style(module.New)
    assert not is_old_style(module.Heir)


def test_class_methods_are_no_old_style():
    class Square(torch.autograd.Function):
        @classmethod
        def forward(cls, ctx, x):
            return x * x

        @classmethod
        def backward(cls, ctx, grad_output):
            return grad_output

    assert not is_old_style(Square)


def test_a_module_named_like_a_library_is_loaded_beside_it(tmp_path, restored):
    (tmp_path / "random.py").write_text("MARK = 1\n")
    module = import_file(tmp_path / "random.py").module
    assert module.MARK == 1
    assert hasattr(random, "Random")


def test_inside_a_package_relative_imports_work(tmp_path, restored):
    package = tmp_path / "gv_package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "gv_package" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 5\n")
    (package / "functions.py").write_text("from .other import VALUE\n")
    assert dotted_name(package / "functions.py") == ("gv_package.inner.functions", tmp_path)
    assert import_file(package / "functions.py").module.VALUE == 5


def test_relative_imports_climb_packages_without_init(tmp_path, restored):
    package = tmp_path / "of-a-project" / "outer" / "inner"
    package.mkdir(parents=True)
    (package / "functions.py").write_text("from .helper import VALUE\nfrom ..above import OTHER\n")
    (package / "helper.py").write_text("VALUE = 5\n")
    (package.parent / "above.py").write_text("OTHER = 6\n")
    module = import_file(package / "functions.py").module
    assert (module.VALUE, module.OTHER) == (5, 6)
    assert module.__name__ == "outer.inner.functions"


def test_names_are_resolved(module):
    assert resolve("New", module) is module.New
    assert resolve("gv_subject_module:New", module) is module.New
    assert resolve("torch.nn.functional.linear", module) is torch.nn.functional.linear
    assert resolve("torch.nn:Linear", module) is torch.nn.Linear


@pytest.mark.parametrize(
    "name", ["Nwe", "torch.nn.functional.liner", "no_such_package.f", "gv_subject_module:Nwe"]
)
def test_what_is_not_there_is_said(module, name):
    with pytest.raises(LookupError, match=r"no attribute|no module"):
        resolve(name, module)
