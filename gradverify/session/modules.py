"""One module of a run: its worker, what it defines, its spec bound to live names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gradverify.errors import UsageError
from gradverify.events import Collect, Collected, Event, Failed
from gradverify.events import Request as Asked
from gradverify.model import (
    InputSource,
    LintFinding,
    Location,
    Mistake,
    PassedOver,
    RaisedError,
    Target,
    shown_path,
)
from gradverify.session.in_process import InProcess
from gradverify.session.request import Request
from gradverify.session.selection import Selection
from gradverify.session.worker import Worker
from gradverify.session.worker_ended import (
    WorkerBrokenError,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
    WorkerTimedOutError,
    fatal_error,
    frames_of,
    with_shown_paths,
)
from gradverify.spec.function import SpecFunction
from gradverify.spec.read import SpecFile

FOR_A_BUG = "gradverify itself failed on it, which is a bug of ours: the traceback is on stderr"


class NotImportedAgainError(WorkerError):
    """A module that was imported once cannot be imported a second time, in another worker."""


@dataclass
class Module:
    """A module with a worker that has imported it, or the reason why it could not be."""

    path: Path
    shown_path: str
    selections: Sequence[Selection]
    spec: SpecFile | None = None
    worker: Worker | InProcess | None = None
    discovered: tuple[Target, ...] = ()
    """The Functions it defines."""
    bound: dict[str, Target] = field(default_factory=dict)
    """Targets that its spec names, by name."""
    passed_over: tuple[PassedOver, ...] = ()
    without: tuple[str, ...] = ()
    """Packages around it that raised, and that it was imported without."""
    deselected: tuple[PassedOver, ...] = ()
    """Its targets, where none of them is selected."""
    static: tuple[LintFinding, ...] | None = None
    """What its source says, once it was read."""
    deduced: dict[str, SpecFunction] = field(default_factory=dict)
    """The entries that were deduced for targets that its spec does not name, by name."""
    error: Mistake | None = None
    torch_version: str = ""
    cuda_devices: int = 0
    bug: str = ""
    """A traceback of gradverify's own that kept it from being imported or bound."""

    @property
    def functions(self) -> tuple[SpecFunction, ...]:
        """The entries of its spec."""
        return self.spec.functions_of(self.path) if self.spec is not None else ()

    @cached_property
    def source(self) -> str:
        """Its text; empty where it cannot be read."""
        try:
            return self.path.read_text("utf-8")
        except (OSError, ValueError):
            return ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets in source order: those the spec names, and discovered ones that it does not."""
        named = {f.attribute for f in self.functions if f.name in self.bound}
        rest = [t for t in self.discovered if t.name not in named and t.name not in self.bound]
        return tuple(sorted([*self.bound.values(), *rest], key=lambda t: (t.line, t.name)))

    @property
    def unnamed(self) -> tuple[Target, ...]:
        """Targets that its spec does not name, where that spec alone says what is checked."""
        if not self.selections or not all(s.of_spec and not s.name for s in self.selections):
            return ()
        return tuple(t for t in self.targets if t.name not in self.bound)

    def source_of(self, target: Target) -> InputSource:
        """Whether the spec names a target or its inputs have to be inferred."""
        return InputSource.SPEC if target.name in self.bound else InputSource.INFERRED

    def running(self, request: Request) -> Worker | InProcess:
        """Its worker; where there is none any more, another one that has imported the module again.

        Raises `WorkerError`.
        """
        if self.worker is not None and self.worker.alive:
            return self.worker
        self.close()
        worker = self.worker = _started(request)
        asked = Collect(str(self.path), self.shown_path, _folders(self.spec))
        try:
            events = list(worker.ask(asked, request.import_timeout))
        except (WorkerDiedError, WorkerTimedOutError) as error:
            raise NotImportedAgainError(error.how, error.captured, error.trace) from None
        for event in events:
            if isinstance(event, Failed):
                raise NotImportedAgainError(f"raised {event.message}", worker.printed())
        return worker

    def answers(self, asked: Asked, request: Request) -> list[Event]:
        """What its worker answers, with the time and memory of a target. Raises `WorkerError`."""
        return list(self.running(request).ask(asked, request.timeout, request.memory))

    def close(self) -> None:
        """End its worker."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def kill(self) -> None:
        """End its worker's process under another thread that waits for it, and will close it."""
        worker = self.worker
        if isinstance(worker, Worker):
            worker.kill()


def module_at(path: Path, spec: SpecFile | None, selections: Sequence[Selection]) -> Module:
    """A module that nothing is known of yet."""
    return Module(path, shown_path(path), selections, spec)


def collect_module(module: Module, request: Request) -> None:
    """Import a module in a worker of its own. A failure is kept in `Module.error`, not raised.

    Raises `UsageError` where torch cannot be imported, or has no such device.
    """
    module.error = _unreadable(module)
    if module.error is not None:
        return
    worker = module.worker = _started(request)
    try:
        ready = worker.ready()
        module.torch_version, module.cuda_devices = ready.torch_version, ready.cuda_devices
        _require_device(request.settings.device, ready.cuda_devices)
        asked = Collect(str(module.path), module.shown_path, _folders(module.spec))
        for event in worker.ask(asked, request.import_timeout):
            _take(module, event)
    except WorkerStartError as error:
        module.close()
        said = error.captured.strip().splitlines()
        last = f": {said[-1]}" if said else ""
        raise UsageError(f"PyTorch cannot be imported: the process {error.how}{last}") from None
    except WorkerBrokenError as error:
        module.bug = error.how
        module.error = import_error(module, FOR_A_BUG)
    except WorkerTimedOutError as error:
        module.error = import_error(
            module, f"importing it took longer than {request.import_timeout:g} s", error
        )
    except WorkerError as error:
        module.error = import_error(module, f"importing it ended the process: it {error.how}", error)
    except BaseException:
        module.close()
        raise
    if module.error is not None:
        module.close()


def _folders(spec: SpecFile | None) -> tuple[str, ...]:
    """Where what a spec names may lie: its own folder, and that around it, as of a folder of specs."""
    if spec is None:
        return ()
    own = spec.path.absolute().parent
    return tuple(dict.fromkeys((str(own), str(own.parent))))


def _started(request: Request) -> Worker | InProcess:
    return InProcess() if request.in_process else (request.started or Worker)(request.clock)


def _require_device(device: str, count: int) -> None:
    """Refuse a CUDA device that is not there."""
    if device != "cpu" and int(device.partition(":")[2] or 0) >= count:
        there = f"torch sees {count} CUDA device{'' if count == 1 else 's'}"
        raise UsageError(f"--device {device}: no such device here ({there})")


def _take(module: Module, event: Event) -> None:
    match event:
        case Collected():
            module.discovered, module.passed_over = event.targets, event.passed_over
            module.without = event.without
        case Failed():
            module.error = import_error(module, event.message, None, event)
        case _:
            raise ValueError(f"unexpected event {type(event).__name__}")


def _unreadable(module: Module) -> Mistake | None:
    """What keeps Python from reading the file at all: no torch is needed to tell."""
    try:
        source = module.path.read_bytes()
    except OSError as error:
        return Mistake(f"cannot be read: {error.strerror}", Location(module.shown_path, 1), kind="import")
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(source, str(module.path), "exec", dont_inherit=True)
    except SyntaxError as error:
        return Mistake.of_syntax(error, module.shown_path, "imported")
    except ValueError as error:  # null bytes
        message = f"is not Python source: {error}"
        return Mistake(message, Location(module.shown_path, 1), kind="import")
    except (RecursionError, MemoryError):
        return None  # the worker will say
    return None


def import_error(
    module: Module, message: str, error: WorkerError | None = None, failed: Failed | None = None
) -> Mistake:
    """Why a module cannot be imported, at the line of its own that did it, as far as that is known."""
    raised = failed.raised if failed is not None else None
    frames = raised.frames if raised is not None else frames_of(error.trace, module.path) if error else ()
    own = [f for f in frames if Path(f.file) == module.path.resolve()]
    if error is not None and frames:
        said = fatal_error(error.trace) if not isinstance(error, WorkerTimedOutError) else ""
        raised = RaisedError(said or "ended here", "", frames)
    captured = error.captured if error else module.worker.printed() if module.worker else ""
    return Mistake(
        message=f"cannot be imported: {message}",
        location=Location(module.shown_path, own[-1].line if own else 1),
        kind="import",
        raised=with_shown_paths(raised, module.path),
        captured=captured,
    )
