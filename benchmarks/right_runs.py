"""Right Functions over many seeds: is one of them accused, or left in doubt?

    python benchmarks/right_runs.py --by check|gradcheck [--seeds 5] [--first-seed 0] [--set NAME ...]
                                    [--without-spec] [--dtype float32] [--only REGEX] [--results FILE]

Subjects are the Functions of the modules `right.py` of `tests/zoo`, of `benchmarks/right_functions`, and the
specs of published packages in `specs/` that are installed (`--set published`), each with its spec. By `check`
every seed is a run of the command's session, whose process stays warm; by `gradcheck` it is
`gradverify.gradcheck` at two draws of every case, and `gradgradcheck` where `check` verified it.
One line of JSON for every run is appended to --results, and what stands there is not run again. Prints
Markdown. A run that failed is an alarm, unless the spec expects it; one that is not green otherwise is listed
with what it said. `as torch` is a drop-in that fails where torch's slow check fails as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
ZOO, RIGHT, SPECS = ROOT / "tests" / "zoo", ROOT / "benchmarks" / "right_functions", ROOT / "specs"

GREEN = {"passed", "skipped", "xfailed"}
"""Statuses that accuse nobody; `xfailed` is a mistake that the spec says is there."""

DRAWS = (0, 1)
"""The draws of a case that the drop-in is asked at."""

RUNS_AT_A_TIME = 200.0
"""Seconds that one target may take: the machine may be shared."""


@dataclass(frozen=True)
class Run:
    """One right Function at one seed."""

    by: str
    where: str
    name: str
    seed: int
    verdict: str
    checks: int = 1
    """How many verdicts the run holds: one by `check`, one for each call by `gradcheck`."""
    said: str = ""
    seconds: float = 0.0


def main() -> None:
    options = parsed()
    warnings.simplefilter("ignore")
    known = list(earlier(options.results))
    done = {(run.by, run.where, run.name, run.seed) for run in known}
    fresh = (by_gradcheck if options.by == "gradcheck" else by_check)(options, known, done)
    known += written(fresh, options.results)
    show([run for run in known if run.by == label(options)])


def parsed() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--by", choices=["check", "gradcheck"], required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="folder of the zoo, `hard` or `published`")
    parser.add_argument("--without-spec", action="store_true")
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--only", default="", help="a regular expression for their names")
    parser.add_argument("--results", type=Path)
    return parser.parse_args()


def label(options: argparse.Namespace) -> str:
    """What kind of runs these are, as the results name them."""
    return " ".join([options.by, *(["without spec"] if options.without_spec else []), *options.dtype])


def subjects(wanted: list[str]) -> Iterator[tuple[str, Path]]:
    """(set, module or spec file)."""
    for module in sorted(ZOO.glob("*/right.py")):
        if module.parent.name != "devices" and (not wanted or module.parent.name in wanted):
            yield module.parent.name, module
    if not wanted or "hard" in wanted:
        yield from (("hard", module) for module in sorted(RIGHT.glob("*.py")))
    if not wanted or "published" in wanted:
        for spec in sorted(SPECS.glob("*/*.gradverify.yaml")):
            package = yaml.safe_load(spec.read_text("utf-8"))["module"].partition(".")[0]
            if find_spec(package) is not None:
                yield "published", spec


def by_check(
    options: argparse.Namespace, _: list[Run], done: set[tuple[str, str, str, int]]
) -> Iterator[Run]:
    """Runs of the command's own session: the worker is warm, the plan is made anew for each seed."""
    from gradverify.cli.asked import request_of  # noqa: PLC0415 - by gradcheck it is not needed
    from gradverify.session.planning import plan_targets  # noqa: PLC0415
    from gradverify.session.request import Silent  # noqa: PLC0415
    from gradverify.session.run import prepare  # noqa: PLC0415
    from gradverify.session.verifying import verify_target  # noqa: PLC0415

    os.environ["PYTHONPATH"] = os.pathsep.join([str(SPECS), os.environ.get("PYTHONPATH", "")])
    os.environ["TRITON_INTERPRET"] = "1"
    kind = label(options)
    for where, file in subjects(options.set):
        with tempfile.TemporaryDirectory() as folder:
            path = bare_copy(file, Path(folder)) if options.without_spec else file
            request = request_of(
                [str(path)],
                no_infer=not options.without_spec,
                dtypes=options.dtype,
                timeout=RUNS_AT_A_TIME,
            )
            try:
                session = prepare(request, Silent())
            except Exception as error:  # noqa: BLE001 - what cannot be prepared is told
                yield Run(kind, where, file.stem, -1, "not prepared", said=str(error)[:300])
                continue
            with session:
                for error in (m.error for m in session.modules if m.error is not None):
                    yield Run(kind, where, file.stem, -1, "not imported", said=error.message[:300])
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    asked = replace(request, seed=seed)
                    for planned in (p for m in session.modules for p in plan_targets(m, asked)):
                        name = f"{file.parent.name}/{file.name.partition('.')[0]}::{planned.target.name}"
                        unnamed = planned.plan is None and not options.without_spec
                        if (kind, where, name, seed) in done or unnamed or not re.search(options.only, name):
                            continue
                        begun = time.perf_counter()
                        report = verify_target(planned, asked, lambda _: None).report
                        seconds = round(time.perf_counter() - begun, 2)
                        verdict, said = report.status.value, told(report)
                        yield Run(kind, where, name, seed, verdict, said=said, seconds=seconds)


def bare_copy(file: Path, folder: Path) -> Path:
    """The module where no spec is beside it."""
    copy = folder / file.name
    copy.write_bytes(file.read_bytes())
    return copy


def told(report) -> str:
    """What keeps a target from being green, and which orders were verified where it is."""
    if report.status.value in GREEN:
        notes = sorted({f.code for f in report.findings if f.severity.value == "note"})
        return " ".join([*(f"{family}={outcome.value}" for family, outcome in report.checks), *notes])
    loud = [f for f in report.findings if f.severity.value != "note"]
    places = [f.case.id if f.case is not None else "" for f in loud]
    sentences = [f"{f.code} [{place}] {f.message}" for f, place in zip(loud, places, strict=True)]
    return " | ".join([report.reason, *sentences])


def by_gradcheck(
    options: argparse.Namespace, known: list[Run], done: set[tuple[str, str, str, int]]
) -> Iterator[Run]:
    """Runs of the drop-in in this process."""
    import torch  # noqa: PLC0415 - the session's front does without

    from gradverify.model import tensors_of  # noqa: PLC0415
    from gradverify.rules import RULES  # noqa: PLC0415
    from gradverify.spec import find_specs, plan_function  # noqa: PLC0415
    from gradverify.verifier.collect.importing import import_file, resolve  # noqa: PLC0415

    torch.set_num_threads(1)
    once = {r.name for r in known if r.by == "check" and "GV203" in r.said}
    twice = {r.name for r in known if r.by == "check" and "gradgradcheck=passed" in r.said} - once
    for where, file in subjects([s for s in options.set if s != "published"] or ["hard", *folders()]):
        spec = find_specs(file, given=[], folder=Path("specs"), known_codes=[r.code for r in RULES])
        if spec is None or where == "triton":
            continue
        module = import_file(file)
        for key, entry in spec.functions.items():
            name = f"{file.parent.name}/{file.stem}::{key}"
            plan = plan_function(spec, key)
            value = resolve(plan.attribute, module)
            held = any(t.constant_at for case in plan.cases for i in case.inputs for t in tensors_of(i))
            if getattr(entry, "surrogate", None) or plan.skip or held or not hasattr(value, "apply"):
                continue
            if not re.search(options.only, name):
                continue
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                if ("gradcheck", where, name, seed) not in done:
                    plan = plan_function(spec, key, seed=seed)
                    yield asked_of_the_drop_in(plan, value, where, name, seed, twice=name in twice)


def folders() -> list[str]:
    return [folder.name for folder in ZOO.iterdir() if folder.is_dir()]


def asked_of_the_drop_in(plan, value, where, name, seed, *, twice) -> Run:
    """Both drop-ins at two draws of every case of one Function."""
    import gradverify  # noqa: PLC0415
    from gradverify.model import Point, Settings  # noqa: PLC0415
    from gradverify.verifier.checks.subject import Sample, Subject, prepare  # noqa: PLC0415
    from gradverify.verifier.collect.discover import defaults_of, describe_target  # noqa: PLC0415

    target = describe_target(value, plan.name, plan.attribute, "right.py")
    subject = Subject(
        target, value.apply, Settings(seed=seed), outputs=plan.outputs, defaults=defaults_of(value)
    )
    said, as_torch, asked, begun = [], [], 0, time.perf_counter()
    for case in plan.cases:
        for draw in DRAWS:
            sample = prepare(subject, case, Point.TYPICAL, draw)
            if not isinstance(sample, Sample):
                continue
            function = function_of(sample)
            for check in (gradverify.gradcheck, gradverify.gradgradcheck)[: 1 + twice]:
                asked += 1
                inputs = [p.detach().clone().requires_grad_() for p in sample.problem.primals]
                try:
                    check(function, inputs, check_undefined_grad=False)
                except Exception as error:  # noqa: BLE001 - what it raises is the alarm
                    first = " ".join(str(error).split())[:400]
                    sentence = f"{check.__name__} [{case.id}] draw {draw}: {type(error).__name__} {first}"
                    (as_torch if torch_fails(check.__name__, function, inputs) else said).append(sentence)
    verdict = "failed" if said else "as torch" if as_torch else "passed" if asked else "not asked"
    seconds = round(time.perf_counter() - begun, 2)
    return Run("gradcheck", where, name, seed, verdict, asked, " | ".join(said + as_torch), seconds)


def torch_fails(name: str, function, inputs) -> bool:
    """Whether torch's own slow check fails there too: a float32 interior, a kink, no deterministic order."""
    import torch  # noqa: PLC0415

    try:
        getattr(torch.autograd, name)(function, inputs, check_undefined_grad=False)
    except Exception:  # noqa: BLE001 - what it raises is a failure
        return True
    return False


def function_of(sample):
    """The Function at this sample as a function of its differentiable inputs, random states replayed."""
    from gradverify.verifier.numerics.problem import returned_tensors, substitute  # noqa: PLC0415

    def function(*leaves):
        primals = [leaf.clone() for leaf in leaves]  # some write into their inputs
        sample.problem.random_states.replay()
        returned = returned_tensors(sample.subject.function(*substitute(sample.arguments, primals)))
        return tuple(returned[p] for p in sample.problem.output_positions)

    return function


def earlier(results: Path | None) -> Iterator[Run]:
    if results is not None and results.exists():
        yield from (Run(**json.loads(line)) for line in results.read_text("utf-8").splitlines())


def written(runs: Iterable[Run], results: Path | None) -> Iterator[Run]:
    for run in runs:
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(run)) + "\n")
        yield run


def show(runs: list[Run]) -> None:
    print("| set | Functions | runs | verdicts | alarms | not green otherwise | median s |")
    print("|---|---|---|---|---|---|---|")
    for where in (*dict.fromkeys(r.where for r in runs), "all"):
        these = [r for r in runs if where in {r.where, "all"}]
        verdicts = Counter(r.verdict for r in these)
        others = sum(n for verdict, n in verdicts.items() if verdict not in {*GREEN, "failed"})
        middle = sorted(r.seconds for r in these)[len(these) // 2] if these else 0
        print(
            f"| {where} | {len({r.name for r in these})} | {len(these)} | {sum(r.checks for r in these)} "
            f"| {verdicts['failed']} | {others} | {middle:.2f} |"
        )
    for run in runs:
        if run.verdict not in GREEN:
            print(f"\n{run.where} {run.name} seed {run.seed}: {run.verdict}: {run.said}")


if __name__ == "__main__":
    sys.exit(main())
