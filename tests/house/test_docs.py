"""The documentation says what the tool does: its commands are run, its tables are those of the program."""

import re
import tomllib

import pytest
from console_blocks import Command, File, followed, steps_of
from extent import with_long
from generated_pages import PAGES, ROOT, RULE_PAGES, rule_pages, sections, sections_of
from spec_reference import TITLES, definitions

from gradverify.config import KEYS, load_config
from gradverify.rules import RULES
from gradverify.spec.read import read_spec

MOST_VERIFICATIONS = 17
"""Commands of all pages that start torch, which takes seconds: the suite stays affordable."""
STARTS_TORCH = re.compile(r"gradverify (check|init|list|record|suggest|demo)\b|pytest\b|python\b")
RENEW = "python tests/house/documentation/renew.py writes it"
TEXT = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
FOLLOWED = [name for name, text in TEXT.items() if any(isinstance(s, Command) for s in steps_of(text))]
ON_RANKS = ["docs/distributed.md"]
"""Pages whose commands start four ranks each; `tests/cli/test_ranks.py` sees the same findings."""
every_page = pytest.mark.parametrize("name", TEXT)


@pytest.mark.parametrize("name", with_long([n for n in FOLLOWED if n not in ON_RANKS], ON_RANKS))
def test_a_reader_who_types_what_a_page_says_sees_what_it_shows(name, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    for shown in followed(TEXT[name], folder):
        said = f"$ {shown.command.line}\n{shown.command.printed}"
        assert shown.is_true, f"{RENEW}\n\n{name} says\n{said}\nand it prints\n{shown.printed}"


def test_only_few_commands_start_torch():
    lines = [s.line for text in TEXT.values() for s in steps_of(text) if isinstance(s, Command)]
    assert 0 < sum(STARTS_TORCH.match(line) is not None for line in lines) <= MOST_VERIFICATIONS


@every_page
def test_generated_parts_are_current(name):
    known = sections()
    for section, text in sections_of(TEXT[name]).items():
        assert text == f"{known[section]()}\n", f"{name}, {section}: {RENEW}"


def test_every_generated_part_is_shown_somewhere():
    shown = [section for text in TEXT.values() for section in sections_of(text)]
    assert set(shown) == set(sections())


def test_every_code_has_its_page_and_no_page_is_left_over():
    assert {page: page.read_text() for page in RULE_PAGES.glob("GV*.md")} == rule_pages(), RENEW
    assert len(rule_pages()) == len(RULES)


def test_every_mapping_of_a_spec_has_its_heading():
    assert set(TITLES) == set(definitions())
    for title in set(TITLES.values()) - {"The file"}:
        assert f"### {title}\n" in TEXT["docs/spec.md"]


def spec_snippets():
    """Entries of specs, as the reference shows them, and whole specs."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", TEXT["docs/spec.md"], re.DOTALL | re.MULTILINE)
    return [f"gradverify: 1\nmodule: mymodule.py\n{b}" for b in blocks if b.startswith("functions:")] + [
        s.text for s in steps_of(TEXT["docs/spec.md"]) if isinstance(s, File) and "mymodule" in s.name
    ]


@pytest.mark.parametrize("text", spec_snippets())
def test_specs_in_the_reference_are_read(text, tmp_path):
    names = re.findall(r"^  (\w+)(?:@\w+)?:", text, re.MULTILINE)
    (tmp_path / "mymodule.py").write_text("".join(f"{name} = object\n" for name in names))
    file = tmp_path / "mymodule.gradverify.yaml"
    file.write_text(text)
    spec = read_spec(file, shown_path=file.name, known_codes=[rule.code for rule in RULES])
    assert len(spec.functions) == len(names)


def test_the_configuration_is_documented_key_by_key(tmp_path):
    page = TEXT["docs/ci.md"]
    table = page[page.index("## [tool.gradverify]") :]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(KEYS)
    (example,) = re.findall(r"^```toml\n(\[tool\.gradverify\]\n.*?)^```$", table, re.DOTALL | re.MULTILINE)
    file = tmp_path / "pyproject.toml"
    file.write_text(example)
    assert load_config(file).values["paths"]
    assert set(tomllib.loads(example)["tool"]["gradverify"]) == set(KEYS)


def test_scripts_and_tests_that_pages_name_exist():
    pages = {**TEXT, "specs/README.md": (ROOT / "specs" / "README.md").read_text(encoding="utf-8")}
    for name, text in pages.items():
        for path in re.findall(r"\b(?:benchmarks|tests)/[\w/]+(?:\.py)?", text):
            assert (ROOT / path).exists() or path.endswith("/"), f"{name}: {path}"


@every_page
def test_links_lead_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", TEXT[name], flags=re.DOTALL)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {anchor_of(heading) for heading in headings}, link


def anchor_of(heading):
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_ci_runs_the_test_command_of_the_readme():
    command = next(line for line in TEXT["README.md"].splitlines() if line.endswith("pytest -n 2"))
    script = (ROOT / ".ci" / "run").read_text()
    for part in command.split(" && "):
        asked = part.replace(".venv/bin/pip install", ".venv/bin/python -m pip install --quiet")
        assert asked in script


CLAIMED = {
    ("LARGE", "2.0**12"): ": -4096 and 2^-20",
    ("SAFETY", "10.0"): "Ten times their sum counts",
    ("MOST_ROWS", "32"): "Of more than 32 rows",
    ("DRAWS", "8"): "runs eight times with a random error",
    ("FACTOR", "64.0"): "within 64 times of how far",
    ("OF_A_ROW", "1e-3"): "a thousandth of its row",
    ("CALLS_OF_A_SAMPLE", "150"): "One sample may cost 150 calls",
    ("CALLS_OF_A_TARGET", "400"): "all conflicts of a target 400",
    ("BESIDE", "2.0**-20"): "at 2^-20 of the size",
    ("SLIGHT", "1e-3"): "less than a thousandth of the largest",
    ("FEW_BITS", "10"): "multiplied by 2^10",
    ("MANY_BITS", "40"): "2^10, 2^40 and their inverses",
    ("LARGE", "(1.0, 100.0)"): "large (1 to 100)",
    ("SMALL", "(SMALLEST, 1e-2)"): "small (1e-6 to 1e-2)",
    ("ALL_SUBSETS", "3"): "all of up to three inputs",
}
"""Constants with what `how-it-decides.md` says of them: where one changes, the page does."""


@pytest.mark.parametrize(("constant", "words"), CLAIMED.items(), ids=lambda c: c[0] if len(c) == 2 else "")
def test_the_page_on_the_engine_speaks_of_the_constants_as_they_are(constant, words):
    name, value = constant
    assert f"| `{name}` | `{value}` |" in TEXT["docs/constants.md"]
    assert words in " ".join(TEXT["docs/how-it-decides.md"].split())
