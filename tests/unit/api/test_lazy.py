"""Importing gradverify loads nothing heavy, and everything public is there."""

import subprocess
import sys

import gradverify


def loaded_after(code: str) -> list[str]:
    code += "; import sys; print(*(m for m in sys.modules if m in ('torch', 'rich', 'yaml', 'pydantic')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def test_import_is_light():
    assert loaded_after("import gradverify; dir(gradverify); gradverify.__all__") == []


def test_the_test_above_can_fail():
    assert "torch" in loaded_after("import gradverify; gradverify.gradcheck")


def test_everything_public_is_there():
    assert all(getattr(gradverify, name) is not None for name in gradverify.__all__)
    assert set(gradverify.__all__) <= set(dir(gradverify))


def test_check_leaves_torch_to_its_workers():
    assert "torch" not in loaded_after("import gradverify; gradverify.check")
