"""Wrong inputs: structures, lists, parts, objects, tuples. One mistake, one sentence."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import pytest

STRUCTURED = [
    # words
    ("{shape: [n, n], structure: sdp}", "`structure` cannot be the string `sdp`; did you mean `spd`?"),
    ("{shape: [n, n], structure: }", "`structure` cannot be empty; structures: spd, symmetric, invertible, triangular, cholesky-factor, orthogonal, unit-norm, simplex, permutation, sorted, offsets, one-hot"),
    ("{shape: [n], layout: dense}", "`layout` cannot be the string `dense`; layouts: sparse_coo, sparse_csr"),
    # shapes
    ("{shape: [n], structure: spd}", "structure `spd` needs a square matrix in the last two dimensions, not a shape of 1"),
    ("{shape: [], structure: unit-norm}", "structure `unit-norm` needs at least one dimension, not a shape of 0"),
    ("{shape: [n, n], dtype: int64, structure: permutation}", "structure `permutation` needs exactly one dimension, not a shape of 2"),
    ("{shape: [n, m], structure: orthogonal}", "structure `orthogonal` needs a square matrix, not 4 × 3 at n=4, m=3"),
    ("{shape: [b, n, 2], structure: symmetric}", "structure `symmetric` needs a square matrix, not 3 × 2 at b=4, n=3"),
    # dtypes
    ("{shape: [n], structure: offsets, range: [0, n]}", "structure `offsets` needs an integer dtype: add `dtype: int64`"),
    ("{shape: [n], structure: permutation}", "structure `permutation` needs an integer dtype: add `dtype: int64`"),
    ("{shape: [n], structure: permutation, dtype: float64}", "structure `permutation` needs an integer dtype, not float64"),
    ("{shape: [n, n], structure: spd, dtype: int64}", "structure `spd` needs a floating dtype, not int64"),
    ("{shape: [n], structure: sorted, dtype: complex128}", "structure `sorted` needs a real dtype, not complex128"),
    ("{shape: [n], structure: one-hot, dtype: complex128}", "structure `one-hot` needs a real dtype, not complex128"),
    # ranges
    ("{shape: [n], structure: offsets, dtype: int64}", "`x` is an integer tensor: give it `range: [0, total]`"),
    ("{shape: [n], structure: offsets, dtype: int64, range: [1, n]}", "offsets begin at 0, not at 1 at n=4"),
    ("{shape: [1], structure: offsets, dtype: int64, range: [0, 3]}", "one offset cannot be both 0 and 3"),
    ("{shape: [0], structure: offsets, dtype: int64, range: [0, 3]}", "offsets need at least one entry"),
    ("{shape: [n + 1], structure: offsets, dtype: int64, range: [0, n - 1], distinct: true}", "no 5 distinct offsets go from 0 to 3 at n=4"),
    ("{shape: [n], structure: permutation, dtype: int64, range: [0, 3]}", "a permutation of 4 has the range [0, 4]: leave `range` out at n=4"),
    ("{shape: [n], dtype: int64, range: [0, 3], distinct: true}", "the range [0, 3] has no 4 distinct integers at n=4"),
    ("{shape: [n, 0], structure: simplex}", "a row without entries cannot be simplex at n=4"),
    # company
    ("{shape: [n, n], structure: spd, range: [0, 1]}", "`range` conflicts with `structure: spd`"),
    ("{shape: [n, n], structure: orthogonal, domain: positive}", "`domain` conflicts with `structure: orthogonal`"),
    ("{shape: [n, n], structure: triangular, avoid: [0]}", "`avoid` conflicts with `structure: triangular`"),
    ("{shape: [n], structure: simplex, special: [0]}", "`special` conflicts with `structure: simplex`"),
    ("{shape: [n], structure: unit-norm, ties: true}", "`ties` conflicts with `structure: unit-norm`"),
    ("{shape: [n], structure: unit-norm, distinct: true}", "`distinct` conflicts with `structure: unit-norm`"),
    ("{shape: [n, n], structure: spd, constant_at: {0: [0]}}", "`constant_at` conflicts with `structure: spd`"),
    ("{shape: [n, n], structure: spd, layout: sparse_coo}", "`layout` conflicts with `structure: spd`"),
    ("{shape: [n, n], structure: spd, mutated: true}", "`mutated` conflicts with `structure: spd`"),
    ("{shape: [n, n], structure: spd, make: 'a:b'}", "`make` conflicts with `structure: spd`"),
    ("{value: [[1, 0], [0, 1]], dtype: float64, structure: spd}", "`value` conflicts with `structure: spd`"),
    # ties and distinct
    ("{shape: [n], ties: true, distinct: true}", "`ties` conflicts with `distinct`: values are equal or not"),
    ("{shape: [n], dtype: bool, ties: true}", "`ties` does not apply to dtype bool"),
    ("{shape: [n], ties: yes}", "`ties` must be true or false, not the string `yes`: in YAML 1.2 that is a string"),
    ("{value: [1, 2], dtype: float64, distinct: true}", "`distinct` conflicts with `value`: nothing is drawn"),
    # layout
    ("{shape: [n], layout: sparse_csr}", "layout `sparse_csr` needs more dimensions than 1"),
    ("{shape: [], layout: sparse_coo}", "layout `sparse_coo` needs more dimensions than 0"),
    ("{shape: [n], layout: sparse_coo, mutated: true}", "`layout` conflicts with `mutated`"),
    # make
    ("{make: 'a:b'}", "`x` needs a `shape`"),
    ("{shape: [n], make: a.b}", "`a.b` is not `module:attribute`"),
    ("{shape: [n], make: 'a:b', range: [0, 1]}", "`range` conflicts with `make`: nothing is drawn"),
    ("{shape: [2], make: 'a:b', value: [1, 2], dtype: float64}", "`value` conflicts with `make`: nothing is drawn"),
    ("{shape: [n], make: 'a:b', layout: sparse_coo}", "`layout` conflicts with `make`: nothing is drawn"),
    # constant_at
    ("{shape: [n], constant_at: [0]}", "`constant_at` must be a mapping, not a list"),
    ("{shape: [n], constant_at: {0: 0}}", "`0` must be a list, not the number 0"),
    ("{shape: [n], constant_at: {0: []}}", "`0` must be a list with at least one entry, not an empty one"),
    ("{shape: [n], constant_at: {0: [1.5]}}", "entry 1 of `0` must be an integer, a size name or an expression, not the number 1.5"),
    ("{shape: [n], constant_at: {rows: [0]}}", "`constant_at` maps dimensions to indices: `rows` is no dimension"),
    ("{shape: [n], constant_at: {1: [0]}}", "`x` has 1 dimensions, and no dimension 1"),
    ("{shape: [n], constant_at: {0: [0], -1: [1]}}", "dimension 0 is named twice"),
    ("{shape: [n], constant_at: {0: [4]}}", "dimension 0 has size 4, and no index 4 at n=4"),
    ("{shape: [n], constant_at: {0: [0]}, requires_grad: false}", "`constant_at` says nothing about `x`, which is not differentiated"),
    ("{shape: [n], constant_at: {0: [0]}, mutated: true}", "`constant_at` says nothing about `x`, which is not differentiated"),
    ("{shape: [n], constant_at: {0: [0]}, layout: sparse_coo}", "`constant_at` conflicts with `layout`"),
    ("{shape: [n], dtype: int64, range: [0, 2], constant_at: {0: [0]}}", "`constant_at` does not apply to dtype int64"),
    # mutated
    ("{shape: [n], mutated: true, requires_grad: true}", "a `mutated` buffer is not differentiated: leave `requires_grad` out"),
    # keys of neighbours
    ("{shape: [n], init: [2]}", "`init` is for `object`: `{object: torch.nn.Linear, init: [2, 2]}`"),
    ("{of: [n], count: 2}", "`of` belongs inside `list`: `list: {of: [b, n], count: [2, 1]}`"),
]  # fmt: skip
FORMS = [
    # list
    ("{list: 3}", "`list` must be a list of tensors, or `{of: …, count: …}`, not the number 3"),
    ("{list: []}", "`list` must be a list with at least one entry, not an empty one"),
    ("{list: [n, [m]]}", "entry 1 of `list` must be a shape or a mapping, not the string `n`"),
    ("{list: [[n], {shpe: [m]}]}", "unknown key `shpe` in functions.free.inputs.x.list.1; did you mean `shape`?"),
    ("{list: [[n], {list: [[m]]}]}", "`list` is not allowed here: a part of a list is one tensor"),
    ("{list: [[n], {shape: [m], optional: true}]}", "`optional` is about the whole: write it beside `list`"),
    ("{list: [[n], {shape: [m], domain: positive, special: [-1]}]}", "-1 is outside the domain `positive`"),
    ("{list: [[n], [-1]]}", "a dimension cannot be negative: -1"),
    ("{list: [[n], ['n - 9']]}", "a dimension cannot be negative: `n - 9` is -5 at n=4"),
    ("{list: [[n], {}]}", "`x[1]` needs a `shape`"),
    ("{list: [[n]], shape: [n]}", "`shape` conflicts with `list`"),
    ("{list: [[n]], init: [n]}", "`init` conflicts with `list`"),
    ("{list: [[n]], concat: [[n]]}", "`concat` conflicts with `list`"),
    ("{list: [[n]], counts: 2}", "unknown key `counts` in functions.free.inputs.x; known keys: list, optional"),
    ("{list: {of: [n]}}", "`count` is missing"),
    ("{list: {count: 2}}", "`of` is missing"),
    ("{list: {of: [n], count: 0}}", "a count is between 1 and 100, not 0"),
    ("{list: {of: [n], count: 101}}", "a count is between 1 and 100, not 101"),
    ("{list: {of: [n], count: n}}", "a count is an integer or a list of integers, not the string `n`"),
    ("{list: {of: [n], count: [2, 2]}}", "2 is listed twice"),
    ("{list: {of: [n], count: []}}", "a list of counts cannot be empty"),
    ("{list: {of: [n], count: 2, domain: positive}}", "`domain` belongs to the tensor: `of: {shape: [b, n], domain: …}`"),
    ("{list: {of: {shape: [n], optional: true}, count: 2}}", "`optional` is about the whole: write it beside `list`"),
    ("{list: {of: n, count: 2}}", "`of` must be a shape or a mapping, not the string `n`"),
    ("{list: {of: {shape: [n], structure: spd}, count: 2}}", "structure `spd` needs a square matrix in the last two dimensions, not a shape of 1"),
    # concat
    ("{concat: []}", "`concat` must be a list with at least one entry, not an empty one"),
    ("{concat: [[2, 3], [3, 3]]}", "the parts of `x` differ before their last dimension: [2, 3] and [3, 3]"),
    ("{concat: [[n, 3], [2, 3]]}", "the parts of `x` differ before their last dimension: [4, 3] and [2, 3] at n=4"),
    ("{concat: [[3], {shape: [3], dtype: complex128}]}", "the parts of `x` have one dtype, not float64 and complex128"),
    ("{concat: [[], []]}", "a part of `concat` needs at least one dimension"),
    ("{concat: [[3], {shape: [3], requires_grad: false}]}", "`requires_grad` is about the whole: write it beside `concat`"),
    ("{concat: [[3], {shape: [3], mutated: true}]}", "`mutated` is about the whole: write it beside `concat`"),
    ("{concat: [[1, 3], {shape: [1, n], structure: spd}]}", "structure `spd` needs a square matrix, not 1 × 4 at n=4"),
    # object
    ("{object: kernel}", "`kernel` names no module: write `module:kernel`"),
    ("{object: }", "`object` must be a dotted path or `module:attribute`, not empty"),
    ("{object: a.b, init: 3}", "`init` must be a list, not the number 3"),
    ("{object: a.b, init: [[2]]}", "entry 1 of `init` must be a literal or a size, not a list"),
    ("{object: a.b, init: }", "`init` must have a value: leave the key out instead"),
    ("{object: a.b, optional: true}", "`optional` conflicts with `object`"),
    # tuple and size
    ("{tuple: 3}", "`tuple` must be a list, not the number 3"),
    ("{tuple: [n/2]}", "`/2` is not allowed in a size expression; use `//`"),
    ("{tuple: [{a: 1}]}", "a tuple holds numbers, sizes, expressions and lists of them, not a mapping"),
    ("{tuple: [1//0]}", "`1//0` divides by zero"),
    ("{tuple: [2], shape: [3]}", "`shape` conflicts with `tuple`"),
    ("{size: [n]}", "`size` must be an integer, a size name or an expression, not a list"),
    ("{size: 1.5}", "`size` must be an integer, a size name or an expression, not the number 1.5"),
    ("{size: n n}", "`n n` is not a size expression: sizes know only + - * // % and parentheses"),
    ("{size: n, dtype: int64}", "`dtype` conflicts with `size`"),
    ("{size: n, choices: [1]}", "`size` conflicts with `choices`"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), STRUCTURED, ids=[entry for entry, _ in STRUCTURED])
def test_a_wrong_tensor(complaints, entry, expected):
    assert complaints(f"{{inputs: {{x: {entry}}}}}") == [expected]


@pytest.mark.parametrize(("entry", "expected"), STRUCTURED, ids=[entry for entry, _ in STRUCTURED])
def test_a_tensor_of_a_list_is_reported_the_same(complaints, entry, expected):
    if "`x`" not in expected and "stand here" not in expected:
        assert complaints(f"{{inputs: {{x: {{list: [{entry}]}}}}}}") == [expected]


@pytest.mark.parametrize(("entry", "expected"), FORMS, ids=[entry for entry, _ in FORMS])
def test_another_form_of_input_that_is_wrong(complaints, entry, expected):
    assert complaints(f"{{inputs: {{x: {entry}}}}}") == [expected]


def test_sizes_are_known_in_every_form(complaints):
    entry = (
        "{sizes: {n: 3}, inputs: {x: [n], a: {list: [[p]]}, b: {list: {of: {shape: [q]}, count: 2}}, c: {concat: [[r]]},"
        " d: {tuple: [[s]]}, e: {size: t}, f: {shape: [n], constant_at: {0: [u]}}}}"
    )
    assert complaints(entry) == [f"`{name}` is not in `sizes`; declared: n" for name in "pqrstu"]


PLACES = [
    ("{list: [[n], [n, -1]]}", "4:27: a dimension cannot be negative: -1"),
    ("{list: [[n], {shape: [n], structure: spd}]}", "4:47: structure `spd` needs a square matrix in the last two dimensions, not a shape of 1"),
    ("{list: {of: [n - 9], count: 2}}", "4:23: a dimension cannot be negative: `n - 9` is -5 at n=4"),
    ("{concat: [[2, n], {shape: [3, n]}]}", "4:28: the parts of `x` differ before their last dimension: [2, 4] and [3, 4] at n=4"),
    ("{shape: [n, n], constant_at: {0: [0], 1: [0, 7]}}", "4:55: dimension 1 has size 4, and no index 7 at n=4"),
    ("{tuple: [n, [2, 1//0]]}", "4:26: `1//0` divides by zero"),
    ("['n - 9']", "4:11: a dimension cannot be negative: `n - 9` is -5 at n=4"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), PLACES, ids=[entry for entry, _ in PLACES])
def test_each_mistake_has_its_place(problems, entry, expected):
    (problem,) = problems(f"module: m.py\nfunctions:\n  free: {{inputs:\n     {{x: {entry}, y: [n]}}}}\n")
    assert f"{problem.location.line}:{problem.location.column}: {problem.message}" == expected


def test_integer_keys_are_for_dimensions_alone(complaints, problems):
    assert complaints("{inputs: {x: {shape: [n], constant_at: {0: [0], 00: [1]}}}}") == [
        "duplicate key `0`: it is already given at line 2, column 59"
    ]
    assert complaints("{inputs: {x: [2]}, ignore: {2: a}}") == [
        'a key must be a string, not the number 2; write "2"'
    ]


def test_a_size_used_by_init_alone_is_used(read, complaints):
    entry = "{sizes: {n: 3, k: 2}, inputs: {x: [n], f: {object: a.b, init: ['2*k']}}}"
    assert read(f"module: m.py\nfunctions: {{free: {entry}}}")
    assert complaints("{sizes: {n: 3, k: 2}, inputs: {x: [n]}, init: {a: 'k k'}}") == [
        "size `k` is used by no input"
    ]
