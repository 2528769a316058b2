"""Wrong specs: the exact `file:line:column: message` and caret of each mistake, and one for each mistake."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import pytest

HEAD = "module: m.py\nfunctions:\n"


def screen(problems) -> list[str]:
    lines = []
    for problem in problems:
        place = problem.location
        lines.append(f"{place.file}:{place.line}:{place.column}: {problem.message}")
        lines.append(problem.source_line)
        lines.append(" " * (place.column - 1) + "^" * problem.length)
    return lines


def test_all_mistakes_of_a_file_are_reported_at_once(problems):
    text = """\
gradverify: 1
module: m.py
defaults: {rtol: .nan}
functions:
  Linear:
    sizes: {b: [3, 1], n: 4}
    inputs:
      wieght: {shpe: [3]}
      input: [b, n/2]
      bias: {shape: [n], optional: yes}
    where: ["b > c"]
    reference: {call: foo, arguments: []}
  Gathr:
    inputs: {x: [n]}
"""
    assert screen(problems(text)) == [
        "spec.yaml:3:18: `rtol` must be a finite number, not .nan",
        "defaults: {rtol: .nan}",
        "                 ^^^^",
        "spec.yaml:8:16: unknown key `shpe` in functions.Linear.inputs.wieght; did you mean `shape`?",
        "      wieght: {shpe: [3]}",
        "               ^^^^",
        "spec.yaml:9:18: `/2` is not allowed in a size expression; use `//`",
        "      input: [b, n/2]",
        "                 ^^^",
        "spec.yaml:10:36: `optional` must be true or false, not the string `yes`: in YAML 1.2 that is a string",
        "      bias: {shape: [n], optional: yes}",
        "                                   ^^^",
        "spec.yaml:11:13: `c` is not in `sizes`; declared: b, n",
        '    where: ["b > c"]',
        "            ^^^^^^^",
        "spec.yaml:12:23: `foo` names no module: write `module:foo`",
        "    reference: {call: foo, arguments: []}",
        "                      ^^^",
        "spec.yaml:12:39: `arguments` must be a list with at least one entry, not an empty one",
        "    reference: {call: foo, arguments: []}",
        "                                      ^^",
        "spec.yaml:13:3: `Gathr` is not defined in m.py; did you mean `Gather`?",
        "  Gathr:",
        "  ^^^^^",
    ]


TABLE = [
    # the top of a file
    ("[1]", "1:1: a spec must be a mapping, not a list"),
    ("module: m.py", "1:1: `functions` is missing"),
    ("module: m.py\nfunctions:\n", "2:1: `functions` must be a mapping, not empty"),
    ("module: m.py\nfunctions: {}\n", "2:1: `functions` is empty: name at least one"),
    ("modul: m.py\nfunctions: {m.py::Old: {skip: a}}", "1:1: unknown key `modul` at the top; did you mean `module`?"),
    ("gradverify: 2\n" + HEAD + "  Old: {skip: a}", "1:13: `gradverify` must be 1, the format version, not the number 2"),
    ("gradverify: 1.0\n" + HEAD + "  Old: {skip: a}", "1:13: `gradverify` must be 1, the format version, not the number 1.0"),
    ("module: 3\nfunctions: {Old: {skip: a}}", "1:9: `module` must be a string, not the number 3"),
    ("module: n.py\nfunctions: {Old: {skip: a}}", "1:9: `n.py` does not exist; paths are relative to the spec file; did you mean `m.py`?"),
    ("module: a b\nfunctions: {Old: {skip: a}}", "1:9: `a b` is neither a path to a `.py` file nor a dotted module name"),
    ("functions: {Old: {skip: a}}", "1:13: `Old` names no module: add `module:` above, or write `path.py::Old`"),
    ("functions: {n.py::Old: {skip: a}}", "1:13: `n.py` does not exist; paths are relative to the spec file; did you mean `m.py`?"),
    ("functions: {m.py::Odd: {skip: a}}", "1:13: `Odd` is not defined in m.py; did you mean `Old`?"),
    ("functions: {m-x::Old: {skip: a}}", "1:13: `m-x` is neither a path to a `.py` file nor a dotted module name"),
    ("functions: {gone::Old: {skip: a}}", "1:13: `gone` is neither a path to a `.py` file nor a module that can be found"),
    (HEAD + "  m.py::Old: {skip: a}", "3:3: `m.py::Old` names a module, and `module:` does already: write `Old`"),
    (HEAD + "  Old@: {skip: a}", "3:3: `Old@` is not the name of a function: write `Name`, or `Name@variant`"),
    # defaults
    ("defaults: {sed: 0}\n" + HEAD + "  Old: {skip: a}", "1:12: unknown key `sed` in defaults; did you mean `seed`?"),
    ("defaults: {seed: 1.5}\n" + HEAD + "  Old: {skip: a}", "1:18: `seed` must be an integer, not the number 1.5"),
    ("defaults: {seed: true}\n" + HEAD + "  Old: {skip: a}", "1:18: `seed` must be an integer, not `true`"),
    ("defaults: {rtol: '1e-7'}\n" + HEAD + "  Old: {skip: a}", "1:18: `rtol` must be a number, not the string `1e-7`"),
    ("defaults: {rtol: -1}\n" + HEAD + "  Old: {skip: a}", "1:18: `rtol` must be at least 0 and below 1, not -1"),
    ("defaults: {atol: .inf}\n" + HEAD + "  Old: {skip: a}", "1:18: `atol` must be a finite number, not .inf"),
    ("defaults: {dtype: float32}\n" + HEAD + "  Old: {skip: a}", "1:19: `dtype` must be float64, in which everything is verified; list native dtypes under `dtypes`"),
    ("defaults: {dtypes: [float64, bfloat]}\n" + HEAD + "  Old: {skip: a}", "1:30: `dtypes` cannot be the string `bfloat`; did you mean `bfloat16`?"),
    ("defaults: {dtypes: []}\n" + HEAD + "  Old: {skip: a}", "1:20: `dtypes` must be a list with at least one entry, not an empty one"),
    # names against the source
    (HEAD + "  Od: {inputs: {x: [3], n: 4}}", "3:3: `Od` is not defined in m.py; did you mean `Old`?"),
    (HEAD + "  a: {target: Od, inputs: {x: [3]}}", "3:15: `Od` is not defined in m.py; did you mean `Old`?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TABLE, ids=[expected for _, expected in TABLE])
def test_one_mistake_gives_one_error(problems, text, expected):
    assert [line for line in screen(problems(text)) if line.startswith("spec.yaml:")] == [
        f"spec.yaml:{expected}"
    ]


ENTRIES = [
    # the entry of a function
    ("3", "`free` must be a mapping, not the number 3"),
    ("{}", "an entry needs `inputs` (or `arguments`, or `skip` with a reason)"),
    ("{input: {x: [2]}}", "unknown key `input` in functions.free; did you mean `inputs`?"),
    ("{inputs: {}}", "`inputs` is empty: name at least one input"),
    ("{inputs: }", "`inputs` must be a mapping, not empty"),
    ("{inputs: [[2]]}", "`inputs` must be a mapping, not a list"),
    ("{skip: ''}", "a reason is required"),
    ("{skip: true}", "`skip` must be a string, not `true`"),
    ("{skip: a, ignore: {GV2: ' '}}", "a reason is required"),
    ("{skip: a, ignore: {GV2: }}", "`GV2` must be a string, not empty"),
    ("{skip: a, ignore: {GV110: x}}", "no code begins with `GV110`; did you mean `GV102`?"),
    ("{skip: a, ignore: {gv101: x}}", "`gv101` is not a code: GV101, or a prefix such as GV1"),
    ("{skip: a, ignore: {GV2011: x}}", "`GV2011` is not a code: GV101, or a prefix such as GV1"),
    ("{skip: a, target: 'a b'}", "`a b` is not a dotted path or `module:attribute`"),
    ("{skip: a, reference: foo}", "`foo` names no module: write `module:foo`"),
    ("{skip: a, reference: {}}", "`call` is missing"),
    ("{skip: a, reference: {cal: x}}", "unknown key `cal` in functions.free.reference; did you mean `call`?"),
    ("{arguments: a.b}", "`a.b` is not `module:attribute`"),
    ("{arguments: 'a:b', inputs: {x: [2]}}", "`x` must be a mapping of `requires_grad`, `avoid`, `constant_at` (the hook builds the tensor), not a list"),
    ("{arguments: 'a:b', inputs: {x: {shape: [2]}}}", "`shape` conflicts with `arguments`: the hook builds the tensor"),
    ("{arguments: 'a:b', inputs: {x: {avoids: [2]}}}", "unknown key `avoids` in functions.free.inputs.x; did you mean `avoid`?"),
    ("{sizes: {r: 2}, arguments: 'a:b', inputs: {x: {constant_at: {0: [q]}}}}", "`q` is not in `sizes`; declared: r"),
    # sizes
    ("{sizes: {n: 3}, inputs: {x: [2]}}", "size `n` is used by no input"),
    ("{sizes: {n: -1}, inputs: {x: [n]}}", "a size is between 0 and 2147483647, not -1"),
    ("{sizes: {n: 2147483648}, inputs: {x: [n]}}", "a size is between 0 and 2147483647, not 2147483648"),
    ("{sizes: {n: 1.5}, inputs: {x: [n]}}", "a size is an integer or a list of integers, not the number 1.5"),
    ("{sizes: {n: true}, inputs: {x: [n]}}", "a size is an integer or a list of integers, not `true`"),
    ("{sizes: {n: [3, 3]}, inputs: {x: [n]}}", "3 is listed twice"),
    ("{sizes: {n: []}, inputs: {x: [n]}}", "a list of sizes cannot be empty"),
    ("{sizes: {n: 0}, inputs: {x: [n]}}", "a size that is only 0 makes every case empty: add another value, `[3, 0]`"),
    ("{sizes: {n: [3, 2], m: 2*n}, inputs: {x: [n, m]}}", "a size is an integer or a list of integers, not the string `2*n`; write the expression where the size is used"),
    ("{sizes: {a-b: 3}, inputs: {x: [2]}}", "`a-b` cannot be the name of a size: use an identifier"),
    ("{sizes: {if: 3}, inputs: {x: [2]}}", "`if` cannot be the name of a size: use an identifier"),
    ("{sizes: {n: [2, 3]}, inputs: {x: [n], n: {choices: [1, 2]}}}", "`n` is a size and a swept input: case ids would be ambiguous; rename the size"),
    # shapes and expressions
    ("{inputs: {x: [-1]}}", "a dimension cannot be negative: -1"),
    ("{inputs: {x: [1.5]}}", "a dimension is an integer, a size name or an expression, not the number 1.5"),
    ("{inputs: {x: [true]}}", "a dimension is an integer, a size name or an expression, not `true`"),
    ("{inputs: {x: [[2, 3]]}}", "a dimension is an integer, a size name or an expression, not a list; a shape is one flat list"),
    ("{inputs: {x: [n**2]}}", "`n**2` is not a size expression: sizes know only + - * // % and parentheses"),
    ("{inputs: {x: [n.real]}}", "`.real` is not allowed in a size expression; sizes know only + - * // % and parentheses"),
    ("{inputs: {x: ['n if n']}}", "`if` cannot be the name of a size"),
    ("{inputs: {x: ['f(2)']}}", "`f(2)` is not a size expression: sizes know only + - * // % and parentheses"),
    ("{inputs: {x: ['n n']}}", "`n n` is not a size expression: sizes know only + - * // % and parentheses"),
    ("{inputs: {x: ['']}}", "an expression cannot be empty"),
    ("{inputs: {x: ['0x1F']}}", "`0x1F` is not allowed in a size expression; sizes know only + - * // % and parentheses"),
    ("{inputs: {x: ['1//0']}}", "`1//0` divides by zero"),
    ("{sizes: {h: [1, 5], k: 3}, inputs: {x: [h - k]}}", "a dimension cannot be negative: `h - k` is -2 at h=1, k=3"),
    ("{sizes: {h: 4, k: [0, 1]}, inputs: {x: [h // k]}}", "`h // k` divides by zero at h=4, k=0"),
    ("{sizes: {h: 99999}, inputs: {x: [h*h]}}", "`h*h` is larger than 2147483647 at h=99999"),
    # forms of an input
    ("{inputs: {x: {}}}", "`x` needs a `shape`"),
    ("{inputs: {x: {shpe: [3]}}}", "unknown key `shpe` in functions.free.inputs.x; did you mean `shape`?"),
    ("{inputs: {x: {shape: n}}}", "`shape` must be a list, not the string `n`"),
    ("{inputs: {x: {shape: }}}", "`shape` must have a value: leave the key out instead"),
    ("{inputs: {x: {choices: []}}}", "`choices` cannot be empty"),
    ("{inputs: {x: {choices: [1, 1]}}}", "the number 1 is listed twice"),
    ("{inputs: {x: {choices: [[1]]}}}", "a literal is a number, a string, true, false or null, not a list"),
    ("{inputs: {x: {choices: [a], shape: [2]}}}", "`shape` conflicts with `choices`"),
    ("{inputs: {x: {value: 3, requires_grad: false}}}", "`requires_grad` is for tensors, and `value` alone is a literal: a `dtype` makes it a tensor"),
    ("{inputs: {x: {value: {a: 1}}}}", "a literal is a number, a string, true, false or null, not a mapping"),
    ("{inputs: {x: {value: [1, 2]}}}", "a list `value` needs a `dtype`: float64, int64, bool, …"),
    ("{inputs: {x: {value: [[1], [1, 2]], dtype: int64}}}", "`value` is ragged: every list of one level must have the same length"),
    ("{inputs: {x: {value: [1, 2], dtype: int64, shape: [3]}}}", "`value` has shape [2], not [3]"),
    ("{inputs: {x: {value: [1.5], dtype: int64}}}", "a value of int64 is an integer, not 1.5"),
    ("{inputs: {x: {value: [300], dtype: uint8}}}", "300 does not fit uint8"),
    ("{inputs: {x: {value: [1], dtype: bool}}}", "a value of bool is true or false, not the number 1"),
    ("{inputs: {x: {value: [.nan], dtype: float64}}}", ".nan cannot be differentiated: values must be finite, or `requires_grad: false`"),
    ("{inputs: {x: {value: [a], dtype: float64}}}", "a value of float64 is a number, not the string `a`"),
    ("{inputs: {x: [n], mode: n}}", '`n` is a size: to pass it as an integer write `{size: n}`, for the string itself `{value: "n"}`'),
    ("{inputs: {a-b: [2]}}", "`a-b` is not the name of a parameter"),
    # dtypes
    ("{inputs: {x: {shape: [2], dtype: flot64}}}", "`flot64` is no dtype; did you mean `float64`?"),
    ("{inputs: {x: {shape: [2], dtype: torch.int64}}}", "`torch.int64` is no dtype; did you mean `int64`?"),
    ("{inputs: {index: {shape: [2], dtype: int64}}}", "`index` is an integer tensor: give it `range: [0, n]`"),
    ("{inputs: {x: {shape: [2], dtype: float32}}}", "verification runs in float64: float32 is only for `requires_grad: false`; what the Function does in shorter dtypes is asked by its `dtypes: [...]`"),
    ("{inputs: {x: {shape: [2], dtype: complex64}}}", "verification runs in float64: complex64 is only for `requires_grad: false`; what the Function does in shorter dtypes is asked by its `dtypes: [...]`"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, 3], requires_grad: true}}}", "a tensor of dtype int64 cannot require grad"),
    ("{inputs: {x: {shape: [2], dtype: bool, requires_grad: true}}}", "a tensor of dtype bool cannot require grad"),
    ("{inputs: {x: {shape: [2], dtype: bool, range: [0, 2]}}}", "`range` does not apply to dtype bool"),
    ("{inputs: {x: {shape: [2], dtype: bool, avoid: [1]}}}", "`avoid` does not apply to dtype bool"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, 2], avoid: [1.5]}}}", "1.5 is no int64"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, 2], avoid: [1, 0]}}}", "`avoid` leaves no integer of the range [0, 2]"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, n], avoid: [3, 0, 9, 1, 2], }, y: [n]}}", "`avoid` leaves no integer of the range [0, 4] at n=4"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, 2], avoid: [1], distinct: true}}}", "the range [0, 2] has no 2 distinct integers without those in `avoid`"),
    ("{inputs: {x: {value: [2], dtype: int64, range: [0, 4], avoid: [2]}}}", "2 is in `avoid`"),
    ("{inputs: {x: {shape: [2], range: [1, 1], avoid: [1]}}}", "`avoid` leaves no number of the range [1.0, 1.0]"),
    ("{inputs: {x: {shape: [2], dtype: complex128, domain: positive}}}", "a complex number cannot be positive"),
    # ranges, domains, points
    ("{inputs: {x: {shape: [2], range: [1]}}}", "`range` has two bounds, [low, high], not 1"),
    ("{inputs: {x: {shape: [2], range: [2, 1]}}}", "the range [2, 1] ends before it begins"),
    ("{inputs: {x: {shape: [2], range: [0, .inf]}}}", "entry 2 of `range` must be a finite number, not .inf"),
    ("{inputs: {x: {shape: [2], range: [0, '0.5']}}}", "`.5` is not allowed in a size expression; sizes know only + - * // % and parentheses"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, 2.5]}}}", "a bound of int64 is an integer, not 2.5"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [3, 3]}}}", "the range [3, 3] holds no integer: integer ranges are half-open"),
    ("{inputs: {x: {shape: [2], dtype: uint8, range: [0, 257]}}}", "the range [0, 257] does not fit uint8"),
    ("{inputs: {x: {shape: [2], range: [0, 1], special: [2.0]}}}", "2.0 is outside the range [0.0, 1.0]"),
    ("{inputs: {x: {shape: [2], dtype: int64, range: [0, 3], special: [3]}}}", "3 is outside the range [0, 3)"),
    ("{inputs: {x: {shape: [2], dtype: uint8, range: [0, 3], special: [-1]}}}", "-1 does not fit uint8"),
    ("{sizes: {n: [5, 2]}, inputs: {x: {shape: [n], range: [0, n], special: [4]}}}", "4 is outside the range [0.0, 2.0] at n=2"),
    ("{inputs: {x: {shape: [2], domain: positve}}}", "`domain` cannot be the string `positve`; did you mean `positive`?"),
    ("{inputs: {x: {shape: [2], domain: positive, range: [-2, -1]}}}", "the range [-2.0, -1.0] leaves the domain `positive`"),
    ("{inputs: {x: {shape: [2], domain: negative, range: [-2, 1]}}}", "the range [-2.0, 1.0] leaves the domain `negative`"),
    ("{inputs: {x: {shape: [2], domain: unit, range: [0, 2]}}}", "the range [0.0, 2.0] leaves the domain `unit`"),
    ("{inputs: {x: {shape: [2], domain: nonzero, range: [0, 0]}}}", "the range [0.0, 0.0] leaves the domain `nonzero`"),
    ("{inputs: {x: {shape: [2], domain: positive, special: [0]}}}", "0 is outside the domain `positive`"),
    ("{inputs: {x: {shape: [2], avoid: [0], special: [0.0]}}}", "0.0 is in `avoid`"),
    ("{inputs: {x: {shape: [2], special: 0}}}", "`special` must be a list, not the number 0"),
    ("{inputs: {x: {shape: [2], special: [a]}}}", "entry 1 of `special` must be a number, not the string `a`"),
    ("{inputs: {x: {shape: [2], value: [1, 2], dtype: float64, special: [1]}}}", "`special` conflicts with `value`: nothing is drawn"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), ENTRIES, ids=[entry for entry, _ in ENTRIES])
def test_one_mistake_in_an_entry_gives_one_error(complaints, entry, expected):
    assert complaints(entry) == [expected]


def test_a_mistake_knows_its_caret(problems):
    (problem,) = problems(HEAD + "  free: {inputs: {x: {shape: [2], dtype: flot64}}}")
    assert (problem.location.column, problem.length) == (42, 6)
    assert problem.source_line[41:47] == "flot64"


def test_aliased_mistakes_are_reported_once(problems):
    (problem,) = problems(HEAD + "  free: {inputs: {x: &x [-1], y: *x}}")
    assert problem.message == "a dimension cannot be negative: -1"


def test_lists_too_long_to_cover(complaints):
    numbers = list(range(1, 40))
    entry = f"{{sizes: {{a: {numbers}, b: {numbers}}}, inputs: {{x: [a, b]}}}}"
    assert complaints(entry) == [
        "the lists need at least 1521 cases, and 1000 are allowed: shorten the longest"
    ]
