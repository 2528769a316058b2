"""The text level: YAML 1.2 core, duplicates, aliases, and files that are no spec at all."""

from __future__ import annotations

import math

import pytest

from gradverify.errors import SpecError
from gradverify.spec.source import MAX_BYTES, parse
from gradverify.spec.yaml_core import MAX_DEPTH


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("", None),
        ("True", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("=", "="),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ('"~"', "~"),
    ],
)
def test_scalars_are_yaml_1_2_core(text, value):
    data = parse(f"k: {text}", "s.yaml").data
    assert data == {"k": value}
    assert type(data["k"]) is type(value)


def test_nan_is_read():
    assert math.isnan(parse("k: .nan", "s.yaml").data["k"])


def test_anchors_and_aliases_are_allowed():
    assert parse("a: &x [1]\nb: *x", "s.yaml").data == {"a": [1], "b": [1]}


def test_a_byte_order_mark_moves_no_column(problems):
    (problem,) = problems("\ufeffmodule: m.py\nfunctions: {}")
    assert (problem.location.line, problem.location.column) == (2, 1)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 500))


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the file is empty: it needs `module:` and `functions:`"),
        ("---\n", 1, 1, "the file is empty: it needs `module:` and `functions:`"),
        ("# only this\n", 1, 1, "the file is empty: it needs `module:` and `functions:`"),
        (
            "a: 1\n---\nb: 2\n",
            2,
            1,
            "not valid YAML: found another document (a spec file holds one document)",
        ),
        ("a: [1\nb: 2\n", 2, 2, "not valid YAML: expected ',' or ']', but got ':'"),
        ("a: b: c", 1, 5, "not valid YAML: mapping values are not allowed here (a second `: ` in one line"),
        (
            "a:\n\tb: 1",
            2,
            1,
            "not valid YAML: found character '\\t' that cannot start any token (indent with",
        ),
        ("a:\n- \x07", 2, 3, "not valid YAML: the character U+0007 is not allowed"),
        ("a: \x07", 1, 4, "not valid YAML: the character U+0007 is not allowed"),
        ('a: "\\UFFFFFFFF"', 1, 7, "not valid YAML: an escape or a number is out of range"),
        ('a: "\\ud800"', 1, 4, "not valid YAML: an escape sequence names no character"),
        ("a: *x", 1, 4, "not valid YAML: found undefined alias"),
        ("a: &x [*x]", 1, 4, "an alias (`*name`) is inside the value that it names"),
        (LAUGHS, None, None, "aliases (`*name`) expand to more than"),
        (CHAIN, None, None, "aliases (`*name`) expand to more than"),
        ("a: " + "[" * 500, 1, MAX_DEPTH + 3, f"not valid YAML: nested more than {MAX_DEPTH} levels deep"),
        ("a: !!python/object:os.system x", 1, 4, "the tag `tag:yaml.org,2002:python/object:os.syst…` is not"),
        ("a: !thing [1]", 1, 4, "the tag `!thing` is not supported: a spec is plain YAML"),
        ("a: !!set {x}", 1, 4, "the tag `tag:yaml.org,2002:set` is not supported"),
        ("a: !!timestamp 2024-01-01", 1, 4, "the tag `tag:yaml.org,2002:timestamp` is not supported"),
        ("a: " + "9" * 5000, 1, 4, "`999999999999999999999999999999999999999…` is out of range"),
        ("a: &x {b: 1}\nc:\n  <<: *x", 3, 3, "merge keys (`<<`) are not supported: write the entries out"),
    ],
)
def test_what_hides_the_rest_of_a_file(text, line, column, message):
    with pytest.raises(SpecError) as caught:
        parse(text, "s.yaml")
    problem = caught.value.problems[0]
    assert problem.message.startswith(message)
    if line:
        assert (problem.location.line, problem.location.column) == (line, column)


def test_duplicate_keys_are_errors_with_both_places(problems):
    text = "module: m.py\nfunctions:\n  Old:\n    skip: a\n    skip: b\nfunctions: {}\n"
    assert [(str(p.location.line), p.location.column, p.message) for p in problems(text)] == [
        ("5", 5, "duplicate key `skip`: it is already given at line 4, column 5"),
        ("6", 1, "duplicate key `functions`: it is already given at line 2, column 1"),
    ]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("1", 'a key must be a string, not the number 1; write "1"'),
        ("true", 'a key must be a string, not `true`; write "true"'),
        ("~", 'a key must be a string, not empty; write "~"'),
        ("[a]", "a key must be a string, not a list"),
    ],
)
def test_keys_are_strings(problems, key, message):
    (problem,) = problems(f"module: m.py\nfunctions: {{Old: {{skip: a}}}}\n? {key}\n: x\n")
    assert problem.message == message
    assert (problem.location.line, problem.location.column) == (3, 3)


def test_names_that_yaml_1_1_takes_for_booleans_are_names(plan):
    assert plan("{sizes: {n: [2, 3], y: 4}, inputs: {no: [n], on: [y]}}").cases[0].id == "n=2,y=4"


def test_a_file_that_cannot_be_read(folder, problems):
    problem = problems("a: 1\nb: é \udcff")[0]
    assert problem.message == "the file is not UTF-8 text: byte 0xED"
    assert (problem.location.line, problem.location.column) == (2, 6)

    (folder / "dir.yaml").mkdir()


def test_too_large(problems):
    problem = problems("# " + "x" * MAX_BYTES)[0]
    assert problem.message == "the file is larger than 1 MiB: this is no spec file"
    assert (problem.location.line, problem.location.column) == (1, 1)


def test_a_list_without_end(problems):
    (problem,) = problems(f"module: m.py\nfunctions: {{f: {{sizes: {{n: [{'3, ' * 2000}]}}}}}}")
    assert problem.message == "a list has at most 1000 entries, not 2000"
    assert (problem.location.line, problem.location.column) == (2, 28)


def test_line_breaks_are_counted_as_the_yaml_parser_counts_them(problems):
    (problem,) = problems("module: m.py\r\nfunctions:\r\n  Old:\r\n    skip: ''\r\n")
    assert (problem.location.line, problem.source_line) == (4, "    skip: ''")
