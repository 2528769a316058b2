"""What a process left behind."""

import ctypes
import tempfile
from pathlib import Path

from gradverify.session.worker_ended import CAPTURED_CHARACTERS, fatal_error, fold, frames_of, read_tail

TRACE = """Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "<frozen codecs>", line 322 in decode
  File "{elsewhere}", line 3 in other

Current thread 0x00007f02 (most recent call first):
  File "{stdlib}", line 519 in string_at
  File "{helper}", line 1 in deep
  File "{module}", line 2 in forward
  File "<string>", line 1 in <module>
"""


def test_equal_lines_are_folded():
    assert fold("a\na\na\nb\n") == "a  (x3)\nb"


def test_equal_blocks_are_folded():
    assert fold("start\n" + "a\nb\n" * 40 + "end\n") == "start\na\nb  (these 2 lines x40)\nend"


def test_what_does_not_repeat_stays():
    assert fold("a\nb\na\nc\n") == "a\nb\na\nc"
    assert fold("") == ""


def test_the_end_is_kept_from_a_whole_line_on():
    lines = [f"line {number}" for number in range(1000)]
    kept = fold("\n".join(lines)).splitlines()
    assert kept == lines[-len(kept) :]
    assert len("\n".join(kept)) <= CAPTURED_CHARACTERS
    assert fold("x" * 5000) == "x" * CAPTURED_CHARACTERS


def test_reading_does_not_move_the_writer():
    with tempfile.TemporaryFile() as file:
        file.write(b"one\ntwo\xff\n")
        file.flush()
        assert read_tail(file.fileno(), 4) == "two\ufffd\n"
        # A finding has what was printed when it was made, not what came before the front got to read it.
        assert read_tail(file.fileno(), 0, 4) == "one\n"
        assert read_tail(file.fileno(), 8, 4) == ""
        assert file.tell() == 9


def test_frames_are_the_users_own_outermost_first(tmp_path):
    module, helper = tmp_path / "m.py", tmp_path / "helper.py"
    module.write_text("def forward():\n    deep()\n")
    helper.write_text("read()\n")
    trace = TRACE.format(module=module, helper=helper, elsewhere=helper, stdlib=ctypes.__file__)
    frames = frames_of(trace, module)
    assert [(Path(f.file).name, f.line, f.function, f.source) for f in frames] == [
        ("m.py", 2, "forward", "deep()"),
        ("helper.py", 1, "deep", "read()"),
    ]
    assert fatal_error(trace) == "Segmentation fault"


def test_no_trace_no_frames(tmp_path):
    assert (frames_of("", tmp_path), fatal_error("")) == ((), "")
