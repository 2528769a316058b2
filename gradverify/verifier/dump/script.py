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
    """Its dotted name; a path ending in `.py`, relative to `root`, where another module has the name."""
    setup: str
    """Statements that define `target`."""
    arguments: Sequence[str]
    """One expression each, in terms of `inputs`."""
    seed: int
    default_dtype: str = ""


@dataclass(frozen=True)
class Compared:
    """What is compared, for the header and the constants."""

    by: str
    outputs: Sequence[int]
    """Positions, as forward returned them."""
    differentiable: Sequence[str]
    step: float
    tolerance: float
    moved: bool
    """The file holds the moved inputs."""
    gradient_of: str = ""
    """Second order: the input whose gradient is differentiated again."""


def preamble(name: str, sentences: Sequence[str], called: Called) -> str:
    """What every script begins with: words, imports, the saved inputs, the call."""
    words = "".join(f"# {_visible(line)}\n" for text in sentences for line in textwrap.wrap(text, 100))
    dtype = f"torch.set_default_dtype(torch.{called.default_dtype})\n" if called.default_dtype else ""
    arguments = "".join(f"        {argument},\n" for argument in called.arguments)
    return (
        f"{words}\n{_IMPORTS}\nHERE = Path(__file__).resolve().parent\n"
        f"{_import_of(called)}{dtype}{called.setup}"
        f"saved = torch.load(HERE / {name + '.pt'!r}, weights_only=True)\n"
        'inputs = saved["inputs"]\n\n\n'
        "def call(inputs):\n"
        '    """Forward on copies, from the same random state each time; its outputs as a tuple."""\n'
        f"    random.seed({called.seed})\n    torch.manual_seed({called.seed % 2**63})\n"
        f'    if "numpy" in sys.modules:\n        sys.modules["numpy"].random.seed({called.seed % 2**32})\n'
        f"    result = target(\n{arguments}    )\n"
        "    return tuple(result) if isinstance(result, (tuple, list)) else (result,)\n\n\n"
    )


def raising() -> str:
    """Forward, backward and double backward: whatever raises or crashes does so here."""
    return _RAISING


def first_order(compared: Compared) -> str:
    """Backward against a central difference of forward."""
    return (
        _INNER
        + _constants(compared)
        + 'leaves = {name: inputs[name].clone().requires_grad_() for name in saved["differentiable"]}\n'
        "returned = call({**inputs, **leaves})\n"
        + _FIRST_ORDER
        + _moved(compared, "inputs[BY]")
        + "with torch.no_grad():\n"
        "    ahead, behind = (value(call({**inputs, BY: x})) for x in (ahead, behind))\n" + _CLOSING
    )


def second_order(compared: Compared) -> str:
    """The double backward against a central difference of backward."""
    return (
        _INNER
        + _constants(compared)
        + f"OF = {compared.gradient_of!r}  # the input whose gradient is differentiated again\n\n"
        + _SECOND_ORDER
        + _moved(compared, "variables[BY]")
        + "ahead, behind = (value(gradient({**variables, BY: x})[0].detach()) for x in (ahead, behind))\n"
        + _CLOSING
    )


def against_reference(reference: str, arguments: Sequence[str], *, of_gradient: bool) -> str:
    """One value, or one entry of a gradient, against the composite reference's."""
    given = "".join(f"        {argument},\n" for argument in arguments)
    return (
        f"reference = {reference}\n\n\n"
        "def call_reference(inputs):\n"
        '    """The composite reference on the same inputs; its outputs as a tuple."""\n'
        f"    result = reference(\n{given}    )\n"
        "    return tuple(result) if isinstance(result, (tuple, list)) else (result,)\n\n\n"
        + (_REFERENCE_GRADIENT if of_gradient else _REFERENCE_VALUE)
    )


def _constants(compared: Compared) -> str:
    return (
        f"BY = {compared.by!r}  # the input that is moved, along saved['direction']\n"
        f"OUTPUTS = {list(compared.outputs)!r}  # positions, as forward returns them; "
        "weighted with saved['grad_outputs']\n"
        f"STEP = {compared.step!r}\n"
        f"TOLERANCE = {compared.tolerance!r}  # far above the error of the difference with this step\n\n"
    )


def _moved(compared: Compared, base: str) -> str:
    if compared.moved:  # the input lies on a structure, or some of its entries are constants
        return 'ahead, behind = saved["moved"]\n'
    return f'ahead, behind = ({base} + sign * STEP * saved["direction"] for sign in (1, -1))\n'


def _import_of(called: Called) -> str:
    if not called.module.endswith(".py"):
        return (
            f"sys.path.insert(0, str((HERE / {called.root!r}).resolve()))\n"
            f"module = importlib.import_module({called.module!r})\n"
        )
    return (
        f"sys.path.append(str((HERE / {called.root!r}).resolve()))\n"
        "spec = importlib.util.spec_from_file_location(\n"
        f'    "target_module", HERE / {called.root!r} / {called.module!r}\n)\n'
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
    )


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_IMPORTS = """\
import importlib
import importlib.util
import pkgutil
import random
import sys
from pathlib import Path

import torch
"""

_INNER = '''\
def inner(left, right):
    """The real inner product."""
    return (left.conj() * right).sum().real.item()


'''

_FIRST_ORDER = '''\


def value(returned):
    """The outputs, weighted with grad_output: a number."""
    return sum(inner(u, returned[k]) for k, u in zip(OUTPUTS, saved["grad_outputs"]))


connected = [(returned[k], u) for k, u in zip(OUTPUTS, saved["grad_outputs"]) if returned[k].requires_grad]
analytical = 0.0
if connected:
    outputs, grad_outputs = zip(*connected)
    (gradient,) = torch.autograd.grad(outputs, [leaves[BY]], grad_outputs, allow_unused=True)
    analytical = 0.0 if gradient is None else inner(gradient, saved["direction"])

'''

_SECOND_ORDER = '''\
grad_names = [f"grad_output {k}" for k in OUTPUTS]
variables = {**inputs, **dict(zip(grad_names, saved["grad_outputs"]))}


def gradient(variables):
    """Backward with a graph of itself: the gradient, and the leaf that it is differentiated by."""
    names = [*saved["differentiable"], *grad_names]
    leaves = {name: variables[name].clone().requires_grad_() for name in names}
    returned = call({**variables, **leaves})
    outputs = [returned[k] for k in OUTPUTS]
    grad_outputs = [leaves[name] for name in grad_names]
    (found,) = torch.autograd.grad(
        outputs, [leaves[OF]], grad_outputs, create_graph=True, allow_unused=True
    )
    return torch.zeros_like(leaves[OF]) if found is None else found, leaves[BY]


def value(found):
    """The gradient, weighted: a number."""
    return inner(saved["weights"], found)


first, leaf = gradient(variables)
analytical = 0.0
if first.requires_grad:
    (second,) = torch.autograd.grad(first, [leaf], saved["weights"], allow_unused=True)
    analytical = 0.0 if second is None else inner(second, saved["direction"])
'''

_CLOSING = """\
numerical = (ahead - behind) / (2 * STEP)

print(f"analytical  {analytical:.10g}")
print(f"numerical   {numerical:.10g}   (central difference, step {STEP:g})")
if not abs(analytical - numerical) <= TOLERANCE:  # so that NaN counts as wrong
    print(f"they differ by {abs(analytical - numerical):.4g}, more than {TOLERANCE:.2g}")
    sys.exit(1)
print("they agree")
"""

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

_REFERENCE_VALUE = """\
OUTPUT = saved["output"]
mine, other = call(inputs)[OUTPUT], call_reference(inputs)[OUTPUT]
if mine.shape != other.shape:
    print(f"shapes {list(mine.shape)} and {list(other.shape)}")
    sys.exit(1)
print(f"largest difference: {(mine - other).abs().max().item():.4g}")
if not torch.allclose(mine, other, rtol=saved["rtol"], atol=saved["atol"], equal_nan=True):
    sys.exit(1)
"""

_REFERENCE_GRADIENT = """\
OUTPUT, BY = saved["output"], saved["by"]
found = []
for function in (call, call_reference):
    leaves = {name: inputs[name].clone().requires_grad_() for name in saved["differentiable"]}
    output = function({**inputs, **leaves})[OUTPUT]
    (gradient,) = torch.autograd.grad(output, [leaves[BY]], saved["grad_outputs"], allow_unused=True)
    found.append(torch.zeros_like(leaves[BY]) if gradient is None else gradient)
mine, other = found
print(f"largest difference: {(mine - other).abs().max().item():.4g}")
if not torch.allclose(mine, other, rtol=saved["rtol"], atol=saved["atol"], equal_nan=True):
    sys.exit(1)
"""
