"""The text of a script that shows a finding with plain torch: of gradverify it imports nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Called:
    """How the target is called, as Python source."""

    root: str
    """Folder that the module is imported from, relative to the script's own."""
    module: str
    """Its dotted name."""
    setup: str
    """Statements that define `target`."""
    arguments: Sequence[str]
    """One expression each, in terms of `inputs`."""
    seed: int
    default_dtype: str = ""


def preamble(name: str, sentences: Sequence[str], called: Called) -> str:
    """What every script begins with: words, imports, the saved inputs, the call."""
    words = "".join(f"# {_visible(line)}\n" for text in sentences for line in textwrap.wrap(text, 100))
    dtype = f"torch.set_default_dtype(torch.{called.default_dtype})\n" if called.default_dtype else ""
    text = _PREAMBLE.replace("$ROOT", repr(called.root)).replace("$MODULE", repr(called.module))
    return (
        f"{words}\n{text}{dtype}{called.setup}"
        f"saved = torch.load(HERE / {name + '.pt'!r}, weights_only=True)\n"
        'inputs = saved["inputs"]\n\n\n'
        "def call(inputs):\n"
        '    """Forward on copies, from the same random state each time; its outputs as a tuple."""\n'
        f"    random.seed({called.seed})\n    torch.manual_seed({called.seed % 2**63})\n"
        f'    if "numpy" in sys.modules:\n        sys.modules["numpy"].random.seed({called.seed % 2**32})\n'
        + _result_of("target", called.arguments)
    )


def raising() -> str:
    """Forward, backward and double backward: whatever raises or crashes does so here."""
    return _RAISING


def derivative(by: str, outputs: Sequence[int], step: float, tolerance: float, of: Sequence[str]) -> str:
    """Backward against a central difference of forward, along one direction of the input `by`.

    With `of`, which names inputs, their gradients are differentiated: double backward against backward.
    """
    constants = (
        f"BY = {by!r}  # the input that is moved, along saved['direction']\n"
        f"OUTPUTS = {list(outputs)!r}  # positions, as forward returns them\n"
        f"STEP = {step!r}\n"
        f"TOLERANCE = {tolerance!r}  # far above the error of the difference with this step\n"
    )
    if of:
        constants += f"OF = {list(of)!r}  # the inputs whose gradients are differentiated again\n"
    return constants + "\n\n" + (_GRADIENT if of else _FORWARD) + _DERIVATIVE


def against_reference(reference: str, arguments: Sequence[str], by: str | None) -> str:
    """One output, or its gradient with respect to the input `by`, against the composite reference's."""
    return (
        f"reference = {reference}\nBY = {by!r}\n\n\n"
        "def call_reference(inputs):\n"
        '    """The composite reference on the same inputs; its outputs as a tuple."""\n'
        f"{_result_of('reference', arguments)}{_REFERENCE}"
    )


def _result_of(function: str, arguments: Sequence[str]) -> str:
    given = "".join(f"        {argument},\n" for argument in arguments)
    return (
        f"    result = {function}(\n{given}    )\n"
        "    return tuple(result) if isinstance(result, (tuple, list)) else (result,)\n\n\n"
    )


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_PREAMBLE = """\
import importlib
import pkgutil
import random
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str((HERE / $ROOT).resolve()))
module = importlib.import_module($MODULE)
"""

_FORWARD = '''\
variables, names = inputs, saved["differentiable"]


def function(variables):
    """The outputs."""
    returned = call(variables)
    return [returned[k] for k in OUTPUTS]


'''

_GRADIENT = '''\
grad_names = [f"grad_output {k}" for k in OUTPUTS]
names = [*saved["differentiable"], *grad_names]
variables = {**inputs, **dict(zip(grad_names, saved["grad_outputs"]))}


def function(variables):
    """Gradients as functions of the inputs and of grad_output."""
    given = {name: variables[name] for name in names}
    leaves = {name: x if x.requires_grad else x.clone().requires_grad_() for name, x in given.items()}
    returned = call({**variables, **leaves})
    found = torch.autograd.grad(
        [returned[k] for k in OUTPUTS],
        [leaves[name] for name in OF],
        [leaves[name] for name in grad_names],
        create_graph=True,
        allow_unused=True,
    )
    return [torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(OF, found)]


'''

_DERIVATIVE = '''\
def inner(left, right):
    """The real inner product."""
    return (left.conj() * right).sum().real.item()


def value(values):
    """The values, weighted: a number."""
    return sum(inner(u, y.detach()) for u, y in zip(saved["weights"], values))


leaves = {name: variables[name].clone().requires_grad_() for name in names}
connected = [(y, u) for y, u in zip(function({**variables, **leaves}), saved["weights"]) if y.requires_grad]
analytical = 0.0
if connected:
    values, weights = zip(*connected)
    (gradient,) = torch.autograd.grad(values, [leaves[BY]], weights, allow_unused=True)
    analytical = 0.0 if gradient is None else inner(gradient, saved["direction"])

ahead, behind = (value(function({**variables, BY: x})) for x in saved["moved"])
numerical = (ahead - behind) / (2 * STEP)

print(f"analytical  {analytical:.10g}")
print(f"numerical   {numerical:.10g}   (central difference, step {STEP:g})")
if not abs(analytical - numerical) <= TOLERANCE:  # so that NaN counts as wrong
    print(f"they differ by {abs(analytical - numerical):.4g}, more than {TOLERANCE:.2g}")
    sys.exit(1)
print("they agree")
'''

_RAISING = """\
leaves = {name: inputs[name].clone().requires_grad_() for name in saved["differentiable"]}
returned = call({**inputs, **leaves})
outputs = [y for y in returned if isinstance(y, torch.Tensor) and y.requires_grad]
torch.manual_seed(0)
grad_outputs = [torch.randn_like(y).requires_grad_() for y in outputs]
gradients = torch.autograd.grad(
    outputs, list(leaves.values()), grad_outputs, create_graph=saved["twice"], allow_unused=True
)
if saved["twice"]:
    connected = [g for g in gradients if g is not None and g.requires_grad]
    torch.autograd.backward(connected, [torch.ones_like(g) for g in connected])
print("nothing was raised")
"""

_REFERENCE = """\
found = []
for function in (call, call_reference):
    leaves = {name: inputs[name].clone().requires_grad_() for name in saved["differentiable"]}
    value = function({**inputs, **leaves})[saved["output"]]
    if BY is not None:
        (gradient,) = torch.autograd.grad(value, [leaves[BY]], saved["grad_outputs"], allow_unused=True)
        value = torch.zeros_like(leaves[BY]) if gradient is None else gradient
    found.append(value.detach())
mine, other = found
if mine.shape != other.shape:
    print(f"shapes {list(mine.shape)} and {list(other.shape)}")
    sys.exit(1)
print(f"largest difference: {(mine - other).abs().max().item():.4g}")
if not torch.allclose(mine, other, rtol=saved["rtol"], atol=saved["atol"], equal_nan=True):
    sys.exit(1)
"""
