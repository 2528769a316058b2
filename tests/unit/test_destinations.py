"""A report is written whole or not at all."""

import os
import resource
from pathlib import Path

import pytest

from gradverify.cli.screen import write_file
from gradverify.errors import UsageError

BEFORE, AFTER = "before", "x" * 5000


@pytest.fixture
def full_disk():
    """Files of at most 1000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_what_was_there(tmp_path, full_disk):
    file = tmp_path / "report.json"
    with pytest.raises(UsageError, match=r"--report: `.*report.json` cannot be written: File too large"):
        write_file(file, AFTER, "--report")
    assert list(tmp_path.iterdir()) == []
    file.write_text(BEFORE)
    with pytest.raises(UsageError):
        write_file(file, AFTER, "--report")
    assert (list(tmp_path.iterdir()), file.read_text()) == ([file], BEFORE)


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    file, link = tmp_path / "report.json", tmp_path / "latest.json"
    file.write_text(BEFORE)
    file.chmod(0o640)
    link.symlink_to(file)
    write_file(link, AFTER, "--report")
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == (AFTER, 0o640, True)


def test_a_device_is_written_to():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    write_file(Path(os.devnull), AFTER, "--report")
    with pytest.raises(UsageError, match="No space left on device"):
        write_file(Path("/dev/full"), AFTER, "--report")
    assert Path("/dev/full").is_char_device()
