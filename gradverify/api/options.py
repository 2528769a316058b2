"""The keywords of torch's `gradcheck`, checked as torch checks them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Options(NamedTuple):
    """What both drop-ins are asked for, under the names of `torch.autograd.gradcheck`.

    A tuple, like all that is made for each question: a frozen dataclass takes three times as long to make.
    """

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_undefined_grad: bool
    check_grad_dtypes: bool
    check_batched_grad: bool
    check_batched_forward_grad: bool
    check_forward_ad: bool
    check_backward_ad: bool
    fast_mode: bool
    masked: bool | None

    def require_consistent(self) -> None:
        """Raise `AssertionError` for combinations that mean nothing, as torch does."""
        if not (self.check_forward_ad or self.check_backward_ad):
            raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
        if self.check_batched_grad and not self.check_backward_ad:
            raise AssertionError("Setting check_batched_grad=True requires check_backward_ad to be True")
        if self.check_batched_forward_grad and not self.check_forward_ad:
            raise AssertionError(
                "Setting check_batched_forward_grad=True requires check_forward_ad to be True"
            )

    @property
    def parts_of_torch(self) -> bool:
        """Whether something is asked for that torch's own implementation alone can tell."""
        return self.check_batched_grad or self.check_batched_forward_grad or self.check_forward_ad

    def as_keywords(self) -> dict[str, Any]:
        """The keywords of `torch.autograd.gradcheck`."""
        return self._asdict()
