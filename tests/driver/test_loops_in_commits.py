"""Rows of loops on their way through a commit: named by it, held by its successor, kept by who still needs them."""

from __future__ import annotations

from dataclasses import replace

from holdfast.driver.loops import Loops, rounds_of
from holdfast.driver.store import placed
from holdfast.log.janitor import Held, may_go
from holdfast.log.records import FEED, Commit, Fence, Range, SegmentRef
from holdfast.log.segment import parse_segment_name
from holdfast.wire.messages import Tag


def tag(rows: int, *, name: str = "", data: bytes | None = None, partition: int = 100_000) -> Tag:
    return Tag(SegmentRef(name, rows, len(data or b"x" * 90_000), 7, partition, 3, input_rows=rows), data)


def test_a_commit_names_rows_for_the_next_epoch_and_its_bytes_come_back() -> None:
    loops = Loops("layout")
    loops.take(4, "b", {1: [tag(2, data=b"few"), tag(0)], 2: [tag(9, name="log/0000000005.2-1-1-100000-8.seg")]})
    loops.take(4, "a", {1: []})
    attachments = [b"of another"]

    def place(fence: Fence, level: int, tags: list[Tag], into: list[bytes]) -> tuple[SegmentRef, ...]:
        assert (fence.incarnation, fence.epoch) == (1, 5), "they are the next epoch's"
        return placed(fence, level, tags, into, [])

    waiting = loops.placed(Fence(1, 4, 2), attachments, place)  # type: ignore[arg-type]
    commit = Commit(
        Fence(1, 4, 2),
        {FEED: Range(3, 3)},
        {"out": 3},
        feedback={"top": b"fed"},
        attachments=tuple(attachments),
        waiting=waiting,
    )
    found = Commit.from_bytes(commit.to_bytes(), commit.file)
    assert found == commit
    assert [(one.loop, one.level, one.rows, one.layout) for one in found.waiting] == [
        ("b", 1, 2, "layout"),
        ("b", 2, 9, "layout"),
    ]
    assert rounds_of(found.waiting) == {"b": 11}
    assert [ref.name for ref in found.waiting_files] == ["log/0000000005.2-1-1-100000-8.seg"]
    loops.committed(found)
    assert loops.taken == {}
    (few,) = loops.tags(5, 1)
    assert (few.rows, few.segment.rows, few.segment.inline, few.segment.input_rows) == (b"few", 2, None, 0)
    (many,) = loops.tags(5, 2)
    assert (many.rows, many.segment.name) == (None, "log/0000000005.2-1-1-100000-8.seg")
    assert loops.tags(5, 3) == loops.tags(6, 1) == loops.tags(4, 1) == ()


def test_a_commit_without_loops_is_what_it_was() -> None:
    commit = Commit(Fence(1, 4, 2), {FEED: Range(3, 3)}, {"out": 3})
    assert b"waiting" not in commit.to_bytes()
    assert Commit.from_bytes(commit.to_bytes(), commit.file) == commit


def test_rows_that_wait_stay_whatever_is_cut_and_go_when_another_was_prepared() -> None:
    ours, other = (f"log/0000000005.1-{who}-1-100000-8.seg" for who in (1, 2))
    levels = {name: (one.fence.epoch, one.level) for name in (ours, other) if (one := parse_segment_name(name))}
    held = Held(2, segments=levels, hold=4)  # the log is cut at the epoch that put them out
    assert may_go(held, 4) == []
    prepared = replace(held, prepares=frozenset({(5, 1)}), named={(5, 1): frozenset({ours})})
    assert may_go(prepared, 4) == [other]
    gone = replace(prepared, hold=5)
    assert ours in may_go(gone, 5)
    assert ours not in may_go(replace(gone, kept=frozenset({ours})), 5), "a snapshot has them"
