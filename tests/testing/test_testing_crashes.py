"""A run that crashes shows what a run that does not crash shows; one that would not is found out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import testing
from holdfast.testing import PLACES, at, equal
from holdfast.testing import recovery as recovering

Rows = list[dict[str, Any]]
Graph = Callable[[hf.Stream, hf.Stream], list[hf.Stream]]
SCHEMA = "k string, g int, v bigint, ts timestamp"


def aggregates(one: hf.Stream, two: hf.Stream) -> list[hf.Stream]:
    sums = (
        one.union(two).key_by("k").agg(n=hf.count(), total=hf.sum("v"), low=hf.min("v"), some=hf.approx_distinct("g"))
    )
    sizes = sums.key_by("n").agg(keys=hf.count(), most=hf.sum("total"))
    return [sums, sizes, sizes.top_k(2, by="keys")]


def windows(one: hf.Stream, two: hf.Stream) -> list[hf.Stream]:
    slid = one.union(two).key_by("k").window(hf.sliding("20 s", every="5 s"), time="ts", lateness="5 s", late="keep")
    counted = slid.agg(n=hf.count(), last=hf.last("v"))
    sessions = two.key_by("g").window(hf.session("8 s"), time="ts").agg(n=hf.count())
    clocked = one.key_by("g").window(hf.tumbling("10 s")).agg(v=hf.sum("v"))
    rows = two.key_by("k").window(hf.sliding(rows=4, every=2)).agg(v=hf.sum("v"))
    grown = two.key_by("k").window(hf.cumulative("20 s", every="5 s"), time="ts", lateness="5 s", late="keep")
    growing = grown.agg(n=hf.count(), last=hf.last("v"), v=hf.mean("v"))
    by_clock = one.key_by("g").window(hf.cumulative("20 s", every="5 s")).agg(v=hf.sum("v"))
    return [counted, counted.late, counted.top_k(1, by="n"), sessions, clocked, rows, growing, growing.late, by_clock]


def joins(one: hf.Stream, two: hf.Stream) -> list[hf.Stream]:
    right = two.with_column("w", "v * 2").with_column("us", "ts").select("k", "w", "us")
    joined = one.key_by("k").join(right.key_by("k"), how="full", time=("ts", "us"), within="10 s", lateness="5 s")
    first = one.key_by("k", "g").distinct(time="ts", within="15 s")
    looked = one.key_by("k").lookup(two.key_by("k").agg(sofar=hf.sum("v")))
    return [joined, joined.key_by("k").agg(pairs=hf.count("w")), first, looked]


class Remember:
    total = hf.states.value("bigint", default=0)
    seen = hf.states.list("bigint")

    def rows(self, key: str, rows: Rows, context: Any) -> Iterator[dict[str, Any]]:
        context.state.total += sum(row["v"] for row in rows)
        context.state.seen = [*context.state.seen, *(row["v"] for row in rows)][-3:]
        context.set_timer(max(row["ts"] for row in rows), name="end")
        yield {"k": key, "total": context.state.total, "seen": str(context.state.seen)}

    def timer(self, key: str, time: Any, context: Any) -> None:
        context.emit({"k": key, "at": context.fired.time}, to="ends")


def processes(one: hf.Stream, two: hf.Stream) -> list[hf.Stream]:
    made = (
        one.union(two)
        .key_by("k")
        .process(Remember, "k string, total bigint, seen string", outputs={"ends": "k string, at timestamp"}, time="ts")
    )
    return [made, made.output("ends"), made.key_by("k").agg(calls=hf.count(), ends=hf.max("total"))]


row = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "c", "d", "é", ""]),
        "g": st.integers(0, 3),
        "v": st.integers(-5, 5),
        "ts": st.integers(0, 59).map(lambda second: at(f"2026-01-01 00:00:{second:02d}")),
    }
)
epochs = st.lists(st.tuples(st.lists(row, max_size=5), st.lists(row, max_size=5)), min_size=1, max_size=7)


def shown(graph: Graph, given: list[tuple[Rows, Rows]], places: list[str | None], slices: int) -> list[Any]:
    """Everything a run can be asked for, after every epoch."""
    job = testing.Job()
    streams = graph(job.read(SCHEMA, name="one"), job.read(SCHEMA, name="two"))
    stages = [stream for stream in streams if isinstance(stream, hf.StageStream)]
    found: list[Any] = []
    with job.start(slices=slices) as run:
        for (one, two), place in zip(given, places, strict=False):
            run.epoch(one=one, two=two, crash=place)
            run.advance("4 s")
            found += [run.rows(stream) for stream in streams] + [run.last(stream) for stream in streams]
            found += [run.state(stage) for stage in stages] + [run.counts(stage) for stage in stages]
            found += [run.watermark(stage) for stage in stages]
    return found


@pytest.mark.parametrize("graph", [aggregates, windows, joins, processes])
@given(epochs, st.lists(st.sampled_from([None, *PLACES]), min_size=7, max_size=7), st.sampled_from([1, 2, 5]))
@settings(max_examples=8, deadline=None)
def test_crashes_change_nothing(
    graph: Graph, given: list[tuple[Rows, Rows]], places: list[str | None], slices: int
) -> None:
    assert shown(graph, given, places, slices) == shown(graph, given, [None] * 7, slices)


@pytest.mark.parametrize("graph", [aggregates, windows, joins, processes])
def test_the_number_of_slices_does_not_show(graph: Graph) -> None:
    words = ["a", "b", "c", "d", "é", ""]
    given: list[tuple[Rows, Rows]] = [
        (
            [{"k": word, "g": number % 3, "v": number, "ts": f"2026-01-01 00:00:{5 * number:02d}"} for word in words],
            [{"k": words[number % 6], "g": 1, "v": 1, "ts": f"2026-01-01 00:00:{4 * number:02d}"}],
        )
        for number in range(6)
    ]
    one, many = (shown(graph, given, [None] * 6, slices) for slices in (1, 7))
    for ours, theirs in zip(one, many, strict=True):
        if isinstance(ours, list):
            equal(ours, theirs)
        else:
            assert ours == theirs


def test_a_crash_between_epochs_or_planted_for_the_next() -> None:
    job = testing.Job()
    sums = job.read("k string, v bigint").key_by("k").agg(v=hf.sum("v"))
    run = job.start()
    for number, place in enumerate(("after-commit", "mid-apply", "all", "after-prepare"), 1):
        run.crash(place)
        run.epoch([{"k": key, "v": 1} for key in "abcdef"])
        assert run.rows(sums) == run.state(sums) == [{"k": key, "v": number} for key in "abcdef"]


def test_slices_do_come_back_from_a_copy_and_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves of a recovery are at work, each in its turn: without either the run is not what it was."""
    job = testing.Job()
    sums = job.read("k string").key_by("k").agg(n=hf.count())
    loaded: list[int] = []
    whole = recovering.Copy.load

    def load(self: recovering.Copy, state: Any) -> None:
        loaded.append(self.epoch)
        whole(self, state)

    monkeypatch.setattr(recovering.Copy, "load", load)
    run = job.start(slices=2)
    for _ in range(3):
        run.epoch([{"k": "a"}, {"k": "b"}], crash="after-commit")
    assert loaded == [0, 2, 2]  # one of two slices each time, replayed up to 1, not at all, up to 3
    assert run.rows(sums) == [{"k": "a", "n": 3}, {"k": "b", "n": 3}]
    monkeypatch.setattr(recovering.Copy, "load", lambda self, state: None)
    with pytest.raises(AssertionError, match="cannot follow"):
        run.crash("all")


def test_a_function_that_does_not_repeat_itself_is_found_out() -> None:
    ticket = itertools.count()  # a clock, random numbers, anything that is not in the log

    def numbered(key: str, rows: Rows, context: Any) -> Iterator[dict[str, Any]]:
        yield {"k": key, "ticket": next(ticket)}

    class Numbered:
        last = hf.states.value("bigint")

        def rows(self, key: str, rows: Rows, context: Any) -> Iterator[dict[str, Any]]:
            context.state.last = next(ticket)
            yield {"k": key, "ticket": 0}

    for function, what in ((numbered, "put out in epoch 1"), (Numbered, "holds")):
        job = testing.Job()
        job.read("k string").key_by("k").process(function, "k string, ticket bigint")
        run = job.start(slices=1)
        with pytest.raises(hf.FunctionError, match=f"'source_by_k_process' {what} other rows(.|\n)*expected"):
            run.epoch([{"k": "a"}], crash="after-commit")
