"""What crosses the border between the front process and its worker: dataclasses as JSON lines.

The front sends requests, the worker answers each with a stream of events that ends in a `Done`,
or in a `Broken`.
"""

from gradverify.events.answers import BeyondDoubted as BeyondDoubted
from gradverify.events.answers import BeyondJudged as BeyondJudged
from gradverify.events.answers import BeyondStarted as BeyondStarted
from gradverify.events.answers import Bound as Bound
from gradverify.events.answers import Broken as Broken
from gradverify.events.answers import Called as Called
from gradverify.events.answers import CaseStarted as CaseStarted
from gradverify.events.answers import CaseVerified as CaseVerified
from gradverify.events.answers import Collected as Collected
from gradverify.events.answers import Contradicted as Contradicted
from gradverify.events.answers import DeviceLost as DeviceLost
from gradverify.events.answers import DiagnosisStarted as DiagnosisStarted
from gradverify.events.answers import Disturbed as Disturbed
from gradverify.events.answers import Done as Done
from gradverify.events.answers import Dumped as Dumped
from gradverify.events.answers import Event as Event
from gradverify.events.answers import Failed as Failed
from gradverify.events.answers import Faults as Faults
from gradverify.events.answers import Found as Found
from gradverify.events.answers import Inferred as Inferred
from gradverify.events.answers import Mutated as Mutated
from gradverify.events.answers import NotBound as NotBound
from gradverify.events.answers import NotInferred as NotInferred
from gradverify.events.answers import NotSuggested as NotSuggested
from gradverify.events.answers import Priced as Priced
from gradverify.events.answers import Ready as Ready
from gradverify.events.answers import Retried as Retried
from gradverify.events.answers import Suggested as Suggested
from gradverify.events.encoding import decode as decode
from gradverify.events.encoding import encode as encode
from gradverify.events.encoding import from_line as from_line
from gradverify.events.encoding import to_line as to_line
from gradverify.events.requests import Bind as Bind
from gradverify.events.requests import Collect as Collect
from gradverify.events.requests import Dump as Dump
from gradverify.events.requests import Infer as Infer
from gradverify.events.requests import ListFaults as ListFaults
from gradverify.events.requests import Mutate as Mutate
from gradverify.events.requests import Request as Request
from gradverify.events.requests import Retry as Retry
from gradverify.events.requests import Suggest as Suggest
from gradverify.events.requests import Verify as Verify

CHANNEL_LOST = 79
"""What a worker exits with when it cannot reach the front any more: user code has closed its descriptors."""

UNASKED = 0
"""The number of a worker's first message, before any request."""
