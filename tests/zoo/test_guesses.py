"""What is guessed for Functions that have no spec, line by line: a path that is no longer tried shows here.

To accept a change: GRADVERIFY_REGENERATE=1 pytest --all-seeds tests/zoo/test_guesses.py, then read the diff.
"""

import json
import os
from pathlib import Path

import pytest
from extent import long

from gradverify.deduced import Deduced
from gradverify.spec.draft import entry_data
from gradverify.verifier.infer.deduce import deduce
from gradverify.verifier.targets.discover import discover
from gradverify.verifier.targets.importing import import_file

MODULE = Path(__file__).parent / "guessed" / "bare.py"
GUESSES = MODULE.with_name("guesses.txt")
SLOW = frozenset({"SkewExponential"})
"""What takes as long as a quarter of the others."""


def guessed(module, target):
    found = deduce(getattr(module, target.attribute), target, module)
    return json.dumps(entry_data(found.spec)) if isinstance(found, Deduced) else "nothing"


@long  # every verdict of that module takes these guesses anew
@pytest.mark.filterwarnings("ignore")
def test_guesses_are_those_that_were_reviewed():
    module = import_file(MODULE).module
    targets, _ = discover(module, MODULE.name)
    now = {t.name: guessed(module, t) for t in targets if t.name not in SLOW}
    if os.environ.get("GRADVERIFY_REGENERATE"):
        GUESSES.write_text("".join(f"{name}: {guess}\n" for name, guess in now.items()))
    reviewed = dict(line.split(": ", 1) for line in GUESSES.read_text().splitlines())
    assert now == reviewed
