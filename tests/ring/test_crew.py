"""Threads that wait for work: reused, as many as it takes, and gone when they are dismissed."""

from __future__ import annotations

import threading

import pytest
from container_kit import until

from holdfast.ring.crew import Crew


def named(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_a_thread_that_is_free_is_taken_before_a_new_one() -> None:
    crew = Crew("one-by-one")
    try:
        for number in range(20):
            until(lambda: crew._idle == crew._threads)
            assert crew.submit(lambda number=number: number * 2).result(5) == number * 2
        assert named("one-by-one") == 1
    finally:
        crew.close()


def test_who_waits_for_others_takes_nobody_s_place() -> None:
    crew = Crew("nested")
    met = threading.Barrier(12)
    try:
        outer = crew.map(lambda _: crew.submit(met.wait, 10).result(10), range(12))
        assert sorted(outer) == list(range(12)), "all twelve were there at once"
    finally:
        crew.close()
    until(lambda: named("nested") == 0)


def test_what_is_raised_is_for_whoever_asks_and_the_thread_goes_on() -> None:
    crew = Crew("raising")
    try:
        with pytest.raises(ZeroDivisionError):
            crew.map(lambda number: 1 // number, [1, 0])
        assert crew.map(str, [7]) == ["7"]
        assert crew.map(str, []) == []
    finally:
        crew.close()


def test_what_is_under_way_at_the_end_still_gets_what_it_asks_for() -> None:
    crew = Crew("closing")
    begun, closed = threading.Event(), threading.Event()

    def under_way() -> list[str]:
        begun.set()
        assert closed.wait(60)
        return crew.map(str, [1, 2, 3])

    try:
        until(lambda: crew.map(str, [1, 2]) == ["1", "2"] and crew._idle == crew._threads)  # somebody is idle
        coming = crew.submit(under_way)
        assert begun.wait(60)
    finally:
        crew.close()
    crew.close()
    closed.set()
    assert coming.result(5) == ["1", "2", "3"]
    until(lambda: named("closing") == 0)
