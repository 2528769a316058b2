"""Answers the requests of the front with events; holds the user's module between them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from gradverify.cases.further import with_cases
from gradverify.deduced import Attempt, Deduced
from gradverify.events import (
    Bind,
    Bound,
    Broken,
    CaseVerified,
    Collect,
    Collected,
    DeviceLost,
    Disturbed,
    Event,
    Failed,
    Found,
    Infer,
    Inferred,
    NotBound,
    NotInferred,
    Ready,
    Request,
    Suggest,
    Verify,
)
from gradverify.model import RaisedError, shown_path
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, lacking_at_import, surroundings
from gradverify.verifier.guard.global_state import GlobalState, default_device
from gradverify.verifier.guard.module_state import Left, outside_ctx
from gradverify.verifier.guard.raised_errors import describe, raised_by_users
from gradverify.verifier.guard.surroundings import DisturbedError, Surroundings
from gradverify.verifier.inputs.arguments import OnEachRank, paths_of
from gradverify.verifier.interpreter.launches import interpret_kernels, watch_kernels
from gradverify.verifier.numerics.calling import bits_of
from gradverify.verifier.process.run import verify
from gradverify.verifier.questions.subject import first_line
from gradverify.verifier.targets.discover import describe_target, discover, target_behind, why_no_target
from gradverify.verifier.targets.importing import (
    FailedPackage,
    Imported,
    folders_of,
    import_file,
    resolve,
)
from gradverify.verifier.verify.verification import Live, is_wanted

if TYPE_CHECKING:  # loaded where a target runs on ranks
    from gradverify.verifier.ranks.worlds import Worlds

AS_LOADED = Surroundings.take()
"""Before any user code: workers are forked from a process that has this."""

TELLING = (Found, CaseVerified)
"""Events that say something of the target: not to be believed once its code has replaced what judges it."""


def ended_by(error: Exception) -> DeviceLost | Disturbed | Broken:
    """What an exception that came through the guard says: a lost device shows wherever it is asked next."""
    if isinstance(error, DisturbedError):
        return Disturbed(error.how, error.raised)
    if isinstance(error, guard.DeviceLostError):
        return DeviceLost(error.error)
    if guard.is_device_lost(error):
        return DeviceLost(describe(error))
    return Broken("".join(traceback.format_exception(error)))


def serve_here(lets_through: tuple[type[BaseException], ...] = ()) -> tuple[Server, Ready]:
    """Make this process ready to answer requests.

    `lets_through` are exceptions that belong to whoever debugs, not to the user code that raises them.
    """
    torch.set_num_threads(1)
    interpret_kernels()
    guard.LET_THROUGH = lambda error: isinstance(error, lets_through)
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Server(), Ready(torch.__version__, devices)


class Server:
    """Holds the imported module between requests."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._shown_path = ""
        self._state = GlobalState.take()
        self._has_device = False
        """The module has set a default device."""
        self._has_unreached = False
        """The module defines Functions that no name of it leads to."""
        self._worlds: Worlds | None = None
        self._surroundings = AS_LOADED
        self._on_import: tuple[str, ...] = ()
        """What the module replaced when it was imported."""
        self.left: tuple[str, ...] = ()
        """What the calls of the last request have left behind."""

    def answer(self, request: Request) -> Iterator[Event]:
        """Answer one request with its events.

        Raises `DisturbedError` once user code has replaced what an answer depends on, and for what it raises
        where its objects are used without a guard.
        """
        request = _with_cases(request)
        runs = not isinstance(request, Collect | Bind)
        before = self._look() if runs else Left({}, 0)
        try:
            for event in self._answer(request):
                if isinstance(event, TELLING):
                    _require(self._surroundings)
                yield event
            _require(self._surroundings)
        except Exception as error:
            self._require_no_other_reason(error)
            raise
        if runs:
            yield from self._left_behind(before, request)

    def _require_no_other_reason(self, error: Exception) -> None:
        """Raise `DisturbedError` where user code is the reason of an exception of ours."""
        _require(self._surroundings)
        of_another = DisturbedError | guard.DeviceLostError
        if isinstance(error, of_another) or guard.is_device_lost(error) or guard.lets_through(error):
            return
        _require(AS_LOADED, "importing its module")
        if raised := raised_by_users(error):
            said = f"raised {raised.type} where its results were used"
            raise DisturbedError(f"its code {said}", raised) from error
        if said := _of_its_tensors(error):
            raise DisturbedError(said) from error

    def _left_behind(self, before: Left, request: Request) -> Iterator[Event]:
        """See what is not as it was; of a verification it is reported."""
        now = self._look()
        changed, running = before.changed(now), before.running(now)
        self.left = (*changed, *running)
        if isinstance(request, Verify) and is_wanted("GV816", request.settings, request.ignored):
            yield from map(Found, outside_ctx(changed, running, self._on_import))

    def _look(self) -> Left:
        looked = guard.call(Left.take, self._module)  # objects of user code may refuse to be looked at
        return Left({}, 0) if isinstance(looked, Raised) else looked.value

    def _answer(self, request: Request) -> Iterator[Event]:
        """The events. What few are asked for is loaded when it is asked for."""
        watch_kernels()
        match request:
            case Collect():
                yield self._collect(request)
            case Bind():
                yield from self._bind(request)
            case Infer():
                yield self._infer(request)
            case Verify():
                yield from verify(request, self._live(request))
                self._state.restore()
            case Suggest():
                from gradverify.verifier.suggest.suggest import suggest  # noqa: PLC0415

                yield suggest(request.verified, self._live(request.verified))
                self._state.restore()

    def _collect(self, request: Collect) -> Event:
        result = guard.call(_imported, Path(request.path))
        if isinstance(result, Raised):
            self._state.restore()
            said = f"{result.error.type}: {result.error.message}"
            further = _where_looked_for(result.error, Path(request.path)) or lacking_at_import(result.error)
            joint = " " if said.endswith(".") else ". "
            return Failed(joint.join(filter(None, (said, further))), result.error)
        sys.path += [folder for folder in request.folders if folder not in sys.path]
        imported, device = result.value
        self._module = imported.module
        self._shown_path, self._has_device = request.shown_path, device is not None
        self._state = self._state.after_import()
        self._state.restore()
        self._on_import = AS_LOADED.replaced()
        self._surroundings = Surroundings.take()
        targets, passed_over = discover(self._module, request.shown_path)
        self._has_unreached = any(t.unreached for t in targets)
        return Collected(targets, passed_over, tuple(map(_said, imported.failed_packages)))

    def _bind(self, request: Bind) -> Iterator[Event]:
        value = target_behind(self._find(request.attribute))
        if isinstance(value, str):
            yield NotBound("attribute", request.attribute, value, self._names())
        elif refusal := why_no_target(value, init=request.init):
            yield NotBound("attribute", request.attribute, f"`{request.attribute}` is {refusal}")
        else:
            yield Bound(
                describe_target(value, request.name, request.attribute, self._shown_path, self._module)
            )
        parts = [
            *(("reference", name) for name in request.references),
            *(("hook", name) for name in request.hooks),
        ]
        for part, name in parts:
            found = self._find(name)
            if isinstance(found, str):
                yield NotBound(part, name, found, self._names())
            elif part == "reference" and not callable(found):
                yield NotBound(part, name, f"`{name}` is {type(found).__name__}, not a callable")

    def _infer(self, request: Infer) -> Event:
        from gradverify.verifier.infer.deduce import deduce  # noqa: PLC0415

        value = target_behind(self._find(request.target.attribute))
        found: Deduced | tuple[Attempt, ...] = ()
        for device in request.devices:
            self._set_device(device)
            found = deduce(value, request.target, self._module, device)
            if isinstance(found, Deduced):
                break
        self._state.restore()
        return Inferred(found) if isinstance(found, Deduced) else NotInferred(found)

    def _live(self, request: Verify) -> Live:
        plan = request.plan
        self._set_device(request.settings.device)
        names = {plan.reference, plan.surrogate.path if plan.surrogate is not None else ""}
        names |= {name for case in plan.cases for name in (case.hook, *paths_of(case))}
        value = target_behind(self._find(request.target.attribute))
        named = {name: self._find(name) for name in names if name}
        if request.plan.ranks is not None or self._worlds is not None:
            from gradverify.verifier.ranks.worlds import worlds_of  # noqa: PLC0415 - few targets have ranks

            self._worlds = worlds_of(self._worlds, self._module, request)
        if self._worlds is not None:
            named |= {path: OnEachRank(path) for case in plan.cases for path in paths_of(case)}
        return Live(value, named, worlds=self._worlds, has_unreached=self._has_unreached)

    def _set_device(self, device: str) -> None:
        """Where a module has set a default device, its code has the one that it is verified on."""
        guard.DEVICE = device if self._has_device else ""

    def _find(self, name: str) -> Any:  # noqa: ANN401 - any live object, or the reason as text
        """The object a name stands for, or a sentence why there is none."""
        result = guard.call(resolve, name, self._module)
        if not isinstance(result, Raised):
            return result.value
        if result.error.type == "LookupError":
            return f"`{name}` cannot be found: {result.error.message}"
        return f"`{name}` cannot be imported: {result.error.type}: {result.error.message}"

    def _names(self) -> tuple[str, ...]:
        return tuple(n for n in vars(self._module or object) if not n.startswith("__"))


def _with_cases(request: Request) -> Request:
    """The request with the cases that its sweep gives, made here as the front has made them."""
    match request:
        case Verify():
            return _made(request)
        case Suggest():
            return replace(request, verified=_made(request.verified))
        case _:
            return request


def _made(request: Verify) -> Verify:
    plan = request.plan
    return request if plan.asked is None else replace(request, plan=with_cases(plan, plan.asked))


def _require(before: Surroundings, who: str = "its code") -> None:
    """Raise `DisturbedError` where something is not what it was."""
    if names := before.replaced():
        before.put_back()
        raise DisturbedError(f"{who} {surroundings.reported(names)}")


def _of_its_tensors(error: Exception) -> str:
    """What of a target's tensors torch cannot work with; empty where an exception has another reason."""
    if guard.lacks_memory(describe(error)):
        return "its sizes take more memory than there is"
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    met = tree_leaves(list(last.tb_frame.f_locals.values())) if last is not None else []
    is_unread = any(isinstance(one, torch.Tensor) and bits_of(one) is None for one in met)
    return "its code made a tensor whose numbers torch cannot read one by one" if is_unread else ""


def _imported(path: Path) -> tuple[Imported, torch.device | None]:
    """A module, and the default device that it has set."""
    return import_file(path), default_device()


def _where_looked_for(error: RaisedError, path: Path) -> str:
    """Where a module that is missing was looked for, beside what is installed; empty for another error."""
    if error.type != "ModuleNotFoundError":
        return ""
    folders = " or ".join(f"`{shown_path(folder)}`" for folder in folders_of(path))
    return f"It is not installed, and not in {folders}"


def _said(failed: FailedPackage) -> str:
    """`pkg/__init__.py, which raised ImportError: ...`."""
    raised = describe(failed.error)
    return f"{shown_path(failed.file)}, which raised {raised.type}: {first_line(raised.message)}"
