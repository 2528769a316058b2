"""Small Functions of the kinds that bug reports, published files and attempts to break the checker found.

Each says what is true of it, established without gradverify, and what is said of it. `right` never fails, `wrong`
never passes; of a verdict that is named no other one is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zoo
from extent import long

HERE = Path(__file__).parent

GREEN = {"passed", "skipped"}


@dataclass(frozen=True)
class Case:
    """A module, and by Function what is true of it and the codes of its errors."""

    file: str
    """Below this folder: `folder/module`, checked in `folder`."""
    right: frozenset[str] = frozenset()
    """Functions that pass; with a `?` those that are inconclusive or unchecked today, and may pass."""
    wrong: dict[str, frozenset[str]] = field(default_factory=dict)
    """Functions that fail, with these codes; without any they may also be inconclusive or unchecked."""
    words: tuple[str, ...] = ()
    """What a finding says."""
    open: str = ""
    """What is not so yet; the test fails where it is."""
    slow: bool = False
    """It takes ten seconds or more: of the long list."""


def right(file: str, names: str, **more: object) -> Case:
    return Case(file, right=frozenset(names.split()), **more)


def wrong(file: str, rows: dict[str, str], **more: object) -> Case:
    return Case(file, wrong={name: frozenset(codes.split()) for name, codes in rows.items()}, **more)


CASES = [
    # Met on published files.
    wrong("none_counts_as_constant/gain", {"RowGain": ""}),
    right("modulo_literal_is_no_size/decimate", "Decimate"),
    right("pair_in_last_axis/length2", "PairLength", open="3 is guessed where entries 0 and 1 are read"),
    wrong("float_forward_missing_eps/overlap", {"Overlap": "GV101"}),
    right(
        "float32_buffer_inside/rowmean",
        "SoftAverage?",
        words=("has no dtype", "torch.zeros"),
    ),
    # Right, and must not fail.
    right("recompute/right", "Block Recompute"),
    right("float32_only/kernels", "Softplus? LayerNorm? LogSoftmax? SafeSqrt? Divide? Exp?"),
    right("f32_slope/right", "Log1? Distance?"),
    right("writes_grad_output/rms", "RMSNormInPlace", slow=True),
    right("in_place_ranks/right", "InplaceReduceExp"),
    right("compiled_fullgraph/scaled", "Soft?", slow=True),
    right("sampled_backward/sampled", "Draw"),
    right("padded_inputs/padded", "PaddedConvolution?"),
    right("clamped_domain/inverse", "Artanh? Arcosh?"),
    right("zero_size_guess/sampler", "Sampled? SampledBackward?", slow=True),
    right("iteration/fixed_point", "FixedPoint?", slow=True),
    right("short_inside/product", "HalfInside"),
    # Wrong, and must not pass.
    wrong("float32_inside/gradients", {"Clamped": "GV106", "FirstColumn": "GV106"}),
    wrong("float32_inside/more", {"ZeroInput": "GV108", "SecondWrong": "GV201"}),
    wrong("grad_output/products", {"EarlyExit": "GV106", "SmallRows": "GV106", "ClipHuge": "GV106"}),
    wrong("grad_output/constant", {"SumFast": "GV106"}),
    wrong("leaves/leaf", {"LeafWrong": "GV414"}),
    wrong("sizes/aligned", {"Aligned16": "GV101", "HeadDimEq": "GV101"}, slow=True),
    wrong("second_at_special/cube", {"CubeAbs": "GV201"}),
    wrong("together/layouts", {"LayoutSubset": "GV404", "ChannelsLast": "GV404"}),
    wrong("transforms/batched", {"Times": "GV502"}),
    wrong("modes/modes", {"Activation": "GV202"}),
    wrong("lazy_start/stale", {"Masked": "GV408"}),
    wrong("unstable_surrogate/sign", {"SoftSign": ""}),
    wrong("kink_value/absolute", {"Absolute": "GV101"}),
    wrong("make_same_values/product", {"Product": "GV101"}),
    wrong("make_same_values/total", {"Total": "GV101"}),
    wrong("option_that_needs_a_rank/drop", {"DropOverTime": "GV101"}),
    wrong("option_that_needs_a_rank/grouped", {"Scale": "GV101"}),
    Case("nested_in_function/factory", right=frozenset({"Square"}), wrong={"cube": frozenset({"GV101"})}),
    wrong("nested_in_function/only", {"power.<locals>.Power": ""}),
    # Could not be judged, or was told wrongly.
    right("namespace_package/pkg/inner/double", "Double"),
    right("script_layout/ops/double", "Double"),
    right("package_init_fails/pkg/double", "Double"),
    right("wrapper_default_none/clamped", "Gate"),
    wrong("equal_guesses/levels", {"Levels": "GV101"}),
    right("outputs_by_needs_input_grad/double", "Inner", words=("forward returned None",)),
    right("params_made_constant/block", "Block?", words=("does not require grad",), slow=True),
    right("square_then_removed/cayley", "Cayley?", words=("deprecated",)),
    wrong("elsewhere_chained_cause/solve", {"Solve": "GV002"}, words=("torch.linalg.solve",)),
    right("word_cuda/noisy", "Noisy?", words=("rng state noise",)),
    right("legacy_state/scaled", "Scaled?", words=("GV812",)),
    right("shadowed_buffers/layer", "Double Layer"),
]
"""Everything."""


def _parameters() -> list[object]:
    def marks(case: Case) -> list[pytest.MarkDecorator]:
        return [*([pytest.mark.xfail(reason=case.open, strict=True)] if case.open else [])] + (
            [long] if case.slow else []
        )

    return [pytest.param(case, marks=marks(case), id=case.file) for case in CASES]


@pytest.mark.parametrize("case", _parameters())
def test_field(case: Case) -> None:
    folder, _, module = case.file.partition("/")
    _, report = zoo.checked([f"{module}.py"], HERE / folder)
    found = {target["name"]: target for target in report["targets"]}
    assert found.keys() == {name.rstrip("?") for name in case.right} | case.wrong.keys()
    for name in case.right:
        allowed = GREEN | ({"inconclusive", "unchecked"} if name.endswith("?") else set())
        assert found[name.rstrip("?")]["status"] in allowed, name
    for name, codes in case.wrong.items():
        errors = zoo.codes(found[name], "error")
        assert codes <= errors, (name, errors)
        assert found[name]["status"] not in GREEN, name
    said = " ".join(f"{t.get('reason') or ''} {t['findings']}" for t in report["targets"])
    assert not [word for word in case.words if word not in said]


def test_every_module_is_in_the_table() -> None:
    folders = {path.name for path in HERE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders == {case.file.partition("/")[0] for case in CASES}
