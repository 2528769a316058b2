"""Tables that an index goes into: they have a row for all that the index may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.search import Solution, is_whole
from gradverify.verifier.collect.inference.trial import Caller, attempt


def with_whole_tables(caller: Caller, found: Solution, pairs: Iterable[tuple[str, str]]) -> Solution:
    """The inputs in which `table[index]` has as many rows as the index has values, where both accept that.

    One with more rows runs as well, and at another of the sizes that it shares with others it has fewer.
    """
    for table_name, index_name in pairs:
        named = {a.name: a for a in found.state.arguments}
        table, index = named.get(table_name), named.get(index_name)
        if table is None or index is None or index.guess.kind is not Kind.INDEX or index.bound is None:
            continue
        if table.guess.kind is not Kind.FLOAT or not table.dims or table.dims[0] == index.bound:
            continue
        rows = table.dims[0]
        if not rows.is_plain or not index.bound.is_plain or found.state.observed:
            continue
        place = found.state.arguments.index(table)
        whole = replace(table, dims=(index.bound, *table.dims[1:]))
        state = found.state.with_argument(place, whole)
        ran = attempt(caller, state)
        if not isinstance(ran, RaisedError) and is_whole(ran):
            found = Solution(state, ran, found.tries, found.reshaped)
    return found
