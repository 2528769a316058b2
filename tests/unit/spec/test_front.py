"""The front stays light: reading specs loads neither torch nor the verifier."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from gradverify.spec.read import read_spec
from gradverify.spec.schema import FileEntry


def test_reading_specs_loads_no_torch():
    code = """
import sys
from importlib import import_module
from pkgutil import iter_modules
import gradverify.spec
for found in iter_modules(gradverify.spec.__path__):
    import_module(f"gradverify.spec.{found.name}")
print([m for m in sys.modules if m == "torch" or "verifier" in m])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_of_the_module_is_run(folder):
    (folder / "m.py").write_text("raise SystemExit('imported')\ndef free(x): ...")
    (folder / "s.yaml").write_text("module: m.py\nfunctions: {free: {inputs: {x: [2]}}}")
    assert read_spec(folder / "s.yaml", shown_path="s.yaml", known_codes=()).functions


def test_a_json_schema_follows_from_the_models():
    schema = FileEntry.model_json_schema()
    assert schema["additionalProperties"] is False
    assert {"TensorEntry", "FunctionEntry", "Defaults"} <= schema["$defs"].keys()
    json.dumps(schema, allow_nan=False)


def test_a_long_spec_is_read(folder):
    entry = "{sizes: {b: [3, 1], m: [2, 5]}, inputs: {input: [b, 4], weight: [m, 4], bias: [m]}}"
    lines = "".join(f"  Linear@v{index}: {entry}\n" for index in range(200))
    (folder / "s.yaml").write_text(f"module: m.py\nfunctions:\n{lines}")
    assert len(read_spec(folder / "s.yaml", shown_path="s.yaml", known_codes=()).functions) == 200


SESSION = ("gradverify.session.worker", "gradverify.session.planning", "gradverify.events", "gradverify.lint")
READERS = ("yaml", "gradverify.spec.read")
NEVER = ("torch", "gradverify.verifier")


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], (*SESSION, *READERS)),
        (["--version"], (*SESSION, *READERS, "rich.console")),
        (["rules"], (*SESSION, *READERS)),
        (["explain", "GV101"], (*SESSION, *READERS)),
        (["check", "--help"], (*SESSION, *READERS)),
        (["check", "m.py"], SESSION),
        (["schema"], (*SESSION, "rich.console")),
    ],
)
def test_a_command_loads_what_it_needs(folder, arguments, unneeded):
    (folder / "m.py").write_text("")
    (folder / "m.gradverify.yaml").write_text("functions: {f: {inputz: {}}}")
    code = f"""
import atexit, sys
atexit.register(lambda: print([m for m in {(*NEVER, *unneeded)!r} if m in sys.modules], file=sys.stderr))
sys.argv = ["gradverify", *{arguments!r}]
from gradverify.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.returncode == (2 if arguments[-1] == "m.py" else 0)


def test_every_name_of_a_package_that_loads_them_on_demand_is_there():
    model = importlib.import_module("gradverify.model")
    assert all(hasattr(model, name) for name in model.NAMES)
    with pytest.raises(AttributeError, match="nothing"):
        model.nothing  # noqa: B018
