"""What inference makes of Functions of published packages, without a spec and against the hand-written ones.

    pip install --no-deps -r specs/requirements.txt
    python benchmarks/published_packages.py [--half development|held-out]
                                            [--only PACKAGE] [--no-specs] [--json FILE]

Up to three Functions of every package, drawn by the SHA-256 of `file::Name` before any of them was looked at.
Each is checked without a spec, and under its entry in `specs/` where there is one. What inference does was
changed for the development packages only; the held-out ones were not read before it was frozen. They are not
in `specs/requirements.txt`: install them one by one, with what they import.

A false failure is a Function that fails without a spec and passes under the hand-written one. A deliberate
gradient (`surrogate:` in its spec) that fails without one is counted apart: it is not the derivative, and
only its author can say that this is meant.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SPECS = Path(__file__).parents[1] / "specs"

DEVELOPMENT = {
    "brevitas": "brevitas.ops.autograd_ste_ops::BinarySignSteFn ::InplaceTensorClampSteFn"
    " ::ScalarClampMinSteFn",
    "entmax": "entmax.root_finding::NormmaxBisectFunction ::BudgetBisectFunction"
    " entmax.activations::SparsemaxFunction",
    "geffnet": "geffnet.activations.activations_me::SwishJitAutoFn ::HardSwishJitAutoFn ::MishJitAutoFn",
    "gpytorch": "gpytorch.variational.natural_variational_distribution::_NaturalToMuVarSqrt"
    " gpytorch.variational.variational_strategy::ComputePredictiveUpdates"
    " gpytorch.variational.tril_natural_variational_distribution::_TrilNaturalToMuVarSqrt",
    "mambapy": "mambapy.pscan::PScan",
    "memcnn": "memcnn.models.additive::AdditiveBlockFunction ::AdditiveBlockInverseFunction"
    " memcnn.models.affine::AffineBlockInverseFunction",
    "peft": "peft.tuners.randlora.layer::UniqueBaseGrad peft.tuners.lora.velora::VeloraFunction"
    " peft.tuners.loha.layer::HadaWeight",
    "pypose": "pypose.lietensor.operation::SO3_Act4 ::rxso3_Exp ::SO3_Act",
    "pytorch-revgrad": "pytorch_revgrad.functional::RevGrad",
    "pytorch-wavelets": "pytorch_wavelets.dtcwt.transform_funcs::FWD_J1 ::FWD_J2PLUS"
    " pytorch_wavelets.dwt.lowlevel::SFB2D",
    "snntorch": "snntorch.surrogate::SpikeRateEscape ::Sigmoid ::ATan",
    "spikingjelly": "spikingjelly.activation_based.surrogate::s2nn ::erf"
    " spikingjelly.activation_based.lava_exchange::LeakyIntegratorStep",
    "torchkbnufft": "torchkbnufft._autograd.interp::KbSpmatInterpAdjoint ::KbTableInterpAdjoint"
    " ::KbTableInterpForward",
    "xitorch": "xitorch.integrate.solve_ivp::_SolveIVP xitorch._impls.linalg.symeig::degen_symeig"
    " xitorch.linalg.symeig::symeig_torchfcn",
    # The held-out half of an earlier measurement.
    "efficientnet-pytorch": "efficientnet_pytorch.utils::SwishImplementation",
    "kornia": "kornia.losses.focal::_TargetLogSoftmax kornia.geometry.epipolar.essential::_NullSpaceBasis",
    "kymatio": "kymatio.backend.torch_backend::ModulusStable",
    "linear-operator": "linear_operator.functions._dsmm::DSMM linear_operator.functions._inv_quad::InvQuad"
    " linear_operator.functions._matmul::Matmul",
    "memory-efficient-attention-pytorch": "memory_efficient_attention_pytorch.reversible::_ReversibleFunction"
    " memory_efficient_attention_pytorch.flash_attention::FlashAttentionFunction"
    " memory_efficient_attention_pytorch.cosine_sim_flash_attention::FlashAttentionFunction",
    "norse": "norse.torch.functional.threshold::Logistic"
    " norse.torch.functional.adjoint.lif_adjoint::LIFFeedForwardAdjointFunction"
    " norse.torch.functional.adjoint.lif_mc_refrac_adjoint::LIFMCRefracAdjointFunction",
    "pyro-ppl": "pyro.distributions.diag_normal_mixture::_MixDiagNormalSample"
    " pyro.distributions.relaxed_straight_through::QuantizeCategorical ::QuantizeBernoulli",
    "reformer-pytorch": "reformer_pytorch.reversible::_ReversibleFunction",
    "sparsemax": "sparsemax.sparsemax::SparsemaxFunction",
    "torch-interpol": "interpol.autograd::SplineCoeff ::GridPull ::GridPush",
    "torchdiffeq": "torchdiffeq._impl.adjoint::OdeintAdjointMethod"
    " torchdiffeq._impl.odeint::ImplicitFnGradientRerouting torchdiffeq._impl.rk_common::_UncheckedAssign",
    "torchsde": "torchsde._core.adjoint::_SdeintAdjointMethod",
    "zuko": "zuko.utils::GaussLegendre ::Bisection ::AdaptiveCheckpointAdjoint",
}
HELD_OUT = {
    "Rockpool": "rockpool.nn.modules.torch.lif_torch::Bitshift ::ThresholdSubtract",
    "compressai": "compressai.ops.bound_ops::LowerBoundFunction",
    "deepinv": "deepinv.physics.scattering::LippmannSchwingerAdjointState"
    " deepinv.physics.pet::AdjointLinearSingleChannelOperator deepinv.physics.functional.radon::ApplyRadon",
    "diffusers": "diffusers.models.attention_dispatch::TemplatedUlyssesAnythingAttention"
    " ::TemplatedRingAttention ::TemplatedRingAnythingAttention",
    "e3nn": "e3nn.math._soft_unit_step::_SoftUnitStep",
    "hypll": "hypll.manifolds.poincare_ball.math.stats::FrechetMean",
    "monai": "monai.networks.layers.filtering::PHLFilter ::TrainableBilateralFilterFunction"
    " monai.networks.layers.spatial_transforms::_GridCount",
    "nncf": "nncf.torch.quantization.quantize_functions::QuantizeSymmetric ::QuantizeSymmetricTorch"
    " nncf.torch.functions::STThreshold",
    "optimum-quanto": "optimum.quanto.tensor.weights.qbytes::WeightQBytesQuantizer"
    " optimum.quanto.tensor.weights.qbits::WeightsQBitsQuantizer"
    " optimum.quanto.tensor.activations.qbytes::ActivationQBytesQuantizer",
    "pytorch-adapt": "pytorch_adapt.layers.gradient_reversal::_GradientReversal",
    "timm": "timm.layers.activations_me::SwishAutoFn ::MishAutoFn ::HardSigmoidAutoFn",
    "torch-geometric": "torch_geometric.nn.models.rev_gnn::InvertibleFunction"
    " torch_geometric.utils.cross_entropy::SparseCrossEntropy torch_geometric.edge_index::_TorchSPMM",
    "torchgpipe": "torchgpipe.checkpoint::Checkpoint torchgpipe.dependency::Fork"
    " torchgpipe.skip.portal::PortalBlue",
    "torch-harmonics": "torch_harmonics.disco.optimized.disco_optimized::_DiscoKpackedFusedFn"
    " ::_DiscoKpackedFn ::_DiscoKpackedSaveXConvFn",
    "torchrl": "torchrl.envs.libs.brax::_BraxEnvStep torchrl.modules.tensordict_module.rnn::_GRUScanFunction"
    " torchrl.modules.models.model_based::_DreamerV3BlockGRUScanFunction",
}
"""`module::Name`; a name alone stands in the module before it."""

RAN = {"passed", "failed", "inconclusive", "xfailed"}
"""Statuses of a target whose inputs ran."""

LONGEST = 900
"""Seconds for one package, and for each target of it: no verdict hangs on the load."""


@dataclass(frozen=True)
class Verdict:
    status: str
    codes: tuple[str, ...] = ()
    cause: str = ""
    said: str = ""


@dataclass(frozen=True)
class Row:
    half: str
    package: str
    target: str
    inferred: Verdict
    written: Verdict | None
    surrogate: bool

    @property
    def runs(self) -> bool:
        return self.inferred.status in RAN or any(c != "GV001" for c in self.inferred.codes)

    @property
    def outcome(self) -> str:
        """`right`, `false failure`, `false pass`, `surrogate`, `undecided`, or nothing without a spec."""
        if self.written is None or self.written.status not in {"passed", "failed", "xfailed"}:
            return ""
        truth, status = self.written.status == "passed", self.inferred.status
        if status == "failed":
            return "surrogate" if self.surrogate else "false failure" if truth else "right"
        if status == "passed":
            return "right" if truth else "false pass"
        return "undecided"


def targets(listed: str) -> Iterator[str]:
    module = ""
    for word in listed.split():
        module = word.partition("::")[0] or module
        yield f"{module}::{word.partition('::')[2]}"


def checked(names: Sequence[str], specs: Sequence[Path]) -> dict[str, Verdict]:
    """The verdict for each `module::Name`."""
    command = [
        sys.executable,
        "-m",
        "gradverify",
        "check",
        *names,
        "--format",
        "json",
        "--timeout",
        str(LONGEST),
    ]
    for spec in specs:
        command += ["--spec", str(spec)]
    path = os.pathsep.join([str(SPECS), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        try:
            ran = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}
    try:
        report = json.loads(ran.stdout)
    except json.JSONDecodeError:
        print(ran.stdout[-500:], ran.stderr[-1500:], file=sys.stderr)
        return {}
    if report["exit_code"] in {2, 3}:
        print(json.dumps(report["errors"], indent=1)[:1500], ran.stderr[-1500:], file=sys.stderr)
    return {key(t["file"], t["name"]): verdict(t) for t in report["targets"]}


def key(file: str, name: str) -> str:
    return f"{'/'.join(Path(file).with_suffix('').parts[-2:])}::{name}"


def key_of(target: str) -> str:
    module, _, name = target.partition("::")
    return key(module.replace(".", "/") + ".py", name)


def verdict(target: dict[str, object]) -> Verdict:
    found = [f for f in target["findings"] if f["severity"] == "error" or f["code"] in {"GV001", "GV109"}]  # type: ignore[attr-defined]
    cause = next((f["cause"] for f in found if f.get("cause")), "")
    said = found[0]["message"] if found else ""
    return Verdict(str(target["status"]), tuple(sorted({f["code"] for f in found})), cause, said)


def rows(half: str, package: str, listed: str, *, with_specs: bool) -> Iterator[Row]:
    names = list(targets(listed))
    inferred = checked(names, ())
    folder = SPECS / package
    files = sorted(folder.glob("*.gradverify.yaml")) if with_specs and folder.is_dir() else []
    modules = {f"module: {n.partition('::')[0]}" for n in names}
    files = [f for f in files if modules & set(f.read_text().splitlines())]
    text = "\n".join(f.read_text() for f in files)
    named = [n for n in names if f"\n  {n.partition('::')[2]}:" in text]
    written = checked(named, files) if named else {}
    for name in names:
        entry = text.partition(f"\n  {name.partition('::')[2]}:")[2].split("\n  ", 1)
        own = entry[0] + (own_lines(entry[1]) if len(entry) > 1 else "")
        yield Row(
            half,
            package,
            name,
            inferred.get(key_of(name), Verdict("none")),
            written.get(key_of(name)),
            "surrogate:" in own,
        )


def own_lines(text: str) -> str:
    """The lines up to the next entry of a spec."""
    kept = []
    for line in text.splitlines():
        if kept and line.startswith("  ") and line[2:3] not in {" ", "#", ""}:
            break
        kept.append(line)
    return "\n".join(kept)


def printed(found: Sequence[Row]) -> None:
    for row in found:
        spec = row.written.status if row.written else "-"
        codes = " ".join(row.inferred.codes)
        print(f"{row.package:<20} {row.target.partition('::')[2]:<30} {row.inferred.status:<13} {codes:<12}"
              f" spec: {spec:<9} {row.outcome} {row.inferred.cause}")  # fmt: skip
    print()
    for half in ("development", "held-out"):
        own = [r for r in found if r.half == half]
        if not own:
            continue
        judged = [r for r in own if r.outcome]
        tally = {o: sum(r.outcome == o for r in judged) for o in
                 ("right", "surrogate", "undecided", "false failure", "false pass")}  # fmt: skip
        print(f"{half}: {len(own)} Functions of {len({r.package for r in own})} packages;"
              f" inputs that run {sum(r.runs for r in own)}; with a spec {len(judged)}:"
              f" {', '.join(f'{o} {n}' for o, n in tally.items())}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--half", choices=("development", "held-out"))
    parser.add_argument("--only", action="append", default=[], metavar="PACKAGE")
    parser.add_argument("--no-specs", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: list[Row] = []
    for half, packages in (("development", DEVELOPMENT), ("held-out", HELD_OUT)):
        for package, listed in packages.items():
            if (given.half and given.half != half) or (given.only and package not in given.only):
                continue
            module = listed.partition("::")[0]
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                print(f"{package} is not installed", file=sys.stderr)
                continue
            found += rows(half, package, listed, with_specs=not given.no_specs)
            if given.json:
                given.json.write_text(json.dumps([asdict(r) for r in found], indent=1))
    printed(found)


if __name__ == "__main__":
    main()
