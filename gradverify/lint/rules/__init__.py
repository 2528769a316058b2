"""The static rules, one a module. Each gives its alarms for one Function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass
from gradverify.lint.rules import (
    ctx_attributes,
    differentiates_forward,
    grad_output_count,
    grad_output_layout,
    grad_output_unused,
    grad_output_written,
    gradient_count,
    input_written,
    mixed_precision,
    needs_input_grad,
    no_setup_context,
    old_style,
    opaque_backward,
    outside_ctx,
    saved_count,
    saving,
    tensor_on_ctx,
)

Check = Callable[[FunctionClass, Source], Iterator[Alarm]]

CHECKS: tuple[Check, ...] = (
    opaque_backward.check,
    tensor_on_ctx.check,
    gradient_count.check,
    grad_output_written.check,
    needs_input_grad.check,
    no_setup_context.check,
    saving.check,
    mixed_precision.check,
    grad_output_layout.check,
    old_style.check,
    input_written.check,
    ctx_attributes.check,
    saved_count.check,
    grad_output_count.check,
    grad_output_unused.check,
    outside_ctx.check,
    differentiates_forward.check,
)
"""In the order of their codes."""
