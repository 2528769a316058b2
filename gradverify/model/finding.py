"""What was found: entries, exceptions, findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradverify.model.words import Location, Point, Scalar, Severity


@dataclass(frozen=True)
class Entry:
    """One entry of a Jacobian (or of a forward value) that was compared."""

    output: tuple[int, ...]
    """Index into the output tensor; of a complex one, a `Part` is last, as in `view_as_real`."""
    input: tuple[int, ...] | None
    """Index into the input tensor; None where whole values, not derivatives, were compared."""
    actual: float
    """What the target's own backward (or forward) gave."""
    expected: float
    """What it was compared with: the numerical derivative, or the reference's value."""
    error_bound: float
    """How far `expected` itself may be off, absolute."""


@dataclass(frozen=True)
class Entries:
    """How many entries of one comparison are wrong, with the worst ones."""

    wrong: int
    checked: int
    worst: tuple[Entry, ...] = ()
    """Worst first, by absolute difference."""
    compared_with: str = "numerical"
    """What `Entry.expected` is: `numerical` or `reference`."""


@dataclass(frozen=True)
class JacobianMap:
    """A small picture of where a Jacobian is wrong: one level for each (row, column)."""

    row_labels: tuple[str, ...]
    """One for each output entry, as the user would index it: `y[0,1]`."""
    column_labels: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    """0: right. 1 to 4: wrong, `thresholds[level - 1]` is its upper bound. -1: not judged."""
    thresholds: tuple[float, float, float]
    """Upper bounds of |difference| for levels 1, 2 and 3; level 4 is larger."""
    actual: tuple[tuple[float, ...], ...] = ()
    """What backward gave, by (row, column); empty where only the levels are known."""
    expected: tuple[tuple[float, ...], ...] = ()
    """What it was compared with."""


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback inside the user's code."""

    file: str
    line: int
    function: str
    source: str = ""
    """The source line without indentation."""
    caret: tuple[int, int] = (0, 0)
    """Start and end column of the failing expression within `source`; (0, 0) if unknown."""


@dataclass(frozen=True)
class RaisedError:
    """An exception that user code raised, with our own frames trimmed away."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    """Outermost first; the last one is where it was raised."""
    deliberate: bool = False
    """The author raised it on purpose: `raise`, `assert`, a TORCH_CHECK."""
    traceback: str = ""
    """As Python prints it, with every frame; shortened at its beginning."""
    after: str = ""
    """`Type: message` of what was raised first, where this was raised in its place."""


@dataclass(frozen=True)
class CasePoint:
    """Which inputs a finding was made on."""

    id: str
    sizes: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, Scalar], ...] = ()
    point: Point = Point.TYPICAL
    draw: int = 0
    shrunk: CasePoint | None = None
    """The smallest and plainest inputs at which it shows itself in the same way: what the finding tells was
    seen there. None where it tells of this case itself."""


LIMITING = frozenset({"GV816", "GV817"})
"""Codes of notes beside a verdict at any verbosity: they say what it is worth."""

ACROSS_CASES = "across cases"
"""The `part` of a finding that needs the calls of several cases: no one of them shows it again."""

OTHER_VALUES = "values of another size"
"""The `part` of a finding on a case at values that were drawn for another size: it draws others."""


@dataclass(frozen=True)
class ShownInput:
    """An argument's values, printed short because they are few."""

    name: str
    text: str
    """`[[-1.25, 0.5], [0.75, -0.25]]`, or `float64[128, 64]` where there are too many."""


CONTEXT = 3
"""Lines of a diff before and after a change, as git has them."""


@dataclass(frozen=True)
class LinePatch:
    """Whole lines of a file, without their ends, and those that take their place."""

    path: str
    """Of the file, as messages show it."""
    line: int
    """Number of the first line removed, from 1."""
    removed: tuple[str, ...]
    added: tuple[str, ...]
    above: tuple[str, ...] = ()
    """Up to three lines before the first one removed."""
    below: tuple[str, ...] = ()
    """Up to three lines after the last one removed."""
    is_unterminated: bool = False
    """The last of these lines ends the file, without a newline."""
    points: int = 0
    """Points of forward at which backward with these lines was right."""

    @property
    def key(self) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """What it replaces, and with what: the same for every finding that it makes right."""
        return self.line, self.removed, self.added

    @classmethod
    def within(cls, path: str, lines: Sequence[str], first: int, end: int, added: Sequence[str]) -> LinePatch:
        """The change of some of a file's lines, which have their ends: from index `first` up to `end`."""
        bare = [line.rstrip("\r\n") for line in lines]
        below = bare[end : end + CONTEXT]
        return cls(
            path,
            first + 1,
            tuple(bare[first:end]),
            tuple(added),
            tuple(bare[max(0, first - CONTEXT) : first]),
            tuple(below),
            is_unterminated=not lines[end + len(below) - 1].endswith(("\n", "\r")),
        )


@dataclass(frozen=True)
class SourceChange:
    """Something in backward's source that, changed, makes a gradient right."""

    file: str
    """Name of the file, without its folder."""
    line: int
    """0 where it is in no file."""
    before: str
    """What is there."""
    after: str
    """What makes it right; empty where nothing should be there."""
    patch: LinePatch | None = None
    """The same as whole lines of the file; None where no lines say it alone."""
    refuses: bool = False
    """With it backward raises where it was wrong: whether that is meant only its author knows."""


@dataclass(frozen=True)
class Finding:
    """One thing to tell the user about one target. A value: nothing is raised to report it."""

    code: str
    severity: Severity
    message: str
    """What is wrong, where, by how much: one sentence without a final full stop."""
    hint: str = ""
    """What to try, one or two sentences."""
    output: int | None = None
    """Position of the output concerned, as forward returned it."""
    input: str | None = None
    """Name of the input concerned, as forward calls it."""
    case: CasePoint | None = None
    cases_affected: int = 1
    entries: Entries | None = None
    map: JacobianMap | None = None
    raised: RaisedError | None = None
    shown_inputs: tuple[ShownInput, ...] = ()
    captured: str = ""
    """What user code printed while this was found, shortened."""
    location: Location | None = None
    """A better place than the target's own line: the line that raised."""
    part: str = ""
    """Which of several tests with one code made it; the findings of each are listed separately."""
    cause: str = ""
    factor: float | None = None
    changes: tuple[SourceChange, ...] = ()
    """What makes backward right: one change, or two that do together; empty where none was found."""
    suspected: str = ""
    """Of an inconclusive one: the code that it would have if nothing of its inputs had been guessed."""
    expected: bool = False
    """An `xfail` of the spec covers it."""
    badness: float = 0.0
    """How wrong, to keep the worst of several equal findings: largest difference / tolerance."""
    reproduce: str = ""
    """A command line that shows this finding again."""
    derivable: bool = False
    """`gradverify suggest` has something to derive the right backward from."""

    @property
    def telling(self) -> tuple[int, bool, float, bool, bool, bool, bool, bool, int]:
        """Among findings on the same input the least of these is reported.

        The worst first; ordinary values before a declared range's ends and special points. A finding comes
        again with its cause, with more of a hint, as one from which a backward can be derived, or at smaller
        inputs, once that is known: then that one is reported. A change that makes it right comes before one
        that refuses.
        """
        special = self.case is not None and self.case.point is not Point.TYPICAL
        return (
            tuple(Severity).index(self.severity),
            special,
            -self.badness,
            self.case is None or self.case.shrunk is None,
            not self.cause,
            not self.changes,
            any(change.refuses for change in self.changes),
            not self.derivable,
            -len(self.hint),
        )
