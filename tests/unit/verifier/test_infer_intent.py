"""What an author calls a deliberate gradient, in names and in prose."""

import types

from gradverify.verifier.infer.deduce import deliberate_gradient


class RoundSteFn:
    pass


class Steps:
    """Rounds to the nearest step of a master."""


class Spike:
    """Heaviside with a surrogate
    gradient."""


class Spread:
    """Divides in the forward pass but not in backward, where all parts meet."""


class Handed:
    """A share of a sum that keeps the gradient unchanged."""


class Reversed:
    """A layer."""


def test_names_and_prose_tell_a_deliberate_gradient():
    assert deliberate_gradient(RoundSteFn, None) == "ste"
    assert deliberate_gradient(Spike, None) == "surrogate"
    assert deliberate_gradient(Spread, None) == "forward pass but not in backward"
    assert deliberate_gradient(Handed, None) == "gradient unchanged"
    assert not deliberate_gradient(Steps, None)
    assert not deliberate_gradient(Reversed, None)


def test_the_module_may_say_it_for_all_its_classes():
    module = types.ModuleType("nets.gradient_reversal", "Layers.")
    assert deliberate_gradient(Reversed, module) == "gradient reversal"
    assert not deliberate_gradient(Reversed, types.ModuleType("nets.layers", "Layers with steps."))


class RedirectedReLU:
    """A workaround where nothing flows."""


class Leaky:
    """Note: this means that the gradient is technically "wrong" below zero."""


class Fixed:
    """Was wrong for negative numbers; the gradient is the exact one."""


def test_an_author_who_calls_the_gradient_wrong_on_purpose_is_believed():
    assert deliberate_gradient(RedirectedReLU, None) == "redirected re lu"
    assert deliberate_gradient(Leaky, None) == 'technically "wrong'
    assert not deliberate_gradient(Fixed, None)


class Decomposed:
    """Customized backward of a decomposition, for better numerical stability."""


class Stepped:
    """A step with a custom gradient."""


def test_every_backward_of_a_function_is_a_custom_one():
    assert not deliberate_gradient(Decomposed, None)
    assert deliberate_gradient(Stepped, None) == "custom gradient"
