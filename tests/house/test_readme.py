"""The README says what the tool does: its console block is run, its table of codes is the table of codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from gradverify.rules import RULES
from gradverify.spec import read_spec

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def rules_table() -> str:
    """The table of codes as the README holds it."""
    rows = [f"| {r.code} | {r.name} | {r.severity} | {r.summary} |" for r in RULES]
    return "\n".join(["| code | name | severity | a finding when |", "|---|---|---|---|", *rows])


def console_blocks() -> list[tuple[str, str]]:
    """(command, output) of every console block."""
    found = re.findall(r"```console\n\$ (.*?)\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return [(command, output) for command, output in found]


def write_files(folder: Path) -> None:
    """Write the code blocks whose first line names a file."""
    for name, text in re.findall(
        r"```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)```", README.read_text(), flags=re.DOTALL
    ):
        (folder / name).write_text(text)


def output_of(command: str, folder: Path) -> str:
    """What a command of the README prints."""
    words = shlex.split(command)
    assert words[0] == "gradverify"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout


def without_error_bars(text: str) -> str:
    """Measured rounding differs between processors in its second digit; all else is the same."""
    return re.sub(r"± \S+ +", "± ", text)


def test_console_blocks_show_real_output(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert console_blocks()
    for command, output in console_blocks():
        assert without_error_bars(output_of(command, tmp_path)) == without_error_bars(output)


def test_the_table_of_codes_is_current() -> None:
    assert rules_table() in README.read_text()


def test_the_spec_in_the_readme_is_read(tmp_path: Path) -> None:
    write_files(tmp_path)
    names = [
        "FunctionalLinear",
        "Softmax",
        "Gather",
        "Clip",
        "Kernel",
        "Legacy",
        "RoIAlign",
        "Conv",
        "Embedding",
        "Cholesky",
        "RoundSTE",
        "MyLayer",
        "Scale",
        "Sampler",
    ]
    (tmp_path / "mymodule.py").write_text("".join(f"{name} = object\n" for name in names))
    spec = read_spec(
        tmp_path / "mymodule.gradverify.yaml",
        shown_path="mymodule.gradverify.yaml",
        known_codes=[r.code for r in RULES],
    )
    assert set(spec.functions) == set(names)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    command = next(line for line in README.read_text().splitlines() if line.endswith("pytest -n 2"))
    script = (ROOT / ".ci" / "run").read_text()
    for part in command.split(" && "):
        asked = part.replace(".venv/bin/pip install", ".venv/bin/python -m pip install --quiet")
        assert asked in script


def renew(text: str, folder: Path) -> str:
    """The README with today's table of codes and today's output."""
    text = re.sub(
        r"\| code \| name \| severity.*?\n\n", lambda _: rules_table() + "\n\n", text, flags=re.DOTALL
    )
    write_files(folder)
    for command, output in console_blocks():
        text = text.replace(output, output_of(command, folder))
    return text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        README.write_text(renew(README.read_text(), Path(folder)))
