"""The static rules, by what they are about. Each gives its alarms for one Function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradverify.lint.alarm import Alarm
from gradverify.lint.rules import context, gradients, graph, in_place, style
from gradverify.source import Function

Check = Callable[[Function], Iterator[Alarm]]

CHECKS: tuple[Check, ...] = (
    graph.opaque_backward,
    context.tensor_on_ctx,
    gradients.gradient_count,
    in_place.grad_output_written,
    gradients.needs_input_grad,
    style.no_setup_context,
    context.saving,
    style.mixed_precision,
    in_place.grad_output_layout,
    style.old_style,
    in_place.input_written,
    context.ctx_attributes,
    context.saved_count,
    gradients.grad_output_count,
    gradients.grad_output_unused,
    graph.outside_ctx,
    graph.differentiates_forward,
)
"""In the order of their codes."""
