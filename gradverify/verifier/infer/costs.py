"""What guesses, shapes and repairs cost: one scale, on which the search takes the cheapest state first.

Nothing is what the source states, 0.1 what an error asks for, 0.5 what a name suggests, 1 a guess that
nothing speaks for, and more one that something speaks against. A state costs the sum of its guesses, of the
hypothesis on its shapes, and of the repairs that led to it. `guesses.py` says what each kind of argument
costs, and the table in `repairs.py` what each repair does. All were found by trying, on published Functions.
"""

from __future__ import annotations

# Guesses

DEFAULT = 0.05
"""A default says more than a name or an annotation, and less than a gradient for it."""

NOT_THE_DEFAULT = 1.5
"""An invented number beside a default: as much as an agreement of two sizes of one tensor, since no rounds at
all are taken with every shape."""

NEXT_VALUE = 0.1
"""Each further value of a kind."""

LATER = 0.4
"""The other guesses for an end of a range, or for two numbers that are equal, besides."""

OF_MODULE = 0.3
"""That `*args` holds the parameters of a module: less than any other tensors."""

BARE = 0.1
"""That many arguments that may be None are all None, beside tensors for all of them."""

# Shapes to begin with

AS_WRITTEN = -0.6
"""Inputs with the dimensions that the author writes of."""

NAMED = -0.1
"""Inputs whose sizes are those that the author has names for, one size for each name."""

RANK, HYPOTHESIS, LAYER, APART = 0.5, 0.3, 0.1, 0.05
"""Each further number of dimensions, each hypothesis, each layer, and vectors that share no size with the
tensors beside them."""

# Repairs

DEMANDED, NEXT_DEMANDED = 0.05, 0.1
"""To keep a condition of the author's, and each further one."""

ASKED_DOMAIN, NEXT_DOMAIN = 0.1, 0.05
"""To draw values in the range that the author asks for, of the suspects and then of all."""

OF_VALUES = 0.4
"""To draw values of a kind that no word of the author's asks for."""

MERGE, DERIVE, PIN = 0.1, 0.35, 0.45
"""An agreement of two sizes is likelier than a size that follows from another, or is a number of its own."""

STATED = 0.03
"""An agreement that the message itself asks for."""

UNSTATED, BESIDE = 0.15, 0.5
"""What is added for two numbers that are merely in a message, and where the message names two others."""

SQUARE = 1.5
"""A merge that gives a tensor two equal dimensions: a transposed gradient fits a square input."""

CUT = 0.06
"""A multiple where the source cuts into so many parts, and the message names one of them."""

RELATED = 0.2
"""A sum, less than a number of its own, more than that two sizes agree."""

NEXT_WAY, NEXT_PAIR = 0.05, 0.1
"""Each further way, and each further pair of sizes."""

# States beside one that forward accepts

OTHER_DOMAIN, FEWER, RETYPE, SAID = 0.2, 0.15, 0.1, 0.01
"""Another domain, the dimensions of its gradient, another kind. That inputs have the dimensions which
backward names costs little beside what waits."""

AGAIN = 0.02
"""Each further beginning from inputs that ran by chance: little beside the guesses."""

ANOTHER_RANK = 0.1
"""Each further number of dimensions at which an option's value may be taken."""
