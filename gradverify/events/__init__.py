"""What crosses the border between the front process and its worker: dataclasses as JSON lines.

The front sends requests, the worker answers each with a stream of events that ends in a `Done`,
or in a `Broken`.
"""

from gradverify.events.answers import (
    BeyondDoubted,
    BeyondJudged,
    BeyondStarted,
    Bound,
    Broken,
    CaseStarted,
    CaseVerified,
    Collected,
    Contradicted,
    DeviceLost,
    DiagnosisStarted,
    Done,
    Dumped,
    Event,
    Failed,
    Faults,
    Found,
    Inferred,
    Mutated,
    NotBound,
    NotInferred,
    NotSuggested,
    Priced,
    Ready,
    Retried,
    Suggested,
)
from gradverify.events.encoding import decode, encode, from_line, to_line
from gradverify.events.requests import (
    Bind,
    Collect,
    Dump,
    Infer,
    ListFaults,
    Mutate,
    Request,
    Retry,
    Suggest,
    Verify,
)

CHANNEL_LOST = 79
"""What a worker exits with when it cannot reach the front any more: user code has closed its descriptors."""

UNASKED = 0
"""The number of a worker's first message, before any request."""

__all__ = [
    "CHANNEL_LOST",
    "UNASKED",
    "BeyondDoubted",
    "BeyondJudged",
    "BeyondStarted",
    "Bind",
    "Bound",
    "Broken",
    "CaseStarted",
    "CaseVerified",
    "Collect",
    "Collected",
    "Contradicted",
    "DeviceLost",
    "DiagnosisStarted",
    "Done",
    "Dump",
    "Dumped",
    "Event",
    "Failed",
    "Faults",
    "Found",
    "Infer",
    "Inferred",
    "ListFaults",
    "Mutate",
    "Mutated",
    "NotBound",
    "NotInferred",
    "NotSuggested",
    "Priced",
    "Ready",
    "Request",
    "Retried",
    "Retry",
    "Suggest",
    "Suggested",
    "Verify",
    "decode",
    "encode",
    "from_line",
    "to_line",
]
