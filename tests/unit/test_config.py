"""`[tool.gradverify]`: found, read, and refused with its line."""

from pathlib import Path

import pytest

from gradverify.config import Config, load_config
from gradverify.errors import ConfigError, UsageError
from gradverify.requested import request_of
from gradverify.session.planning import seed_of

GOOD = """\
[tool.gradverify]
paths = ["src", "pkg.mod", "src/m.py::F"]
specs = "checks"
exclude = ["old", "src/gen/*.py"]
select = ["GV1"]
ignore = ["GV110"]
seed = 7
rtol = 1e-6
atol = 1e-9
device = "cpu"
timeout = 5
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "gen").mkdir(parents=True)
    for name in ("src/m.py", "src/gen/g.py", "src/old.py"):
        (tmp_path / name).write_text("")
    return tmp_path


def wrong(here, text):
    """(line, message) of all that is wrong with a configuration."""
    (here / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config()
    return [(mistake.location.line, mistake.message) for mistake in error.value.problems]


def test_none(here):
    assert load_config() == Config()
    with pytest.raises(UsageError, match="or set `paths` in"):
        request_of({}, load_config())


def test_nearest_upward_that_has_the_table(here, monkeypatch):
    (here / "pyproject.toml").write_text(GOOD)
    (here / "src" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    monkeypatch.chdir(here / "src" / "gen")
    config = load_config()
    assert config.file == here / "pyproject.toml"
    assert [config.values[k] for k in ("seed", "timeout", "select")] == [7, 5, ("GV1",)]
    request = request_of({"targets": ["g.py"]}, config)
    assert request.specs_folder == here / "checks"
    assert request.excluded(Path("g.py"))  # patterns are relative to the file's folder
    assert not request_of({"targets": ["g.py"], "exclude": ["*.txt"]}, config).excluded(Path("g.py"))


def test_command_line_before_configuration(here):
    (here / "pyproject.toml").write_text(GOOD.replace('"pkg.mod", ', ""))
    config = load_config()
    request = request_of({}, config)
    assert [(s.path.as_posix(), s.name) for s in request.selections] == [("src", ""), ("src/m.py", "F")]
    settings = request.settings
    assert (settings.rtol, settings.atol, settings.select, settings.ignore) == (
        1e-6,
        1e-9,
        ("GV1",),
        ("GV110",),
    )
    assert (request.timeout, seed_of(request, None), request.extra_arguments) == (5, 7, ())
    given = {
        "targets": ["src/m.py"],
        "select": ["GV2,GV3"],
        "ignore": ["GV4"],
        "seed": "3",
        "rtol": 1e-5,
        "timeout": 9.0,
    }
    request = request_of(given, config)
    assert [s.path.as_posix() for s in request.selections] == ["src/m.py"]
    assert (request.settings.rtol, request.settings.select) == (1e-5, ("GV2", "GV3"))
    assert (request.timeout, seed_of(request, None), request.settings.ignore) == (9, 3, ("GV4",))


def test_a_file_that_is_named(here):
    (here / "ci.toml").write_text("[tool.gradverify]\nseed = 'random'\nrtol = 0\n")
    request = request_of({"targets": ["src/m.py"]}, load_config(Path("ci.toml")))
    assert request.extra_arguments == ("--config", "ci.toml")
    assert request.settings.rtol == 0
    (here / "empty.toml").write_text("[tool.black]\n")
    for name, words in (("none.toml", "there is no file"), ("empty.toml", "has no table")):
        with pytest.raises(UsageError, match=words):
            load_config(Path(name))


def test_wrong_keys_and_types(here):
    text = "[tool.other]\nseeed = 1\n[tool.gradverify]\nseeed = 1\npaths = 'src'\nrtol = true\n"
    text += "effort = 'quik'\nq = 1\n"
    keys = "paths, specs, exclude, select, ignore, device, effort, seed, rtol, atol, timeout, memory"
    found = wrong(here, text)
    assert found[:4] == [
        (4, "unknown key `seeed` in [tool.gradverify]; did you mean `seed`?"),
        (5, "`paths` in [tool.gradverify] must be a list of strings"),
        (6, "`rtol` in [tool.gradverify] must be a number"),
        (7, "`effort` in [tool.gradverify] must be one of quick, normal, thorough"),
    ]
    assert found[4][1].startswith(f"unknown key `q` in [tool.gradverify]: it knows {keys}")
    assert wrong(here, "tool.gradverify = 3\n") == [(1, "[tool.gradverify] is not a table")]
    assert wrong(here, "[tool.gradverify]\nseed = -1\n")[0][0] == 2
    ((line, message),) = wrong(here, "[tool.gradverify]\nseed = \n")
    assert (line, message) == (2, "is not TOML: Invalid value")


def test_wrong_values(here):
    for line, words in (
        ('select = ["GV77"]', "pyproject.toml: select: no code starts with `GV77`"),
        ("atol = 2", "pyproject.toml: atol: 2 is not between 0 and 1"),
        ("timeout = 0", "pyproject.toml: timeout: 0 is not a number of seconds"),
        ('device = "tpu"', "pyproject.toml: device: `tpu` is not supported"),
    ):
        (here / "pyproject.toml").write_text(f"[tool.gradverify]\n{line}\n")
        with pytest.raises(UsageError, match=words):
            request_of({"targets": ["src/m.py"]}, load_config())


def test_a_reproducing_command_repeats_what_was_given_zeros_too(here):
    given = {"rtol": 0.0, "memory": 0, "dtype": ["float32", "bfloat16"], "autocast": True, "engine": "torch"}
    words = request_of({"targets": ["src/m.py"], **given}).extra_arguments
    joined = " ".join(words)
    assert all(part in joined for part in ("--rtol 0", "--memory 0", "--autocast", "--engine torch"))
    assert "--dtype float32 --dtype bfloat16" in joined
    nothing = {"rtol": None, "dtype": [], "autocast": False, "engine": "witnesses"}
    assert request_of({"targets": ["src/m.py"], **nothing}).extra_arguments == ()
