"""Spark's rules where they are surprising: overflow, precision, nulls, partial inputs, sketches, and refusals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_model import bits, decode, plain, stage

from holdfast.errors import FunctionError, PlanError
from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, StageSpec

LARGEST = 2**63 - 1


def run(spec: StageSpec, kinds: Sequence[str], *epochs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Results of key 1 after epochs of values (one value column each)."""
    operator = AggregateOperator(spec)
    state = operator.new_slice()
    for epoch, values in enumerate(epochs, start=1):
        state.apply(epoch, decode(operator, kinds, [(1, (1,), (value,) * len(kinds)) for value in values]))
    return [row[1:] for row in plain(state.read(len(epochs)))]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [LARGEST, 1]),
        ("bigint", [-LARGEST, -2]),
        ("decimal(38,0)", [Decimal(10**38 - 1), Decimal(1)]),
        ("decimal(38,0)", [Decimal(1 - 10**38), Decimal(1 - 10**38)]),
    ],
)
def test_ansi_overflow_raises_and_leaves_the_slice_as_it_was(kind: str, values: list[Any]) -> None:
    spec = stage(["bigint"], [("count",), ("max", "v0", kind), ("sum", "v0", kind)])
    operator = AggregateOperator(spec)
    state = operator.new_slice()
    state.apply(1, decode(operator, [kind], [(1, (7,), (values[0],))]))
    before = state.delta(0, 1)
    with pytest.raises(FunctionError, match=r"sum 'out2' overflowed"):
        state.apply(2, decode(operator, [kind], [(1, (8,), (values[0],)), (1, (7,), (values[1],))]))
    assert state.epoch == 1
    assert bits(state.delta(0, 1)) == bits(before)
    state.apply(2, decode(operator, [kind], [(1, (8,), (values[0],))]))
    assert [row[1] for row in plain(state.read(2))] == [1, 1]


def test_without_ansi_integers_wrap_and_decimals_are_null_while_they_do_not_fit() -> None:
    spec = stage(["bigint"], [("sum", "v0", "bigint")], ansi=False)
    assert run(spec, ["bigint"], [LARGEST, 1]) == [(-(2**63),)]
    spec = stage(["bigint"], [("sum", "v0", "decimal(38,0)")], ansi=False)
    most, least = Decimal(10**38 - 1), Decimal(1 - 10**38)
    assert run(spec, ["decimal(38,0)"], [most, least]) == [(Decimal(0),)]
    assert run(spec, ["decimal(38,0)"], [most, Decimal(1)]) == [(None,)]
    assert run(spec, ["decimal(38,0)"], [most, Decimal(1), least]) == [(Decimal(1),)]
    assert run(spec, ["decimal(38,0)"], [most, Decimal(1)], [least]) == [(Decimal(1),)]


def test_decimal_sums_and_means_at_their_limits() -> None:
    spec = stage(["bigint"], [("sum", "v0", "decimal(28,2)"), ("mean", "v0", "decimal(28,2)")])
    assert dict(AggregateOperator(spec).output_types()) == {
        "key0": "bigint",
        "out0": "decimal(38,2)",
        "out1": "decimal(32,6)",
    }
    most = Decimal("9" * 26 + ".99")
    assert run(spec, ["decimal(28,2)"], [most] * 1000) == [(Decimal("9" * 26 + "990.00"), most)]
    least, twice = Decimal("-" + "9" * 26 + ".99"), Decimal("-1" + "9" * 26 + ".98")
    assert run(spec, ["decimal(28,2)"], [least, least, None]) == [(twice, least)]


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (["0.01", "0.00", "0.00"], "0.003333"),
        (["0.02", "0.00", "0.00"], "0.006667"),
        (["-0.02", "0.00", "0.00"], "-0.006667"),
        (["0.01"] + ["0.00"] * 19999, "0.000001"),  # half, up
        (["-0.01"] + ["0.00"] * 19999, "-0.000001"),  # half, away from zero
        (["0.01"] + ["0.00"] * 20000, "0.000000"),
    ],
)
def test_means_of_decimals_round_half_up(values: list[str], mean: str) -> None:
    spec = stage(["bigint"], [("mean", "v0", "decimal(10,2)")])
    assert run(spec, ["decimal(10,2)"], [Decimal(value) for value in values]) == [(Decimal(mean),)]


def test_a_mean_that_does_not_fit_is_null_or_an_error() -> None:
    values = [Decimal(10**37)]
    spec = stage(["bigint"], [("mean", "v0", "decimal(38,0)")], ansi=False)
    assert run(spec, ["decimal(38,0)"], values) == [(None,)]
    with pytest.raises(FunctionError, match="mean 'out0' overflowed"):
        run(stage(["bigint"], [("mean", "v0", "decimal(38,0)")]), ["decimal(38,0)"], values)


def test_nulls_and_single_values() -> None:
    functions = ("count", "sum", "mean", "var", "stddev", "min", "max", "first", "last")
    spec = stage(["bigint"], [(name, "v0", "int") for name in functions])
    assert run(spec, ["int"], [None, None]) == [(0, *[None] * 8)]
    assert run(spec, ["int"], [None], [4]) == [(1, 4, 4.0, None, None, 4, 4, None, 4)]
    assert run(spec, ["int"], [4, 6, None]) == [(2, 10, 5.0, 2.0, math.sqrt(2), 4, 6, 4, None)]
    ignoring = stage(["bigint"], [(name, "v0", "int", ("ignore_nulls", True)) for name in ("first", "last")])
    assert run(ignoring, ["int"], [None, 4], [5, None]) == [(4, 5)]


def test_nan_is_the_largest_float() -> None:
    spec = stage(["bigint"], [("min", "v0", "double"), ("max", "v0", "double")])
    ((least, most),) = run(spec, ["double"], [math.nan, 1.0], [math.inf])
    assert least == 1.0
    assert math.isnan(most)
    ((least, _),) = run(spec, ["double"], [math.nan])
    assert math.isnan(least)


def test_variance_is_stable_far_from_zero() -> None:
    values = [1e9 + n % 10 for n in range(1000)]
    ((spread,),) = run(stage(["bigint"], [("var", "v0", "double")]), ["double"], values[:500], values[500:])
    assert spread == pytest.approx(statistics.variance(values), rel=1e-7)


def test_variance_forgets_what_is_taken_back() -> None:
    spec = stage(["bigint"], [("var", "v0", "double"), ("count",)], updating_input=True)
    operator = AggregateOperator(spec)
    state = operator.new_slice()
    values = [n * 1.25 for n in range(200)]
    state.apply(1, decode(operator, ["double"], [(1, (1,), (value,)) for value in values]))
    state.apply(2, decode(operator, ["double"], [(-1, (1,), (value,)) for value in values[::2]]))
    ((_, spread, count),) = plain(state.read(2))
    assert count == 100
    assert spread == pytest.approx(statistics.variance(values[1::2]), rel=1e-9)
    state.apply(3, decode(operator, ["double"], [(-1, (1,), (value,)) for value in values[3::2]]))
    assert plain(state.read(3)) == [(1, None, 1)]


def test_partial_rows_give_what_rows_give() -> None:
    spec = stage(
        ["string"],
        [
            ("count",),
            ("count", "v0"),
            ("sum", "v0", "int"),
            ("sum", "v1", "decimal(10,2)"),
            ("min", "v2", "string"),
            ("max", "v0", "int"),
            ("mean", "v0", "int"),
            ("mean", "v1", "decimal(10,2)"),
            ("var", "v0", "int"),
            ("stddev", "v0", "int"),
        ],
    )
    operator = AggregateOperator(spec)
    kinds = ["int", "decimal(10,2)", "string"]
    rows = [
        (1, ("ab"[n % 2],), (None if n % 5 == 0 else n, Decimal(n * 7).scaleb(-2), None if n % 3 else f"s{n}"))
        for n in range(40)
    ]
    expected = operator.new_slice()
    expected.apply(1, decode(operator, kinds, rows))

    ahead = spec.partials()
    assert ahead is not None
    columns: dict[str, pa.Array] = {}
    groups = [[row for row in part if row[1] == (key,)] for part in (rows[:20], rows[20:]) for key in "ab"]
    whole = decode(operator, kinds, [group[0] for group in groups])
    columns["_h"] = pa.array(whole.keys.hash)
    columns["k0"] = pa.array([group[0][1][0] for group in groups])
    for number, aggregate in enumerate(spec.aggregates):
        results = [_partial(aggregate, group) for group in groups]
        for place, kind in enumerate(ahead.columns[number].types):
            arrow = {"bigint": pa.int64(), "double": pa.float64(), "string": pa.string(), "int": pa.int32()}
            wanted = arrow[kind] if kind in arrow else pa.decimal128(20, 2)
            columns[f"p{number}_{place}"] = pa.array([result[place] for result in results], wanted)
    state = operator.new_slice()
    state.apply(1, operator.decode(pa.record_batch(columns), partial=True))
    for found, wanted in zip(plain(state.read(1)), plain(expected.read(1)), strict=True):
        assert found[:-2] == wanted[:-2]
        assert found[-2:] == pytest.approx(wanted[-2:], rel=1e-9)


def _partial(aggregate: AggregateSpec, group: list[Any]) -> tuple[Any, ...]:
    if aggregate.input is None:
        return (len(group),)
    values = [row[2][int(aggregate.input[1:])] for row in group]
    values = [value for value in values if value is not None]
    match aggregate.function:
        case "count":
            return (len(values),)
        case "sum":
            return (sum(values),)
        case "min" | "max":
            return ((min if aggregate.function == "min" else max)(values),)
        case "mean":
            return (sum(values), len(values))
    mean = statistics.fmean(values)
    return (float(len(values)), mean, sum((value - mean) ** 2 for value in values))


@pytest.mark.parametrize(("rsd", "bits_"), [(0.05, 9), (0.01, 14), (0.2, 5)])
def test_sketches_keep_their_promise(rsd: float, bits_: int) -> None:
    spec = stage(["bigint"], [("approx_distinct", "v0", "string", ("rsd", rsd))])
    operator = AggregateOperator(spec)
    assert operator.layout.columns[0].width == 1 << bits_
    random = np.random.default_rng(5)
    for distinct in (0, 1, 10, 500, 20_000):
        hashes = random.integers(-(2**63), 2**63 - 1, distinct)
        state = operator.new_slice()
        values = pa.array(np.concatenate([hashes, hashes, [0]]), mask=np.arange(2 * distinct + 1) == 2 * distinct)
        count = 2 * distinct + 1
        keys = np.ones(count, np.int64)
        state.apply(1, operator.decode(pa.record_batch({"_h": keys, "k0": keys, "v0": values})))
        ((_, found),) = plain(state.read(1))
        assert abs(found - distinct) <= 4 * rsd * distinct


def test_output_schema_and_types() -> None:
    spec = StageSpec(
        (Column("day", "date"), Column("at", "timestamp")),
        (
            AggregateSpec("a", "sum", "v0", "float"),
            AggregateSpec("b", "mean", "v1", "decimal(38,18)"),
            AggregateSpec("c", "approx_distinct", "v2", "string"),
            AggregateSpec("d", "last", "v3", "timestamp_ntz"),
        ),
    )
    operator = AggregateOperator(spec)
    assert [kind for _, kind in operator.output_types()] == [
        *("date", "timestamp", "double", "decimal(38,22)", "bigint", "timestamp_ntz")
    ]
    assert operator.output_schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert operator.new_slice().outputs(0, "changelog").schema.names[-1] == "_d"
    assert operator.new_slice().outputs(0, "all").schema == operator.output_schema


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (stage(["map<string,int>"], [("count",)]), "key 'key0' has type map<string,int>"),
        (stage(["string collate UNICODE"], [("count",)]), "collation"),
        (stage(["int"], [("sum", "v0", "string")]), "sum 'out0' cannot take type string"),
        (stage(["int"], [("median", "v0", "int")]), "no such aggregate"),
        (stage(["int"], [("sum",)]), "needs a column"),
        (stage(["int"], [("min", "v0", "int")], updating_input=True), "min 'out0' is over an updating input"),
        (stage(["int"], [("approx_distinct", "v0", "int", ("rsd", 0.9))]), "relative deviation of 0.9"),
        (stage(["int"] * 40, [("count",)]), "40 columns"),
        (StageSpec((Column("a", "int"),), (AggregateSpec("a", "count", None, None),)), "same name"),
    ],
)
def test_refusals_say_what_and_why(spec: StageSpec, words: str) -> None:
    with pytest.raises(PlanError) as refused:
        AggregateOperator(spec)
    assert words in str(refused.value)
    assert refused.value.safe
    assert refused.value.todo
