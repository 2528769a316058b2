"""The static rules, by what they are about. Each gives its alarms for one Function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradverify.lint.alarm import Alarm
from gradverify.lint.rules import context, gradients, graph, in_place, style
from gradverify.source import Function

Check = Callable[[Function], Iterator[Alarm]]

CHECKS: dict[str, Check] = {
    "GV801": graph.opaque_backward,
    "GV802": context.tensor_on_ctx,
    "GV803": gradients.gradient_count,
    "GV804": in_place.grad_output_written,
    "GV805": gradients.needs_input_grad,
    "GV806": style.no_setup_context,
    "GV807": context.saving,
    "GV808": style.mixed_precision,
    "GV809": in_place.grad_output_layout,
    "GV810": style.old_style,
    "GV811": in_place.input_written,
    "GV812": context.ctx_attributes,
    "GV813": context.saved_count,
    "GV814": gradients.grad_output_count,
    "GV815": gradients.grad_output_unused,
    "GV816": graph.outside_ctx,
    "GV817": graph.differentiates_forward,
}
"""By code."""
