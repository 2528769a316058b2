"""The drop-in over a fixed part of PyTorch's own operators: the verdict of torch's slow mode."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest
import torch

import gradverify

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "operator_database.py"

OPERATORS = (
    "add",
    "cumsum",
    "fft.rfft",
    "index_fill",
    "linalg.cholesky",
    "logsumexp",
    "max",
    "nn.functional.huber_loss",
    "nn.functional.layer_norm",
    "sort",
    "NumpyCubeNotComposable",
    "ZeroGradientsGenVmap",
    "SortGenVmap",
)
"""Reductions, views, indices, complex outputs, several outputs, kinks; two wrong Functions."""

MOST = 3
"""Samples of each operator."""

ENTRIES = 2500
"""Of the largest Jacobian that is worth a test's time."""


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("operator_database", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    monkeypatching = pytest.MonkeyPatch()
    monkeypatching.setitem(sys.modules, "operator_database", module)  # dataclasses look there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
        module.found = {op.name: op for op in module.operators("")}
    yield module
    monkeypatching.undo()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_the_verdict_is_slow_modes(benchmark, name):
    op = next(op for found, op in benchmark.found.items() if found.startswith(name))
    torch.manual_seed(0)
    samples = [s for s in benchmark.samples_of(op) if benchmark.size_of(s) <= ENTRIES][:MOST]
    assert samples
    for called in samples:
        slow, _, _ = benchmark.verdict(torch.autograd.gradcheck, called)
        ours, _, said = benchmark.verdict(gradverify.gradcheck, called)
        assert ours == slow, said
