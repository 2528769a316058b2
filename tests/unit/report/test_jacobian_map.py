"""The picture of where a Jacobian is wrong."""

from gradverify.model import JacobianMap
from gradverify.report.console import TextStyle
from gradverify.report.finding import map_lines

PIPE = TextStyle()


def drawn(picture, style=PIPE, indent=0):
    return [line.plain.rstrip() for line in map_lines(picture, style, indent)]


def test_softmax(samples):
    assert drawn(samples.softmax_map()) == [
        "        x[0,:]  x[1,:]   |difference|",
        "y[0,0]  ░ ░ ▒   · · ·    · right",
        "y[0,1]  ░ ▒ ▓   · · ·    ░ < 0.01",
        "y[0,2]  ▒ ▓ █   · · ·    ▒ < 0.05",
        "y[1,0]  · · ·   ▓ ▒ █    ▓ < 0.15",
        "y[1,1]  · · ·   ▒ ▒ ▓    █ larger",
        "y[1,2]  · · ·   █ ▓ █",
    ]


def test_ascii(samples):
    assert drawn(samples.softmax_map(), TextStyle(unicode=False))[1] == "y[0,0]  : : +   . . .    . right"


def test_it_is_left_out_where_it_does_not_fit(samples):
    assert drawn(samples.softmax_map(), TextStyle(width=37))
    assert drawn(samples.softmax_map(), TextStyle(width=36)) == []
    assert drawn(samples.softmax_map(), TextStyle(width=40), indent=4) == []


def test_a_scalar_and_entries_not_judged():
    picture = JacobianMap(("y",), ("x[0]", "x[1]", "scale"), ((4, -1, 0),), (1e-9, 1e-6, 1e-3))
    assert drawn(picture) == [
        "   x[:]  scale   |difference|",
        "y  █ ?   ·       · right",
        "                 █ larger",
        "                 ? not judged",
    ]


def test_empty():
    assert drawn(JacobianMap((), (), (), (0.1, 0.2, 0.3))) == []


def test_the_parts_of_a_complex_number_stand_under_one_heading():
    labels = ("z[0].real", "z[0].imag")
    picture = JacobianMap(("y",), labels, ((0, 4),), (1e-9, 1e-6, 1e-3))
    assert drawn(picture) == [
        "   z[0]   |difference|",
        "y  · █    · right",
        "          █ larger",
        "          two of each: its real and imaginary part",
    ]
