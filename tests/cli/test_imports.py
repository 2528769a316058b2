"""What Python can import from the current folder, `check` can, and says what it imported a file without."""

from __future__ import annotations

import json

import forked_command
import pytest

FUNCTION = """
import torch

{imports}


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return twice(x)

    @staticmethod
    def backward(ctx, grad_output):
        return twice(grad_output)
"""

TOOLS = "def twice(x):\n    return 2 * x\n"

LAYOUTS = {
    "a package in a folder without __init__.py": (
        "pkg/inner/double.py",
        {
            "pkg/inner/__init__.py": "from pkg.inner.tools import twice\n",
            "pkg/inner/tools.py": TOOLS,
            "pkg/inner/double.py": FUNCTION.format(imports="from pkg.inner.tools import twice"),
        },
    ),
    "a script beside a folder of tools": (
        "ops/double.py",
        {
            "common/tools.py": TOOLS,
            "ops/double.py": FUNCTION.format(imports="from common.tools import twice"),
        },
    ),
    "a script that imports its sibling, and its folder": (
        "ops/double.py",
        {
            "ops/tools.py": TOOLS,
            "ops/double.py": FUNCTION.format(imports="import ops.tools\nfrom ops.tools import twice"),
        },
    ),
    "a script that imports a sibling named like its folder": (
        "tools/double.py",
        {
            "tools/tools.py": TOOLS,
            "tools/double.py": FUNCTION.format(imports="from tools import twice"),
        },
    ),
    "src with packages without __init__.py": (
        "src/pkg/kernels/double.py",
        {
            "src/pkg/tools.py": TOOLS,
            "src/pkg/kernels/double.py": FUNCTION.format(imports="from pkg.tools import twice"),
        },
    ),
    "a test that imports the package in src": (
        "tests/double.py",
        {
            "src/pkg/__init__.py": TOOLS,
            "tests/double.py": FUNCTION.format(imports="from pkg import twice"),
        },
    ),
    "a package in a repository of its name": (
        "pkg/pkg/inner/double.py",
        {
            "pkg/pkg/__init__.py": "",
            "pkg/pkg/tools.py": TOOLS,
            "pkg/pkg/inner/__init__.py": "",
            "pkg/pkg/inner/double.py": FUNCTION.format(imports="from pkg.tools import twice"),
        },
    ),
    "relative imports in a folder without __init__.py": (
        "pkg/inner/double.py",
        {"pkg/tools.py": TOOLS, "pkg/inner/double.py": FUNCTION.format(imports="from ..tools import twice")},
    ),
}

BROKEN = {
    "a dependency that is missing": ("import a_package_nobody_has\n", "ModuleNotFoundError"),
    "an error": ("from pkg.tools import twice\nraise RuntimeError('no GPU')\n", "RuntimeError: no GPU"),
    "no Python": ("def (:\n", "SyntaxError"),
}


def checked(folder, files, *arguments):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return forked_command.run(["check", *arguments], folder)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_imported_as_python_does(tmp_path, name):
    file, files = LAYOUTS[name]
    done = checked(tmp_path, files, file, "--effort", "quick", "--format", "json")
    assert [t["status"] for t in json.loads(done.out)["targets"]] == ["passed"], done.out + done.err


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_whose_package_raises_is_imported_without_it_and_that_is_said(tmp_path, name):
    text, raised = BROKEN[name]
    files = {
        "pkg/__init__.py": text,
        "pkg/tools.py": TOOLS,
        "pkg/double.py": FUNCTION.format(imports="from .tools import twice"),
    }
    done = checked(tmp_path, files, "pkg/double.py", "--effort", "quick", "--format", "json")
    (target,) = json.loads(done.out)["targets"]
    assert target["status"] == "passed"
    (said,) = [one for one in target["left_out"] if "pkg/__init__.py" in one]
    assert said.startswith(f"imported without pkg/__init__.py, which raised {raised}")
    screen = checked(tmp_path, {}, "pkg/double.py", "--effort", "quick").out
    assert "imported without pkg/__init__.py, which raised" in screen, done.err


def test_a_package_that_it_imports_from_is_left_without_what_raises(tmp_path):
    files = {
        "pkg/__init__.py": "",
        "pkg/utils/__init__.py": "from .progress import bar\n",
        "pkg/utils/progress.py": "import a_package_nobody_has\n\ndef bar():\n    pass\n",
        "pkg/utils/tools.py": TOOLS,
        "pkg/ops/__init__.py": "",
        "pkg/ops/double.py": FUNCTION.format(imports="from ..utils.tools import twice"),
    }
    done = checked(tmp_path, files, "pkg/ops/double.py", "--effort", "quick", "--format", "json")
    (target,) = json.loads(done.out)["targets"]
    assert target["status"] == "passed"
    assert any(one.startswith("imported without pkg/utils/__init__.py") for one in target["left_out"])
    needed = {"pkg/ops/double.py": FUNCTION.format(imports="from ..utils import bar as twice")}
    lacking = checked(tmp_path, needed, "pkg/ops/double.py")
    assert (lacking.code, "No module named 'a_package_nobody_has'" in lacking.out + lacking.err) == (2, True)


def test_a_missing_dependency_is_named_with_the_folders_it_was_looked_for_in(tmp_path):
    files = {"ops/double.py": FUNCTION.format(imports="from nowhere import twice")}
    done = checked(tmp_path, files, "ops/double.py")
    assert done.code == 2
    said = "No module named 'nowhere'. It is not installed, and not in `ops` or `.`"
    assert said in " ".join(done.out.split() + done.err.split())


def test_what_a_package_raised_is_named_where_a_name_of_it_is_lacking(tmp_path):
    files = {
        "pkg/__init__.py": "import a_package_nobody_has\n\ndef twice(x):\n    return 2 * x\n",
        "pkg/double.py": FUNCTION.format(imports="from pkg import twice"),
    }
    done = checked(tmp_path, files, "pkg/double.py")
    assert done.code == 2
    said = " ".join(done.out.split() + done.err.split())
    assert "No module named 'a_package_nobody_has'" in said and "Install it" not in said
