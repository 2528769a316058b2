"""`gradverify merge`: the JSON reports of shards, joined to the report of the whole run, byte for byte."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradverify.errors import UsageError
from gradverify.model import Verdict
from gradverify.report.json_v1 import SCHEMA, document_text, mistake_place, target_place
from gradverify.session.outcome import NOT_VERIFIED, ExitCode

_SAME = ("schema", "gradverify", "torch", "seed", "settings")
"""What the reports of one run have in common."""


def merge_reports(files: Sequence[Path]) -> tuple[str, ExitCode]:
    """The joined report, and the exit code of the whole run.

    A module that could not be imported is an error in every shard, and one here. Raises `UsageError` for what
    is no report, for reports of different runs, for a target that two of them hold, and where the report of
    a shard is missing.
    """
    documents = [_read(file) for file in files]
    first = documents[0]
    for file, document in zip(files, documents, strict=True):
        for key in _SAME:
            if document[key] != first[key]:
                raise UsageError(f"`{file}` is of another run than `{files[0]}`: their `{key}` differ")
    targets = sorted((t for d in documents for t in d["targets"]), key=target_place)
    names = [target["target"] for target in targets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is in two of the reports: they are not shards of one run")
    _require_all_shards(dict(zip(files, documents, strict=True)))
    errors: list[Any] = []
    for error in sorted((e for d in documents for e in d["errors"]), key=mistake_place):
        if error not in errors:
            errors.append(error)
    unnamed: list[Any] = []
    for one in sorted((o for d in documents for o in d.get("not_named", ())), key=lambda o: str(o["file"])):
        if one not in unnamed:
            unnamed.append(one)
    code = _exit_code(documents, targets, errors)
    statuses = [target["status"] for target in targets]
    summary = {"targets": len(targets), **{v.value: statuses.count(v.value) for v in Verdict}}
    whole = {key: value for key, value in first.items() if key != "shard"}
    merged = {**whole, "exit_code": int(code), "summary": summary, "targets": targets, "errors": errors}
    merged |= {"not_named": unnamed} if unnamed else {}
    return document_text(merged), code


def _require_all_shards(documents: dict[Path, Any]) -> None:
    """Refuse to call verified what no report is there of. Raises `UsageError`."""
    shards = {file: document["shard"] for file, document in documents.items() if "shard" in document}
    if not shards:
        return
    file = next((file for file in documents if file not in shards), None)
    if file is not None:
        raise UsageError(f"`{file}` is the report of no shard, as the others are")
    parts = {tuple(map(int, shard.split("/"))) for shard in shards.values()}
    counts = sorted({count for _, count in parts})
    if len(counts) > 1:
        raise UsageError(f"these are shards of {' and of '.join(map(str, counts))}: of different runs")
    missing = next(which for which in itertools.count(1) if (which, counts[0]) not in parts)
    if missing <= counts[0]:
        raise UsageError(f"the report of shard {missing}/{counts[0]} is missing: all are needed")


def _exit_code(documents: Sequence[Any], targets: Sequence[Any], errors: Sequence[Any]) -> ExitCode:
    if any(document["exit_code"] == ExitCode.BUG for document in documents):
        return ExitCode.BUG
    if errors:
        return ExitCode.USAGE
    if any(target["status"] in NOT_VERIFIED for target in targets):
        return ExitCode.FINDINGS
    return ExitCode.OK if targets else ExitCode.NOTHING


def _read(file: Path) -> Any:  # noqa: ANN401 - a JSON document
    try:
        document = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"`{file}` cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"`{file}` is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not _is_whole(document):
        raise UsageError(f"`{file}` is no report of `gradverify check --report json=...` in this version")
    return document


def _is_whole(document: dict[str, Any]) -> bool:
    lists = (document.get("targets"), document.get("errors"))
    if not {*_SAME, "exit_code"} <= document.keys() or not all(isinstance(one, list) for one in lists):
        return False
    shard = document.get("shard", "1/1")
    if not isinstance(shard, str) or not re.fullmatch(r"[1-9]\d{0,8}/[1-9]\d{0,8}", shard):
        return False
    keys = ({"target", "file", "line", "name", "status"}, {"file", "line", "column", "message"})
    return all(
        isinstance(entry, dict) and wanted <= entry.keys()
        for entries, wanted in zip(lists, keys, strict=True)
        for entry in entries or ()
    )
