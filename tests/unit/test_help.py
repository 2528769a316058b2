"""`--help` as a manual page: every command has its line and what stands below, every group its options."""

import re
from dataclasses import fields

import typer.main

from gradverify.cli.commands import app
from gradverify.cli.formats import Format
from gradverify.cli.help import MANUAL, SHORT, page_of
from gradverify.cli.options import GROUPS, HELP
from gradverify.session.outcome import ExitCode

COMMANDS = typer.main.get_command(app).commands
EPILOGS = {name: page_of(name) for name in (*COMMANDS, "gradverify")}
WIDTH = 80
ROOM_FOR_A_LINE = WIDTH - len("  suggest  ") - 1


def test_every_command_has_a_page_and_no_page_is_left_over():
    assert set(SHORT) == set(COMMANDS)
    assert {page.stem for page in MANUAL.iterdir()} == {*EPILOGS, "exit_codes", "options"}
    assert all(EPILOGS.values())


def test_every_option_has_a_group_and_its_help():
    names = [field.name for _, groups in GROUPS for group in groups for field in fields(group)]
    assert sorted(names) == sorted(p.name for p in COMMANDS["check"].params if p.name != "help")
    reported = {p.help for command in COMMANDS.values() for p in command.params}
    assert {text.format(formats=", ".join(Format)) for text in HELP.values()} <= reported


def test_lines_fit_a_terminal():
    assert max(map(len, SHORT.values())) <= ROOM_FOR_A_LINE
    assert max(len(line) for text in EPILOGS.values() for line in text.splitlines()) <= WIDTH


def test_the_exit_codes_of_check_are_all_reported():
    reported = {line.split()[0] for line in EPILOGS["check"].splitlines() if line[2:3].isdigit()}
    assert {str(int(code)) for code in ExitCode} == reported


def test_examples_use_options_that_exist():
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    foreign = {"--epochs"}  # of the program that `record` runs
    used = set(re.findall(r"--[a-z-]+", "\n".join(EPILOGS.values()))) - {"--help"}
    assert used - known == foreign
