"""One module of a run: its worker, what it defines, its spec bound to live names."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradverify.events import Bind, Bound, Collect, Collected, Event, Failed, NotBound
from gradverify.model import InputSource, Location, Mistake, PassedOver, RaisedError, Target, TargetKind
from gradverify.session.pool import Worker, WorkerDiedError, WorkerTimedOutError
from gradverify.session.request import Request
from gradverify.session.selection import Selection, did_you_mean
from gradverify.spec import SpecFile, SpecFunction, check_against_targets, shown_path


@dataclass
class Module:
    """A module with a worker that has imported it, or the reason why it could not be."""

    path: Path
    shown_path: str
    selections: Sequence[Selection]
    spec: SpecFile | None = None
    worker: Worker | None = None
    discovered: tuple[Target, ...] = ()
    """The Functions it defines."""
    bound: dict[str, Target] = field(default_factory=dict)
    """Targets that its spec names, by name."""
    passed_over: tuple[PassedOver, ...] = ()
    error: Mistake | None = None
    cuda_devices: int | None = None
    torch_version: str = ""

    @property
    def functions(self) -> tuple[SpecFunction, ...]:
        """The entries of its spec."""
        return self.spec.functions_of(self.path) if self.spec is not None else ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets in source order: those the spec names, and discovered ones that it does not."""
        named = {f.attribute for f in self.functions if f.name in self.bound}
        rest = [t for t in self.discovered if t.name not in named and t.name not in self.bound]
        return tuple(sorted([*self.bound.values(), *rest], key=lambda t: (t.line, t.name)))

    def source_of(self, target: Target) -> InputSource:
        """Whether the spec names a target or its inputs have to be inferred."""
        return InputSource.SPEC if target.name in self.bound else InputSource.INFERRED

    def restart(self, request: Request) -> Worker:
        """Start another worker after one died, and import the module again.

        Raises as `Worker.ask` does.
        """
        self.close()
        self.worker = Worker(request.clock)
        for event in self.worker.ask(Collect(str(self.path), self.shown_path), request.import_timeout):
            if isinstance(event, Failed):
                raise WorkerDiedError(f"could not import the module again: {event.message}")
        return self.worker

    def close(self) -> None:
        """End its worker."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def collect_module(
    path: Path, spec: SpecFile | None, selections: Sequence[Selection], request: Request
) -> Module:
    """Import a module in a worker of its own. A failure is kept in `Module.error`, not raised."""
    module = Module(path, shown_path(path), selections, spec)
    worker = module.worker = Worker(request.clock)
    try:
        ready = worker.ready()
        module.cuda_devices, module.torch_version = ready.cuda_devices, ready.torch_version
        for event in worker.ask(Collect(str(path), module.shown_path), request.import_timeout):
            _take(module, event)
    except WorkerTimedOutError:
        limit = f"{request.import_timeout:g} s"
        module.error = _import_error(module, f"importing it took longer than {limit}", None, worker)
    except WorkerDiedError as died:
        module.error = _import_error(module, f"importing it ended the process: it {died.how}", None, worker)
    if module.error is not None:
        module.close()
    return module


def bind_module(module: Module, request: Request) -> list[Mistake]:
    """Find every name of the module's spec among live objects; returns what cannot be found."""
    if module.error is not None or module.spec is None or module.worker is None:
        return []
    mistakes: list[Mistake] = []
    for function in module.functions:
        if function.skip:
            _bind_skipped(module, function)
            continue
        request_ = Bind(
            function.attribute, function.name, function.reference, (function.hook,) if function.hook else ()
        )
        try:
            for event in module.worker.ask(request_, request.import_timeout):
                if isinstance(event, Bound):
                    module.bound[function.name] = event.target
                elif isinstance(event, NotBound):
                    mistakes.append(_not_bound(module.spec, function, event))
        except (WorkerDiedError, WorkerTimedOutError):
            mistakes.append(
                module.spec.mistake_at(
                    ("functions", function.key), f"looking up `{function.name}` ended the process", key=True
                )
            )
            with contextlib.suppress(WorkerDiedError, WorkerTimedOutError):
                module.restart(request)
    if not mistakes:
        mistakes += check_against_targets(module.spec, list(module.bound.values()), module=module.path)
    return mistakes


def _take(module: Module, event: Event) -> None:
    match event:
        case Collected():
            module.discovered, module.passed_over = event.targets, event.passed_over
        case Failed():
            module.error = _import_error(module, event.message, event.raised, module.worker)
        case _:
            raise ValueError(f"unexpected event {type(event).__name__}")


def _import_error(module: Module, message: str, raised: RaisedError | None, worker: Worker | None) -> Mistake:
    own = [f for f in (raised.frames if raised else ()) if Path(f.file) == module.path]
    line = own[-1].line if own else 1
    syntax = raised is not None and raised.type in {"SyntaxError", "IndentationError", "TabError"}
    return Mistake(
        message=f"cannot be imported: {message}",
        location=Location(module.shown_path, line),
        kind="import",
        raised=None if syntax else raised,
        captured=worker.printed() if worker is not None else "",
    )


def _bind_skipped(module: Module, function: SpecFunction) -> None:
    """A skipped target is listed even where it no longer exists: nothing of it is called."""
    live = next((t for t in module.discovered if t.attribute == function.attribute), None)
    line = live.line if live is not None else 1
    kind = live.kind if live is not None else TargetKind.FUNCTION
    module.bound[function.name] = Target(function.name, function.attribute, kind, module.shown_path, line)


def _not_bound(spec: SpecFile, function: SpecFunction, event: NotBound) -> Mistake:
    path: tuple[str | int, ...] = ("functions", function.key)
    wanted = function.attribute
    if event.part != "attribute":
        path = (*path, "reference" if event.part == "reference" else "arguments")
        wanted = function.reference if event.part == "reference" else function.hook
    elif ("functions", function.key, "target") in spec.document.values:
        path = (*path, "target")
    near = did_you_mean(wanted, event.candidates)
    return spec.mistake_at(path, event.message + near, key=len(path) == 2)


__all__ = ["Module", "bind_module", "collect_module"]
