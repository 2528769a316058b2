"""How long one waits for an answer, and for how much memory: each row beside the plain thing, in one run.

    python benchmarks/latency.py [--repeats 5] [--modules 30] [--entries 1e6] [--only NAME...] [--json FILE]

Whole processes in turn on one machine, start and imports included: `gradverify` of the running interpreter's
environment, compiled to bytecode before, against *plain*: a script that imports torch and calls its slow
`gradcheck` and `gradgradcheck` on the same Functions and shapes, or for what needs no torch a typer app that
does nothing. One run of each is not counted. CPU seconds are user time, of every process that was started;
on a busy machine only these mean anything, and of these the least. A target is met by the ratio of the least.

`right`, `wrong-*` (cause and smallest form included), `bare-*` (wrong ones without a spec), `modules` (of
three Functions each) and `twice` (as many again), `watch` (from a save to the verdict, which for a wrong
Function names the cause), `help`, `rules`, `explain`, `spec-error`, `memory` (one elementwise Function of
so many entries), `reports` (the same bytes at -j 1 and 2, on an idle machine and beside two endless loops).
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import small_functions as written
from process_costs import Cost, adopt_orphans, busy, environment, measured, peak_of, user_seconds
from small_functions import Module

import gradverify

COMMAND = (sys.executable, "-P", "-m", "gradverify")
CHECK = (*COMMAND, "check")
PLAIN = (sys.executable, written.SCRIPT)
APP = (sys.executable, "-c", "import rich, typer; typer.run(lambda: None)")
"""What typer and rich cost anybody: typer loads half of itself only once a command runs."""

TENSOR = 8
"""Bytes of an entry in float64."""

Seconds = tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One promise: the least of ours is at most `target` times the least of plain, or `target` alone."""

    name: str
    ours: Seconds
    plain: Seconds = ()
    target: float | None = None
    unit: str = "CPU s"

    @property
    def ratio(self) -> float:
        return min(self.ours) / min(self.plain, default=1.0)

    @property
    def met(self) -> bool:
        return self.target is None or self.ratio <= self.target

    def line(self) -> str:
        """A line of the Markdown table."""
        ours, plain = (
            f"{min(s):.3g} ({statistics.median(s):.3g})" if s else "" for s in (self.ours, self.plain)
        )
        target = "" if self.target is None else f"{self.target:g}"
        met = "" if not target else "yes" if self.met else "**no**"
        return f"| {self.name} | {self.unit} | {ours} | {plain} | {self.ratio:.3g} | {target} | {met} |"


@dataclass(frozen=True)
class Asked:
    """The options, and an empty folder for one row."""

    folder: Path
    repeats: int
    modules: int
    entries: int


def paired(
    asked: Asked, ours: Sequence[str], plain: Sequence[str], code: int = 0
) -> tuple[list[Cost], list[Cost]]:
    """The costs of ours and of plain, run in turn."""
    mine, theirs = [], []
    for _ in range(asked.repeats + 1):
        theirs.append(measured(plain, asked.folder))
        mine.append(measured(ours, asked.folder, code))
    return mine[1:], theirs[1:]


def rows(name: str, costs: tuple[list[Cost], list[Cost]], cpu: float, wall: float | None = None) -> list[Row]:
    """CPU time, and wall time where something is promised of it."""
    mine, theirs = costs
    row = Row(name, tuple(c.cpu for c in mine), tuple(c.cpu for c in theirs), cpu)
    on_the_wall = Row(name, tuple(c.wall for c in mine), tuple(c.wall for c in theirs), wall, "wall s")
    return [row] if wall is None else [row, on_the_wall]


def right(asked: Asked) -> list[Row]:
    written.write(asked.folder, [Module("m", (written.SOFTMAX,))])
    return rows("right", paired(asked, (*CHECK, "m.py"), PLAIN), 1.10, 1.05)


def wrong(name: str, asked: Asked) -> list[Row]:
    written.write(asked.folder, [Module("m", (written.WRONG[name],))])
    return rows(f"wrong-{name}", paired(asked, (*CHECK, "m.py"), PLAIN, 1), 1.6)


def bare(name: str, asked: Asked) -> list[Row]:
    written.write(asked.folder, [Module("m", (written.WRONG[name],), has_spec=False)])
    return rows(f"bare-{name}", paired(asked, (*CHECK, "m.py"), PLAIN, 1), 2.0)


def modules(asked: Asked) -> list[Row]:
    written.write(asked.folder, written.modules(asked.modules))
    return rows(f"modules, {asked.modules}", paired(asked, (*CHECK, "."), PLAIN), 2.0)


def twice(asked: Asked) -> list[Row]:
    for part, count in (("one", asked.modules), ("two", 2 * asked.modules)):
        (asked.folder / part).mkdir()
        written.write(asked.folder / part, written.modules(count))
    costs = paired(asked, (*CHECK, "two"), (*CHECK, "one"))
    return rows(f"twice, {2 * asked.modules} to {asked.modules} modules", costs, 2.1, 2.1)


def alone(name: str, arguments: Sequence[str], target: float, asked: Asked, code: int = 0) -> list[Row]:
    """What needs no torch."""
    return rows(name, paired(asked, (*COMMAND, *arguments), APP, code), target)


def spec_error(asked: Asked) -> list[Row]:
    written.write(asked.folder, [Module("m", (written.SOFTMAX,))])
    spec = asked.folder / "m.gradverify.yaml"
    spec.write_text(spec.read_text("utf-8").replace("x: [", "z: ["), "utf-8")
    return alone("spec-error", ("check", "m.py"), 3.0, asked, 2)


# ---------------------------------------------------------------------------------------------
# From a save to the verdict


def wait_until_at_rest(root: int) -> None:
    """Until the template has loaded all, as it has when somebody reads a verdict and edits."""
    last, quiet = user_seconds(root), 0
    while quiet < 3:
        time.sleep(0.5)
        now = user_seconds(root)
        last, quiet = now, quiet + 1 if now - last < 0.02 else 0


def watch(asked: Asked) -> list[Row]:
    found: dict[str, list[float]] = {"wrong, with the cause": [], "right": []}
    written.write(asked.folder, [Module("m", (written.SOFTMAX,))])
    report = asked.folder / "report.txt"
    with report.open("w") as out:
        command = (*CHECK, "m.py", "--watch")
        watching = subprocess.Popen(
            command, cwd=asked.folder, env=environment(), stdout=out, stderr=subprocess.PIPE, text=True
        )
    try:
        wait_for_verdict(watching.stderr or ())
        for kind in (*found,) * asked.repeats:
            wait_until_at_rest(watching.pid)
            before, length = user_seconds(watching.pid), report.stat().st_size
            function = written.SOFTMAX if kind == "right" else written.WRONG["softmax"]
            text = written.source([replace(function, name="Softmax")])
            (asked.folder / "m.py").write_text(text, "utf-8")
            wait_for_verdict(watching.stderr or ())
            found[kind].append(user_seconds(watching.pid) - before)
            said = report.read_text("utf-8")[length:]
            if ("GV101" in said) == (kind == "right"):
                raise SystemExit(f"not the verdict on a {kind} Function:\n{said}")
    finally:
        watching.terminate()
        watching.wait()
    targets = zip(found.items(), (2.0, 0.4), strict=True)
    return [Row(f"watch, {kind}", tuple(seconds), (), target) for (kind, seconds), target in targets]


def wait_for_verdict(messages: Iterable[str]) -> None:
    """Read until a round is reported to be over."""
    if not any(" checked in " in line for line in messages):
        raise SystemExit("the watching process ended")


# ---------------------------------------------------------------------------------------------
# Memory


def memory(asked: Asked) -> list[Row]:
    written.write(asked.folder, [Module("m", (written.sized(written.SILU, asked.entries),))])
    once = f"""
import sys, torch, m
x = torch.randn({asked.entries}, dtype=torch.float64, requires_grad=True)
m.SiLU.apply(x).backward(torch.ones_like(x))
sys.exit([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
"""
    command = (*CHECK, "m.py", "--timeout", "3600")
    tensors, seconds = [], []
    for _ in range(asked.repeats):
        plain = subprocess.run(
            (sys.executable, "-c", once),
            cwd=asked.folder,
            env=environment(),
            capture_output=True,
            check=False,
        )
        start = time.perf_counter()
        with subprocess.Popen(
            command, cwd=asked.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as ours:
            above = peak_of(ours) - 1024 * float(plain.stderr)
        seconds.append(time.perf_counter() - start)
        tensors.append(above / (TENSOR * asked.entries))
        if ours.returncode:
            print(f"(memory: the check ended with {ours.returncode})", file=sys.stderr)
    name = f"memory, {asked.entries:.0e} entries"
    return [Row(name, tuple(tensors), (), 20.0, "tensors"), Row(name, tuple(seconds), unit="wall s")]


# ---------------------------------------------------------------------------------------------
# The same report, whatever else runs


def reports(asked: Asked) -> list[Row]:
    written.write(asked.folder, written.dozen())
    made: dict[str, str] = {}
    for jobs, loops in itertools.product(("1", "2"), (0, 2)):
        command = (*CHECK, ".", "--format", "json", "-j", jobs)
        with busy(loops):
            done = subprocess.run(
                command, cwd=asked.folder, env=environment(), capture_output=True, text=True, check=False
            )
        made[f"-j {jobs} beside {loops} loops"] = done.stdout
        if (count := len(json.loads(done.stdout)["targets"])) != 12:
            raise SystemExit(f"{count} verdicts, not 12:\n{done.stdout}{done.stderr}")
    (name, first), *others = made.items()
    for other, text in others:
        for line, (a, b) in enumerate(itertools.zip_longest(first.splitlines(), text.splitlines()), start=1):
            if a != b:
                print(
                    f"(reports: line {line}, {name}: {a}\n          line {line}, {other}: {b})",
                    file=sys.stderr,
                )
                break
    return [Row("reports", (float(len(set(made.values()))),), (), 1.0, "different ones")]


ROWS: Mapping[str, Callable[[Asked], list[Row]]] = {
    "right": right,
    **{f"wrong-{name}": lambda asked, name=name: wrong(name, asked) for name in written.WRONG},
    **{f"bare-{name}": lambda asked, name=name: bare(name, asked) for name in written.WRONG},
    "watch": watch,
    "help": lambda asked: alone("help", ("--help",), 1.7, asked),
    "rules": lambda asked: alone("rules", ("rules",), 2.0, asked),
    "explain": lambda asked: alone("explain", ("explain", "GV101"), 2.0, asked),
    "spec-error": spec_error,
    "memory": memory,
    "reports": reports,
    "modules": modules,
    "twice": twice,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--modules", type=int, default=30)
    parser.add_argument("--entries", type=float, default=1e6)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    compileall.compile_dir(Path(gradverify.__file__).parent, quiet=2)
    adopt_orphans()
    print("| row | of | ours: least (median) | plain: least (median) | ratio | target | met |")
    print("|---|---|---|---|---|---|---|")
    made: list[Row] = []
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            asked = Asked(Path(folder), given.repeats, given.modules, int(given.entries))
            for row in ROWS[name](asked):
                made.append(row)
                print(row.line(), flush=True)
    if given.json is not None:
        figures = [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in made]
        given.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
