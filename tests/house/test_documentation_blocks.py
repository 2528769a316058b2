"""What runs the documentation: it finds files and commands, and sees a page that says something else."""

import pytest
from console_blocks import Command, File, Shown, corrected, followed, steps_of

PAGE = """\
```python
# folder/three.py
print(1 + 2)
```

```python
print("a block without a name")
```

```console
$ python folder/three.py
3
$ python -c "import sys; sys.exit(5)"
$ echo $?
5
```
"""


def shown(says, prints):
    return Shown(Command("program", says, 0), prints)


@pytest.mark.parametrize(
    ("says", "prints"),
    [
        ("same\n", "same\n"),
        ("first\n...\nlast\n", "first\nsecond\nthird\nlast\n"),
        ("first\n...\nlast\n", "first\nlast\n"),
        ("a ... z\n", "a b c z\n"),
        ("1.000 ± 2e-12  0\n", "1.000 ± 3.1e-12 0\n"),
        ("passed in 1.20s\n", "passed in 30.01s\n"),
        ("sees errors > 1e-09\n", "sees errors > 2.3e-10\n"),
    ],
)
def test_what_a_page_may_leave_open(says, prints):
    assert shown(says, prints).is_true


@pytest.mark.parametrize(
    ("says", "prints"),
    [
        ("same\n", "other\n"),
        ("same\n", ""),
        ("", "something\n"),
        ("a ... z\n", "a b\nc z\n"),
        ("1.000 ± 2e-12  0\n", "1.001 ± 2e-12  0\n"),
        ("first\n...\nlast\n", "first\nsecond\n"),
        ("a.b\n", "axb\n"),
    ],
)
def test_what_it_may_not(says, prints):
    assert not shown(says, prints).is_true


def test_files_and_commands_are_found_in_their_order():
    assert [type(step) for step in steps_of(PAGE)] == [File, Command, Command, Command]
    assert next(steps_of(PAGE)) == File("folder/three.py", "# folder/three.py\nprint(1 + 2)\n")


def test_a_page_is_followed_and_corrected(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    assert all(one.is_true for one in followed(PAGE, folder))
    wrong = PAGE.replace("\n3\n", "\n4\n").replace("\n5\n", "\n")
    found = list(followed(wrong, folder))
    assert [one.is_true for one in found] == [False, True, False]
    assert corrected(wrong, found) == PAGE


def test_a_console_block_begins_with_a_command():
    with pytest.raises(ValueError, match="begins with a command"):
        list(steps_of("```console\nno command\n```\n"))
