"""What a user's function sees, gets back, and is told when it goes wrong."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from process_model import at, epoch_time, given, stage

from holdfast.api import states as hs
from holdfast.errors import FunctionError, PlanError
from holdfast.operators.process import ProcessOperator, ProcessSpec
from holdfast.state.slice import EpochTime, SliceState
from holdfast.state.table_slice import PURGE_ABOVE
from holdfast.state.warm import warm
from holdfast.wire.codec import from_plain, to_plain

OUT = {"": {"key": "string", "n": "bigint"}}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


def out(state: SliceState, port: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state.outputs(state.epoch, "changed", port).to_pylist()
    return found


def run(operator: ProcessOperator, *epochs: Any, time: EpochTime | None = None) -> SliceState:
    state = operator.new_slice()
    for number, rows in enumerate(epochs, 1):
        state.apply(number, given(operator, rows), time=time or EpochTime())
    return state


class Counter:
    count = hs.value("bigint", default=0)

    def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
        for row in rows:
            context.state.count += row["amount"]
        yield {"key": key, "n": context.state.count}


def test_keys_are_called_once_an_epoch_with_their_rows_in_order() -> None:
    seen: list[Any] = []

    def f(key, rows, context):  # type: ignore[no-untyped-def]
        return [{"key": key, "n": row["amount"]} for row in rows]

    state = run(stage(f, OUT), [("b", 1), ("a", 2), ("b", 3), ("a", None)])
    seen = [(row["key"], row["n"]) for row in out(state)]
    assert seen == [("b", 1), ("b", 3), ("a", 2), ("a", None)]
    assert state.rows == 0  # nothing is kept of keys that have no state


def test_a_class_counts_and_a_state_at_its_default_is_forgotten() -> None:
    operator = stage(Counter, OUT)
    state = run(operator, [("a", 2), ("b", 1)], [("a", -2)])
    assert out(state) == [{"key": "a", "n": 0}]
    assert state.read(2).to_pylist() == [{"key": "b", "count": 1}]
    state.apply(3, given(operator, [("a", 5)]))
    assert out(state) == [{"key": "a", "n": 5}]


def test_many_keys_come_and_go_and_their_slots_are_purged() -> None:
    operator = stage(Counter, OUT)
    keys = [f"k{number}" for number in range(2 * PURGE_ABOVE)]
    state = run(operator, [(key, 1) for key in keys], [(key, -1) for key in keys[5:]], [("new", 1)], [("k3", 7)])
    assert [row["count"] for row in state.read(4).to_pylist()] == [1, 1, 1, 8, 1, 1]


def test_several_key_columns_arrow_rows_and_arrow_results() -> None:
    def f(key, rows, context):  # type: ignore[no-untyped-def]
        assert isinstance(rows, pa.RecordBatch)
        assert rows.schema.names == ["amount", "at"]
        store, day = key
        assert isinstance(day, dt.date)
        context.emit({"key": store, "n": rows.num_rows}, to="sizes")
        return pa.table({"n": rows.column("amount").cast(pa.int32()), "key": [store] * rows.num_rows})

    keys, values = {"store": "string", "day": "date"}, {"amount": "bigint", "at": "timestamp"}
    operator = stage(f, {**OUT, "sizes": OUT[""]}, keys=keys, values=values, rows="arrow")
    day = dt.date(2024, 2, 29)
    state = run(operator, [(("x", day), 1, at(0)), (("y", day), 2, None), (("x", day), 3, at(9))])
    assert [(row["key"], row["n"]) for row in out(state)] == [("x", 1), ("x", 3), ("y", 2)]
    assert [(row["key"], row["n"]) for row in out(state, "sizes")] == [("x", 2), ("y", 1)]


EVERY = {
    "boolean": True, "tinyint": -3, "int": 2**31 - 1, "bigint": -(2**63), "double": 0.1, "float": 0.5, "string": "é",
    "binary": b"\0x", "date": dt.date(1960, 2, 3), "timestamp": at(-1.5), "timestamp_ntz": dt.datetime(2031, 1, 2, 3),
    "decimal(10,2)": Decimal("-12.30"), "decimal(38,3)": Decimal("9" * 35 + ".999"),
}  # fmt: skip


@pytest.mark.parametrize("kind", EVERY)
def test_every_type_is_a_value_a_row_a_result_and_in_containers(kind: str) -> None:
    def f(key, rows, context):  # type: ignore[no-untyped-def]
        state = context.state
        had = (state.value, list(state.items), dict(state.map), list(state.window))
        state.value = rows[0]["x"]
        state.items.append(rows[0]["x"])
        state.window.append(rows[0]["x"])
        state.map[key] = rows[0]["x"]
        return {"x": state.value, "had": repr(had)}

    state = {"value": hs.value(kind, default=EVERY[kind]), "items": hs.list(kind), "map": hs.map(kind, kind)}
    state["window"] = hs.window(rows=2, of=kind)
    operator = stage(f, {"": {"x": kind, "had": "string"}}, keys={"key": kind}, values={"x": kind}, state=state)
    one = EVERY[kind]
    held = run(operator, [(one, None)], [(one, one)], [(one, one)])
    assert out(held)[0]["x"] == one
    assert out(held)[0]["had"] == repr((one, [None, one], {one: one}, [None, one]))
    assert json.loads(held.read(3).to_pylist()[0]["items"])[0] is None
    assert held.read(3).to_pylist()[0]["value"] == one  # its default is what it is without a value


def test_numpy_scalars_are_taken_for_what_they_hold() -> None:
    def f(key, rows, context):  # type: ignore[no-untyped-def]
        context.state.count = np.int32(rows[0]["amount"])
        context.state.items = [np.float64(1.5), 2]
        return {"key": np.str_(key), "n": np.int64(3)}

    operator = stage(f, OUT, state={"count": hs.value("bigint"), "items": hs.list("double")})
    state = run(operator, [("a", 4)])
    assert state.read(1).to_pylist() == [{"key": "a", "count": 4, "items": "[1.5, 2.0]"}]
    assert out(state) == [{"key": "a", "n": 3}]


# -- time


class Alarm:
    count = hs.value("bigint", default=0)

    def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
        for row in rows:
            context.set_timer(row["at"] + dt.timedelta(seconds=row["amount"]), f"by {row['amount']}")

    def timer(self, key, time, context):  # type: ignore[no-untyped-def]
        context.state.count += 1
        yield {"key": f"{key} {context.fired.name} {time:%S} {context.watermark:%S}", "n": context.state.count}


def test_timers_fire_in_order_in_the_epoch_that_reaches_them() -> None:
    operator = stage(Alarm, OUT, values={"amount": "bigint", "at": "timestamp"}, time="at")
    state = operator.new_slice()
    rows = [("a", 20, at(1)), ("b", 3, at(1)), ("a", 2, at(0)), ("a", 2, at(0))]
    state.apply(1, given(operator, rows), time=epoch_time(-1e18, 1, 0))
    assert out(state) == []
    assert state.rows == 2  # a key with a timer is kept
    state.apply(2, None, time=epoch_time(1, 4, 0))
    assert [row["key"] for row in out(state)] == ["a by 2 02 04", "b by 3 04 04"]
    state.apply(3, None, time=epoch_time(4, 40, 0))
    assert [(row["key"], row["n"]) for row in out(state)] == [("a by 20 21 40", 2)]
    state.apply(4, given(operator, [("c", 1, at(10))]), time=epoch_time(40, 40, 0))
    assert [row["key"] for row in out(state)] == ["c by 1 11 40"]  # set for the past: at once


def test_a_timer_may_be_cleared_and_set_again_to_the_last() -> None:
    class Fickle:
        count = hs.value("bigint", default=0)

        def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
            for row in rows:
                if row["amount"] >= 0:
                    context.set_timer(row["at"], kind="clock")
                else:
                    context.clear_timer(row["at"], kind="clock")

        def timer(self, key, time, context):  # type: ignore[no-untyped-def]
            context.state.count += 1
            if context.state.count < 3:
                context.set_timer(time, kind="clock")
            context.clear_timer(time + dt.timedelta(seconds=1), kind="clock")
            yield {"key": f"{key} {time:%S}", "n": context.state.count}

    operator = stage(Fickle, OUT, values={"amount": "bigint", "at": "timestamp"})
    state = operator.new_slice()
    rows = [("a", 1, at(5)), ("b", 1, at(5)), ("b", -1, at(5)), ("a", 1, at(6)), ("c", 1, at(6)), ("c", 1, at(8))]
    state.apply(1, given(operator, rows), time=EpochTime(clock=4_999_999))
    state.apply(2, given(operator, [("c", -1, at(6))]), time=EpochTime(clock=9_000_000))
    assert [(row["key"], row["n"]) for row in out(state)] == [
        *(("a 05", 1), ("a 05", 2), ("a 05", 3)),
        *(("c 08", 1), ("c 08", 2), ("c 08", 3)),
    ]
    state.apply(3, None, time=EpochTime(clock=90_000_000))
    assert out(state) == []
    assert state.delta(0, 3, table=1).column("a0").to_pylist().count(1) == 0


def test_timers_of_all_keys_fire_by_time_and_a_key_goes_with_its_last() -> None:
    class Silent(Alarm):
        def timer(self, key, time, context):  # type: ignore[no-untyped-def]
            yield {"key": key, "n": round(time.timestamp())}

    class Cancelled(Silent):
        def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
            context.clear_timer(at(rows[0]["amount"]), f"by {rows[0]['amount']}")

    values = {"amount": "bigint", "at": "timestamp"}
    operator, other = (stage(one, OUT, values=values, time="at") for one in (Silent, Cancelled))
    rows = [(key, second, at(0)) for second in (9, 3, 7, 1, 5) for key in ("b", "a")]
    state = operator.new_slice()
    state.apply(1, given(operator, [*rows, ("c", 90, at(0))]), time=epoch_time(-1e18, 0, 0))
    assert state.rows == 3
    state.apply(2, None, time=epoch_time(0, 10, 0))
    assert [(row["n"], row["key"]) for row in out(state)] == [(n, key) for n in (1, 3, 5, 7, 9) for key in ("b", "a")]
    assert state.read(2).column("key").to_pylist() == ["c"]
    cleared = other.new_slice()
    cleared.load([state.delta(0, 2, table=table) for table in (0, 1)], 2)
    cleared.apply(3, given(other, [("c", 90, at(0))]), time=epoch_time(10, 10, 0))
    assert cleared.rows == 0


def test_a_timer_that_always_sets_another_for_the_past_is_stopped() -> None:
    class Endless(Alarm):
        def timer(self, key, time, context):  # type: ignore[no-untyped-def]
            context.set_timer(time)

    operator = stage(Endless, OUT, values={"amount": "bigint", "at": "timestamp"}, time="at")
    state = operator.new_slice()
    with pytest.raises(FunctionError, match="more than 10000 timers of key 'a'"):
        state.apply(1, given(operator, [("a", 0, at(1))]), time=epoch_time(0, 5, 0))
    assert state.epoch == 0


def test_late_rows_are_given_or_dropped_and_rows_without_a_time_are_counted() -> None:
    values = {"amount": "bigint", "at": "timestamp"}
    rows = [("a", 1, at(1)), ("a", 2, at(9)), ("a", 4, None)]
    for drop_late, n, counts in ((False, 3, {"null time": 1}), (True, 2, {"null time": 1, "late": 1})):
        operator = stage(Counter, OUT, values=values, time="at", drop_late=drop_late)
        state = run(operator, rows, time=epoch_time(5, 9, 0))
        assert out(state) == [{"key": "a", "n": n}]
        assert dict(state.counts) == counts


@pytest.mark.parametrize("by", ["event", "clock"])
def test_a_ttl_switched_on_over_data_counts_from_then_on(by: str) -> None:
    def f(key, rows, context):  # type: ignore[no-untyped-def]
        context.state.count = rows[0]["amount"]
        context.state.pages["p"] = 1

    def declared(ttl: str | None) -> ProcessOperator:
        state = {"count": hs.value("bigint", ttl=ttl, by=by), "pages": hs.map("string", "bigint", ttl=ttl, by=by)}
        return stage(f, OUT, values={"amount": "bigint", "at": "timestamp"}, time="at", state=state)

    def at_second(second: float) -> EpochTime:
        return epoch_time(second - 1, second, second)

    without, with_ttl = declared(None), declared("10 s")
    old = without.new_slice()
    old.apply(1, given(without, [("a", 1, at(0)), ("b", 1, at(0))]), time=at_second(0))
    state = with_ttl.new_slice()
    state.load([old.delta(0, 1, table=table) for table in (0, 1)], 1)
    state.apply(2, None, time=at_second(100))  # switched on
    state.apply(3, given(with_ttl, [("b", 2, at(105))]), time=at_second(105))
    state.apply(4, None, time=at_second(109))
    assert state.rows == 2
    state.apply(5, None, time=at_second(110))
    assert state.read(5).column("key").to_pylist() == ["b"]
    state.apply(6, None, time=at_second(115))
    assert state.rows == 0
    state.undo()
    assert state.read(5).to_pylist() == [{"key": "b", "count": 2, "pages": '{"p": 1}'}]


# -- what goes wrong


def test_a_function_that_raises_names_key_row_and_line_and_leaves_the_epoch_out() -> None:
    def f(key, rows, context):  # type: ignore[no-untyped-def]
        for row in rows:
            context.state.count += 10 // row["amount"]

    operator = stage(f, OUT, state={"count": hs.value("bigint", default=0)})
    state = run(operator, [("a", 1)])
    with pytest.raises(FunctionError) as caught:
        state.apply(2, given(operator, [("b", 1), ("a", 5), ("a", 0), ("a", 2)]))
    text = caught.value.what
    assert "f (rows), key 'a': ZeroDivisionError: integer" in text
    assert "Row: {'amount': 0}" in text
    assert "test_process_semantics.py, in f" in text
    assert state.epoch == 1
    assert state.read(1).to_pylist() == [{"key": "a", "count": 10}]


def _returns(result: Any) -> Any:
    return lambda key, rows, context: result


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_returns([3]), "3 is a int, not a dict"),
        (_returns({"key": "a"}), "has no column n"),
        (_returns({"key": "a", "m": 1}), "no column n and an unknown column m"),
        (_returns({"key": "a", "n": 1, "m": 1}), "unknown column m"),
        (_returns({"key": "a", "n": 1.0}), "column 'n': 1.0 is a float, not a bigint"),
        (_returns({"key": "a", "n": True}), "column 'n': True is a bool, not a bigint"),
        (_returns({"key": "a", "n": 2**63}), "column 'n': 9223372036854775808 is no bigint"),
        (_returns({"key": 1, "n": 1}), "column 'key': 1 is a int, not a string"),
        (_returns(pa.table({"key": ["a"]})), "columns key, not key, n"),
        (_returns(pa.table({"key": ["a"], "n": ["x"]})), "does not fit the declared columns"),
        (_returns(7), "TypeError: 'int' object is not iterable"),
        (lambda key, rows, context: context.emit({}, to="nowhere"), "there is no output 'nowhere'"),
        (lambda key, rows, context: context.set_timer(at(1)), "has no method timer"),
        (
            lambda key, rows, context: setattr(context.state, "count", "x"),
            "state 'count': 'x' is a str, not a smallint",
        ),
        (lambda key, rows, context: setattr(context.state, "count", 70000), "state 'count': 70000 is no smallint"),
        (
            lambda key, rows, context: setattr(context.state, "name", b"x"),
            "state 'name': b'x' is a bytes, not a string",
        ),
        (lambda key, rows, context: context.state.pages.update(x=1.5), "state 'pages': 1.5 is a float, not a int"),
        (
            lambda key, rows, context: context.state.pages.update(x=2**31),
            "state 'pages': 2147483648 is more than a int",
        ),
        (lambda key, rows, context: context.state.pages.update({None: 1}), "state 'pages': None is no key"),
        (lambda key, rows, context: setattr(context.state, "pages", [1]), "state 'pages': [1] is a list, not a dict"),
        (lambda key, rows, context: context.state.tags, "no attribute 'tags'"),
        (lambda key, rows, context: setattr(context.state, "tags", 1), "no attribute 'tags'"),
    ],
)
def test_wrong_results_and_states_are_told_and_can_be_dead_letters(function: Any, says: str) -> None:
    state = {"count": hs.value("smallint"), "name": hs.value("string"), "pages": hs.map("string", "int")}
    operator = stage(function, OUT, state=state)
    held = operator.new_slice()
    with pytest.raises(FunctionError) as caught:
        held.apply(1, given(operator, [("a", 1)]))
    assert says in caught.value.what
    assert "'a'" in caught.value.what
    assert (held.epoch, held.rows) == (0, 0)
    guarded = run(stage(function, OUT, state=state, errors="dead_letter"), [("a", 1)])
    (letter,) = out(guarded, "errors")
    assert says in letter["error"]
    assert (letter["key"], letter["row"]) == ("a", '{"amount": 1}')
    assert guarded.rows == 0


def test_a_dead_letter_takes_all_of_its_call_back_and_nothing_else() -> None:
    class Strict:
        count = hs.value("bigint", default=0)
        seen = hs.list("bigint")

        def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
            for row in rows:
                context.state.count += 1
                context.state.seen.append(row["amount"])
                context.set_timer(at(50), "kept")
                context.emit({"key": key, "n": row["amount"]}, to="side")
                yield {"key": key, "n": 100 // row["amount"]}

        def timer(self, key, time, context):  # type: ignore[no-untyped-def]
            context.state.seen.append(-1)
            if key == "b":
                raise RuntimeError("never b")

    values = {"amount": "bigint", "at": "timestamp"}
    operator = stage(Strict, {**OUT, "side": OUT[""]}, values=values, time="at", errors="dead_letter")
    state = operator.new_slice()
    rows = [("a", 1, at(1)), ("b", 2, at(1)), ("a", 0, at(2)), ("b", 4, at(3)), ("c", 0, at(1))]
    state.apply(1, given(operator, rows), time=epoch_time(-1e18, 3, 0))
    assert out(state) == [{"key": "b", "n": 50}, {"key": "b", "n": 25}]
    assert out(state, "side") == [{"key": "b", "n": 2}, {"key": "b", "n": 4}]
    assert [json.loads(letter["row"])["amount"] for letter in out(state, "errors")] == [1, 0, 0]
    assert dict(state.counts) == {"dead letters": 3}
    assert state.read(1).to_pylist() == [{"key": "b", "count": 2, "seen": "[2, 4]"}]
    state.apply(2, None, time=epoch_time(3, 60, 0))
    (letter,) = out(state, "errors")
    assert json.loads(letter["row"]) == {"timer": "kept", "kind": "event", "time": at(50).isoformat()}
    assert state.read(2).to_pylist() == [{"key": "b", "count": 2, "seen": "[2, 4]"}]  # and its timer is over


def test_state_does_not_live_on_self() -> None:
    class Wrong:
        count = hs.value("bigint", default=0)

        def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
            self.count = 1

    with pytest.raises(FunctionError, match=r"context\.state\.count, not self\.count"):
        run(stage(Wrong, OUT), [("a", 1)])


def test_what_cannot_run_is_refused_before_it_does() -> None:
    with pytest.raises(PlanError, match="by event time"):
        stage(_returns(None), OUT, state={"x": hs.value("bigint", ttl="1 s")})
    with pytest.raises(PlanError, match="rows='lists'"):
        stage(_returns(None), OUT, rows="lists")
    with pytest.raises(PlanError, match="without a main one"):
        stage(_returns(None), {"side": OUT[""]})
    with pytest.raises(PlanError, match="errors"):
        stage(_returns(None), {**OUT, "errors": OUT[""]}, errors="dead_letter")
    with pytest.raises(PlanError, match="same name"):
        stage(_returns(None), OUT, state={"key": hs.value("bigint")})
    with pytest.raises(PlanError, match="no method 'rows'"):
        stage(3, OUT)


def test_a_function_whose_module_a_container_does_not_have_is_told_of() -> None:
    spec = replace(stage(Counter, OUT).spec, function=b"cnowhere.to.be.found\nCounter\n.")
    with pytest.raises(PlanError, match=r"No module named 'nowhere'[\s\S]*register_pickle_by_value"):
        spec.build()


def test_a_spec_is_plain_data() -> None:
    spec = stage(Counter, OUT).spec
    assert from_plain(ProcessSpec, json.loads(json.dumps(to_plain(spec)))) == spec
