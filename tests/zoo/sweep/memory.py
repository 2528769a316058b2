"""What compiled kernels do, on the CPU: read and write memory from an address on, whatever the strides."""

import torch


def at_address(tensor):
    """The memory behind a tensor, read as if the tensor were contiguous."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    offset = tensor.storage_offset()
    return tensor.new_empty(0).set_(tensor.untyped_storage(), offset, tensor.shape, strides)


def with_strides_of(tensor, other):
    """The memory behind a tensor, read with the strides of another."""
    return tensor.new_empty(0).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, other.stride()
    )
