"""Kernels that want a GPU, where there is none: interpreted, said to be, and never failed for its sake."""

import importlib.util
import json
import os

import pytest
import torch

from gradverify.model import Frame, RaisedError
from gradverify.verifier import guard
from gradverify.verifier.interpreter import launches

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which kernels are compiled"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


@pytest.fixture(scope="module")
def targets(place):
    ran = place("kernels")("check", "functions.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_kernels_are_interpreted_and_the_report_says_so(place, targets):
    assert targets["Square"]["status"] == "passed"
    assert targets["Square"]["swept"]["interpreted"] is True
    assert targets["Scaled"]["status"] == "passed"  # a number has the methods that it has to the compiler
    assert targets["Library"]["status"] == "passed"  # so has what CUDA's library computes
    assert not targets["Library"]["findings"]
    ran = place("kernels")("check", "functions.py::Square")
    assert "ran in Triton's interpreter" in " ".join(ran.out.split())


@pytest.mark.parametrize("name", ["Written", "OnCuda"])
def test_what_this_machine_lacks_is_no_failure(targets, name):
    assert targets[name]["status"] == "unchecked"
    (finding,) = targets[name]["findings"]
    assert finding["code"] == "GV001"
    assert "`--device cuda` verifies it where there is one" in finding["hint"]


SHORT = """\
gradverify: 1
functions:
  functions.py::Square: {inputs: {x: [n]}, dtypes: [bfloat16]}
"""


def test_a_dtype_that_the_interpreter_computes_wrongly_is_not_judged(place):
    here = place("kernels")
    (here.folder / "short.yaml").write_text(SHORT)
    ran = here("check", "functions.py::Square", "--spec", "short.yaml", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    if target["status"] != "passed":  # a Triton whose interpreter can do it
        assert target["status"] == "inconclusive"
        (message,) = {f["message"] for f in target["findings"] if f["code"] == "GV109"}
        assert "computes bfloat16 wrongly" in message
        assert "`--device cuda` judges it on a GPU" in message


def test_who_wants_compiled_kernels_gets_them(monkeypatch):
    monkeypatch.setenv(launches.INTERPRET, "0")
    launches.interpret_kernels()
    assert os.environ[launches.INTERPRET] == "0"


def test_an_error_where_there_is_a_gpu_is_the_functions_own(monkeypatch):
    error = RaisedError("RuntimeError", "No CUDA GPUs are available")
    assert guard.lacking(error)
    assert not guard.lacking(RaisedError("RuntimeError", "shapes do not match"))
    monkeypatch.setattr(guard, "accelerators", lambda: ("cuda:0",))
    assert not guard.lacking(error, "cuda:0")


def refuse(x):
    assert x.is_cuda


ASSERTED = Frame(__file__, refuse.__code__.co_firstlineno + 1, "refuse", "assert x.is_cuda")

REFUSALS = [
    RaisedError("ValueError", "expected a CUDA tensor", deliberate=True),
    RaisedError("RuntimeError", "x must be a CUDA tensor"),
    RaisedError("ValueError", "Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)"),
    RaisedError("AssertionError", "", (ASSERTED,), deliberate=True),
]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("there", [(), ("cuda:0",)])
def test_a_refusal_of_tensors_that_are_on_no_gpu_names_the_option(monkeypatch, error, there):
    monkeypatch.setattr(guard, "accelerators", lambda: there)
    assert "`--device cuda` verifies it" in guard.lacking(error)
    assert ("none here" in guard.lacking(error)) == (not there)
    assert not guard.lacking(error, "cuda:0")


ON_THE_CPU_ALONE = [
    RaisedError("TypeError", "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy"),
    RaisedError(
        "NotImplementedError",
        "Could not run 'lib::cube' with arguments from the 'CUDA' backend. 'lib::cube' is only available for "
        "these backends: [CPU, Meta].",
    ),
]


@pytest.mark.parametrize("error", ON_THE_CPU_ALONE)
def test_what_is_for_the_cpu_alone_says_how_to_limit_it(error):
    assert "devices: [cpu]" in guard.needs_the_cpu(error, "cuda:0")
    assert not guard.needs_the_cpu(error, "cpu")
    mixed = RaisedError(
        "RuntimeError", "Expected all tensors to be on the same device, but found cuda:0, cpu"
    )
    assert not guard.needs_the_cpu(mixed, "cuda:0")


def test_an_accident_in_such_a_line_is_no_refusal():
    frame = Frame("m.py", 3, "forward", "torch.cuda.synchronise()")
    message = "module 'torch.cuda' has no attribute 'synchronise'"
    assert not guard.lacking(RaisedError("AttributeError", message, (frame,)))


@pytest.fixture(scope="module")
def beyond(place):
    ran = place("kernels")("check", "bounds.py", "--ignore", "GV404", "--ignore", "GV405", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_a_write_past_the_end_is_an_error_with_the_kernels_line(beyond):
    error = next(f for f in beyond["WritesPastTheEnd"]["findings"] if f["code"] == "GV102")
    assert "OutOfBoundsError: the kernel writes" in error["message"]
    assert "past the end of `y_ptr`" in error["message"]
    assert error["raised"]["frames"][-1]["function"] == "_scale"
    assert not any("triton" in frame["file"] for frame in error["raised"]["frames"])


def test_what_is_read_past_the_end_is_nan_and_never_passes(beyond):
    assert beyond["ReadsPastTheEnd"]["status"] != "passed"


def test_a_lost_second_derivative_of_a_kernel_is_an_error_under_a_spec(beyond):
    found = {f["code"]: f["severity"] for f in beyond["Double"]["findings"]}
    assert found == {"GV202": "error"}
