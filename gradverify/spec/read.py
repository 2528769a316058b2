"""The first stage: a spec file read and checked without importing anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from gradverify.cases.messages import Path, did_you_mean, shown
from gradverify.errors import SpecError
from gradverify.module_files import dotted_name, find_module
from gradverify.source import module_of
from gradverify.spec.fields import DOTTED
from gradverify.spec.function import FunctionKey, SpecFunction, key_complaint, read_function, split_key
from gradverify.spec.mistakes import file_complaints
from gradverify.spec.schema import Defaults
from gradverify.spec.source import Complaint, Document, at_key, load


@dataclass(frozen=True)
class SpecFile:
    """A spec file without mistakes, as far as reading can tell."""

    path: FilePath
    shown_path: str
    document: Document = field(repr=False)
    defaults: Defaults
    functions: Mapping[str, SpecFunction]
    """By key, in the order of the file."""

    def module_paths(self) -> tuple[FilePath, ...]:
        """Return the source files of the modules this spec names, each once; unfindable ones are left out."""
        found = (module_path(module, self.path.parent) for module in named_modules(self.document.data))
        return tuple(dict.fromkeys(path for path in found if path))

    def functions_of(self, path: FilePath) -> tuple[SpecFunction, ...]:
        """Return the functions that belong to the module at `path`."""
        written = dict.fromkeys(function.module for function in self.functions.values())
        meant = {module for module in written if names_module(module, self.path.parent, path)}
        return tuple(function for function in self.functions.values() if function.module in meant)


def read_spec(path: FilePath, *, shown_path: str, known_codes: Collection[str]) -> SpecFile:
    """Read a spec file. Raises SpecError with every mistake of it that needs no import to be seen.

    `shown_path` is how messages name the file; `known_codes` are the codes that `ignore` and `xfail`
    may name.
    """
    return read_document(load(path, shown_path), path, known_codes)


def read_document(document: Document, path: FilePath, known_codes: Collection[str]) -> SpecFile:
    """Check a document that is YAML already; see `read_spec`."""
    data = document.data if isinstance(document.data, dict) else {}
    module = data.get("module")
    complaints = file_complaints(document.data)
    fault = _wrong_module(module, path.parent, found=False) if isinstance(module, str) else ""
    if fault:
        complaints.append(Complaint(("module",), fault))
    entries = data["functions"] if isinstance(data.get("functions"), dict) else {}
    if data.get("functions") == {}:
        complaints.append(at_key(("functions",), "`functions` is empty: name at least one"))
    functions: dict[str, SpecFunction] = {}
    for key, raw in entries.items():
        wrong_key = key_complaint(key, module if isinstance(module, str) else "?" * ("module" in data))
        parts = split_key(key, raw, module if isinstance(module, str) else "")
        function, faults = read_function(key, raw, parts, known_codes)
        complaints += [wrong_key] if wrong_key else _name_complaints(key, raw, parts, path.parent)
        complaints += faults
        if function:
            functions[key] = function
    if complaints or document.complaints:
        raise SpecError(document.mistakes(complaints))
    defaults = Defaults.model_validate(data.get("defaults", {}))
    return SpecFile(path, document.shown_path, document, defaults, functions)


def named_modules(data: object) -> list[str]:
    """Return the modules that a file names, as it writes them; empty where it names none."""
    if not isinstance(data, dict):
        return []
    if isinstance(data.get("module"), str):
        return [data["module"]]
    entries = data.get("functions")
    keys = entries if isinstance(entries, dict) else {}
    return list(dict.fromkeys(key.rpartition("::")[0] for key in keys if "::" in key))


def is_path(module: str) -> bool:
    """Whether `module:` is a path; otherwise it is a dotted name."""
    return module.endswith(".py") or "/" in module or "\\" in module


def module_path(module: str, folder: FilePath) -> FilePath | None:
    """Return the source file that a spec in `folder` means, None where there is none to be found."""
    try:
        if not is_path(module):
            return find_module(module, folder) if DOTTED.fullmatch(module) else None
        path = folder / module
        path = path / "__init__.py" if path.is_dir() else path
        return path if path.is_file() else None
    except (OSError, ValueError):
        # A name too long, or with a null byte in it.
        return None


def names_module(module: str, folder: FilePath, path: FilePath) -> bool:
    """Whether `module`, as a spec in `folder` writes it, is the module at `path`."""
    if not is_path(module) and module == dotted_name(path):
        return True
    named = module_path(module, folder)
    return named is not None and named.resolve() == path.resolve()


def _wrong_module(module: str, folder: FilePath, *, found: bool) -> str:
    """Why a name is no module; empty where it is one. What is not to be `found` only an import can tell."""
    if is_path(module):
        return _missing_file(module, folder)
    if module_path(module, folder) if found else DOTTED.fullmatch(module):
        return ""
    dotted = "module that can be found" if found else "dotted module name"
    return f"`{shown(module)}` is neither a path to a `.py` file nor a {dotted}"


def _missing_file(module: str, folder: FilePath) -> str:
    try:
        if module_path(module, folder):
            return ""
        beside = [path.name for path in (folder / module).parent.glob("*.py")]
    except (OSError, ValueError):
        return f"`{shown(module)}` is not a path"
    parent = module[: len(module) - len(FilePath(module).name)]
    meant = did_you_mean(FilePath(module).name, beside).replace("mean `", f"mean `{parent}")
    return f"`{shown(module)}` does not exist; paths are relative to the spec file{meant}"


def _name_complaints(key: str, raw: object, parts: FunctionKey, folder: FilePath) -> Iterator[Complaint]:
    """Check the module that a key names, and that the module's source has the target."""
    path: Path = ("functions", key)
    fault = _wrong_module(parts.module, folder, found=True) if "::" in key else ""
    if fault:
        yield at_key(path, fault)
        return
    file = module_path(parts.module, folder)
    try:
        module = module_of(file.read_bytes() if file else "")
    except OSError:
        return
    if parts.attribute.isidentifier() and module.lacks(parts.attribute):
        meant = did_you_mean(parts.attribute, module.bound)
        message = f"`{shown(parts.attribute)}` is not defined in {parts.module}{meant}"
        target = isinstance(raw, dict) and "target" in raw
        yield Complaint((*path, "target"), message) if target else at_key(path, message)
