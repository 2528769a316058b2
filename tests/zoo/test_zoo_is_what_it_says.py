"""The zoo is only worth as much as its labels: torch's own checks must agree with `expected.py`.

gradverify has no part in this. What torch's gradcheck cannot see (a constant cut short, a float32
gradient, a steep function) is compared with the right twin or with a closed form instead.
"""

import importlib
import importlib.util
import itertools
import re
import runpy
import zlib
from pathlib import Path

import pytest
import torch
import yaml
from torch.autograd import Function, gradcheck, gradgradcheck

ZOO = Path(__file__).parent
FOLDERS = {
    "tutorial": ZOO / "tutorial",
    "general": ZOO / "general",
    "demo": ZOO.parents[1] / "gradverify" / "demo",
}
STEMS = [
    *itertools.product(("tutorial", "general"), ("right", "wrong")),
    ("tutorial", "bare"),
    ("demo", "functions"),
]
ROW_KEYS = {"status", "or_else", "errors", "any_of", "warnings", "notes", "may", "names", "source", "twin"}

MISMATCH = "Jacobian mismatch"
WORDS_OF_GRADCHECK = {
    "GV101": f"{MISMATCH}|not reentrant",
    "GV102": "ValueError|NameError",
    "GV103": "invalid gradient",
    "GV105": "incorrect number of gradients",
    "GV106": f"{MISMATCH}|multiplied by grad_output",
    "GV107": MISMATCH,
    "GV108": MISMATCH,
    "GV407": "NoneType",
}
"""What torch says where gradverify is to give this code."""
WRONG_INPUTS_NAMED = {"GV101", "GV107", "GV108"}
IMPRECISE = {"GV104", "GV110"}

CLOSED_FORMS = {
    ("general", "SteepSine"): lambda x: torch.sin(1e5 * x),
    ("general", "LargeOffset"): lambda x: 3 * x + 1e8,
}
"""On these torch's gradcheck, with its fixed step, has no opinion worth having."""


# ---------------------------------------------------------------------------------------------
# Modules, specs and labels


def load_module(folder, stem):
    module_spec = importlib.util.spec_from_file_location(
        f"zoo_{folder}_{stem}", FOLDERS[folder] / f"{stem}.py"
    )
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def load_functions(folder, stem):
    return yaml.safe_load((FOLDERS[folder] / f"{stem}.gradverify.yaml").read_text("utf-8"))["functions"]


def load_expected(folder):
    if folder != "demo":
        return runpy.run_path(str(FOLDERS[folder] / "expected.py"))["EXPECTED"]
    intended = runpy.run_path(str(FOLDERS[folder] / "intended.py"))["INTENDED"]
    return {
        ("functions", name, "with spec"): {"status": str(status), "errors": set(codes)}
        for name, (status, codes) in intended.items()
    }


MODULES = {key: load_module(*key) for key in STEMS}
SPECS = {key: load_functions(*key) for key in STEMS if key[1] != "bare"}
EXPECTED = {folder: load_expected(folder) for folder in FOLDERS}


def codes_of(row, *kinds):
    return set().union(*(row.get(kind, ()) for kind in kinds))


def entry_of(folder, stem, name):
    """The spec's entry, or for `bare.py` what one shape for every parameter amounts to."""
    if stem != "bare":
        return SPECS[folder, stem][name]
    code = getattr(MODULES[folder, stem], name).forward.__code__
    return {"inputs": {parameter: [4, 3] for parameter in code.co_varnames[1 : code.co_argcount]}}


def class_of(folder, stem, name):
    return getattr(MODULES[folder, stem], entry_of(folder, stem, name).get("target", name))


def rows(wanted=lambda folder, stem, name, row: True):
    """Parametrize a test with the rows that it is about."""
    return pytest.mark.parametrize(
        ("folder", "stem", "name", "row"),
        [
            pytest.param(folder, stem, name, row, id=f"{folder}/{stem}::{name}")
            for folder, table in EXPECTED.items()
            for (stem, name, _), row in table.items()
            if wanted(folder, stem, name, row)
        ],
    )


# ---------------------------------------------------------------------------------------------
# Inputs: as much of the spec format as the zoo needs, at the first entry of every list of sizes


def shape_of(described):
    shape = described.get("shape", []) if isinstance(described, dict) else described
    return shape if isinstance(shape, list) else []


def sizes_of(entry):
    letters = (d for described in entry["inputs"].values() for d in shape_of(described) if isinstance(d, str))
    invented = dict(zip(dict.fromkeys(letters), (4, 3, 5, 2, 7), strict=False))
    declared = entry.get("sizes", {}).items()
    return invented | {letter: swept[0] if isinstance(swept, list) else swept for letter, swept in declared}


def draw(described, sizes, generator):
    shape = [sizes.get(d, d) for d in shape_of(described)]
    low, high = (sizes.get(bound, bound) for bound in described.get("range", (None, None)))
    dtype = getattr(torch, described.get("dtype", "float64"))
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(low, high, shape, generator=generator, dtype=dtype)
    if low is not None:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=dtype)
    x = torch.randn(shape, generator=generator, dtype=dtype)
    sign = {"positive": 1, "negative": -1}.get(described.get("domain"))
    return x if sign is None else sign * (x.abs() + 0.1)


def alternatives(described, sizes, generator, *, specials):
    """Every value that one argument takes in turn."""
    if isinstance(described, list):
        described = {"shape": described}
    if not isinstance(described, dict):
        return [described]
    if "choices" in described:
        return described["choices"]
    if "value" in described:
        x = torch.tensor(described["value"], dtype=getattr(torch, described["dtype"]))
    else:
        x = draw(described, sizes, generator)
    if specials and "special" in described:
        x.view(-1)[0] = described["special"][0]
    differentiable = x.is_floating_point() or x.is_complex()
    x.requires_grad_(differentiable and described.get("requires_grad", True))
    return [x, None] if described.get("optional") else [x]


def argument_lists(folder, stem, name, *, specials=False):
    entry = entry_of(folder, stem, name)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    sizes = sizes_of(entry)
    columns = [alternatives(d, sizes, generator, specials=specials) for d in entry["inputs"].values()]
    return list(itertools.product(*columns))


def is_differentiated(argument):
    return isinstance(argument, torch.Tensor) and argument.requires_grad


# ---------------------------------------------------------------------------------------------
# Asking torch


def as_pure_map(cls):
    """The same random numbers in every call, and no leaf of ours overwritten."""

    def call(*arguments):
        torch.manual_seed(0)
        return cls.apply(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))

    return call


def complaint(check, cls, arguments, **options):
    """What torch has to say against a Function, empty where it is content."""
    function = as_pure_map(cls)
    function(*arguments)
    try:
        check(function, arguments, **options)
    except Exception as error:  # noqa: BLE001 - wrong Functions raise what they like
        return f"{type(error).__name__}: {error}"
    return ""


def gradients(function, arguments):
    return torch.autograd.grad(function(*arguments).sum(), [a for a in arguments if is_differentiated(a)])


def largest_relative_difference(actual, expected):
    return max(((a - e).abs() / e.abs()).max().item() for a, e in zip(actual, expected, strict=True))


def returned_by_backward(cls, arguments):
    """What backward itself returns, before the engine casts it or sums it."""
    returned = []

    class Spied(cls):
        @staticmethod
        def backward(ctx, *grad_outputs):
            gradients = cls.backward(ctx, *grad_outputs)
            returned[:] = gradients if isinstance(gradients, tuple) else (gradients,)
            return gradients

    outputs = as_pure_map(Spied)(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(o.abs().sum() for o in outputs if o.requires_grad).backward()
    return returned


# ---------------------------------------------------------------------------------------------
# The numbers


def is_content(folder, stem, name, row):
    """Nothing for torch to object to in first derivatives."""
    seen = codes_of(row, "errors", "any_of") & {*WORDS_OF_GRADCHECK, *IMPRECISE}
    return not seen and row["status"] != "skipped" and (folder, name) not in CLOSED_FORMS


def is_seen_by_gradcheck(folder, stem, name, row):
    return bool(codes_of(row, "errors", "any_of") & {*WORDS_OF_GRADCHECK}) and (
        (folder, name) not in CLOSED_FORMS
    )


@rows(is_content)
def test_gradcheck_passes(folder, stem, name, row):
    for arguments in argument_lists(folder, stem, name):
        assert not complaint(gradcheck, class_of(folder, stem, name), arguments)


@rows(is_seen_by_gradcheck)
def test_gradcheck_fails_in_the_words_that_belong_to_the_code(folder, stem, name, row):
    codes = codes_of(row, "errors", "any_of") & {*WORDS_OF_GRADCHECK}
    cases = argument_lists(folder, stem, name, specials="GV108" in codes)
    said = [complaint(gradcheck, class_of(folder, stem, name), arguments) for arguments in cases]
    pattern = "|".join(WORDS_OF_GRADCHECK[code] for code in sorted(codes))
    assert any(said)
    assert all(re.search(pattern, words) for words in said if words)


@rows(lambda folder, stem, name, row: codes_of(row, "errors") & {"GV407", "GV108"})
def test_nothing_else_is_wrong(folder, stem, name, row):
    for arguments in argument_lists(folder, stem, name):
        assert not complaint(gradcheck, class_of(folder, stem, name), arguments, check_undefined_grad=False)


@rows(
    lambda folder, stem, name, row: (
        codes_of(row, "errors", "any_of") & WRONG_INPUTS_NAMED
        and not codes_of(row, "errors") & {"GV103"}
        and is_seen_by_gradcheck(folder, stem, name, row)
        and folder != "demo"
    )
)
def test_the_inputs_named_are_the_wrong_ones(folder, stem, name, row):
    wrong = set()
    parameters = list(entry_of(folder, stem, name)["inputs"])
    cases = argument_lists(folder, stem, name, specials="GV108" in codes_of(row, "errors"))
    for arguments, position in itertools.product(cases, range(len(parameters))):
        if is_differentiated(arguments[position]):
            alone = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
            alone[position].requires_grad_()
            if complaint(gradcheck, class_of(folder, stem, name), alone):
                wrong.add(f"`{parameters[position]}`")
    assert wrong == set(row["names"])


@rows(
    lambda folder, stem, name, row: (
        not codes_of(row, "errors", "any_of") - {"GV201", "GV202", "GV301"}
        and row["status"] != "skipped"
        and (folder, name) not in CLOSED_FORMS
    )
)
def test_second_derivatives(folder, stem, name, row):
    first_order_only = (
        codes_of(row, "errors") & {"GV201", "GV202"}
        or codes_of(row, "notes") & {"GV203"}
        or codes_of(row, "warnings") & {"GV202"}
        or "GV2" in entry_of(folder, stem, name).get("ignore", {})
        or (folder, name) == ("demo", "LogSumExp")
    )
    cases = argument_lists(folder, stem, name)
    said = [complaint(gradgradcheck, class_of(folder, stem, name), arguments) for arguments in cases]
    assert any(said) == bool(first_order_only)


@rows(lambda folder, stem, name, row: (folder, name) in CLOSED_FORMS)
def test_beyond_the_reach_of_gradcheck(folder, stem, name, row):
    (arguments,) = argument_lists(folder, stem, name)
    expected = gradients(CLOSED_FORMS[folder, name], arguments)
    difference = largest_relative_difference(
        gradients(as_pure_map(class_of(folder, stem, name)), arguments), expected
    )
    assert difference < 1e-12 if row["status"] == "passed" else difference > 0.1


@rows(lambda folder, stem, name, row: codes_of(row, "errors", "warnings") & IMPRECISE)
def test_imprecise_ones_are_nearly_right(folder, stem, name, row):
    (arguments,) = argument_lists(folder, stem, name)
    actual = gradients(as_pure_map(class_of(folder, stem, name)), arguments)
    expected = gradients(as_pure_map(class_of(folder, *row["twin"].split(":"))), arguments)
    assert 1e-11 < largest_relative_difference(actual, expected) < 1e-7


@rows(
    lambda folder, stem, name, row: (
        row["status"] != "skipped" and not codes_of(row, "errors") & {"GV102", "GV105"}
    )
)
def test_what_backward_returns(folder, stem, name, row):
    shapes, dtypes = set(), set()
    for arguments in argument_lists(folder, stem, name):
        cls = class_of(folder, stem, name)
        try:
            returned = returned_by_backward(cls, arguments)
        except RuntimeError:
            assert "GV103" in codes_of(row, "errors")
            shapes.add("refused by the engine")
            continue
        for argument, gradient in zip(arguments, returned, strict=False):
            if is_differentiated(argument) and gradient is not None:
                shapes |= {gradient.shape} - {argument.shape}
                dtypes |= {gradient.dtype} - {argument.dtype}
    assert bool(shapes) == ("GV103" in codes_of(row, "errors", "warnings"))
    assert bool(dtypes) == ("GV104" in codes_of(row, "errors", "warnings"))


@rows(lambda folder, stem, name, row: "reference" in entry_of(folder, stem, name))
def test_references(folder, stem, name, row):
    reference = entry_of(folder, stem, name)["reference"]
    module_name, _, attribute = reference.rpartition(":" if ":" in reference else ".")
    module = MODULES[folder, stem] if module_name == stem else importlib.import_module(module_name)
    for arguments in argument_lists(folder, stem, name):
        actual = as_pure_map(class_of(folder, stem, name))(*arguments)
        same = torch.allclose(actual, getattr(module, attribute)(*arguments), rtol=1e-12)
        assert same == ("GV301" not in codes_of(row, "errors"))


@rows(lambda folder, stem, name, row: row["status"] == "skipped")
def test_skipped_ones_have_nothing_to_differentiate(folder, stem, name, row):
    for arguments in argument_lists(folder, stem, name):
        assert not as_pure_map(class_of(folder, stem, name))(*arguments).is_floating_point()


@rows()
def test_old_style_is_labelled(folder, stem, name, row):
    module, cls = MODULES[folder, stem], class_of(folder, stem, name)
    own = [vars(base) for base in cls.__mro__ if base.__module__ == module.__name__]
    static = all(isinstance(names["backward"], staticmethod) for names in own if "backward" in names)
    assert static == ("GV810" not in codes_of(row, "warnings"))


# ---------------------------------------------------------------------------------------------
# The labels


@pytest.mark.parametrize(("folder", "stem"), STEMS)
def test_every_function_is_listed(folder, stem):
    module = MODULES[folder, stem]
    listed = {name for (where, name, _) in EXPECTED[folder] if where == stem}
    assert listed == set(SPECS.get((folder, stem), listed))
    assert {class_of(folder, stem, name).__name__ for name in listed} == {
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Function)
        and value.__module__ == module.__name__
        and value.forward is not Function.forward
    }


@rows(lambda folder, stem, name, row: folder != "demo")
def test_every_right_one_has_a_wrong_twin_and_the_other_way_round(folder, stem, name, row):
    twin_stem, _, twin_name = row["twin"].partition(":")
    (twin,) = (r for (s, n, _), r in EXPECTED[folder].items() if (s, n) == (twin_stem, twin_name))
    assert {stem, twin_stem} in ({"right", "wrong"}, {"bare", "wrong"}, {"bare"})
    if stem == "bare":
        assert {row["status"], twin["status"]} == {"passed", "failed"}


@rows()
def test_rows_are_well_formed(folder, stem, name, row):
    assert set(row) <= ROW_KEYS
    assert row["status"] in {"passed", "failed", "skipped"}
    assert bool(codes_of(row, "errors", "any_of")) == (row["status"] == "failed")
    assert stem != "right" or row["status"] != "failed"
    for code in codes_of(row, "errors", "any_of", "warnings", "notes", "may"):
        assert re.fullmatch(r"GV\d{3}", code)


@pytest.mark.parametrize("folder", ["tutorial", "general"])
def test_a_zoo_without_mistakes_would_be_noticed(folder):
    """Every family of mistakes that the labels speak of is really there."""
    wrong = [row for (stem, _, _), row in EXPECTED[folder].items() if stem == "wrong"]
    codes = set().union(*(codes_of(row, "errors", "any_of") for row in wrong))
    assert codes >= {"GV101", "GV107", "GV202"}
