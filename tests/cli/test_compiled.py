"""Operators of a C++ extension, named in a spec as torch knows them: judged like Python ones."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import forked_command
import pytest
import torch
from extent import long
from torch.utils import cpp_extension

SOURCE = Path(__file__).parents[1] / "modules" / "compiled" / "operators.cpp"

pytestmark = [
    pytest.mark.skipif(
        shutil.which("g++") is None or sys.platform != "linux",
        reason="there is no g++ for a Linux extension here",
    ),
    long,  # compiling takes half a minute
]

MODULE = """\
from pathlib import Path

import torch

torch.ops.load_library(Path(__file__).with_name("operators.so"))


def scaled(x, *, scale):
    return torch.ops.gradverify_compiled.wrong(x, scale)
"""

SPEC = """\
gradverify: 1
module: compiled.py
functions:
  torch.ops.gradverify_compiled.right: {inputs: {x: [n, d], scale: 0.7}}
  torch.ops.gradverify_compiled.wrong: {inputs: {x: [n, d]}}
  misplaced: {target: torch.ops.gradverify_compiled.misplaced, inputs: {x: [n]}}
  torch.ops.gradverify_compiled.composite: {inputs: {x: [n]}}
  scaled: {inputs: {x: [n], scale: 0.7}}
"""


def compiled_library() -> Path:
    """The extension, compiled once for each source and version of torch: it takes half a minute."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"gradverify-tests-{os.getuid()}" / key / "operators.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    torch_library = Path(torch.__file__).parent / "lib"
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [
        "g++",
        "-shared",
        "-fPIC",
        "-O0",
        "-std=c++20",
        *(f"-I{p}" for p in cpp_extension.include_paths()),
    ]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", str(SOURCE)]
    command += ["-o", str(unfinished), f"-L{torch_library}", "-ltorch", "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    unfinished.rename(library)
    return library


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    shutil.copy(compiled_library(), folder / "operators.so")
    (folder / "compiled.py").write_text(MODULE)
    (folder / "compiled.gradverify.yaml").write_text(SPEC)
    done = forked_command.run(["check", "compiled.py", "--format", "json"], folder)
    assert done.code == 1, done.err
    return {target["name"].rpartition(".")[2]: target for target in json.loads(done.out)["targets"]}


def codes(target, severity):
    return {f["code"] for f in target["findings"] if f["severity"] == severity}


def test_a_right_operator_passes_every_check(report):
    right = report["right"]
    assert (right["kind"], right["status"]) == ("custom_op", "passed")
    assert right["checks"]["gradgradcheck"] == "passed"
    assert right["swept"]["layouts"] > 0
    assert report["composite"]["status"] == "passed"


def test_a_wrong_one_fails_with_its_factor_and_so_does_what_calls_it(report):
    for name in ("wrong", "scaled"):
        (finding,) = (f for f in report[name]["findings"] if f["severity"] == "error")
        assert (finding["code"], finding["cause"], finding["factor"]) == ("GV101", "constant-factor", 0.5)
    assert report["scaled"]["kind"] == "callable"


def test_a_function_under_the_key_of_a_backend_is_a_warning(report):
    assert report["misplaced"]["status"] == "passed"
    assert codes(report["misplaced"], "warning") == {"GV504"}


def test_the_inside_of_a_compiled_backward_is_not_read_and_it_says_so(report):
    assert report["right"]["capabilities"]["contract"] == "partial"
    assert "contract" not in report["scaled"]["capabilities"]
