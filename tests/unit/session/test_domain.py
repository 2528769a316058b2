"""What a pass is a pass for."""

from gradverify.model import Case, Domain, InputSource, LiteralInput, TargetPlan, TensorInput
from gradverify.session.completeness import domain_of


def of(*tensors, sizes=(), swept=2, hook="", complex_use=False):
    case = Case("base", 1, sizes=sizes, inputs=(*tensors, LiteralInput("eps", 1e-5)), hook=hook)
    return domain_of(TargetPlan("f", "f", InputSource.SPEC, (case,)), swept, of_complex_use=complex_use)


def test_an_ordinary_target_is_real_and_nothing_else():
    assert of(TensorInput("x", (4,))) == Domain(("real",))
    assert of(TensorInput("x", (4,))).phrases == ("real",)


def test_real_alone_only_where_the_source_speaks_of_complex_numbers_and_none_was_tried():
    real, complex_ = TensorInput("x", (4,)), TensorInput("z", (4,), dtype="complex128")
    assert of(real, complex_use=True).real_alone
    assert not of(real).real_alone
    assert not of(real, complex_, complex_use=True).real_alone
    assert of(real, complex_).numbers == ("real", "complex")


def test_restrictions_and_constants():
    domain = of(
        TensorInput("x", (4,), range=(-1.0, 2.5)),
        TensorInput("p", (4,), domain="positive"),
        TensorInput("a", (3, 3), structure="spd"),
        TensorInput("w", (4,), requires_grad=False),
        TensorInput("buffer", (4,), requires_grad=False, mutated=True),
        TensorInput("index", (4,), dtype="int64", range=(0, 3)),
    )
    assert domain.ranges == ("`x` in [-1, 2.5]", "`p` positive", "`a` spd")
    assert domain.constants == ("w",)


def test_the_only_sizes():
    assert of(TensorInput("x", (4,)), sizes=(("n", 4),), swept=1).sizes == "n=4"
    assert of(TensorInput("x", (4, 2)), swept=1).sizes == "x [4, 2]"
    assert of(TensorInput("x", ()), swept=1).sizes == ""
    assert of(TensorInput("x", (4,)), sizes=(("n", 4),), swept=2).sizes == ""


def test_of_what_a_hook_builds_nothing_is_known():
    assert of(TensorInput("x", (4,)), hook="m:make") == Domain()
