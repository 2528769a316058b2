"""The names of a module's spec among live objects: what each is, and what cannot be found."""

from __future__ import annotations

from gradverify.errors import did_you_mean
from gradverify.events import Bind, Bound, NotBound
from gradverify.model import Mistake, ObjectInput, Target, TargetKind, tensors_of
from gradverify.session.modules import FOR_A_BUG, Module, import_error
from gradverify.session.request import Request
from gradverify.session.worker_ended import WorkerBrokenError, WorkerError
from gradverify.spec.binding import check_against_targets
from gradverify.spec.function import SpecFunction
from gradverify.spec.read import SpecFile
from gradverify.spec.source import Complaint, at_key


def bind_module(module: Module, request: Request) -> list[Mistake]:
    """Find every name of the module's spec among live objects; returns what cannot be found."""
    if module.error is not None or module.spec is None:
        return []
    mistakes: list[Mistake] = []
    for function in module.functions:
        if function.plan.skip:
            _bind_skipped(module, function)
        else:
            mistakes += _bind(module, module.spec, function, request)
    if not mistakes:
        mistakes += check_against_targets(module.spec, list(module.bound.values()), module=module.path)
    return mistakes


def _bind(module: Module, spec: SpecFile, function: SpecFunction, request: Request) -> list[Mistake]:
    surrogate = function.plan.surrogate.path if function.plan.surrogate is not None else ""
    mistakes: list[Mistake] = []
    try:
        worker = module.running(request)
        asked = Bind(
            function.attribute,
            function.name,
            references=tuple(filter(None, (function.plan.reference, surrogate))),
            hooks=tuple(filter(None, (function.sweep.hook, *_objects(function)))),
            init=function.plan.init is not None,
        )
        for event in worker.ask(asked, request.import_timeout):
            if isinstance(event, Bound):
                module.bound[function.name] = event.target
            elif isinstance(event, NotBound):
                mistakes.append(_not_bound(spec, function, event))
    except WorkerBrokenError as error:
        module.bug = error.how
        module.error = import_error(module, FOR_A_BUG)
    except WorkerError as error:
        mistakes.append(_unbound(spec, function, f"the process {error.how}"))
    return mistakes


def _unbound(spec: SpecFile, function: SpecFunction, why: str) -> Mistake:
    path = ("functions", function.key)
    return spec.document.mistake(at_key(path, f"`{function.name}` could not be looked up: {why}"))


def _bind_skipped(module: Module, function: SpecFunction) -> None:
    """A skipped target is listed even where it no longer exists: nothing of it is called."""
    live = next((t for t in module.discovered if t.attribute == function.attribute), None)
    line = live.line if live is not None else 1
    kind = live.kind if live is not None else TargetKind.FUNCTION
    module.bound[function.name] = Target(function.name, function.attribute, kind, module.shown_path, line)


def _not_bound(spec: SpecFile, function: SpecFunction, event: NotBound) -> Mistake:
    path: tuple[str | int, ...] = ("functions", function.key)
    if event.part == "reference":
        path = (*path, "reference" if event.name == function.plan.reference else "surrogate")
    elif event.part == "hook":
        named = _objects(function).get(event.name)
        path = (*path, "arguments") if named is None else (*path, "inputs", named)
    elif ("functions", function.key, "target") in spec.document.values:
        path = (*path, "target")
    near = did_you_mean(event.name, event.candidates)
    return spec.document.mistake(Complaint(path, event.message + near, of_key=len(path) == 2))


def _objects(function: SpecFunction) -> dict[str, str]:
    """The live objects that inputs name, `object:` and `make:`, each with the input that names it."""
    found: dict[str, str] = {}
    for case in function.cases:
        for i in case.inputs:
            if isinstance(i, ObjectInput):
                found[i.path] = i.name
            for tensor in tensors_of(i):
                if tensor.make:
                    found[tensor.make] = i.name
    return found
