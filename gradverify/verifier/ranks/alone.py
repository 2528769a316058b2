"""A world of one rank in this process, for as long as inputs are looked for: collectives answer at once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from unittest.mock import patch

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""The network interface that gloo is bound to: no rank listens to another machine."""


@contextlib.contextmanager
def alone_in_a_world() -> Iterator[bool]:
    """While it lasts, this process is the one rank of a world; False where it can join none.

    A world that the user's module has joined stays what it is.
    """
    if dist.is_initialized():
        yield True
        return
    with patch.dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", GLOO_SOCKET_IFNAME=LOOPBACK):
        try:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        except (RuntimeError, ValueError, OSError):
            yield False
            return
        try:
            yield True
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
