"""Conditions, the product, listed cases, and what lists and objects become."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import itertools

import pytest
from extent import extent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradverify.cases.sizes import parse_condition
from gradverify.model import (
    Annotation,
    Companion,
    ConcatInput,
    ListInput,
    LiteralInput,
    ObjectInput,
    Parameter,
    Target,
    TargetKind,
)
from gradverify.spec.binding import check_against_targets
from gradverify.spec.plan import plan_function


def ids(plan):
    return [case.id for case in plan.cases]


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("h >= k", "h >= k"),
        ("h + 2*k > s//1", "h + 2*k > s//1"),
        ("1 < h < k*2", "1 < h < k*2"),
        ("h == k or not (h > k and s != 2)", "h == k or not (h > k and s != 2)"),
        ("not h<k<=s", "not h < k <= s"),
        ("-h<=-k%s", "-h <= -k % s"),
        ("007 > h", "7 > h"),
    ],
)
def test_conditions_mean_what_they_mean_in_python(text, python):
    condition = parse_condition(text)
    for h, k, s in itertools.product(range(1, 5), repeat=3):
        expected = eval(python, {}, {"h": h, "k": k, "s": s})
        assert condition.holds({"h": h, "k": k, "s": s}) is expected


def test_a_condition_without_a_value_does_not_hold():
    assert not parse_condition("h // k > 0").holds({"h": 1, "k": 0})
    assert not parse_condition("*".join(["h"] * 90) + " > 0").holds({"h": 2**31})


def test_a_condition_on_undeclared_sizes(plan):
    assert ids(plan("{inputs: {x: [n, k]}, where: [n > k]}")) == ["base"]


SIZES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True), min_size=2, max_size=3)
CONDITIONS = st.lists(
    st.sampled_from(["a > b", "a != b", "a + b < 9", "not a == 3", "a % 2 == b % 2"]), max_size=2
)


@settings(
    max_examples=extent(20, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(SIZES.filter(lambda lists: all(values != [0] for values in lists)), CONDITIONS)
def test_where_keeps_every_pair_that_some_case_can_hold(read, lists, conditions):
    names = "abc"[: len(lists)]
    entry = f"{{sizes: {dict(zip(names, lists, strict=True))}, inputs: {{x: [{', '.join(names)}]}}, where: {conditions}}}"
    text = f"module: m.py\nfunctions: {{free: {entry}}}".replace(", where: []", "")
    rows = [dict(zip(names, row, strict=True)) for row in itertools.product(*lists)]
    good = [row for row in rows if all(eval(one, {}, row) for one in conditions)]
    if not good:
        with pytest.raises(Exception, match="1 spec errors"):
            read(text)
        return
    cases = [dict(case.sizes) for case in plan_function(read(text), "free").cases]
    assert all(case in good for case in cases), "nothing that `where` forbids"
    if rows[0] in good:
        assert cases[0] == rows[0]
    full = [row for row in good if 0 not in row.values()]
    assert pairs(full) <= pairs(cases)
    product = plan_function(read(text.replace(", inputs", ", cases: product, inputs")), "free")
    assert [dict(case.sizes) for case in product.cases] == good
    assert product.infeasible == len(rows) - len(good)


def pairs(rows):
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


def test_a_base_that_where_forbids_is_replaced_and_counted(plan):
    made = plan("{sizes: {h: [1, 5, 4], k: [3, 2]}, inputs: {x: [h, k]}, where: [h > k]}")
    assert ids(made) == ["h=5,k=3", "h=5,k=2", "h=4,k=3", "h=4,k=2"]
    assert made.infeasible == 2
    three = "{sizes: {a: [1, 2], b: [1, 2], c: [1, 2]}, inputs: {x: [a, b, c]}, where: ['a + b + c > 3']}"
    assert (ids(plan(three))[0], plan(three).infeasible) == ("a=1,b=1,c=2", 1)


def test_a_size_0_that_where_forbids_has_no_case(plan):
    made = plan("{sizes: {h: [3, 0]}, inputs: {x: [h]}, where: [h > 0]}")
    assert (ids(made), made.infeasible) == (["h=3"], 1)


def test_listed_cases_take_base_values_for_what_they_leave_out(plan):
    made = plan(
        "{sizes: {n: 3}, inputs: {x: [n], b: {shape: [n], optional: true}, m: {choices: [u, v]}}, cases: [{b: null}, {n: 9, m: v, b: given}]}"
    )
    assert ids(made) == ["n=3,b=None,m=u", "n=9,m=v"]
    assert made.infeasible == 0


def test_a_count_is_swept_like_a_size_and_has_its_place_in_the_id(plan):
    made = plan("{sizes: {n: 3}, inputs: {xs: {list: {of: [n], count: [2, 1]}}, m: {choices: [u]}}}")
    assert ids(made) == ["n=3,xs=2,m=u", "n=3,xs=1,m=u"]
    assert made.cases[0].options == (("xs", 2), ("m", "u"))
    assert [item.name for item in made.cases[0].inputs[0].items] == ["xs[0]", "xs[1]"]


def test_a_list_is_splatted_under_star_args_alone(read):
    text = "module: m.py\nfunctions: {Stack: {inputs: {xs: {list: [[2], [3]]}, dim: 0}}}"
    spec = read(text)
    live = [Parameter("dim"), Parameter("xs", variadic=True)]
    dim, xs = plan_function(spec, "Stack", parameters=live).cases[0].inputs
    assert dim == LiteralInput("dim", 0)
    assert xs.splatted
    live = [Parameter("xs"), Parameter("dim")]
    assert not plan_function(spec, "Stack", parameters=live).cases[0].inputs[0].splatted
    free = read("module: m.py\nfunctions: {free: {inputs: {xs: {list: [[2]]}}}}")
    assert not plan_function(free, "free").cases[0].inputs[0].splatted
    variadic = [Parameter("xs", variadic=True)]
    assert plan_function(free, "free", parameters=variadic).cases[0].inputs[0].splatted


def test_optional_lists_and_parts(plan):
    made = plan(
        "{inputs: {x: [n], xs: {list: [[n]], optional: true}, y: {concat: [[n], [n]], optional: true}}}"
    )
    assert ids(made) == ["base", "y=None", "xs=None", "xs=None,y=None"]
    assert isinstance(made.cases[0].inputs[1], ListInput)
    assert made.cases[2].inputs[1] == LiteralInput("xs", None)


def test_requires_grad_of_the_whole_is_that_of_each_part(plan):
    (whole,) = plan("{inputs: {x: {concat: [[2], [3]], requires_grad: false}}}").cases[0].inputs
    assert isinstance(whole, ConcatInput)
    assert [part.requires_grad for part in whole.parts] == [False, False]


def test_init_tells_sizes_from_words(plan):
    entry = "{sizes: {n: 3}, inputs: {x: [n], f: {object: 'a:b', init: [n, n + 1, 'n', mean, '3', 3, null]}}}"
    (_, made) = plan(entry).cases[0].inputs
    assert made == ObjectInput("f", "a:b", (3, 4, 3, "mean", "3", 3, None))
    assert plan("{inputs: {x: [n], f: {object: 'a:b', init: []}}}").cases[0].inputs[1].init == ()
    assert plan("{inputs: {x: [2], f: {object: 'a:b', init: [n]}}}").cases[0].inputs[1].init == ("n",)
    assert plan("{inputs: {x: [2]}, init: []}").init == ()
    assert plan("{inputs: {x: [2]}, init: {}}").init == ()
    assert plan("{inputs: {x: [2]}}").init is None


def test_init_follows_the_sizes_of_each_case(plan):
    made = plan("{sizes: {n: [3, 2]}, inputs: {x: [4]}, init: {width: '2*n'}}")
    assert [case.init for case in made.cases] == [(("width", 6),), (("width", 4),)]
    assert made.init == made.cases[0].init


def test_init_is_for_modules(read):
    spec = read("module: m.py\nfunctions: {free: {inputs: {x: [2]}, init: [3]}}")
    x = (Parameter("x"),)
    function, module = (
        Target("free", "free", kind, "m.py", 1, x) for kind in (TargetKind.CALLABLE, TargetKind.MODULE)
    )
    assert check_against_targets(spec, [module]) == []
    (problem,) = check_against_targets(spec, [function])
    assert (problem.location.column, problem.message) == (
        38,
        "`init` builds an nn.Module, and `free` is none",
    )


def test_annotations_name_parameters_but_not_all_of_them(read):
    text = (
        "module: m.py\nfunctions: {free: {arguments: 'm:f', inputs: {x: {requires_grad: true, avoid: [1]}}}}"
    )
    spec = read(text)
    assert plan_function(spec, "free").cases[0].annotations == (
        Annotation("x", requires_grad=True, avoid=(1.0,)),
    )
    target = Target("free", "free", TargetKind.CALLABLE, "m.py", 1, (Parameter("x"), Parameter("y")))
    assert check_against_targets(spec, [target]) == []
    other = Target("free", "free", TargetKind.CALLABLE, "m.py", 1, (Parameter("y"),))
    (problem,) = check_against_targets(spec, [other])
    assert (
        problem.message == "`x` is not a parameter of free(y); did you mean `y`?" or "`x`" in problem.message
    )


def test_surrogates(plan):
    assert plan("{inputs: {x: [2]}, surrogate: a.b}").surrogate == Companion("a.b")
    assert plan("{inputs: {x: [2]}, surrogate: {call: a.b}}").surrogate == Companion("a.b")
    assert plan("{inputs: {x: [2]}, surrogate: {call: a.b, inputs: [x]}}").surrogate == Companion(
        "a.b", inputs=("x",)
    )
    assert plan("{inputs: {x: [2]}, surrogate: {reason: why}}").surrogate == Companion(reason="why")


def test_tolerances_from_nearest_to_farthest(read):
    head = (
        "module: m.py\ndefaults: {rtol: 1e-3, atol: 1e-4}\nfunctions: {free: {inputs: {x: [2]}, tolerance: "
    )
    spec = read(head + "{rtol: 1e-5}}}")
    made = plan_function(spec, "free")
    assert (made.rtol, made.atol) == (1e-5, 1e-4)
    made = plan_function(spec, "free", rtol=0.0, atol=0.5)
    assert (made.rtol, made.atol) == (0.0, 0.5)
    made = plan_function(read(head + "{atol: 0}}}"), "free")
    assert (made.rtol, made.atol) == (1e-3, 0.0)


def test_an_expected_failure_may_name_a_tensor_of_a_list(plan):
    entry = "{inputs: {xs: {list: [[2]]}}, xfail: {codes: [GV101], reason: r, input: 'xs[0]'}}"
    assert plan(entry).expected_failures[0].input == "xs[0]"
    module = "{inputs: {x: [2]}, init: [2], xfail: {codes: [GV101], reason: r, input: self.weight}}"
    assert plan(module).expected_failures[0].input == "self.weight"


def test_constant_slices_that_a_size_lacks_make_a_case_infeasible(plan):
    made = plan("{sizes: {n: [3, 1, 0]}, inputs: {x: {shape: [n], constant_at: {0: [2]}}}}")
    assert (ids(made), made.infeasible) == (["n=3"], 2)


def test_offsets_may_repeat(plan):
    made = plan(
        "{sizes: {b: [3, 0], t: [2, 0]}, inputs: {cu: {shape: [b + 1], dtype: int64, structure: offsets, range: [0, t]}}}"
    )
    assert (ids(made), made.infeasible) == (["b=3,t=2", "b=3,t=0"], 1)


def test_a_skipped_function_may_still_expect_failures(read):
    text = "module: m.py\nfunctions: {free: {skip: gone, xfail: {codes: [GV201], reason: r, cases: [n=3]}}}"
    assert read(text).functions["free"].plan.expected_failures[0].cases == ("n=3",)
