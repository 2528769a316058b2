"""One test for each sentence of the format: sizes, scalars, tensors, cases, ids, seeds."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import hashlib
import math

import pytest

from gradverify.cases.sweep import case_id, case_seed
from gradverify.model import InputSource, LiteralInput, Parameter, TensorInput
from gradverify.spec.plan import plan_function
from gradverify.spec.source import Complaint


def ids(plan):
    return [case.id for case in plan.cases]


def inputs(plan, case=0):
    return {item.name: item for item in plan.cases[case].inputs}


def test_undeclared_sizes_get_4_3_5_2_7_and_further_odd_numbers_in_order_of_appearance(plan):
    made = plan("{inputs: {x: [a, b], y: {range: [0, c], shape: [d, a]}, z: [e, f, g, h]}}")
    expected = {"a": 4, "b": 3, "c": 5, "d": 2, "e": 7, "f": 9, "g": 11, "h": 13}
    assert dict(made.cases[0].sizes) == expected
    assert ids(made) == ["base"], "undeclared sizes are no part of an id"


def test_a_name_that_the_sizes_block_lacks_is_an_error(complaints):
    assert complaints("{sizes: {n: 3}, inputs: {x: [n, nn]}}") == [
        "`nn` is not in `sizes`; did you mean `n`?"
    ]
    assert complaints("{sizes: {}, inputs: {x: [n]}}") == ["`n` is not in `sizes`"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*n", 6),
        ("n//s + 1", 2),
        ("m % n", 1),
        ("(m - n) * 2", 8),
        ("-n + m", 4),
        ("+n", 3),
        ("007", 7),
        ("1-m//2 - -9", 7),
    ],
)
def test_expressions(plan, expression, value):
    made = plan(f"{{sizes: {{n: 3, s: 2, m: 7}}, inputs: {{x: ['{expression}', n, s, m]}}}}")
    assert inputs(made)["x"].shape[0] == value


def test_a_size_may_be_used_by_a_range_alone(plan):
    made = plan("{sizes: {n: 3}, inputs: {i: {shape: [2], dtype: int64, range: [-n, 2*n]}}}")
    assert inputs(made)["i"].range == (-3, 6)


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("4", 4),
        ("1e-5", 1e-5),
        ("true", True),
        ("mean", "mean"),
        ("null", None),
        ("'3'", "3"),
        ("-.inf", -math.inf),
        ("~", None),
    ],
)
def test_a_bare_scalar_is_a_literal_of_its_yaml_type(plan, yaml, value):
    for form in (yaml, f"{{value: {yaml}}}"):
        literal = inputs(plan(f"{{inputs: {{x: [n], a: {form}}}}}"))["a"]
        assert literal == LiteralInput("a", value)
        assert type(literal.value) is type(value)


def test_value_escapes_the_name_of_a_size(plan):
    assert inputs(plan('{inputs: {x: [n], a: {value: "n"}}}'))["a"] == LiteralInput("a", "n")


def test_a_bare_list_is_the_shape_of_a_float64_tensor(plan):
    assert inputs(plan("{inputs: {x: [2, 3], y: []}}")) == {
        "x": TensorInput("x", (2, 3)),
        "y": TensorInput("y", ()),
    }


def test_every_tensor_key_arrives(plan):
    entry = "{shape: [2], domain: nonzero, range: [-3, 3], special: [1, -2.5], avoid: [0.5], requires_grad: false}"
    assert inputs(plan(f"{{inputs: {{x: {entry}}}}}"))["x"] == TensorInput(
        "x", (2,), "float64", "nonzero", (-3.0, 3.0), (1.0, -2.5), (0.5,), requires_grad=False
    )


def test_literal_tensors(plan):
    made = inputs(
        plan(
            "{inputs: {a: {value: [[1, 2], [3, 4]], dtype: int64}, b: {value: [1, 2.5], dtype: float64, shape: [n - 2]},"
            " c: {value: [true], dtype: bool}, d: {value: 2, dtype: float64}, e: {value: [], dtype: float64},"
            " f: {value: [-.inf], dtype: float32, requires_grad: false}}}"
        )
    )
    assert (made["a"].shape, made["a"].value) == ((2, 2), ((1, 2), (3, 4)))
    assert (made["b"].shape, made["b"].value) == ((2,), (1.0, 2.5))
    assert (made["c"].shape, made["c"].value) == ((1,), (True,))
    assert (made["d"].shape, made["d"].value) == ((), 2.0)
    assert (made["e"].shape, made["e"].value) == ((0,), ())
    assert made["f"].value == (-math.inf,)


def test_integer_ranges_stay_integers(plan):
    index = inputs(plan("{inputs: {x: [n], i: {shape: [k], dtype: int64, range: [0, n], special: [0]}}}"))[
        "i"
    ]
    assert (index.range, index.special) == ((0, 4), (0,))
    assert all(isinstance(number, int) for number in (*index.range, *index.special))
    marked = "{inputs: {x: [n], i: {shape: [k], dtype: int64, range: [0, n], special: [-100, 255]}}}"
    assert inputs(plan(marked))["i"].special == (-100, 255)  # labels to ignore lie outside


def test_bool_tensors_need_no_range(plan):
    assert inputs(plan("{inputs: {m: {shape: [2], dtype: bool}}}"))["m"].dtype == "bool"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_low_precision_tensors_that_are_not_differentiated(plan, dtype):
    assert (
        inputs(plan(f"{{inputs: {{m: {{shape: [2], dtype: {dtype}, requires_grad: false}}}}}}"))["m"].dtype
        == dtype
    )


def test_an_integer_range_that_a_size_0_empties(plan):
    made = plan("{sizes: {n: [3, 0], k: 2}, inputs: {x: [n], i: {shape: [k], dtype: int64, range: [0, n]}}}")
    assert (ids(made), made.infeasible) == (["n=3,k=2"], 1)
    made = plan("{sizes: {n: [3, 0]}, inputs: {x: [n], i: {shape: [n], dtype: int64, range: [0, n]}}}")
    assert (ids(made), made.infeasible) == (["n=3", "n=0"], 0), "an empty tensor needs no values"


def test_infeasible_cases_are_dropped_and_counted(plan):
    made = plan("{sizes: {h: [6, 2], k: [3, 1]}, inputs: {x: [h, k, h - k]}}")
    assert (ids(made), made.infeasible) == (["h=6,k=3", "h=6,k=1", "h=2,k=1"], 1)


def test_a_feasible_pair_is_covered_around_an_infeasible_one(plan):
    # Greedy would join a=2 with b=9, which no c can save.
    made = plan("{sizes: {a: [9, 2], b: [1, 9], c: [1, 2, 3]}, inputs: {x: [a - b, c], y: [c]}}")
    found = {tuple(value for _, value in case.sizes) for case in made.cases}
    assert {(a, c) for a, b, c in found} == {(a, c) for a in (9, 2) for c in (1, 2, 3)}
    assert not {(2, 9, c) for c in (1, 2, 3)} & found
    assert made.infeasible == 1


def test_the_base_case_takes_the_first_of_every_list_and_optionals_given(plan):
    made = plan(
        "{sizes: {b: [3, 1]}, inputs: {x: [b], bias: {shape: [b], optional: true}, mode: {choices: [mean, sum]}}}"
    )
    base = made.cases[0]
    assert base.id == "b=3,mode=mean"
    assert base.sizes == (("b", 3),)
    assert base.options == (("mode", "mean"),)
    assert isinstance(base.inputs[1], TensorInput)


def test_an_absent_optional_is_none_and_last_in_its_list(plan):
    made = plan("{inputs: {x: [n], bias: {shape: [n], optional: true}}}")
    assert ids(made) == ["base", "bias=None"]
    assert made.cases[1].options == (("bias", None),)
    assert made.cases[1].inputs[1] == LiteralInput("bias", None)


def test_an_absent_optional_constrains_nothing(plan):
    made = plan("{sizes: {n: [3, 1]}, inputs: {x: [n], bias: {shape: [n - 2], optional: true}}}")
    assert (ids(made), made.infeasible) == (["n=3", "n=3,bias=None", "n=1,bias=None"], 1)


def test_each_size_0_gets_one_extra_case_on_the_base_values(plan):
    made = plan("{sizes: {b: [3, 1, 0], d: [5, 0]}, inputs: {x: [b, d]}}")
    assert ids(made) == ["b=3,d=5", "b=1,d=5", "b=0,d=5", "b=3,d=0"]


def test_an_empty_case_covers_no_pair(plan):
    made = plan("{sizes: {b: [0, 3]}, inputs: {x: [b], mode: {choices: [mean, sum]}}}")
    assert ids(made) == ["b=0,mode=mean", "b=3,mode=mean", "b=3,mode=sum"]


def test_ids_hold_declared_sizes_in_spec_order_then_choices_and_absent_optionals(plan):
    made = plan(
        "{sizes: {n: 4, b: [3, 2]}, inputs: {mode: {choices: [sum]}, bias: {shape: [b], optional: true}, x: [b, n]}}"
    )
    assert ids(made) == [
        "n=4,b=3,mode=sum",
        "n=4,b=3,mode=sum,bias=None",
        "n=4,b=2,mode=sum",
        "n=4,b=2,mode=sum,bias=None",
    ]


def test_nothing_bound_is_base(plan):
    assert ids(plan("{inputs: {x: [3]}}")) == ["base"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("sum", "sum"),
        ("a.b-c+d", "a.b-c+d"),
        ("None", '"None"'),
        ("True", '"True"'),
        ("nan", '"nan"'),
        ("3", '"3"'),
        ("null", '"null"'),
        ("a,b=c", '"a,b=c"'),
        ("", '""'),
        ("a b", '"a b"'),
        (None, "None"),
        (True, "True"),
        (1, "1"),
        (1.0, "1.0"),
        (1e-5, "1e-05"),
    ],
)
def test_no_two_values_are_written_alike_in_ids(value, text):
    assert case_id([("b", 3)], [("o", value)]) == f"b=3,o={text}"


def test_the_seed_of_a_case_depends_on_seed_name_and_id_alone(read):
    assert case_seed(0, "Linear", "b=3") == case_seed(0, "Linear", "b=3")
    digest = hashlib.sha256(b"0\nLinear\nb=3").digest()
    assert case_seed(0, "Linear", "b=3") == int.from_bytes(digest, "big") >> 193
    assert (
        len({case_seed(*args) for args in [(0, "a", "b"), (1, "a", "b"), (0, "b", "b"), (0, "a", "a")]}) == 4
    )
    few = plan_function(read("module: m.py\nfunctions: {free: {sizes: {n: 3}, inputs: {x: [n]}}}"), "free")
    text = "functions: {m.py::Old: {skip: a}, m.py::free: {sizes: {n: [5, 3]}, inputs: {x: [n]}}}"
    many = plan_function(read(text), "m.py::free")
    assert few.cases[0].seed == many.cases[1].seed == case_seed(0, "free", "n=3")


def test_the_command_line_wins_over_the_defaults_of_the_spec(read):
    spec = read(
        "module: m.py\ndefaults: {seed: 5, rtol: 1e-5, atol: 1e-9}\nfunctions: {free: {inputs: {x: [3]}}}"
    )
    own = plan_function(spec, "free", seed=None, rtol=None, atol=None)
    assert (own.rtol, own.atol, own.cases[0].seed) == (1e-5, 1e-9, case_seed(5, "free", "base"))
    reported = plan_function(spec, "free", seed=0, rtol=0.0, atol=0.5)
    assert (reported.rtol, reported.atol, reported.cases[0].seed) == (0.0, 0.5, case_seed(0, "free", "base"))


def test_without_defaults(plan):
    made = plan("{inputs: {x: [3]}}")
    assert (made.rtol, made.atol, made.cases[0].seed) == (1e-7, 0.0, case_seed(0, "free", "base"))


def test_inputs_are_planned_in_call_order(read):
    spec = read("module: m.py\nfunctions: {Linear: {inputs: {weight: [m, n], input: [b, n]}}}")
    live = [Parameter("input"), Parameter("weight"), Parameter("bias", has_default=True)]
    case = plan_function(spec, "Linear", parameters=live).cases[0]
    assert [item.name for item in case.inputs] == ["input", "weight"]
    assert case.sizes == (("m", 4), ("n", 3), ("b", 5)), "sizes are named in spec order"


def test_variants_of_one_class(read):
    spec = read(
        "module: m.py\nfunctions:\n  Old@a: {inputs: {x: [3], n: 4}}\n  b: {target: Old, inputs: {x: [3], n: 4}}\n"
        "  c: {target: 'other.module:Thing', inputs: {y: [3]}}\n"
    )
    assert [
        (plan_function(spec, key).name, plan_function(spec, key).attribute) for key in spec.functions
    ] == [
        ("Old@a", "Old"),
        ("b", "Old"),
        ("c", "other.module:Thing"),
    ]


def test_skip_and_ignore(read):
    spec = read(
        "module: m.py\nfunctions:\n  Old: {skip: 'gone in 0.4'}\n  free: {inputs: {x: [3]}, ignore: {GV2: '#12', GV101: x}}"
    )
    skipped = plan_function(spec, "Old")
    assert (skipped.skip, skipped.cases, skipped.source, skipped.spec_line) == (
        "gone in 0.4",
        (),
        InputSource.NONE,
        3,
    )
    assert plan_function(spec, "free").ignore == (("GV2", "#12"), ("GV101", "x"))


def test_a_hook_gets_every_size(plan):
    made = plan("{sizes: {r: [3, 1], s: 2}, arguments: 'm:make', reference: torch.nn.functional.linear}")
    assert [(case.id, case.hook, case.inputs) for case in made.cases] == [
        ("r=3,s=2", "m:make", ()),
        ("r=1,s=2", "m:make", ()),
    ]
    assert made.reference == "torch.nn.functional.linear"


def test_a_place_of_the_file_for_what_only_the_worker_can_tell(read):
    spec = read("module: m.py\nfunctions:\n  free:\n    inputs: {x: [3]}\n    reference: a.b\n")
    value = spec.document.mistake(
        Complaint(("functions", "free", "reference"), "cannot be imported", of_key=False)
    )
    assert (value.location.line, value.location.column, value.length) == (5, 16, 3)
    key = spec.document.mistake(
        Complaint(("functions", "free", "reference"), "cannot be imported", of_key=True)
    )
    assert (key.location.column, key.length, key.source_line) == (5, 9, "    reference: a.b")
    above = spec.document.mistake(Complaint(("functions", "free", "skip"), "what is not there", of_key=True))
    assert (above.location.line, above.location.column) == (3, 3)


def test_names_that_only_live_objects_can_tell_are_left_to_binding(read):
    for name in ("Derived", "Imported", "free", "decorated", "opaque"):
        assert name in read(f"module: m.py\nfunctions: {{{name}: {{inputs: {{whatever: [2]}}}}}}").functions


@pytest.mark.parametrize(
    "source", ["from x import *", "def __getattr__(name): ...", "globals()['a'] = 1", "def f(:", "x = '\0'"]
)
def test_a_module_whose_names_cannot_be_reported(folder, read, source):
    (folder / "m.py").write_text(source)
    assert read("module: m.py\nfunctions: {Anything: {inputs: {x: [2]}}}").functions


def test_names_defined_in_branches_and_functions_count(folder, read):
    (folder / "m.py").write_text(
        "try:\n    import a.b as c\nexcept E:\n    class D: ...\nif 1:\n    e, [f, *g] = 1\n"
        "def h():\n    global i\n    j = 1\nk: int = 3\nfor l in k: pass\n"
    )
    for name in "cDefghikl":
        read(f"module: m.py\nfunctions: {{{name}: {{skip: a}}}}")


def test_a_dotted_module_is_found_beside_or_above_the_spec(folder, read, problems):
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").touch()
    (folder / "pkg" / "mod.py").write_text("def f(x): ...")
    spec = read("module: pkg.mod\nfunctions: {f: {inputs: {x: [2]}}}")
    assert spec.module_paths() == (folder / "pkg" / "mod.py",)
    assert [p.message for p in problems("module: pkg.mod\nfunctions: {g: {skip: a}}")] == [
        "`g` is not defined in pkg.mod"
    ]


def test_a_dotted_module_that_cannot_be_found_is_left_to_binding(read):
    assert read("module: no.such.module\nfunctions: {f: {inputs: {x: [2]}}}").module_paths() == ()
