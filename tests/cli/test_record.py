"""`record`: a program runs as ever, and what it called becomes a spec that `check` takes at once."""

import json
import sys

import forked_command
import pytest
import yaml

PYTHON = sys.executable


def functions_of(file):
    return yaml.safe_load(file.read_text())["functions"]


def statuses(here, module, spec):
    ran = here("check", module, "--spec", spec, "--no-infer", "--format", "json")
    return {
        t["name"]: (t["status"], {f["code"] for f in t["findings"]}) for t in json.loads(ran.out)["targets"]
    }


@pytest.fixture(scope="module")
def here(place):
    return place("recording")


@pytest.fixture(scope="module")
def trained(here):
    return here, here("record", "-o", "train.yaml", "--", PYTHON, "train.py", "4")


@pytest.fixture(scope="module")
def others(here):
    return here, here("record", "-o", "others.yaml", "--", PYTHON, "others.py", PYTHONPATH="own")


def test_the_program_runs_as_ever(trained):
    here, ran = trained
    plain = forked_command.python(["train.py", "4"], here.folder)
    assert (ran.code, ran.out) == (plain.code, plain.out) == (0, plain.out)
    assert "train.yaml written: 3 entries" in ran.err
    assert "functions.py::Linear  12 calls, 4 signatures" in ran.err
    assert "gradverify check train.yaml" in ran.err


def test_sizes_are_shared_small_and_swept(trained):
    here, _ = trained
    text = (here.folder / "train.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=")
    assert "# recorded: 12 calls, 4 signatures" in text
    linear = functions_of(here.folder / "train.yaml")["Linear"]
    assert linear["reference"] == "functions:naive_linear"
    assert linear["inputs"] == {
        "input": ["n", "d"],
        "weight": ["m", "d"],
        "bias": {"shape": ["m"], "optional": True},
    }
    assert len(linear["sizes"]["n"]) == 2
    assert linear["sizes"]["m"] < linear["sizes"]["d"] < min(linear["sizes"]["n"])


def test_an_index_stays_below_what_it_indexes(trained):
    here, _ = trained
    index = functions_of(here.folder / "train.yaml")["Lookup"]["inputs"]["index"]
    assert index == {"shape": ["m"], "dtype": "int64", "range": [0, "n"]}


def test_check_finds_the_wrong_one_at_once(trained):
    here, _ = trained
    assert statuses(here, "functions.py", "train.yaml") == {
        "Linear": ("passed", set()),
        "Lookup": ("passed", set()),
        "Scale": ("failed", {"GV101"}),
    } | {name: ("unchecked", {"GV001"}) for name in ("Apply", "Heads")}


@pytest.mark.parametrize(("how", "code"), [("--fail", 7), ("--crash", 134)])
def test_what_a_program_called_before_it_failed_is_kept(here, how, code):
    """In a folder that is made for it."""
    name = f"specs{how}/new/failed.yaml"
    ran = here("record", "-o", name, "--", PYTHON, "train.py", "1", how)
    assert ran.code == code
    assert f"ended with exit code {code}" in ran.err
    assert set(functions_of(here.folder / name)) == {"Linear", "Lookup", "Scale"}


def test_workers_and_checkpoints_are_recorded(others):
    here, ran = others
    assert ran.code == 0, ran.err
    linear = functions_of(here.folder / "others.yaml")["functions.py::Linear"]
    assert len(linear["sizes"]["n"]) == 2, "one size from each worker process"


def test_the_users_own_sitecustomize_runs(others):
    assert others[1].out == "variable chained\n"


def test_objects_are_named_or_reported(others):
    here, ran = others
    found = functions_of(here.folder / "others.yaml")
    assert found["functions.py::Apply"]["inputs"]["kernel"] == {"object": "functions:square"}
    assert (
        "Apply@2 is commented out: `kernel` is `main.<locals>.<lambda>`, which cannot be imported by a name"
        in ran.err
    )
    assert "local.<locals>.Local is commented out: it is defined inside a function" in ran.err
    text = (here.folder / "others.yaml").read_text()
    assert "  # functions.py::Apply@2:" in text


def test_sizes_that_belong_together_stay_together(others):
    here, _ = others
    heads = functions_of(here.folder / "others.yaml")["functions.py::Heads"]
    assert heads["inputs"]["x"] == ["n", "4 * m"]
    assert heads["inputs"]["weight"]["requires_grad"] is False
    assert heads["inputs"]["heads"] == 4
    found = statuses(here, "functions.py", "others.yaml")
    assert found["Heads"] == ("passed", set())
    assert found["Apply"] == ("passed", set())


def test_a_script_that_would_run_again_is_not_imported(here):
    ran = here("record", "-o", "unguarded.yaml", "--", PYTHON, "unguarded.py")
    assert ran.code == 0
    assert "importing unguarded.py runs the program" in ran.err
    assert (here.folder / "runs").read_text() == "once\n"
    assert functions_of(here.folder / "unguarded.yaml")["Double"]["sizes"] == {"n": 7}


def test_modules_can_be_chosen(here):
    ran = here("record", "-o", "none.yaml", "--module", "elsewhere", "--", PYTHON, "train.py", "1")
    assert ran.code == 5
    assert "no call of an autograd Function was seen" in ran.err
    assert not (here.folder / "none.yaml").exists()


def test_a_spec_is_replaced_with_force_alone(here):
    file = here.folder / "mine.yaml"
    file.write_text("mine\n")
    command = ("--", PYTHON, "-c", "import functions, torch; functions.Scale.apply(torch.ones(3), 2.0, 'a')")
    refused = here("record", "-o", "mine.yaml", *command)
    assert (refused.code, refused.out) == (2, "")
    assert "--force" in refused.err
    assert file.read_text() == "mine\n"
    assert here("record", "-o", "mine.yaml", "--force", *command).code == 0
    assert functions_of(file)["Scale"]["inputs"]["x"] == ["n"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "x.txt", "--", "true"), "is not named like a spec"),
        (("-o", "x.yaml", "--", "no-such-program"), "`no-such-program` cannot be started"),
        (("-o", "x.yaml"), "Missing argument"),
        (("--", "true"), "Missing option '-o'"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(here, arguments, said):
    ran = here("record", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_tests_can_be_recorded(here):
    tests = here.folder / "tests"
    tests.mkdir()
    (tests / "test_it.py").write_text(
        "import torch\nfrom functions import Scale\n\n\ndef test_it():\n"
        "    Scale.apply(torch.randn(6, 8, requires_grad=True), 0.5, 'sum').sum().backward()\n"
    )
    ran = here(
        "record", "-o", "tested.yaml", "--", PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"
    )
    assert ran.code == 0, ran.err
    assert "1 passed" in ran.out
    assert set(functions_of(here.folder / "tested.yaml")) == {"Scale"}


def test_a_spec_without_an_entry_that_holds_is_shown_and_not_written(here):
    (here.folder / "modules.py").write_text(
        "import torch\n\n\nclass Doubled(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x, net):\n        return 2 * x\n\n    @staticmethod\n"
        "    def backward(ctx, g):\n        return 2 * g, None\n"
    )
    (here.folder / "calls.py").write_text(
        "import torch\nfrom modules import Doubled\n\nnets = torch.nn.ModuleList([torch.nn.Linear(2, 2)])\n"
        "Doubled.apply(torch.randn(3, requires_grad=True), nets).sum().backward()\n"
    )
    ran = here("record", "-o", "nothing.yaml", "--", PYTHON, "calls.py")
    assert "# Doubled:" in ran.out
    assert "nothing.yaml is not written: no entry holds without being completed" in ran.err
    assert not (here.folder / "nothing.yaml").exists()


PACKAGE = """
import torch
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, g):
        return 2 * g
"""

PROGRAM = """
import torch
from pack.ops import Twice
from pack.more import Again
from torch.utils.checkpoint import checkpoint
x = checkpoint(torch.sin, torch.randn(3, 2, requires_grad=True), use_reentrant=True)
(Twice.apply(x) + Again.apply(x)).sum().backward()
"""


@pytest.fixture
def installed(tmp_path, place):
    """A program without Functions of its own, and the packages that it uses."""
    packages = tmp_path / "site-packages"
    (packages / "pack").mkdir(parents=True)
    (packages / "pack/__init__.py").touch()
    (packages / "pack/ops.py").write_text(PACKAGE.format(name="Twice"))
    (packages / "pack/more.py").write_text(PACKAGE.format(name="Again"))
    here = place("recording")
    (here.folder / "uses.py").write_text(PROGRAM)
    return here, {"PYTHONPATH": str(packages)}


def test_what_is_called_of_other_packages_is_said_and_of_torch_is_not(installed):
    here, path = installed
    ran = here("record", "-o", "used.yaml", "--", PYTHON, "uses.py", **path)
    assert ran.code == 5
    assert "no Function of your own was called" in ran.err
    assert "pack.ops: Twice" in ran.err
    assert "torch" not in ran.err
    assert "Try: gradverify record -o used.yaml --module pack -- " in ran.err


def test_an_installed_package_is_named_as_it_is_imported(installed, tmp_path):
    here, path = installed
    ran = here("record", "-o", "used.yaml", "--module", "pack", "--", PYTHON, "uses.py", **path)
    assert ran.code == 0, ran.err
    text = (here.folder / "used.yaml").read_text()
    assert "pack.ops::Twice:" in text
    assert "pack.more::Again:" in text
    assert "site-packages" not in text
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/used.yaml").write_text(text)
    checked = here("check", tmp_path / "elsewhere/used.yaml", "--format", "json", **path)
    assert checked.code == 0, checked.out
    assert [t["name"] for t in json.loads(checked.out)["targets"]] == ["Again", "Twice"]


CONSTANT = """
import torch
from torch.autograd import Function


class Smoothed(Function):
    @staticmethod
    def forward(ctx, x, kernel, turned):
        ctx.save_for_backward(turned)
        return torch.nn.functional.conv1d(x, kernel, padding=1, groups=3)

    @staticmethod
    def backward(ctx, g):
        (turned,) = ctx.saved_tensors
        return torch.nn.functional.conv1d(g, turned, padding=1, groups=3), None, None
"""

CALLS = """
import torch
from smoothed import Smoothed

kernel = torch.tensor([0.25, 0.5, 0.125]).expand(3, 1, 3).contiguous()
for length in (6, 8, 6):
    Smoothed.apply(torch.randn(2, 3, length, requires_grad=True), kernel, kernel.flip(-1)).sum().backward()
"""


def test_a_constant_keeps_its_values_and_sizes(tmp_path):
    (tmp_path / "smoothed.py").write_text(CONSTANT)
    (tmp_path / "calls.py").write_text(CALLS)
    ran = forked_command.run(["record", "-o", "s.yaml", "--", PYTHON, "calls.py"], tmp_path)
    entry = functions_of(tmp_path / "s.yaml")["Smoothed"]
    assert entry["inputs"]["turned"]["value"] == [[[0.125, 0.5, 0.25]]] * 3, ran.err
    assert entry["inputs"]["x"][1] == 3
    checked = forked_command.run(["check", "s.yaml", "--format", "json"], tmp_path)
    assert [t["status"] for t in json.loads(checked.out)["targets"]] == ["passed"]
