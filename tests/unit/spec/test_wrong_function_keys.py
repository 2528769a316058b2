"""Wrong keys of a function: one mistake, one sentence, and the place of the value that is meant."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import pytest

X = "inputs: {x: [n]}"
NK = "sizes: {n: [4, 2], k: [3, 1]}, inputs: {x: [n, k], mode: {choices: [a, 1]}, b: {shape: [n], optional: true}, xs: {list: {of: [k], count: [1, 2]}}}"

ENTRIES = [
    # where
    (f"{{{X}, where: n > 1}}", "`where` must be a list, not the string `n > 1`"),
    (f"{{{X}, where: []}}", "`where` must be a list with at least one entry, not an empty one"),
    (f"{{{X}, where: }}", "`where` must be a list, not empty"),
    (f"{{{X}, where: [true]}}", "a condition is a string such as `h >= k`, not `true`"),
    (f"{{{X}, where: ['']}}", "a condition cannot be empty"),
    (f"{{{X}, where: [n]}}", "`n` compares nothing: write a condition such as `h >= k`"),
    (f"{{{X}, where: ['n = 4']}}", "`= 4` is unknown here; use `==`"),
    (f"{{{X}, where: ['n && 4']}}", "`&& 4` is unknown here; use `and`"),
    (f"{{{X}, where: ['n / 2 > 1']}}", "`/ 2 > 1` is unknown here; use `//`"),
    (f"{{{X}, where: ['n.real > 1']}}", "`.real > 1` is unknown here; a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"),
    (f"{{{X}, where: ['len(n) > 1']}}", "`len(n) > 1` is not a condition: a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"),
    (f"{{{X}, where: ['n > 1 if n']}}", "`if` cannot be the name of a size"),
    (f"{{{X}, where: ['n in n']}}", "`in` cannot be the name of a size"),
    (f"{{{X}, where: ['(n > 1) + 1 > 0']}}", "`(n > 1) + 1 > 0` is not a condition: a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"),
    (f"{{{X}, where: ['not n']}}", "`not n` is not a condition: a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"),
    (f"{{{X}, where: ['n >']}}", "`n >` is not a condition: a condition knows sizes, integers, + - * // %, comparisons, and, or, not and parentheses"),
    (f"{{{X}, where: ['q > 1']}}", "`q` is no size that an input uses"),
    ("{sizes: {num: 3}, inputs: {x: [num]}, where: ['nun > 1']}", "`nun` is not in `sizes`; did you mean `num`?"),
    ("{sizes: {n: 3, k: 2}, inputs: {x: [n]}, where: ['k > 1']}", "size `k` is used by no input"),
    ("{sizes: {n: [3, 5]}, inputs: {x: [n]}, where: ['n > 5']}", "`where` leaves no case"),
    (f"{{{X}, where: ['n > 4']}}", "`where` leaves no case"),
    ("{sizes: {n: [3, 5]}, inputs: {x: [n]}, where: ['n > 5'], cases: product}", "`where` leaves no case"),
    ("{sizes: {n: [3, 5]}, inputs: {x: [n]}, where: ['n // 0 > 5', 'n > 0']}", "`where` leaves no case"),
    # cases
    (f"{{{X}, cases: all}}", "`cases` must be `product` or a list of cases, not the string `all`"),
    (f"{{{X}, cases: []}}", "`cases` must be a list with at least one entry, not an empty one"),
    (f"{{{X}, cases: }}", "`cases` must have a value: leave the key out instead"),
    (f"{{{X}, cases: [n]}}", "entry 1 of `cases` must be a mapping, not the string `n`"),
    (f"{{{X}, cases: [{{n: 3}}]}}", "`n` is no declared size and no option; known: none"),
    (f"{{{NK}, cases: [{{m: 3}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "`m` is no declared size and no option; known: n, k, mode, b, xs"),
    (f"{{{NK}, cases: [{{modes: a}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "`modes` is no declared size and no option; did you mean `mode`?"),
    (f"{{{NK}, cases: [{{n: a}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "a size is an integer between 0 and 2147483647, not the string `a`"),
    (f"{{{NK}, cases: [{{n: -1}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "a size is an integer between 0 and 2147483647, not the number -1"),
    (f"{{{NK}, cases: [{{n: true}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "a size is an integer between 0 and 2147483647, not `true`"),
    (f"{{{NK}, cases: [{{mode: b}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "`mode` is swept over a, 1, not the string `b`"),
    (f"{{{NK}, cases: [{{mode: true}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "`mode` is swept over a, 1, not `true`"),
    (f"{{{NK}, cases: [{{b: 1}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "`b` is swept over given, null, not the number 1"),
    (f"{{{NK}, cases: [{{xs: 0}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}, {{}}]}}", "`xs` is swept over 1, 2, not the number 0"),
    (f"{{{NK}, cases: [{{}}, {{n: 2, mode: 1, b: null, xs: 2}}]}}", "no case of `cases` takes k=1: list one, or remove the value"),
    (f"{{{NK}, cases: [{{}}, {{n: 2, k: 1, mode: 1, xs: 2}}]}}", "no case of `cases` takes b=None: list one, or remove the value"),
    (f"{{{NK}, cases: [{{b: null}}, {{n: 2, k: 1, mode: 1, b: null, xs: 2}}]}}", "no case of `cases` takes b=given: list one, or remove the value"),
    ("{sizes: {n: 3}, inputs: {x: [n]}, cases: [{n: 3}, {}]}", "the case `n=3` is listed twice"),
    ("{sizes: {n: 3}, inputs: {x: [n]}, where: [n > 2], cases: [{}, {n: 2}]}", "the case `n=2` breaks the condition `n > 2`"),
    ("{sizes: {n: 3}, inputs: {x: [n - 2]}, cases: [{}, {n: 1}]}", "no such case: a dimension cannot be negative: `n - 2` is -1 at n=1"),
    ("{sizes: {a: [1, 2, 3, 4, 5, 6, 7], b: [1, 2, 3, 4, 5, 6, 7], c: [1, 2, 3, 4, 5, 6, 7], d: [1, 2, 3]}, inputs: {x: [a, b, c, d]}, cases: product}", "the product of the lists has 1029 cases, and 1000 are allowed"),
    ("{inputs: {x: [2], m: {choices: [1, 2]}}, cases: [{m: 7}, {m: 1}, {m: 2}]}", "`m` is swept over 1, 2, not the number 7"),
    # reference and surrogate
    ("{inputs: {x: [-1]}, reference: {call: a.b, arguments: [x]}}", "a dimension cannot be negative: -1"),
    (f"{{{X}, reference: {{call: a.b, arguments: [y]}}}}", "`y` is no input; inputs: x"),
    ("{inputs: {input: [n]}, reference: {call: a.b, arguments: [inptu]}}", "`inptu` is no input; did you mean `input`?"),
    (f"{{{X}, reference: {{call: a.b, arguments: [3]}}}}", "entry 1 of `arguments` must be a string, not the number 3"),
    (f"{{{X}, reference: {{arguments: [x]}}}}", "`call` is missing"),
    (f"{{{X}, reference: 3}}", "`reference` must be a dotted path or `module:attribute`, not the number 3"),
    (f"{{{X}, surrogate: 3}}", "`surrogate` must be a dotted path or `module:attribute`, not the number 3"),
    (f"{{{X}, surrogate: }}", "`surrogate` must have a value: leave the key out instead"),
    (f"{{{X}, surrogate: {{}}}}", "`call` is missing"),
    (f"{{{X}, surrogate: {{call: a.b, inputs: [y]}}}}", "`y` is no input; inputs: x"),
    (f"{{{X}, surrogate: {{call: a.b, inputs: [x, x]}}}}", "`x` is listed twice"),
    (f"{{{X}, surrogate: {{call: a.b, inputs: []}}}}", "`inputs` must be a list with at least one entry, not an empty one"),
    ("{inputs: {x: [n], e: 3}, surrogate: {call: a.b, inputs: [e]}}", "`e` is no tensor, and has no gradient to replace"),
    (f"{{{X}, surrogate: {{reason: ' '}}}}", "a reason is required"),
    (f"{{{X}, surrogate: {{reason: r, inputs: [x]}}}}", "`inputs` conflicts with `reason`"),
    (f"{{{X}, surrogate: {{reason: r, call: a.b}}}}", "`reason` conflicts with `call`"),
    (f"{{{X}, surrogate: {{reasn: r}}}}", "unknown key `reasn` in functions.free.surrogate; did you mean `reason`?"),
    # tolerance, outputs, default_dtype, devices, notes
    (f"{{{X}, tolerance: 1e-5}}", "`tolerance` must be a mapping, not the number 1e-05"),
    (f"{{{X}, tolerance: {{}}}}", "`tolerance` is empty: give it `rtol` or `atol`"),
    (f"{{{X}, tolerance: {{rtol: }}}}", "`rtol` must have a value: leave the key out instead"),
    (f"{{{X}, tolerance: {{rtol: 1}}}}", "`rtol` must be at least 0 and below 1, not 1"),
    (f"{{{X}, tolerance: {{tol: 1}}}}", "unknown key `tol` in functions.free.tolerance; did you mean `rtol`?"),
    (f"{{{X}, outputs: 0}}", "`outputs` must be a list, not the number 0"),
    (f"{{{X}, outputs: []}}", "`outputs` must be a list with at least one entry, not an empty one"),
    (f"{{{X}, outputs: [0, 0]}}", "0 is listed twice"),
    (f"{{{X}, outputs: [-1]}}", "entry 1 of `outputs` must be the position of an output, counted from 0, not -1"),
    (f"{{{X}, outputs: [y]}}", "entry 1 of `outputs` must be the position of an output, not the string `y`"),
    (f"{{{X}, outputs: [true]}}", "entry 1 of `outputs` must be the position of an output, not `true`"),
    (f"{{{X}, default_dtype: float16}}", "`default_dtype` cannot be the string `float16`; did you mean `float64`?"),
    (f"{{{X}, default_dtype: 64}}", "`default_dtype` cannot be the number 64; dtypes: float64, float32"),
    (f"{{{X}, devices: cuda}}", "`devices` must be a list, not the string `cuda`"),
    (f"{{{X}, devices: [gpu]}}", "`devices` cannot be the string `gpu`; did you mean `cpu`?"),
    (f"{{{X}, devices: [cpu, cpu]}}", "`cpu` is listed twice"),
    (f"{{{X}, notes: ' '}}", "`notes` must not be empty"),
    (f"{{{X}, notes: [a]}}", "`notes` must be a string, not a list"),
    # init
    (f"{{{X}, init: 3}}", "`init` must be a mapping or a list, not the number 3"),
    (f"{{{X}, init: {{a: {{b: 1}}}}}}", "`a` must be a literal, a size or a list of them, not a mapping"),
    (f"{{{X}, init: [[{{b: 1}}]]}}", "entry 1 of `init` must be a literal, a size or a list of them, not a mapping"),
    (f"{{{X}, init: {{a-b: 1}}}}", "`a-b` is not the name of a parameter"),
    ("{sizes: {n: 3, k: 0}, inputs: {x: [n, k]}, init: ['n // k']}", "a size that is only 0 makes every case empty: add another value, `[3, 0]`"),
    ("{sizes: {n: 3, k: [0, 1]}, inputs: {x: [n, k]}, init: ['n // k']}", "`n // k` divides by zero at n=3, k=0"),
    # xfail
    (f"{{{X}, xfail: GV201}}", "`xfail` must be a mapping or a list of them, not the string `GV201`"),
    (f"{{{X}, xfail: []}}", "`xfail` must be a list with at least one entry, not an empty one"),
    (f"{{{X}, xfail: [GV201]}}", "entry 1 of `xfail` must be a mapping, not the string `GV201`"),
    (f"{{{X}, xfail: {{codes: [GV201]}}}}", "`reason` is missing"),
    (f"{{{X}, xfail: {{reason: r}}}}", "`codes` is missing"),
    (f"{{{X}, xfail: {{code: [GV201], reason: r}}}}", "unknown key `code` in functions.free.xfail; did you mean `codes`?"),
    (f"{{{X}, xfail: {{codes: GV201, reason: r}}}}", "`codes` must be a list, not the string `GV201`"),
    (f"{{{X}, xfail: {{codes: [], reason: r}}}}", "`codes` must be a list with at least one entry, not an empty one"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: ''}}}}", "a reason is required"),
    (f"{{{X}, xfail: {{codes: [GV2], reason: r}}}}", "`GV2` is not a whole code such as GV201: each must occur, so a prefix says too little"),
    (f"{{{X}, xfail: {{codes: [201x], reason: r}}}}", "`201x` is not a whole code such as GV201"),
    (f"{{{X}, xfail: {{codes: [GV203], reason: r}}}}", "there is no code `GV203`; did you mean `GV202`?"),
    (f"{{{X}, xfail: {{codes: [GV201, GV201], reason: r}}}}", "`GV201` is listed twice"),
    (f"{{{X}, ignore: {{GV2: a}}, xfail: {{codes: [GV201], reason: r}}}}", "`GV201` cannot be expected: `ignore: {GV2: …}` keeps it from being checked"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: r, until: 2027-02-30}}}}", "there is no day 2027-02-30"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: r, until: 20270230}}}}", "`until` must be a date such as 2027-01-31, not the number 20270230"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: r, until: next year}}}}", "`until` must be a date such as 2027-01-31, not the string `next year`"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: r, input: y}}}}", "`y` is no input; inputs: x"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: r, input: ''}}}}", "`input` must not be empty"),
    (f"{{{X}, xfail: {{codes: [GV201], reason: r, cases: n=3}}}}", "`cases` must be a list, not the string `n=3`"),
    ("{sizes: {n: [3, 2]}, inputs: {x: [n]}, xfail: {codes: [GV201], reason: r, cases: [n=2, n=4]}}", "no case is called `n=4`; cases: n=3, n=2"),
    ("{sizes: {n: [3, 2]}, inputs: {x: [n], m: {choices: [u]}}, xfail: {codes: [GV201], reason: r, cases: ['n=2,m=v']}}", "no case is called `n=2,m=v`; cases: n=3,m=u, n=2,m=u"),
    # keys that no gate opens
    (f"{{{X}, internals: float16}}", "`internals` cannot be the string `float16`; did you mean `float32`?"),
    (f"{{{X}, dtypes: [bfloat]}}", "`dtypes` cannot be the string `bfloat`; did you mean `bfloat16`?"),
    (f"{{{X}, dtypes: []}}", "`dtypes` must be a list with at least one entry, not an empty one"),
    (f"{{{X}, dtypes: [float32, float32]}}", "`float32` is listed twice"),
    (f"{{{X}, wheres: []}}", "unknown key `wheres` in functions.free; did you mean `where`?"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), ENTRIES, ids=[entry for entry, _ in ENTRIES])
def test_one_mistake_gives_one_error(complaints, entry, expected):
    assert complaints(entry) == [expected]


PLACES = [
    ("    where: [n > 1, q > 1]", "5:20: `q` is no size that an input uses"),
    ("    cases: [{n: 3}]", "5:14: `n` is no declared size and no option; known: none"),
    ("    reference: {call: a.b, arguments: [x, y]}", "5:43: `y` is no input; inputs: x"),
    ("    surrogate: {call: a, inputs: [x]}", "5:23: `a` names no module: write `module:a`"),
    ("    tolerance: {rtol: a}", "5:23: `rtol` must be a number, not the string `a`"),
    ("    xfail:\n      - {codes: [GV201], reason: r}\n      - {codes: [GV9], reason: r}", "7:18: `GV9` is not a whole code such as GV201: each must occur, so a prefix says too little"),
    ("    xfail:\n      codes: [GV201]", "5:5: `reason` is missing"),
    ("    outputs: [0, -2]", "5:18: entry 2 of `outputs` must be the position of an output, counted from 0, not -2"),
    ("    init: {a: 1, b: {c: d}}", "5:21: `b` must be a literal, a size or a list of them, not a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), PLACES, ids=[lines for lines, _ in PLACES])
def test_each_mistake_has_its_place(problems, lines, expected):
    (problem,) = problems(f"module: m.py\nfunctions:\n  free:\n    inputs: {{x: [n]}}\n{lines}\n")
    assert f"{problem.location.line}:{problem.location.column}: {problem.message}" == expected
