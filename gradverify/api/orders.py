"""The questions of the drop-ins: a function's first derivatives at some inputs, and its second ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck as torch_gradcheck
from torch.autograd.gradcheck import gradgradcheck as torch_gradgradcheck

from gradverify.api.call import Original, as_tuple, is_differentiable, original_of
from gradverify.verifier import guard
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import differentiate_with_graph
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem

# torch's own checks are bound on import: where ours are put in their place, as for a whole suite, a question
# that is handed on to torch must not come back.


class Options(NamedTuple):
    """What both drop-ins are asked for: the keywords of `torch.autograd.gradcheck`, and its defaults.

    A tuple, like all that is made for each question: a frozen dataclass takes three times as long to make.
    """

    eps: float = 1e-6
    atol: float = 1e-5
    rtol: float = 1e-3
    nondet_tol: float = 0.0
    check_undefined_grad: bool = True
    check_grad_dtypes: bool = False
    check_batched_grad: bool = False
    check_batched_forward_grad: bool = False
    check_forward_ad: bool = False
    check_backward_ad: bool = True
    fast_mode: bool = False
    masked: bool | None = None

    @property
    def parts_of_torch(self) -> bool:
        """Whether something is asked for that torch's own implementation alone can tell."""
        return self.check_batched_grad or self.check_batched_forward_grad or self.check_forward_ad


class FirstOrder:
    """Whether the gradients of a function at its inputs are right."""

    unsupported = ""
    """Why only torch can tell, in words."""

    def __init__(self, function: Callable[..., Any], inputs: tuple[Any, ...], options: Options) -> None:
        """Nothing is called yet."""
        self.function, self.inputs, self.options = function, inputs, options

    def call(self, states: guard.RandomStates) -> Original:
        """A call of `function` on `inputs`, from these random states. Raises whatever it raises."""
        states.replay()
        return original_of(self.inputs, as_tuple(self.function(*self.inputs)))

    def problem_of(self, original: Original, states: guard.RandomStates) -> CallProblem | VjpProblem:
        """The function as a pure problem, once it is known what it returns."""
        return _problem(self.function, original.inputs, original.returned, states)

    def ask_torch(self, fast: bool) -> bool:  # noqa: FBT001 - torch's own word for it
        """The same question to torch's own implementation, in its fast mode or not."""
        return torch_gradcheck(self.function, self.inputs, **self.options._replace(fast_mode=fast)._asdict())


class SecondOrder(FirstOrder):
    """Whether the gradients of those gradients are right, by the inputs and by the grad_outputs."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: tuple[Any, ...],
        returned: tuple[Any, ...],
        grad_outputs: tuple[Tensor, ...],
        options: Options,
    ) -> None:
        """`returned` is what the function gives at the inputs."""
        super().__init__(function, (*inputs, *grad_outputs), options)
        self._given, self._returned, self._grad_outputs = inputs, returned, grad_outputs
        if not all(u.requires_grad for u in grad_outputs):
            self.unsupported = "some grad_outputs do not require grad"

    def call(self, states: guard.RandomStates) -> Original:
        """The gradients of another call, from these random states. Raises whatever it raises."""
        states.replay()
        returned = as_tuple(self.function(*self._given))
        return original_of(self.inputs, _gradients_of(returned, self._given, self._grad_outputs))

    def problem_of(self, original: Original, states: guard.RandomStates) -> VjpProblem:  # noqa: ARG002
        """The gradients as a map of inputs and grad_outputs."""
        first = _problem(self.function, self._given, self._returned, states)
        return VjpProblem(first, tuple(u.detach() for u in self._grad_outputs))

    def ask_torch(self, fast: bool) -> bool:  # noqa: FBT001
        """The same question to torch's own implementation, in its fast mode or not."""
        keywords = self.options._replace(fast_mode=fast)._asdict()
        del keywords["check_batched_forward_grad"]
        keywords["check_fwd_over_rev"] = keywords.pop("check_forward_ad")
        keywords["check_rev_over_rev"] = keywords.pop("check_backward_ad")
        return torch_gradgradcheck(self.function, self._given, self._grad_outputs, **keywords)


def watched(function: Any) -> Any:  # noqa: ANN401 - user code
    """The function with grad mode on and arguments that require grad: it may differentiate inside."""

    def call(*arguments: Any) -> Any:  # noqa: ANN401
        with torch.enable_grad():
            return function(*(_requiring_if_inexact(a) for a in arguments))

    return call


def _requiring_if_inexact(argument: Any) -> Any:  # noqa: ANN401
    plain = isinstance(argument, Tensor) and not argument.requires_grad
    inexact = plain and (argument.is_floating_point() or argument.is_complex())
    return argument.requires_grad_().clone() if inexact else argument


def _problem(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    returned: Sequence[Any],
    states: guard.RandomStates,
) -> CallProblem:
    """The function at the caller's inputs, as a map of fresh tensors."""
    positions = tuple(i for i, r in enumerate(returned) if is_differentiable(r))
    return CallProblem(
        function=function,
        arguments=arguments_of(inputs),
        output_positions=positions,
        outputs=Layout.of([returned[p] for p in positions]),
        random_states=states,
    )


def arguments_of(inputs: Sequence[Any], names: Sequence[str] = ()) -> tuple[Argument, ...]:
    """The caller's inputs, named by position where they have no names."""
    return tuple(
        Argument(
            names[i] if i < len(names) else f"inputs[{i}]",
            x.detach() if isinstance(x, Tensor) else x,
            differentiable=is_differentiable(x),
        )
        for i, x in enumerate(inputs)
    )


def _gradients_of(
    returned: Sequence[Any], inputs: Sequence[Any], grad_outputs: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradient of every input that requires grad, with its graph, from what the function returned."""
    outputs = [o for o in returned if is_differentiable(o)]
    leaves = [x for x in inputs if is_differentiable(x)]
    if not outputs or len(outputs) != len(grad_outputs):  # torch knows what to say of that
        return torch.autograd.grad(outputs, leaves, grad_outputs, create_graph=True, allow_unused=True)
    return differentiate_with_graph(outputs, leaves, grad_outputs)
