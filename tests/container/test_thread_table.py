"""The thread table: minimal movement, one key on one thread, nothing lost when threads come and go under load."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.container.thread_placement import place, spread
from holdfast.container.thread_table import LATCH, Lane, ThreadTable, Worker
from holdfast.errors import ContainerError, PlanError

Piece = tuple[str, int]
WAIT = 120.0  # what never happens in a working table; only bounds a failing test


def key_of(piece: Piece) -> str:
    return piece[0]


@contextmanager
def table_of(threads: int) -> Iterator[ThreadTable]:
    table = ThreadTable(threads)
    try:
        yield table
    finally:
        table.close()


@contextmanager
def behind(function: Any, *arguments: Any) -> Iterator[list[Any]]:
    """The function on a thread of its own; the list has what it returned or raised when the block is left."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(function(*arguments))
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        thread.join(WAIT)
        assert not thread.is_alive()


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads change places after every few bytecodes, so that windows of one line are hit."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


# --- who gets which key: pure ---------------------------------------------------------------------------------

seconds = st.floats(min_value=1e-6, max_value=10.0)
tables = st.dictionaries(st.integers(0, 200), st.tuples(st.integers(0, 7), seconds), max_size=60)


def loads_of(table: dict[int, int], expected: dict[int, float], threads: int) -> list[float]:
    return [sum(expected[key] for key in table if table[key] == thread) for thread in range(threads)]


@given(tables, st.integers(1, 8))
def test_placing_moves_only_keys_without_a_thread(given_: dict[int, tuple[int, float]], threads: int) -> None:
    old = {key: thread for key, (thread, _) in given_.items()}
    expected = {key: seconds for key, (_, seconds) in given_.items()}
    new = place(old, expected, threads)
    assert new.keys() == old.keys()
    assert all(new[key] == old[key] for key in old if old[key] < threads)
    assert all(0 <= thread < threads for thread in new.values())
    moved = [key for key in old if old[key] >= threads]
    if moved:  # the last one dealt is the shortest: without it, its thread was the least loaded
        loads = loads_of(new, expected, threads)
        last = min(moved, key=lambda key: expected[key])
        shortest = {new[key] for key in moved if expected[key] == expected[last]}
        assert min(loads[thread] for thread in shortest) - expected[last] <= min(loads) + 1e-9


@given(tables, st.integers(1, 8))
def test_a_spread_table_cannot_be_bettered_by_one_move(given_: dict[int, tuple[int, float]], threads: int) -> None:
    old = {key: thread for key, (thread, _) in given_.items()}
    expected = {key: seconds for key, (_, seconds) in given_.items()}
    new = spread(old, expected, threads)
    assert new.keys() == old.keys()
    loads = loads_of(new, expected, threads)
    most, gap = loads.index(max(loads)), max(loads) - min(loads)
    assert all(expected[key] >= gap * (1 - 1e-6) for key in new if new[key] == most)
    placed = loads_of(place(old, expected, threads), expected, threads)
    assert max(loads) <= max(placed) + 1e-9
    assert spread(new, expected, threads) == new


@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 8))
def test_equal_keys_are_spread_evenly_with_the_fewest_moves(threads_of: list[int], threads: int) -> None:
    old = dict(enumerate(threads_of))
    new = spread(old, dict.fromkeys(old, 1.0), threads)
    before = Counter(thread for thread in old.values() if thread < threads)
    after = Counter(new.values())
    assert max(after.values(), default=0) - min(after[thread] for thread in range(threads)) <= 1
    least, more = divmod(len(old), threads)
    held = sorted((before[thread] for thread in range(threads)), reverse=True)
    stay = sum(min(count, least + (at < more)) for at, count in enumerate(held))
    assert sum(new[key] != old[key] for key in old) == len(old) - stay


def test_spreading_many_keys_takes_no_noticeable_time() -> None:
    random_ = random.Random(7)
    expected = {key: random_.expovariate(1.0) for key in range(32_768)}
    start = time.perf_counter()
    new = spread(dict.fromkeys(expected, 0), expected, 16)
    assert time.perf_counter() - start < 5
    assert len(set(new.values())) == 16


# --- running --------------------------------------------------------------------------------------------------


def test_every_piece_runs_once_on_the_thread_of_its_key() -> None:
    with table_of(3) as table:
        for _ in range(20):
            ran: list[tuple[Piece, str]] = []
            work = [(f"key {number}", number) for number in range(50)]
            table.each(work, key_of, lambda piece, ran=ran: ran.append((piece, threading.current_thread().name)))
            assert sorted(piece for piece, _ in ran) == sorted(work)
            threads = table.snapshot()  # changes only when a thread takes over a key, which is then where it ran
            assert all(name == f"slices-{threads[piece[0]]}" for piece, name in ran)
        assert Counter(threads.values()).total() == 50
        assert set(threads.values()) == {0, 1, 2}


def test_pieces_of_one_key_keep_their_order() -> None:
    with table_of(4) as table:
        ran: dict[str, list[int]] = defaultdict(list)
        work = [(f"key {number % 5}", number) for number in range(500)]
        table.each(work, key_of, lambda piece: ran[piece[0]].append(piece[1]))
        assert all(numbers == sorted(numbers) for numbers in ran.values())
        assert sum(map(len, ran.values())) == 500


def test_nothing_to_run_is_nothing() -> None:
    with table_of(1) as table:
        table.each([], key_of, pytest.fail)


def test_the_first_error_comes_when_all_have_run_and_kills_no_thread() -> None:
    with table_of(2) as table:
        ran: list[int] = []

        def run(piece: Piece) -> None:
            time.sleep(0.001 * (piece[1] % 7))
            ran.append(piece[1])
            if piece[1] in (12, 30, 39):
                raise SystemExit(f"piece {piece[1]}")

        work = [(f"key {number}", number) for number in range(40)]
        for _ in range(3):
            ran.clear()
            with pytest.raises(SystemExit, match="piece 12"):
                table.each(work, key_of, run)
            assert sorted(ran) == list(range(40))
        assert table.threads == 2


def test_a_key_function_that_raises_leaves_nothing_behind() -> None:
    with table_of(1) as table:
        with pytest.raises(ZeroDivisionError):
            table.each([1, 0], lambda piece: 1 // piece, pytest.fail)
        table.each([1], lambda piece: piece, lambda piece: None)


def test_unknown_keys_go_where_least_work_is_expected() -> None:
    with table_of(2) as table:
        table.each([("long", 0), ("short", 0)], key_of, lambda piece: None)
        table._lanes["long"].seconds, table._lanes["short"].seconds = 1.0, 0.1
        long = table.snapshot()["long"]
        table.each([("new", 0)], key_of, lambda piece: None)
        assert table.snapshot()["new"] != long


def two_keys_of_one_thread(table: ThreadTable) -> tuple[str, str]:
    table.each([(name, 0) for name in "abcdef"], key_of, lambda piece: None)
    threads = table.snapshot()
    first, second = [key for key in "abcdef" if threads[key] == threads["a"]][:2]
    return first, second


def test_a_long_piece_does_not_hold_up_the_other_keys_of_its_thread() -> None:
    with table_of(2) as table:
        long, short = two_keys_of_one_thread(table)
        version, freed = table.version, threading.Event()

        def run(piece: Piece) -> None:  # the long one ends only when the one queued behind it has run
            assert freed.wait(WAIT) if piece[0] == long else freed.set() is None

        table.each([(long, 1), (short, 1)], key_of, run)
        assert table.snapshot()[short] != table.snapshot()[long]
        assert table.version == version + 1


def test_a_call_is_served_while_another_call_keeps_its_keys_thread() -> None:
    """Two jobs: the second one's only key belongs to a thread that is busy for the first; an idle thread helps."""
    with table_of(2) as table:
        long, short = two_keys_of_one_thread(table)
        started, freed = threading.Event(), threading.Event()

        def run(piece: Piece) -> None:
            started.set()
            assert freed.wait(WAIT)

        with behind(table.each, [(long, 1)], key_of, run) as got:
            assert started.wait(WAIT)
            table.each([(short, 1)], key_of, lambda piece: freed.set())
        assert got == [None]


# --- changing the number of threads ---------------------------------------------------------------------------


def test_resizing_moves_no_more_keys_than_it_must() -> None:
    with table_of(2) as table:
        table.each([(f"key {number}", 0) for number in range(64)], key_of, lambda piece: None)
        for lane in table._lanes.values():
            lane.seconds = 0.001  # instead of what was measured
        before = table.snapshot()
        version = table.version
        assert 0 < table.resize(4) < WAIT
        grown = table.snapshot()
        assert table.threads == 4
        assert table.version == version + 1
        assert set(grown.values()) == {0, 1, 2, 3}
        assert set(Counter(grown.values()).values()) == {16}
        assert all(grown[key] in (before[key], 2, 3) for key in before)
        table.resize(3)
        shrunk = table.snapshot()
        assert sorted(Counter(shrunk.values()).values()) == [21, 21, 22]
        assert all(shrunk[key] == grown[key] for key in grown if grown[key] < 3)


def test_threads_that_end_are_gone_when_resize_returns() -> None:
    def ours() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("slices-")}

    table = ThreadTable(4)
    assert ours() == {"slices-0", "slices-1", "slices-2", "slices-3"}
    table.resize(1)
    assert ours() == {"slices-0"}
    table.close()
    table.close()
    assert ours() == set()


def test_a_thread_told_to_end_just_after_it_acked_acks_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing and shrinking at once: the end may come between a thread's ack and its look at whether it has to end."""
    told = threading.Event()
    table = ThreadTable(1)
    catch_up, grown = table.catch_up, table.version + 1

    def slow_to_return(worker: Worker, held: Lane | None = None) -> bool:
        lost = catch_up(worker, held)
        if worker.number == 1 and worker.seen == grown and not told.is_set():
            while not worker.ending:
                time.sleep(0.001)
            told.set()
        return lost

    monkeypatch.setattr(table, "catch_up", slow_to_return)
    table.resize(2)
    with behind(table.resize, 1) as took:
        pass
    assert told.is_set()
    assert took[0] >= 0.0
    table.close()  # not before: a resize that hangs would keep it waiting too


def test_a_resize_waits_for_the_latch_and_the_others_work_on() -> None:
    """The key of a thread that ends starts at its new thread only when the old one has let go; other keys go on."""
    with table_of(2) as table:
        table.each([(name, 0) for name in "abcd"], key_of, lambda piece: None)
        threads = table.snapshot()
        moving = next(key for key in "abcd" if threads[key] == 1)
        staying = next(key for key in "abcd" if threads[key] == 0)
        started, freed, order = threading.Event(), threading.Event(), []

        def hold(piece: Piece) -> None:
            started.set()
            assert freed.wait(WAIT)
            order.append("held")

        with behind(table.each, [(moving, 1)], key_of, hold):
            assert started.wait(WAIT)
            with behind(table.resize, 1) as resized:
                deadline = time.monotonic() + WAIT
                while table.threads != 1 and time.monotonic() < deadline:
                    time.sleep(0.001)
                assert table.snapshot()[moving] == 0
                table.each([(staying, number) for number in range(3 * LATCH)], key_of, lambda piece: None)
                with behind(table.each, [(moving, 2)], key_of, lambda piece: order.append("moved")):
                    table.each([(staying, 9)], key_of, lambda piece: None)
                    assert not order
                    assert not resized
                    freed.set()
        assert order == ["held", "moved"]
        assert isinstance(resized[0], float)


def test_a_thread_in_full_swing_looks_at_the_version_after_a_few_chunks() -> None:
    with table_of(2) as table:
        started, ran = threading.Event(), []

        def run(piece: Piece) -> None:
            started.set()
            time.sleep(0.002)
            ran.append(piece)

        work = [(f"key {number % 2}", number) for number in range(1000)]
        with behind(table.each, work, key_of, run):
            assert started.wait(WAIT)
            table.resize(1)
            table.resize(2)
            assert len(ran) < 500  # a few chunks for each change, and what a busy machine makes of it
        assert len(ran) == 1000


def test_a_piece_that_comes_just_when_the_lane_is_let_go_is_not_lost() -> None:
    """The window is a few bytecodes wide: opened by hand, in the look that finds the lane empty."""
    empty, added = threading.Event(), threading.Event()

    class Pieces(deque[Any]):
        def __len__(self) -> int:
            length = super().__len__()
            if not length and not empty.is_set() and threading.current_thread().name.startswith("slices-"):
                empty.set()
                assert added.wait(WAIT)
            return length

        def append(self, piece: Any) -> None:
            super().append(piece)
            if empty.is_set():
                added.set()

    ran: list[Piece] = []
    with table_of(1) as table:
        table.each([("key", 0)], key_of, ran.append)
        table._lanes["key"].pieces = Pieces()
        table.each([("key", 1)], key_of, ran.append)
        assert empty.wait(WAIT)
        with behind(table.each, [("key", 2)], key_of, ran.append) as got:
            pass
        assert got == [None]
        assert [number for _, number in ran] == [0, 1, 2]


def test_under_load_nothing_is_lost_doubled_or_out_of_order(drill_seed: int) -> None:
    """Three callers share keys while threads come and go: every piece once, a key on one thread at a time, in order."""
    calls, callers = 60, 3
    random_ = random.Random(drill_seed)
    ran: list[tuple[str, int, int]] = []
    at_work = {f"key {number}": threading.Lock() for number in range(40)}

    def run(piece: tuple[str, int, int]) -> None:
        assert at_work[piece[0]].acquire(blocking=False), f"{piece[0]} runs on two threads (seed {drill_seed})"
        if piece[2] % 9 == 0:
            time.sleep(0.0002)
        ran.append(piece)
        at_work[piece[0]].release()

    def caller(me: int) -> None:
        mine = random.Random(drill_seed * 100 + me)
        for call in range(calls):
            keys = mine.choices(range(40), k=mine.randint(1, 60))
            table.each([(f"key {key}", me, call * 100 + at) for at, key in enumerate(keys)], lambda p: p[0], run)
            sent[me] += len(keys)

    sent = [0] * callers
    with table_of(2) as table, switching_often():
        with behind(caller, 0) as one, behind(caller, 1) as two, behind(caller, 2) as three:
            while not (one and two and three):
                table.resize(random_.randint(1, 6))
                if random_.random() < 0.2:
                    table.forget([f"key {random_.randrange(40)}"])
        assert one == two == three == [None]
    assert len(ran) == len(set(ran)) == sum(sent)
    numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, caller_, number in ran:
        numbers[key, caller_].append(number)
    assert all(found == sorted(found) for found in numbers.values())


def test_keys_that_left_no_longer_count() -> None:
    with table_of(2) as table:
        table.each([("gone", 0), ("here", 0)], key_of, lambda piece: None)
        table.forget(["gone", "never seen"])
        assert table.snapshot().keys() == {"here"}
        table.each([("gone", 0)], key_of, lambda piece: None)
        assert table.snapshot().keys() == {"here", "gone"}


def test_a_key_at_work_is_not_forgotten() -> None:
    with table_of(1) as table:
        started, freed = threading.Event(), threading.Event()

        def run(piece: Piece) -> None:
            started.set()
            assert freed.wait(WAIT)

        with behind(table.each, [("busy", 0)], key_of, run) as got:
            assert started.wait(WAIT)
            table.forget(["busy"])
            assert table.snapshot() == {"busy": 0}
            freed.set()
        assert got == [None]


# --- refusals -------------------------------------------------------------------------------------------------


def test_no_threads_at_all_are_refused() -> None:
    with pytest.raises(PlanError, match="0 threads"):
        ThreadTable(0)
    with table_of(2) as table:
        with pytest.raises(PlanError, match="-1 threads"):
            table.resize(-1)
        assert table.threads == 2


def test_a_closed_table_takes_no_work() -> None:
    table = ThreadTable(1)
    table.close()
    with pytest.raises(ContainerError, match="no more work"):
        table.each([("key", 0)], key_of, pytest.fail)
    with pytest.raises(ContainerError, match="no more work"):
        table.resize(2)


def test_closing_lets_what_was_begun_end() -> None:
    table = ThreadTable(2)
    started, ran = threading.Event(), []

    def run(piece: Piece) -> None:
        started.set()
        time.sleep(0.002)
        ran.append(piece)

    with behind(table.each, [(f"key {number}", number) for number in range(20)], key_of, run) as got:
        assert started.wait(WAIT)
        table.close()
    assert got == [None]
    assert len(ran) == 20


def test_a_piece_that_waits_for_its_own_threads_is_refused() -> None:
    with table_of(1) as table:
        for action in (lambda: table.each([("key", 1)], key_of, print), lambda: table.resize(2), table.close):
            with pytest.raises(ContainerError, match="itself included"):
                table.each([("key", 0)], key_of, lambda piece, action=action: action())


# --- what it is worth -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nogil", [True, False])
def test_kernels_of_two_threads_overlap_if_they_let_go_of_the_gil(nogil: bool) -> None:
    """Stamps taken inside the kernels, of the clock that only this process moves: a busy machine changes nothing."""
    clock = ctypes.CDLL(None).clock
    clock.argtypes, clock.restype = [], ctypes.c_long

    @numba.njit(nogil=nogil)
    def spin(stamps: Any, ticks: int) -> None:
        stamps[0] = clock()
        while clock() - stamps[0] < ticks:
            pass
        stamps[1] = clock()

    spin(np.zeros(2, dtype=np.int64), 1)
    stamps = np.zeros((2, 2), dtype=np.int64)
    with table_of(2) as table:
        table.each([0, 1], lambda piece: piece, lambda piece: None)
        assert set(table.snapshot().values()) == {0, 1}
        table.each([0, 1], lambda piece: piece, lambda piece: spin(stamps[piece], 100_000))
    (start, end), (other_start, other_end) = stamps.tolist()
    assert (start < other_end and other_start < end) == nogil
