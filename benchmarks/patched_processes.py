"""Processes in which modules run some more source once they are imported: changed from outside."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

SITE = '''
import os, sys
from importlib.machinery import PathFinder

HERE, PATCHES = os.path.dirname(__file__), {patches}


def patched(module):
    exec(PATCHES[module.__name__], vars(module))


class Patching:
    """Finds the modules that are patched once they have run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name in PATCHES else None
        if spec is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), patched(module))
        return spec


for name in PATCHES.keys() & sys.modules.keys():
    patched(sys.modules[name])
sys.meta_path.insert(0, Patching)
'''

HANDED_ON = """
def _handing_on(start):
    def __init__(self, *args, env=None, **more):
        if env is not None:
            kept = [part for part in (env.get("PYTHONPATH"),) if part]
            env = dict(env, PYTHONPATH=os.pathsep.join([*kept, {here!r}]))
        start(self, *args, env=env, **more)
    return __init__

Popen.__init__ = _handing_on(Popen.__init__)
"""
"""Patches `subprocess`: tests of the command start it in an environment without PYTHONPATH."""


@contextlib.contextmanager
def patching(patches: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of processes in which each module named here runs some source after its own.

    A `sitecustomize` in a temporary folder on PYTHONPATH does it; processes that they start do the same.
    pytest is kept from importing by itself what its plugins belong to, which it does to rewrite assertions.
    """
    with tempfile.TemporaryDirectory() as here:
        text = SITE.format(patches={**patches, "subprocess": HANDED_ON.format(here=here)})
        (Path(here) / "sitecustomize.py").write_text(text, "utf-8")
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        yield {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": "--assert=plain"}
