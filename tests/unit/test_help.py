"""`--help` as a manual page: every command has its line and what stands below, every group its options."""

import re

import pytest
import typer.main

from gradverify.cli.commands import app
from gradverify.cli.manual import EPILOGS, GROUPS, SHORT
from gradverify.session.outcome import ExitCode

COMMANDS = typer.main.get_command(app).commands
WIDTH = 80
ROOM_FOR_A_LINE = WIDTH - len("  selftest  ") - 1


def test_every_command_has_a_page_and_no_page_is_left_over():
    assert set(SHORT) == set(COMMANDS)
    assert set(EPILOGS) == {*COMMANDS, "gradverify"}


@pytest.mark.parametrize("name", GROUPS)
def test_options_are_grouped_once_by_names_that_exist(name):
    grouped = [option for _, names in GROUPS[name] for option in names]
    options = {p.name for p in COMMANDS[name].params if p.param_type_name == "option"}
    assert len(set(grouped)) == len(grouped)
    assert set(grouped) <= options


def test_lines_fit_a_terminal():
    assert max(map(len, SHORT.values())) <= ROOM_FOR_A_LINE
    assert max(len(line) for text in EPILOGS.values() for line in text.splitlines()) <= WIDTH


def test_the_exit_codes_of_check_are_all_told():
    told = {line.split()[0] for line in EPILOGS["check"].splitlines() if line[2:3].isdigit()}
    assert {str(int(code)) for code in ExitCode} == told


def test_examples_use_options_that_exist():
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    foreign = {"--epochs"}  # of the program that `record` runs
    used = set(re.findall(r"--[a-z-]+", "\n".join(EPILOGS.values()))) - {"--help"}
    assert used - known == foreign
