"""Named streams as files, and what may go of them: blocks once, readers by their marks, nothing that somebody holds."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import dice
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import CorruptionError, StoreError
from holdfast.log.holds import HeldStream, Hold, backlogs, cut_of, held_by, stream_may_go
from holdfast.log.store import Store
from holdfast.log.stream_tidying import StreamTidying, held_stream
from holdfast.log.streams import (
    Claim,
    Layout,
    NamedStream,
    RowsFile,
    StreamBlock,
    found_stream,
    rows_name,
    rows_number,
    streams_of,
)

LAYOUT = Layout(1, '{"type":"struct","fields":[]}', True, False, math.inf, "id", "shop")
ME, OTHER = "1" * 32, "2" * 32


def block(number: int, epoch: int = 0, *names: str) -> StreamBlock:
    files = tuple(RowsFile(3, 10, 7, name) for name in names)
    return StreamBlock(number, epoch or number, 1, (*files, RowsFile(1, 4, 9, inline=0)), 5, (b"rows",))


def stream_in(path: Path, name: str = "hot", keep: float | None = None, blocks: int = 0) -> NamedStream:
    stream = NamedStream(Store(path), name)
    stream.layouts.put(1, Layout(1, "{}", False, False, keep, "id", "shop"))
    for number in range(1, blocks + 1):
        stream.blocks.put(number, block(number))
    return stream


def test_records_come_back_as_they_were_and_a_changed_byte_is_an_error() -> None:
    for one in (LAYOUT, block(3, 9, "rows/a.arrow"), Claim("b", "job 'b' in /b", 3, 4)):
        data = one.to_bytes()
        assert type(one).from_bytes(data, "file") == one
        noticed = 0
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 0x10
            try:
                assert type(one).from_bytes(bytes(changed), "file") == one, at
            except (CorruptionError, StoreError):
                noticed += 1
        assert noticed > len(data) / 2, "what is not noticed is padding"


def test_of_two_writers_of_a_block_one_wins_and_the_other_reads_it(tmp_path: Path) -> None:
    found, start = list[StreamBlock](), threading.Barrier(8)

    def put(epoch: int) -> None:
        stream = NamedStream(Store(tmp_path), "hot")
        start.wait()
        found.append(stream.blocks.put(1, block(1, epoch))[0])

    threads = [threading.Thread(target=put, args=(epoch,)) for epoch in range(1, 9)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 8
    assert len({one.epoch for one in found}) == 1


def test_a_name_is_one_readers_and_marks_say_how_far_it_is(tmp_path: Path) -> None:
    stream = stream_in(tmp_path, blocks=5)
    assert stream.lease("b") is None
    mine = stream.claim("b", "job b", 2)
    assert mine is not None
    assert (mine.position, mine.first, mine.by) == (1, 2, frozenset())
    assert stream.claim("b", "job c", 1) is None
    stream.renew("b", 4, ME)
    stream.renew("b", 3, OTHER)  # one that lags does not take back what is known
    lease = stream.lease("b")
    assert lease is not None
    assert (lease.position, lease.holder, lease.by) == (4, "job b", frozenset({OTHER}))
    assert len(stream.store.list("reader/b")) == 2, "the claim and one mark"
    assert [one.reader for one in stream.leases()] == ["b"]
    assert stream.forget("b")
    assert not stream.forget("b")
    assert stream.claim("b", "job c", 1) is not None


def test_a_stream_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    stream_in(tmp_path, "hot.1")
    stream_in(tmp_path, "..")
    with pytest.raises(StoreError, match="has no stream 'cold'") as raised:
        found_stream(Store(tmp_path), "cold")
    assert "'hot.1'" in raised.value.todo
    assert sorted(one.name for one in streams_of(Store(tmp_path))) == ["..", "hot.1"]


def test_what_goes_and_what_stays() -> None:
    young = {number: 10.0 * (5 - number) for number in range(1, 6)}  # 40, 30, … s old

    def cut(keep: float | None, *readers: Hold) -> int:
        return cut_of(HeldStream(keep, young, readers))

    assert cut(None) == 4, "without readers all goes but the newest, which says what comes next"
    assert cut(None, Hold("b", 2, idle=1e9), Hold("c", 5)) == 2, "one that is away holds until it is let go"
    assert cut(math.inf, Hold("b", 5)) == 0
    assert cut(25, Hold("b", 5)) == 2, "what is young stays though it is read"
    assert cut(25, Hold("b", 1, idle=24)) == 1, "one that lags holds more"
    assert cut(25, Hold("b", 1, idle=26)) == 2, "unless it has been away for longer than blocks are kept"
    assert cut(1e9) == 0
    assert cut_of(HeldStream(None)) == 0


def test_blocks_go_before_their_files_and_files_that_no_block_names_go() -> None:
    files = [rows_name(number, "a" * 32, 0, 7) for number in range(1, 5)]
    left = rows_name(2, "b" * 32, 0, 8)
    held = HeldStream(
        None, {2: 9.0, 3: 5.0}, [Hold("b", 2)], [*files, left, "rows/strange"], {3: frozenset({files[2]})}
    )
    assert [rows_number(name) for name in files] == [1, 2, 3, 4]
    # Block 1 has gone already, 4 is being written, and of two attempts at 2 both go with it.
    assert stream_may_go(held) == ["block/0000000002", files[0], files[1], left]
    named = HeldStream(None, {3: 5.0}, [], [files[2], rows_name(3, "c" * 32, 1, 2)], {3: frozenset({files[2]})})
    assert stream_may_go(named) == [rows_name(3, "c" * 32, 1, 2)]


def test_who_lags_and_who_holds_the_oldest_block() -> None:
    held = HeldStream(100.0, {4: 1.0, 5: 1.0}, [Hold("b", 3), Hold("c", 4), Hold("away", 1, idle=200)])
    assert backlogs(held) == {"b": 2, "c": 1}
    assert held_by(held) == ("b",)


def test_a_round_deletes_what_readers_have_let_go(tmp_path: Path) -> None:
    stream = stream_in(tmp_path, blocks=6)
    for number in range(1, 7):
        stream.store.write(rows_name(number, "a" * 32, 0, 1), [b"x" * 1000])
    stream.claim("b", "job b", 1)
    tidying = StreamTidying(Store(tmp_path))
    tidying.round(math.inf)
    assert stream.kept() == [1, 2, 3, 4, 5, 6]
    stream.renew("b", 4, ME)
    gone = tidying.round(math.inf)
    assert stream.kept() == [5, 6]
    assert "stream/hot/block/0000000004" in gone
    # Those files are of attempts that blocks 5 and 6 do not name.
    assert stream.store.list("rows") == []
    stream.forget("b")
    tidying.round(math.inf)
    assert stream.kept() == [6]
    assert NamedStream(Store(tmp_path), "hot").newest() == 6


def test_nothing_goes_while_a_lease_cannot_be_read(tmp_path: Path) -> None:
    stream = stream_in(tmp_path, blocks=3)
    stream.claim("b", "job b", 1)
    claim = tmp_path / "stream/hot/reader/b/claim"
    whole = claim.read_bytes()
    claim.write_bytes(whole[:-3])
    assert held_stream(stream) is None
    assert StreamTidying(Store(tmp_path)).round(math.inf) == []
    os.truncate(claim, 0)
    claim.write_bytes(whole)
    assert held_stream(stream) is not None


class Readers(RuleBasedStateMachine):
    """A writer, readers that come, read, fall silent and are let go, and a janitor; time goes by."""

    keep: float | None = None
    judge: Callable[[HeldStream], list[str]] = staticmethod(stream_may_go)

    @initialize(keep=st.sampled_from([None, 3.0, 8.0, math.inf]))
    def begin(self, keep: float | None) -> None:
        self.keep, self.now = keep, 0.0
        self.written: dict[int, float] = {}
        self.newest = 0
        self.readers: dict[str, tuple[int, float]] = {}  # position, when it was heard of
        self.here: dict[str, int] = {}  # what it still has to read, with nothing missing

    @rule()
    def write(self) -> None:
        self.newest += 1
        self.written[self.newest] = self.now

    @rule(by=st.integers(1, 3))
    def wait(self, by: int) -> None:
        self.now += by

    @precondition(lambda self: self.written)
    @rule(name=st.sampled_from(["b", "c"]))
    def come(self, name: str) -> None:
        if name not in self.readers:
            self.readers[name] = (min(self.written) - 1, self.now)

    @precondition(lambda self: self.readers)
    @rule(name=st.sampled_from(["b", "c"]), far=st.integers(0, 3))
    def read(self, name: str, far: int) -> None:
        if name not in self.readers:
            return
        position, heard = self.readers[name]
        away = self.keep is not None and self.now - heard > self.keep
        wanted = range(position + 1, min(position + far, self.newest) + 1)
        if not all(number in self.written for number in wanted):
            assert away, "a reader has lost a block"
            del self.readers[name]  # it is told so, and begins anew
            return
        self.readers[name] = (max([position, *wanted]), self.now)

    @rule(name=st.sampled_from(["b", "c"]))
    def forget(self, name: str) -> None:
        self.readers.pop(name, None)

    @rule()
    def tidy(self) -> None:
        ages = {number: self.now - at for number, at in self.written.items()}
        held = HeldStream(self.keep, ages, [Hold(n, p, self.now - at) for n, (p, at) in self.readers.items()])
        going = [int(name.removeprefix("block/")) for name in self.judge(held)]
        assert going == sorted(going)
        for number in going:
            del self.written[number]
            assert self.keep is None or ages[number] > self.keep, "a block went before its time"

    @invariant()
    def there_is_no_gap(self) -> None:
        if getattr(self, "written", None):
            assert sorted(self.written) == [*range(min(self.written), self.newest + 1)], "blocks have a gap"
        elif getattr(self, "newest", 0):
            raise AssertionError("the newest block has gone")


Holding = Readers.TestCase


def cuts_above_the_hold(held: HeldStream) -> list[str]:
    return stream_may_go(HeldStream(held.keep, held.blocks, [Hold(h.by, h.position + 1, h.idle) for h in held.holds]))


def forgets_who_is_silent(held: HeldStream) -> list[str]:
    return stream_may_go(HeldStream(held.keep, held.blocks, [one for one in held.holds if one.idle < 2]))


def takes_the_newest(held: HeldStream) -> list[str]:
    newest = [StreamBlock.file_of(max(held.blocks))] if held.blocks and not held.holds else []
    return [*stream_may_go(held), *newest]


def goes_by_age_alone(held: HeldStream) -> list[str]:
    return stream_may_go(HeldStream(held.keep, held.blocks))


def leaves_a_gap(held: HeldStream) -> list[str]:
    return stream_may_go(held)[1:]


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (cuts_above_the_hold, "lost a block"),
        (forgets_who_is_silent, "lost a block"),
        (takes_the_newest, "newest block has gone|blocks have a gap"),
        (goes_by_age_alone, "lost a block"),
        (leaves_a_gap, "blocks have a gap"),
    ],
)
def test_a_planted_bug_is_found(planted: Callable[[HeldStream], list[str]], noticed: str) -> None:
    class Broken(Readers):
        judge = staticmethod(planted)

    seed = dice.find(Broken, noticed, 200)
    print(f"{planted.__name__}: history {seed}")
