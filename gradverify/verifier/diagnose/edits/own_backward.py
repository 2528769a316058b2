"""Backward as its class has it, run with another function in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.verifier import guard
from gradverify.verifier.diagnose.edits.source import Edit, Source, source_of, with_helpers
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Kept, differentiate_again
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout
from gradverify.verifier.verify.kept import Allowance

Backward = Callable[..., Any]


@dataclass
class Repairs:
    """What is known of the changes of one backward, at all points of its target."""

    allowance: Allowance = field(default_factory=Allowance)
    """Calls that they may take, with all else that follows a failure."""
    found: list[tuple[Edit, Any]] = field(default_factory=list)
    """Changes that make backward right, each with the run (`TracedBackward`) whose source it changes."""
    searched: set[frozenset[str]] = field(default_factory=set)
    """Inputs with wrong gradients for which a change was looked for."""
    forward: list[Any] = field(default_factory=list)
    """Changes of forward (`ForwardEdit`) whose gradient is backward's."""
    further: Sequence[Any] = ()
    """Places (`FurtherPlace`) at which a change must hold before it is offered."""


@dataclass
class OwnBackward:
    """One call of a Function, whose backward is run with other code."""

    problem: CallProblem
    function: type[Function]
    name: str
    """`backward` or `vjp`."""
    own: Backward
    """The class's own, as its author wrote it."""
    repairs: Repairs
    """What is known of changes from other points of the target, too."""
    mended: dict[Edit, bool] = field(default_factory=dict)
    """Whether everything is right here with a change in it."""
    _graph: Graph | None = None
    _kept: Kept | None = None
    _has_failed: bool = False
    _shapes: list[tuple[int, ...] | None] = field(default_factory=list)
    """What the class's own backward returns, by position; None for what is no tensor."""

    def source(self) -> Source | None:
        """The backward's tree, with those of functions that it alone calls."""
        source = source_of(self.own)
        return None if source is None else with_helpers(source, self.forward_source())

    def forward_source(self) -> list[Source]:
        """The trees of forward, and of what keeps its values."""
        found = [source_of(getattr(self.function, n, None)) for n in ("forward", "setup_context")]
        return [source for source in found if source is not None]

    def is_started(self) -> bool:
        """Whether there is a graph to ask; one is made where there was none."""
        return self._graph is not None or self.start(self.own)

    def start(self, own: Backward) -> bool:
        """Run forward afresh, and its backward once, as the class has it; False where that cannot be done.

        A backward that raises, or whose gradients torch refuses, is held to the shapes of the inputs.
        """
        made = self.problem.graph(self.problem.primals)
        if isinstance(made, Raised):
            return False
        self._graph, self._shapes = made.value, []
        self._kept = Kept.of(made.value.outputs)
        returned: list[Any] = []

        def noting(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
            found = own(ctx, *given)
            returned.append(found)
            return found

        outputs = self.problem.outputs
        given = outputs.unflatten(torch.linspace(1.0, 2.0, outputs.size, dtype=torch.float64))
        ran = self._run(noting, given)
        if len(returned) > 1:
            return False
        self._shapes = self._due() if ran is None else _shapes_of(returned[0])
        return True

    def _due(self) -> list[tuple[int, ...] | None]:
        """The shapes of the gradients that it should return, by position; None for what has none."""
        arguments = self.problem.arguments
        return [tuple(a.value.shape) if a.differentiable else None for a in arguments]

    def pulled_back(self, output: int, u: Tensor, backward: Backward) -> Tensor | None:
        """The gradient (N) of a flat grad_output of one output by another backward; None where it raises."""
        outputs = self.problem.outputs
        flat = torch.zeros(outputs.size, dtype=torch.float64)
        flat[outputs.blocks[output].start : outputs.blocks[output].stop] = u
        given = [t if k == output else None for k, t in enumerate(outputs.unflatten(flat))]
        return self._run(self._checked(backward), given)

    def rows(self, output: int, backward: Backward) -> Tensor | None:
        """All rows of one output (m × N)."""
        block = self.problem.outputs.blocks[output]
        found = []
        for unit in torch.eye(block.stop - block.start, dtype=torch.float64):
            row = self.pulled_back(output, unit, backward)
            if row is None:
                return None
            found.append(row)
        return torch.stack(found) if found else None

    def _checked(self, backward: Backward) -> Backward:
        """Returns nothing at all where the other backward raises or returns other shapes."""

        def run(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
            try:
                found = backward(ctx, *given)
            except Exception:  # noqa: BLE001 - an edited program may raise anything
                return self._refused(ctx)
            return found if _shapes_of(found) == self._shapes else self._refused(ctx)

        return run

    def _refused(self, ctx: Any) -> tuple[None, ...]:  # noqa: ANN401
        self._has_failed = True
        return (None,) * len(ctx.needs_input_grad)

    def _run(self, backward: Backward, given: Sequence[Tensor | None]) -> Tensor | None:
        graph = self._graph
        if graph is None:
            return None
        self._has_failed = False
        self.problem.random_states.replay_for_backward()
        with instead(self.function, self.name, backward):
            result = guard.call(differentiate_again, graph.outputs, graph.leaves, given)
        if self._kept is None or self._kept.is_written:  # by an edited program
            made = self.problem.graph(self.problem.primals)
            self._graph = None if isinstance(made, Raised) else made.value
            self._kept = None if self._graph is None else Kept.of(self._graph.outputs)
        if isinstance(result, Raised) or self._has_failed:
            return None
        found = Layout.of(graph.leaves).flatten(result.value)
        return found if bool(found.isfinite().all()) else None


def _shapes_of(returned: Any) -> list[tuple[int, ...] | None]:  # noqa: ANN401 - what backward returns
    values = returned if isinstance(returned, tuple | list) else [returned]
    return [tuple(v.shape) if isinstance(v, Tensor) else None for v in values]


@contextmanager
def instead(function: type[Function], name: str, backward: Backward) -> Iterator[None]:
    """Another backward in a class while the context lasts."""
    own = vars(function).get(name)
    setattr(function, name, staticmethod(backward))
    try:
        yield
    finally:
        if own is None:
            delattr(function, name)
        else:
            setattr(function, name, own)
