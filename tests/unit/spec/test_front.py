"""The front stays light: reading specs loads neither torch nor the verifier."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from gradverify.spec import read_spec
from gradverify.spec.schema_file import FileEntry


def test_reading_specs_loads_no_torch():
    code = "import sys, gradverify.spec; print([m for m in sys.modules if m == 'torch' or 'verifier' in m])"
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


def test_a_long_spec_is_read_soon(folder):
    entry = "{sizes: {b: [3, 1], m: [2, 5]}, inputs: {input: [b, 4], weight: [m, 4], bias: [m]}}"
    lines = "".join(f"  Linear@v{index}: {entry}\n" for index in range(200))
    (folder / "s.yaml").write_text(f"module: m.py\nfunctions:\n{lines}")
    start = time.perf_counter()
    assert len(read_spec(folder / "s.yaml", shown_path="s.yaml", known_codes=()).functions) == 200
    assert time.perf_counter() - start < 5


def test_the_command_line_loads_no_spec_reader_before_a_command_needs_it():
    code = "import sys, gradverify.cli; print([m for m in ('torch', 'yaml', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
