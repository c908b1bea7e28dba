"""Two graphs side by side: what is a change, what is a refusal, and which column comes from where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark import cloudpickle

from holdfast.operators.aggregate import StageSpec
from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.join import JoinSpec
from holdfast.operators.process import ProcessSpec, same_function
from holdfast.operators.session import SessionSpec
from holdfast.operators.spec import AggregateSpec, Column, Spec
from holdfast.operators.stage import InputPlan, StagePlan, TimePlan
from holdfast.operators.top_k import TopKSpec
from holdfast.operators.window import WindowSpec
from holdfast.plan.changes import Comparison, compare, mapping, mends
from holdfast.state.typed import StateSpec

KEYS = (Column("k", "bigint"),)
N = AggregateSpec("n", "count", None, None)
TOTAL = AggregateSpec("total", "sum", "v0", "bigint")
HIGH = AggregateSpec("high", "max", "v1", "string")
MEAN = AggregateSpec("middle", "mean", "v0", "double")
SEEN = AggregateSpec("seen", "count_distinct", "v1", "string")
VALUES = (Column("v", "bigint"), Column("g", "string"), Column("ts", "timestamp"))
COUNTS = StageSpec(KEYS, (N, TOTAL))
SECOND = 1_000_000


def function(key: Any, rows: Any, context: Any) -> None:
    context.state.count += len(rows)


def windows(**changes: Any) -> WindowSpec:
    return replace(WindowSpec(KEYS, (N, TOTAL), VALUES, 10 * SECOND, 10 * SECOND, "event", "v2"), **changes)


GROWING = CumulativeSpec(KEYS, (N, TOTAL), VALUES, 10 * SECOND, SECOND, "event", "v2")
SESSIONS = SessionSpec(KEYS, (N, TOTAL), VALUES, SECOND, "event", "v2")
COUNT = StateSpec("count", "value", "bigint")
PAGES = StateSpec("pages", "map", "bigint", "string")
PROCESS = ProcessSpec(KEYS, VALUES, 2, cloudpickle.dumps(function), (COUNT, PAGES), (("", KEYS),))
JOIN = JoinSpec(KEYS, VALUES, VALUES, (0,), (1,), "inner", 2, 2, SECOND, SECOND)
TOP = TopKSpec(KEYS, VALUES, ((0, True),), 3)
DISTINCT = DistinctSpec(KEYS, VALUES, 2, SECOND)


def plan(spec: Spec, name: str = "one", level: int = 1, number: int = 0) -> StagePlan:
    return StagePlan(name, level, (InputPlan(level, number),), spec)


def between(stored: Spec, asked: Spec) -> Comparison:
    return compare([plan(stored)], [plan(asked)])


def changed(stored: Spec, asked: Spec) -> list[str]:
    found = between(stored, asked)
    assert not found.refusals
    assert found.converts
    return list(found.changes)


def refused(stored: Spec, asked: Spec) -> str:
    (line,) = between(stored, asked).refusals
    return line


# --- what is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [COUNTS, windows(), SESSIONS, PROCESS, JOIN, TOP, DISTINCT])
def test_the_same_graph_is_no_change(spec: Spec) -> None:
    stored = StagePlan.from_dict(plan(spec).to_dict())
    assert compare([stored], [plan(spec)], ["a"], ["a"]) == Comparison((), (), False)


@pytest.mark.parametrize("spec", [COUNTS, windows(), windows(every=SECOND), windows(mode="update"), GROWING, SESSIONS])
def test_aggregates_come_and_go(spec: Any) -> None:
    assert changed(spec, replace(spec, aggregates=(HIGH, TOTAL))) == [
        "stage 'one': aggregate 'high' is new: it starts at null for the keys there are",
        "stage 'one': aggregate 'n' is gone: its state is dropped",
    ]
    assert changed(replace(spec, aggregates=(TOTAL,)), spec) == [
        "stage 'one': aggregate 'n' is new: it starts at 0 for the keys there are"
    ]
    assert changed(spec, replace(spec, aggregates=(TOTAL, N))) == ["stage 'one': its aggregates stand in another order"]


def test_stages_come_and_go() -> None:
    found = compare([plan(COUNTS), plan(TOP, "old", 2)], [plan(COUNTS), plan(windows(), "young", 2)])
    assert found.changes == (
        "stage 'old' is gone: its state is dropped",
        "stage 'young' is new: it starts empty, with the rows of the next epoch",
    )
    assert not found.refusals


def test_sources_may_be_read_by_others_and_may_go_but_not_come() -> None:
    same = [plan(COUNTS)]
    assert compare(same, same, ["a", "b"], ["b", "a", "a"]) == Comparison((), (), False)
    found = compare(same, same, ["a", "b", "a"], ["a"])
    assert found == Comparison(("source 'b' is gone: how far it was read is forgotten",), (), False)
    (line,) = compare(same, same, ["b", "a", "a"], ["a", "c"]).refusals
    assert line.startswith("source 'c': nothing in the store, which has a, b (it would be read from its beginning")


def test_what_may_finish_an_epoch_that_failed() -> None:
    """Functions and their states, from the level that failed on; nothing that the prepared levels speak of."""
    other = replace(PROCESS, function=cloudpickle.dumps(lambda key, rows, context: None), states=(COUNT,))
    before = [plan(COUNTS), plan(PROCESS, "own", 2)]
    assert mends(before, [plan(COUNTS), plan(other, "own", 2)], 2)
    assert mends(before, [plan(COUNTS), plan(other, "own", 2)], 1)
    assert not mends(before, [plan(COUNTS), plan(other, "own", 2)], 3)  # level 3 has rows of the old function
    assert not mends(before, [plan(COUNTS), plan(replace(other, outputs=(("", KEYS), ("more", KEYS))), "own", 2)], 2)
    assert not mends(before, [plan(COUNTS), plan(replace(other, values=VALUES[:2]), "own", 2)], 2)
    assert not mends(before, [plan(COUNTS), plan(other, "own", 2, number=1)], 2)
    assert not mends(before, [plan(COUNTS)], 2)
    assert not mends(before, [plan(replace(COUNTS, aggregates=(N,))), plan(other, "own", 2)], 2)


def test_where_the_log_has_a_stage_is_nothing_to_tell_but_must_be_converted() -> None:
    found = compare([plan(COUNTS)], [plan(COUNTS, number=1)])
    assert found == Comparison((), (), True)
    later = replace(plan(COUNTS), time=TimePlan(("x",), (), 5))
    assert compare([plan(COUNTS)], [later]) == Comparison((), (), False)


def test_what_only_names_or_numbers_something_is_free() -> None:
    assert not changed(COUNTS, replace(COUNTS, aggregates=(N, replace(TOTAL, input="v7"))))
    assert not changed(TOP, replace(TOP, rank="place"))
    assert not changed(DISTINCT, replace(DISTINCT, values=(VALUES[2],), time=0))
    assert not changed(windows(), windows(late=(0, 1)))


def test_an_input_may_get_wider_where_the_state_stays_what_it_is() -> None:
    narrow = replace(COUNTS, aggregates=(N, replace(TOTAL, input_type="int")))
    assert not changed(narrow, COUNTS)
    assert "sum(bigint) → bigint in the store, sum(double) → double now" in refused(
        COUNTS, replace(COUNTS, aggregates=(N, replace(TOTAL, input_type="double")))
    )
    # A mean over int is exact in panes, one over bigint is not: the running windows are others.
    sliding = windows(every=SECOND, aggregates=(replace(MEAN, input_type="int"),))
    assert "mean(int)" in refused(sliding, replace(sliding, aggregates=(replace(MEAN, input_type="bigint"),)))
    # The sketch is of hashes, and an int has another hash than the same bigint.
    sketch = AggregateSpec("d", "approx_distinct", "v0", "int")
    stage = replace(COUNTS, aggregates=(sketch,))
    assert "approx_distinct(int)" in refused(stage, replace(stage, aggregates=(replace(sketch, input_type="bigint"),)))


def test_functions_and_states_change_by_name() -> None:
    def other(key: Any, rows: Any, context: Any) -> None:
        context.state.total += 1

    total = StateSpec("total", "value", "double")
    asked = replace(PROCESS, function=cloudpickle.dumps(other), states=(total, COUNT), rows="arrow")
    assert changed(PROCESS, asked) == [
        "stage 'one': state 'total' is new: it starts empty for the keys there are",
        "stage 'one': state 'pages' is gone: it is dropped",
        "stage 'one': its function is another: it is called from the next epoch on",
    ]
    assert changed(PROCESS, replace(PROCESS, states=(replace(COUNT, ttl=5, by="clock"), PAGES))) == [
        "stage 'one': state 'count' has another ttl"
    ]


def test_a_class_that_is_pickled_anew_is_the_same_function() -> None:
    text = "class Own:\n    def rows(self, key, rows, context):\n        return {}\n"
    pickled = []
    for body in (text.format(1), text.format(1), text.format(2)):
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(body, space)
        pickled.append(cloudpickle.dumps(space["Own"]))
    assert pickled[0] != pickled[1]
    assert same_function(pickled[0], pickled[1])
    assert not same_function(pickled[0], pickled[2])


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "asked", "line"),
    [
        (
            COUNTS,
            replace(COUNTS, keys=(Column("g", "string"),)),
            "stage 'one': key columns: k: bigint in the store, g: string now",
        ),
        (COUNTS, windows(), "stage 'one': aggregate in the store, window now"),
        (windows(), windows(size=20 * SECOND), "stage 'one': size: 10000000 in the store, 20000000 now"),
        (windows(), windows(early=5), "stage 'one': early results: False in the store, True now"),
        (SESSIONS, replace(SESSIONS, gap=7), "stage 'one': gap: 1000000 in the store, 7 now"),
        (GROWING, replace(GROWING, every=2 * SECOND), "stage 'one': every: 1000000 in the store, 2000000 now"),
        (TOP, replace(TOP, k=4), "stage 'one': k: 3 in the store, 4 now"),
        (JOIN, replace(JOIN, how="left"), "stage 'one': how: inner in the store, left now"),
        (DISTINCT, replace(DISTINCT, within=5), "stage 'one': within: 1000000 in the store, 5 now"),
        (
            COUNTS,
            replace(COUNTS, aggregates=(N, replace(TOTAL, function="max"))),
            "stage 'one': aggregate 'total': sum(bigint) → bigint in the store, max(bigint) → bigint now",
        ),
        (
            PROCESS,
            replace(PROCESS, states=(replace(COUNT, type="string"), PAGES)),
            "stage 'one': state 'count': value(bigint) in the store, value(string) now",
        ),
    ],
)
def test_what_would_mean_something_else_is_refused(stored: Spec, asked: Spec, line: str) -> None:
    assert refused(stored, asked) == line


def test_nothing_new_can_begin_over_rows_that_are_taken_back() -> None:
    updating = replace(COUNTS, updating_input=True)
    assert "aggregate 'high': nothing in the store" in refused(
        updating, replace(updating, aggregates=(N, replace(TOTAL, name="high")))
    )
    (line,) = compare([plan(COUNTS)], [plan(COUNTS), plan(updating, "two", 2)]).refusals
    assert line.startswith("stage 'two': nothing in the store")
    assert changed(updating, replace(updating, aggregates=(N,)))


def test_every_difference_is_shown() -> None:
    asked = replace(windows(size=20 * SECOND, every=20 * SECOND), keys=(Column("g", "string"),))
    found = compare([plan(windows())], [plan(asked)], ["a"], ["b"])
    assert [line.split(":")[0] for line in found.refusals] == [
        "source 'b'",
        *["stage 'one'"] * 3,
    ]


# --- columns --------------------------------------------------------------------------------------------------------


EXACT_AND_OTHER = (N, HIGH, TOTAL, MEAN)


@pytest.mark.parametrize(
    "spec",
    [
        replace(COUNTS, aggregates=(SEEN, N, HIGH, replace(SEEN, name="also"))),
        replace(COUNTS, aggregates=(N, SEEN), updating_input=True),
        windows(aggregates=EXACT_AND_OTHER),
        windows(aggregates=EXACT_AND_OTHER, every=SECOND),
        windows(aggregates=EXACT_AND_OTHER, every=SECOND, unit="clock", time=None),
        windows(aggregates=EXACT_AND_OTHER, every=SECOND, mode="update", early=5),
        windows(aggregates=EXACT_AND_OTHER, early=5),
        windows(aggregates=EXACT_AND_OTHER, size=10, every=2, unit="rows", time=None),
        windows(aggregates=EXACT_AND_OTHER, size=10, every=10, unit="rows", time=None),
        replace(GROWING, aggregates=EXACT_AND_OTHER),
        replace(GROWING, aggregates=EXACT_AND_OTHER, unit="clock", time=None),
        replace(SESSIONS, aggregates=EXACT_AND_OTHER),
        replace(PROCESS, states=(COUNT, PAGES, StateSpec("last", "rows", "double", limit=3))),
    ],
)
def test_every_column_has_a_name(spec: Spec) -> None:
    """So that none is ever mistaken for another of its table, nor a table for another."""
    tables = spec.tables()
    assert tables == spec.build().layouts
    assert all(all(table.names) and len(set(table.names)) == len(table.columns) for table in tables)
    named = [table.name for table in tables if table.name]
    assert len(set(named)) == len(named)
    assert len(named) >= len(tables) - 1  # that of distinct values is known by its columns


def test_counts_that_share_values_come_and_go() -> None:
    def distinct(name: str, column: str) -> AggregateSpec:
        return AggregateSpec(name, "count_distinct", column, "string", where=None if name == "all" else f"{column}w")

    def of(*aggregates: AggregateSpec) -> StageSpec:
        return StageSpec(KEYS, aggregates)

    every, some, more = distinct("all", "v0"), distinct("some", "v0"), distinct("more", "v0")
    found = mapping(of(every, some), of(more, some))
    assert found is not None
    assert [(one.table, one.columns) for one in found] == [(0, (None, 1)), (1, (None, 1))]
    assert not between(of(every, some), of(more, some)).refusals
    line, _ = between(of(every, some), of(every, distinct("some", "v1"))).refusals
    assert line == (
        "stage 'one': aggregate 'all' counts values of one column with 'some' in the store, with nobody now"
    )
    assert between(of(every, distinct("some", "v1")), of(every, some)).refusals
    assert between(of(every), of(replace(every, where="v1"))).refusals


def test_columns_are_found_by_name() -> None:
    asked = replace(COUNTS, aggregates=(HIGH, TOTAL, SEEN))
    found = mapping(COUNTS, asked)
    assert found is not None
    assert [(one.table, one.columns) for one in found] == [(0, (None, None, 1, 2, 3, None)), (None, (None,))]
    assert mapping(COUNTS, COUNTS) is None
    assert mapping(TOP, replace(TOP, rank="place")) is None
    sliding = windows(every=SECOND, aggregates=(N, HIGH))
    panes = mapping(sliding, replace(sliding, aggregates=(TOTAL, HIGH, N)))
    assert panes is not None
    assert [one.columns for one in panes] == [(0, None, None, None, 2, 3, 1), (0, None, None, None, 1)]
