"""The inputs that a plan judges a target on, in the words of the report."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.model import Case, Domain, TargetPlan, TensorInput, tensors_of

_DIFFERENTIABLE = ("float", "bfloat", "complex")


def domain_of(plan: TargetPlan, sizes_swept: int, *, of_complex_use: bool) -> Domain:
    """What a target was judged on, at so many sizes; `of_complex_use` where its source speaks of it."""
    if not plan.cases or plan.cases[0].hook:
        return Domain()
    tensors = [t for case in plan.cases for one in case.inputs for t in tensors_of(one)]
    floating = [t for t in tensors if t.dtype.startswith(_DIFFERENTIABLE) and not t.mutated]
    judged = [t for t in floating if t.requires_grad is not False]
    constants = {t.name: None for t in floating if t.requires_grad is False}
    is_complex = {t.dtype.startswith("complex") for t in judged}
    numbers = [word for word, kind in (("real", False), ("complex", True)) if kind in is_complex]
    return Domain(
        numbers=tuple(numbers),
        real_alone=of_complex_use and numbers == ["real"],
        ranges=tuple(dict.fromkeys(phrase for t in judged for phrase in _restricted(t))),
        constants=tuple(constants),
        sizes=_sizes(plan.cases[0]) if sizes_swept <= 1 else "",
    )


def _restricted(tensor: TensorInput) -> Iterator[str]:
    if tensor.domain != "real":
        yield f"`{tensor.name}` {tensor.domain}"
    if tensor.range is not None:
        yield f"`{tensor.name}` in [{tensor.range[0]:g}, {tensor.range[1]:g}]"
    if tensor.structure:
        yield f"`{tensor.name}` {tensor.structure}"


def _sizes(case: Case) -> str:
    """The sizes of a case; its shapes where they have no names."""
    if case.sizes:
        return ",".join(f"{name}={size}" for name, size in case.sizes)
    shapes = [t for one in case.inputs for t in tensors_of(one) if t.shape]
    return ", ".join(f"{t.name} {list(t.shape)}" for t in shapes)
