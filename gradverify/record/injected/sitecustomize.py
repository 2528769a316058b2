"""What Python runs at its start while a program is recorded: install the hook, then run the user's own one.

The hook is loaded by its place: the program's Python need not have gradverify.
"""

import sys
from importlib import machinery, util
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_NAME = "gradverify_recording"


def _install() -> None:
    folder = _HERE.parent / "hook"
    spec = util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return
    package = util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    package.install()


def _run_the_users_own() -> None:
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # not where a tool imports every module of gradverify
    try:
        _install()
    except Exception as error:  # noqa: BLE001 - the program runs, recorded or not
        sys.stderr.write(f"gradverify: this process is not recorded: {error}\n")
    _run_the_users_own()
