"""Codes that a spec names: in `ignore` by prefix, in `xfail` in full."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping

from gradverify.spec.messages import Path, shown
from gradverify.spec.schema_file import XfailEntry
from gradverify.spec.source import At, Complaint


def check_ignore(ignore: Mapping[str, object], known_codes: Collection[str]) -> Iterator[Complaint]:
    """Yield what is wrong with the prefixes of `ignore`."""
    for prefix in ignore:
        path: Path = ("ignore", prefix)
        if not re.fullmatch(r"GV\d{0,3}", prefix, re.ASCII):
            message = f"`{shown(prefix)}` is not a code: GV101, or a prefix such as GV1"
            yield Complaint(path, message, At.KEY)
        elif not any(code.startswith(prefix) for code in known_codes):
            message = f"no code begins with `{prefix}`{_nearest_code(prefix, known_codes)}"
            yield Complaint(path, message, At.KEY)


def check_xfail_codes(
    entry: XfailEntry, known_codes: Collection[str], ignored: Collection[str]
) -> Iterator[Complaint]:
    """Yield what is wrong with the codes of one expected failure, by paths inside it."""
    for index, code in enumerate(entry.codes):
        path: Path = ("codes", index)
        prefix = next((prefix for prefix in ignored if code.startswith(prefix)), None)
        if not re.fullmatch(r"GV\d{3}", code, re.ASCII):
            whole = ": each must occur, so a prefix says too little" if code.startswith("GV") else ""
            yield Complaint(path, f"`{shown(code)}` is not a whole code such as GV201{whole}")
        elif code not in known_codes:
            yield Complaint(path, f"there is no code `{code}`{_nearest_code(code, known_codes)}")
        elif prefix is not None:
            message = f"`{code}` cannot be expected: `ignore: {{{prefix}: …}}` keeps it from being checked"
            yield Complaint(path, message)


def _nearest_code(prefix: str, known_codes: Collection[str]) -> str:
    # Digits count from the left: GV110 is nearer to GV109 than to GV210.
    def distance(code: str) -> tuple[int, int, str]:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(code, prefix, strict=False))
        common = len(list(same))
        return -common, abs(int(code[2:] or 0) - int(prefix[2:].ljust(3, "0"))), code

    numbered = [code for code in known_codes if re.fullmatch(r"GV\d+", code, re.ASCII)]
    return f"; did you mean `{min(numbered, key=distance)}`?" if numbered else ""
