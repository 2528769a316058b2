# ruff: noqa: F403
"""What crosses the border between the front process and its worker: dataclasses as JSON lines.

The front sends requests, the worker answers each with a stream of events that ends in a `Done`,
or in a `Broken`.
"""

from gradverify.events.answers import *
from gradverify.events.encoding import *
from gradverify.events.requests import *

CHANNEL_LOST = 79
"""What a worker exits with when it cannot reach the front any more: user code has closed its descriptors."""

FOLDERS_OF_RANKS = "gradverify-{worker}-"
"""How the names of folders begin in which a worker, by its process id, meets its ranks."""

UNASKED = 0
"""The number of a worker's first message, before any request."""
