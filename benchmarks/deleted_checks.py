"""Whether some test turns red for everything that is deleted.

    python benchmarks/deleted_checks.py [--checks] [--only NAME...] [--shard 1/4] [--json FILE] [--tests ...]

Each code of the rules in turn is withheld in every process where its findings leave: `run.verify` of the
verifier, what the front makes of events, and the static rules. So is each cause, and each word that a line
of the cover holds (`tests/support/decided.py`): a kind of sample, a way of calling, a guess. With --checks
a function of `TABLE` finds nothing instead. The Functions whose line in `tests/cover/functions.txt` names
what is deleted run first, then the tests that name it, what stays of the zoo, the whole cover, and all
commands and units, until one is red that is green with nothing deleted. gradverify knows nothing of this:
what is deleted is patched as it is imported, by a `sitecustomize` in a temporary folder on PYTHONPATH.
Results are kept in --json (deleted_checks.json; one each for shards that run at a time), and what is there
does not run again. Options behind --tests are given to pytest, such as `--tests='--all-seeds'`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from patched_processes import patching

from gradverify.rules import RULES

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
sys.path.append(str(TESTS / "support"))

import decided  # noqa: E402 - on the path now

COVER = "tests/cover/test_cover.py"
LIST = TESTS / "cover" / "functions.txt"

CODE = re.compile(r"\bGV\d{3}\b")

WITHHELD = {
    "gradverify.verifier.process.run": """
def _without(whole):
    def verify(request, live):
        for event in whole(request, live):
            if not (isinstance(event, Found) and event.finding.code == {code!r}):
                yield event
    return verify

verify = _without(verify)
""",
    "gradverify.session.aggregate": """
def _without(whole):
    return lambda self: [found for found in whole(self) if found.code != {code!r}]

TargetState._marked = _without(TargetState._marked)
""",
    "gradverify.lint.rules": """
RULES = dict(pair for pair in RULES.items() if pair[0] != {code!r})
""",
}
"""Where findings leave: what the module runs after its own source."""

CHANGED = """
import re
from dataclasses import replace

def _changed(whole):
    def marked(self):
        changed = []
        for found in whole(self):
            case, point = found.case and found.case.id, found.case and found.case.point.value
            said = f"{{found.code}} {{found.severity.value[0]}} {{found.message}} {{case or ''}}"
            {change}
            changed.append(found)
        return changed
    return marked

TargetState._marked = _changed(TargetState._marked)
"""
"""What `gradverify.session.aggregate` runs after its own source, where findings of a kind are left out."""

FINDS_NOTHING = """
def _in_its_place(whole):
    def {function}(*given, **named):
        return {returns}
    return {function}

{function} = _in_its_place({function})
{tried}
"""


@dataclass(frozen=True)
class Check:
    """A function that finds something."""

    module: str
    """Below `gradverify`."""
    function: str
    returns: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.function}"


TABLE = """
verifier.questions | CheckResult() | again.overlapping_cases again.overlapping ways.as_leaves
    changes.changes changes.requires_grad_subsets again.growing_memory again.watched
    ways.other_devices ways.as_in_a_penalty again.again transforms.batched
    transforms.compiled transforms.registration
verifier.questions | iter(()) | ways.same_tensor_twice ways.views_of_one_base ways.saved_elsewhere
verifier.questions | () | again.unrepeatable again.written again.read_unwritten
verifier.questions | CheckResult(outcome=Outcome.NOT_RUN) | table.on_other_devices
verifier.questions.dtypes | CheckResult() | asked.autocast asked.beside_float64
verifier.questions | FirstOrder(CheckResult()) | results.judged_alone
verifier.questions.dtypes | () | asked.wrong_natively
verifier.questions.dtypes | iter(given[:1]) | asked.places_of
verifier.questions | CheckResult() | contract.contract
verifier.questions | CheckResult() | results.reference results.surrogate
verifier.questions | FirstOrder(CheckResult(), proven=True) | results.beyond
verifier.questions | iter(()) | structured.wrong_with_structure reference._values reference._gradients
    reference._second_derivatives
verifier.witnesses | None | kinks.see_ties kinks.see_a_tie_by_values kinks.look_beside_kinks
    judge.ask_for_rounding judge.look_for_lost_digits judge.doubt_short_formats
    judge._doubt_the_end_of_loops judge._carry_over
verifier.questions | CheckResult(capability="yes") | results.second_order
verifier.diagnose.edits | None | same_values.out_of_place same_values.recomputed_in
    same_values.asked_of_each_input
verifier.questions | None | orders.refused_empty
verifier.questions | iter(()) | contract._carried_parameters
verifier.questions | CheckResult(capability="yes") | results.second_order_natively
verifier.targets | () | discover.unreached
verifier.verify | iter(()) | beside._other_shapes beside.past_constants
verifier.diagnose | iter(()) | findings.causes_of
verifier.questions | None | again._overlapped
verifier.infer | given[1] | choices._with_longer_tables choices.with_whole_numbers
verifier.infer | iter(()) | entry.perhaps_learned
verifier.infer | False | choices._is_another
verifier.questions | "" | subject._written_parameters
verifier.questions.dtypes | False | judging.has_other_signs
verifier.verify | CheckResult() | beside._in_other_calls
verifier.verify | False | loop._has_integers
verifier.witnesses | False | judge._bends_at_an_end
verifier.questions | FirstOrder(CheckResult(), judged=True) | results.at_undeclared
verifier.verify | FirstOrder(CheckResult(), judged=True) | beside.at_unlisted
verifier.questions | None | reference.composite_of
verifier.verify | iter(()) | beside._evaluation_mode beside._unlisted_sizes
    beside._open_sizes beside._overlapping_cases
model | 0 | case.draws_of_decades
cases | () | further._combined past._given
cases | given[0][:1] | sweep.with_each_option
source | iter(()) | reachable._cast
source | () | reachable.thresholds
session | [] | aggregate.reported_beside
session | list(given[0]) | completeness.mark_expected
verifier.neighbours | iter(()) | shapes._as_returned shapes._one_more shapes._one_fewer
    shapes._single_matrices shapes.even_sizes shapes._last_size_as_read shapes._equal_sizes
    values.of_any_structure values.inside_a_domain values.where_forward_converges
    values.where_backward_converges values.without_signs values.where_all_is_positive
    values.constants_of_a_kind values.zeros_of_padding
verifier.neighbours | None | values.made_up meant.is_meant meant.raises_on_purpose
    meant.no_derivative_meant guesses._unseen
verifier.neighbours | "" | meant._chosen
verifier.neighbours | False | guesses._is_certain
verifier.neighbours | given[1] | guesses.guarded guesses.unless_unseen
"""
"""What can be taken out by itself: package | what is returned where nothing is found | functions of modules.
The second is an expression in the names of the module; `given` are the arguments, `whole` is the function.
What keeps a right Function from an alarm lets everything through."""


def checks() -> list[Check]:
    """The table as rows."""
    found = []
    for row in TABLE.strip().replace("\n    ", " ").splitlines():
        package, returns, names = row.split(" | ")
        for stem, _, function in (name.rpartition(".") for name in names.split()):
            found.append(Check(f"{package}.{stem}".rstrip("."), function, returns))
    return found


@dataclass(frozen=True)
class Deletion:
    """What is taken out, and where tests of it are looked for."""

    name: str
    patches: Mapping[str, str]
    """Source that a module runs after its own, by the module's name."""
    words: frozenset[str]
    """Names that a test of it would hold."""
    codes: frozenset[str]
    """Codes that the zoo would miss."""


def of_code(code: str) -> Deletion:
    patches = {module: text.format(code=code) for module, text in WITHHELD.items()}
    return Deletion(code, patches, frozenset({code}), frozenset({code}))


def of_word(word: str) -> Deletion:
    """A word of the cover: findings that hold it are left out, or lose the cause that it is."""
    kind, _, rest = word.partition(": ")
    if kind == "cause":
        change = f"found = replace(found, cause='') if found.cause == {rest!r} else found"
    elif word in decided.HELD:
        change = f"if re.search({decided.HELD[word]!r}, said, re.DOTALL): continue"
    else:
        change = f"if point == {rest.removesuffix(' values')!r}: continue"
    patches = {"gradverify.session.aggregate": CHANGED.format(change=change)}
    return Deletion(word, patches, frozenset({word}), frozenset())


def words() -> list[str]:
    """Causes, kinds of sample, ways of calling and guesses that lines of the cover hold."""
    lines = (line.rpartition(" | ")[2] for line in LIST.read_text("utf-8").splitlines() if line[0] != "#")
    found = {word for line in lines for word in line.split("; ")}
    return sorted(word for word in found if word.startswith(("cause: ", "sample: ")) or word in decided.HELD)


def of_check(check: Check) -> Deletion:
    path = ROOT.joinpath("gradverify", *check.module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
    tried = "" if re.search("given|whole", check.returns) else check.returns  # a wrong row shows on import
    patch = FINDS_NOTHING.format(function=check.function, returns=check.returns, tried=tried)
    body = next(n for n in ast.parse(source).body if getattr(n, "name", "") == check.function)
    of_function, of_module = (CODE.findall(text) for text in (ast.get_source_segment(source, body), source))
    codes = frozenset(of_function or of_module)
    return Deletion(check.name, {f"gradverify.{check.module}": patch}, codes | {check.function}, codes)


# ---------------------------------------------------------------------------------------------
# Which tests could notice


def stages(deleted: Deletion) -> Iterator[list[str]]:
    """Arguments for pytest, the nearest and cheapest tests first."""
    for code in sorted(deleted.codes & {rule.code for rule in RULES if rule.code.startswith("GV8")}):
        yield ["tests/unit/lint", "-k", code]
    yield holding(deleted)
    yield [*named(deleted.words, "unit"), *named(deleted.words, "cli"), *named(deleted.words, "field")]
    yield ["tests/field", "tests/zoo"]
    yield ["tests/cover"]
    yield ["tests/cli", "tests/unit"]


def holding(deleted: Deletion) -> list[str]:
    """The Functions of the cover whose line names what is deleted."""
    sets, functions = dict[str, None](), list[str]()
    for line in LIST.read_text("utf-8").splitlines():
        function, _, reasons = line.partition(" | ")
        words = set(re.split(r"; | \| ", reasons))
        if words & deleted.words or any(
            word.endswith(tuple(deleted.codes)) for word in words if deleted.codes
        ):
            sets[function.partition("::")[0]] = None
            functions += ["--function", function]
    return [*(f"{COVER}::test_cover[{name}]" for name in sets), *functions]


def named(words: frozenset[str], folder: str) -> list[str]:
    """Test functions that hold one of the words; the whole file where a table or an import of it does."""
    pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in sorted(words)))
    found = []
    for path in sorted((TESTS / folder).rglob("test_*.py")):
        text, name = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        if not pattern.search(text):
            continue
        body = ast.parse(text).body
        tests = [n for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
        holding = [n.name for n in tests if pattern.search(ast.get_source_segment(text, n) or "")]
        found += [f"{name}::{test}" for test in holding] or [name]
    return found


# ---------------------------------------------------------------------------------------------
# Running them


def require_fitting(patches: Mapping[str, str]) -> None:
    """Import what is patched: a patch that does not fit would turn every test red."""
    with patching(patches) as environment:
        imports = [sys.executable, "-P", "-c", "".join(f"import {module}\n" for module in patches)]
        done = subprocess.run(imports, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the patch of {', '.join(patches)} does not fit:\n{done.stderr}")


def first_red(tests: Sequence[str], patches: Mapping[str, str], options: Sequence[str]) -> str:
    """The first test that is red with these patches; empty where all are green."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    with patching(patches) as environment:
        done = subprocess.run(
            [*command, *tests, *options],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    red = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if red is None and done.returncode not in {0, 5}:  # 5: nothing was selected
        raise SystemExit(f"pytest exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return red[1] if red else ""


@dataclass(frozen=True)
class Noticed:
    """What became of one deletion."""

    name: str
    test: str
    """The test that turned red; empty where none did."""
    seconds: float


def noticed(deleted: Deletion, options: Sequence[str]) -> Noticed:
    """Run the tests that could notice until one does that is green with nothing deleted."""
    start, anyway = time.perf_counter(), list[str]()
    require_fitting(deleted.patches)
    for stage in stages(deleted):
        while stage:
            left = [*options, *(f"--deselect={test}" for test in anyway)]
            red = first_red(stage, deleted.patches, left)
            if not red:
                break
            if not first_red([red], {}, options):
                return Noticed(deleted.name, red, round(time.perf_counter() - start, 1))
            anyway.append(red)
    return Noticed(deleted.name, "", round(time.perf_counter() - start, 1))


def main() -> None:
    """Print a line for each deletion, and those that no test noticed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--checks", action="store_true", help="delete functions instead of codes")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="codes, or ends of names of checks"
    )
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    parser.add_argument("--json", type=Path, default=Path("deleted_checks.json"))
    parser.add_argument("--tests", default="", help="options for pytest, in one string")
    given = parser.parse_args()
    withheld = [*map(of_code, (rule.code for rule in RULES)), *map(of_word, words())]
    every = map(of_check, checks()) if given.checks else withheld
    shard, shards = map(int, given.shard.split("/"))
    chosen = [d for d in every if not given.only or d.name.endswith(tuple(given.only))][shard - 1 :: shards]
    known = json.loads(given.json.read_text("utf-8")) if given.json.exists() else {}
    print("| deleted | red test | s |\n|---|---|---|")
    for deleted in chosen:
        if deleted.name not in known:
            known[deleted.name] = asdict(noticed(deleted, shlex.split(given.tests)))
            given.json.write_text(json.dumps(known, indent=2) + "\n", "utf-8")
        row = known[deleted.name]
        print(f"| {deleted.name} | {row['test'] or '**none**'} | {row['seconds']} |", flush=True)
    unnoticed = [deleted.name for deleted in chosen if not known[deleted.name]["test"]]
    print(f"\nnoticed: {len(chosen) - len(unnoticed)} of {len(chosen)}", *unnoticed, sep="\n  no test: ")


if __name__ == "__main__":
    main()
