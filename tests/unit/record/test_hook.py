"""The hook inside the user's process: no torch of its own, no change of results, notes that survive."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gradverify
from gradverify.record.hook import noting
from gradverify.record.hook.installing import wrap_operators
from gradverify.record.reading import read_notes
from gradverify.record.running import run_program

HOOK = Path(gradverify.__file__).parent / "record"

PROGRAM = """
import sys
assert "torch" not in sys.modules and "gradverify" not in sys.modules, "the hook loads nothing"
from torch.autograd import Function
import torch


class Strict(Function):
    @staticmethod
    def forward(ctx, x, step):
        if step < 0:
            raise KeyError(step)
        return x * 2

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2, None


class Watching(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        seen.append(function.__name__)
        return function(*arguments, **(named or {}))


class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        seen.append(function.__name__)
        return super().__torch_function__(function, types, arguments, named)


seen = []
apply = Strict.apply
with Watching():
    apply(torch.ones(2), 0)
apply(torch.ones(5).as_subclass(Counting), 0)
assert "shape" not in str(seen) and "aminmax" not in seen and "__get__" not in seen, seen
state = torch.get_rng_state()
x = torch.ones(3, requires_grad=True)
for step in range(200):
    assert apply(x, step).tolist() == [2, 2, 2]
for _ in range(100):
    apply(x, 0).sum().backward()
assert x.grad.tolist() == [200, 200, 200]
assert torch.equal(state, torch.get_rng_state())
try:
    apply(x, -1)
except KeyError as error:
    assert error.args == (-1,)
    print("raised")
torch.func.vmap
import os
os._exit(0)
"""


def test_nothing_changes_and_notes_are_bounded(tmp_path, monkeypatch, capfd):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_program([sys.executable, "program.py"], tmp_path / "notes", ()) == 0
    assert capfd.readouterr().out == "raised\n"
    (strict,) = read_notes(tmp_path / "notes")
    assert (strict.module, strict.name, strict.main) == ("program", "Strict", True)
    assert len(strict.calls) == 64
    assert strict.bounded
    assert strict.strided, "the gradient of a sum is expanded"
    assert max(call.count for call in strict.calls) == 64, "of 101 calls, those up to the last look"


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    head = {"module": "m", "file": "/m.py", "name": "F", "line": 1, "main": False}
    note = {"kind": "literal", "value": 1}
    line = json.dumps({"kind": "call", "number": 1, "count": 4, **head, "arguments": [["n", note]]})
    (tmp_path / "1.jsonl").write_text(f"{line}\n{line[:40]}")
    (tmp_path / "2.jsonl").write_text(f"{line}\n")
    (found,) = read_notes(tmp_path)
    assert (found.count, len(found.calls)) == (8, 1)


def test_the_front_and_the_hook_load_no_torch():
    code = "import sys, gradverify.session.recording, gradverify.record.hook; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_the_hook_runs_in_a_python_without_gradverify(tmp_path):
    code = "import sys; print(sorted(m for m in sys.modules if m.startswith('gradverify')))"
    asked = {"folder": str(tmp_path), "root": str(tmp_path), "modules": []}
    more = {"PYTHONPATH": str(HOOK / "injected"), "GRADVERIFY_RECORD": json.dumps(asked)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **more}, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    assert "gradverify_recording.installing" in ran.stdout
    assert "'gradverify'" not in ran.stdout


def test_custom_ops_are_noted_by_the_name_that_their_module_gives_them():
    noted = []

    class Notebook:
        def call(self, operator, arguments, named):
            noted.append((operator, arguments, named))

    class CustomOpDef:
        _qualname = "mylib::mul"

        def __init__(self, function):
            self._init_fn = function

        def __call__(self, *arguments, **named):
            return self._init_fn(*arguments, **named)

    module = ModuleType("torch._library.custom_ops")
    module.CustomOpDef = CustomOpDef
    wrap_operators(module, Notebook())
    operator = CustomOpDef(lambda x, *, k: x * k)
    assert operator(2, k=3) == 6
    assert noted == [(operator, (2,), {"k": 3})]

    own = ModuleType("own")
    own.product = operator
    assert noting._name_of_operator(operator, own) == "product"
    assert noting._name_of_operator(operator, ModuleType("empty")) == "torch.ops.mylib.mul"
    assert noting._by_position(operator, (2,), {"k": 3}) == (2, 3)
    assert noting._parameters(operator) == (("x", "k"), False)
