"""`--help`: short, complete, and what its pages show exists."""

import re
from pathlib import Path

import typer.main
from typer.testing import CliRunner

from gradverify.cli.commands import app
from gradverify.options import KEYS, OPTIONS
from gradverify.session.outcome import ExitCode

COMMANDS = typer.main.get_command(app).commands
PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8")

LONGEST = 100
"""Lines of the help of `check` at 100 columns."""


def test_every_option_says_what_it_does():
    assert not [(name, p.name) for name, c in COMMANDS.items() for p in c.params if not p.help]


def test_every_option_of_check_has_a_panel():
    assert not [p.name for p in COMMANDS["check"].params if p.opts[0][:1] == "-" and not p.rich_help_panel]


def test_the_help_of_check_is_short():
    wide = {"COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    shown = CliRunner(env=wide).invoke(app, ["check", "--help"]).output.splitlines()
    assert 40 < len(shown) <= LONGEST
    assert max(map(len, shown)) <= 100


def test_every_command_has_its_section():
    assert all(f"<!-- generated: help {name} -->" in PAGE for name in COMMANDS)


def test_the_exit_codes_of_check_are_all_named():
    said = re.findall(r"(?:: |; )(\d+) ", " ".join(COMMANDS["check"].help.split()))
    assert {str(int(code)) for code in ExitCode} == set(said)


def test_examples_use_options_that_exist():
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    foreign = {"--epochs", "--name-only"}  # of the program that `record` runs, and of git
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    assert set(re.findall(r"--[a-z-]+", blocks)) - known == foreign


def test_the_table_of_options_names_parameters_of_check():
    names = {p.name for p in COMMANDS["check"].params}
    assert OPTIONS.keys() <= names
    assert {option.flag for option in OPTIONS.values()} - {"TARGET"} <= {
        option for p in COMMANDS["check"].params for option in p.opts
    }
    assert set(KEYS) - {"paths", "specs"} <= names
