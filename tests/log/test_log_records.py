"""The small files: they come back as they were, or not at all."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptionError, FormatError
from holdfast.log import frames, records
from holdfast.log.records import (
    FEED,
    Commit,
    Fence,
    JobFile,
    Manifest,
    Owner,
    Prepare,
    Range,
    Routing,
    SegmentRef,
)
from holdfast.log.segment import Segment, SegmentWriter


def inline_rows() -> bytes:
    writer = SegmentWriter(8)
    writer.append(0, pa.record_batch({"a": [1, 2, 3]}), np.array([7, 0, 7]))
    return writer.to_bytes()


PREPARE = Prepare(
    fence=Fence(3, 42, 1),
    level=2,
    ranges={FEED: Range(43, 42)},
    segments=(
        SegmentRef("log/0000000042.2-3-1-00000-17.seg", 10, 1000, 2**32 - 1, 0, 17, None, 12, (0, 2)),
        SegmentRef("", 3, 900, 5, 1, 18, inline=0),
    ),
    clock=1_700_000_000_000,
    watermark_before={"clicks": -1},
    watermark_after={"clicks": 2**62},
    functions={"where": 2},
    routing=7,
    sinks={"files": 40},
    feedback={"top": b"rows", "none": b"", "job/é": b"\x00more"},
    attachments=(inline_rows(), b""),
)
EVERY: list[Any] = [
    PREPARE,
    Prepare(Fence(1, 1, 0), 1, {FEED: Range(1, 1)}, (), 0),
    Commit(Fence(3, 42, 1), {FEED: Range(42, 42)}, {"a": 4}, {"files": 7}),
    Owner(3, "host", 4711, "grpc://127.0.0.1:5005", 1_700_000_000_000),
    Routing(7, ("c1", "c2", "c1")),
    Manifest(40, Fence(3, 40, 0), ("checkpoint/a.pack", "checkpoint/b.pack"), (0, 1, 1, 0), "c2"),
    JobFile("an-id", "clicks", {"stages": [{"keys": ["product"], "é": None}]}, 128, 1_700_000_000_000),
    Commit(Fence(3, 42, 1), {FEED: Range(42, 42)}, {"files": 41}, feedback={"top": b"rows", "none": b""}),
]
IDS = [type(record).__name__ for record in EVERY]


@pytest.mark.parametrize("record", EVERY, ids=IDS)
def test_a_record_comes_back(record: Any) -> None:
    assert type(record).from_bytes(record.to_bytes(), record.file) == record


@pytest.mark.parametrize("record", EVERY, ids=IDS)
def test_a_record_cut_or_altered_anywhere_is_known_or_the_same(record: Any) -> None:
    data = record.to_bytes()
    for end in range(len(data) - 1):  # the last byte of job.json is a line end
        with pytest.raises(CorruptionError):
            type(record).from_bytes(data[:end], record.file)
    for at in range(len(data)):
        altered = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
        with contextlib.suppress(CorruptionError, FormatError):
            assert type(record).from_bytes(altered, record.file) == record


@pytest.mark.parametrize("record", EVERY, ids=IDS)
def test_a_newer_format_is_refused_by_number(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(frames, "FORMAT", 9)
        data = (replace(record, format=9) if isinstance(record, JobFile) else record).to_bytes()
    with pytest.raises(FormatError, match=r"was written by a newer Holdfast \(format 9; this one knows 4\)"):
        type(record).from_bytes(data, record.file)


def test_one_kind_is_not_read_as_another() -> None:
    with pytest.raises(CorruptionError, match="x is a commit file, not a prepare file"):
        Prepare.from_bytes(EVERY[2].to_bytes(), "x")
    with pytest.raises(CorruptionError, match="x is a prepare file, not a segment"):
        Segment.open(PREPARE.to_bytes(), "x")


def test_a_prepare_cut_where_its_inline_segment_ends_is_not_taken_for_that_segment() -> None:
    data = PREPARE.to_bytes()
    inline = PREPARE.attachments[0]
    end = data.index(inline) + len(inline)
    with pytest.raises(CorruptionError, match="cut short, or has been added to"):
        Segment.open(data[:end], "x")
    assert Segment.open(Prepare.from_bytes(data, "p").attachments[0], "inline").rows == 3


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_attachments_of_any_bytes_come_back(attachments: list[bytes]) -> None:
    prepare = replace(PREPARE, attachments=tuple(attachments))
    assert Prepare.from_bytes(prepare.to_bytes(), "p").attachments == tuple(attachments)


def test_files_are_named_as_the_design_says() -> None:
    assert [record.file for record in EVERY if record is not EVERY[1]] == [
        "prepare/0000000042.2",
        "commit/0000000042",
        "owner/0000000003",
        "routing/0000000007",
        "checkpoint/0000000040.complete",
        "job.json",
        "commit/0000000042",
    ]


def test_a_fence_is_ordered_by_incarnation_first() -> None:
    assert Fence(1, 99, 9) < Fence(2, 1, 0) < Fence(2, 1, 1) < Fence(2, 2, 0)


def test_a_manifest_knows_the_pack_of_a_slice() -> None:
    assert [EVERY[5].pack_of(slice) for slice in range(4)] == [f"checkpoint/{x}.pack" for x in "abba"]


def test_the_job_file_is_for_people_and_notices_their_edits() -> None:
    text = EVERY[6].to_bytes().decode()
    assert '"slices": 128' in text
    assert json.loads(text)["format"] == records.FORMAT
    with pytest.raises(CorruptionError, match="has been changed"):
        JobFile.from_bytes(text.replace("128", "64").encode(), "job.json")
    for broken in ("", "[]", "{}", '{"format": "x", "checksum": 1}'):
        with pytest.raises(CorruptionError, match="is not the JSON"):
            JobFile.from_bytes(broken.encode(), "job.json")


def test_every_job_has_one_hash_seed_for_life() -> None:
    """A store of old has none in its file, which cannot be changed: it has the one that its id gives it, always."""
    job = JobFile("an-id", "clicks", {}, 128, 1)
    assert 0 < job.hash_seed < 1 << 32
    assert job.hash_seed != JobFile("another-id", "clicks", {}, 128, 1).hash_seed
    said = json.loads(job.to_bytes())
    assert said.pop("hash_seed") == job.hash_seed
    del said["checksum"]
    old = JobFile.from_bytes(records._to_json(said), JobFile.file)
    assert old == job
