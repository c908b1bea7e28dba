"""Variances beside Spark's own on the same rows: at a large mean, and where squares are not finite."""

from __future__ import annotations

import math
import random
import statistics
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from holdfast.operators.aggregate import AggregateOperator, StageSpec
from holdfast.operators.ahead import PartialColumn
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.spark import compat
from holdfast.spark.preaggregate import partial_aggregate

pytestmark = pytest.mark.spark


def _results(rows: pa.Table, *, partial: bool = False, updating: bool = False) -> dict[int, Any]:
    """Our own, from rows (k0, v0) or from Spark's partial rows (k0, p0_0 …)."""
    spec = StageSpec((Column("k", "bigint"),), (AggregateSpec("var", "var", "v0", "double"),), updating_input=updating)
    operator = AggregateOperator(spec)
    batch = rows.combine_chunks().to_batches()[0].append_column("_h", rows["k0"].combine_chunks())
    if updating:
        batch = batch.append_column("_d", pa.array([1] * len(batch), pa.int8()))
    state = operator.new_slice()
    state.apply(1, operator.decode(batch, partial=partial))
    return dict(zip(*(column.to_pylist() for column in state.read(1).columns), strict=True))


def _errors(found: dict[int, float], values: dict[int, list[float]]) -> list[float]:
    exact = {key: statistics.variance(map(Fraction, rows)) for key, rows in values.items()}
    return sorted(float(abs(Fraction(found[key]) - exact[key]) / exact[key]) for key in values)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1e9, 1.0), (1e12, 10.0), (1.7e15, 10.0)])
def test_variances_are_at_least_as_near_as_sparks(spark: SparkSession, mean: float, deviation: float) -> None:
    rnd = random.Random(f"{mean}")
    values = {key: [rnd.gauss(mean, deviation) for _ in range(400)] for key in range(40)}
    pairs = [(key, value) for key, rows in values.items() for value in rows]
    rnd.shuffle(pairs)
    frame = spark.createDataFrame(pairs, "k0 bigint, v0 double").repartition(2).localCheckpoint()
    theirs = dict(frame.groupBy("k0").agg(sf.var_samp("v0")).collect())
    ahead = partial_aggregate(frame, ["k0"], [PartialColumn("var", "v0", ("double",) * 3)])
    from_rows, updating = (_results(frame.toArrow(), updating=how) for how in (False, True))
    from_partials = _results(ahead.drop("_n").toArrow(), partial=True)
    spark_off = _errors(theirs, values)
    assert _errors(from_rows, values)[-1] <= min(1e-13, spark_off[-1])
    assert _errors(updating, values)[-1] <= 1e-15
    # The partial rows are Spark's, and so are most of their errors; putting them together adds none.
    off = _errors(from_partials, values)
    assert off[-1] <= 1.1 * spark_off[-1] + 1e-15
    assert statistics.mean(off) <= 1.1 * statistics.mean(spark_off) + 1e-15


SQUARES_NOT_FINITE = "inf,0,inf,7.500000000000002e+307,inf,nan,nan,nan,nan,,,0,inf,0,0,0,inf"
"""What Spark says of the values below, one after the other."""


def test_where_squares_are_not_finite(spark: SparkSession) -> None:
    values = [
        *([1e300, 1.0], [1e300, 1e300], [1e300, -1e300, 5.0], [1.5e154, 0.0, 0.0], [1.5e154, -1.5e154, *[0.0] * 10]),
        *([math.inf, 1.0], [math.inf, math.inf], [math.inf, -math.inf], [math.nan, 1.0], [math.inf], [math.nan]),
        *([1e200, 1e200, 1e200], [1e154, -1e154], [1e308, 1e308], [-0.0, 0.0], [5e-324, 0.0], [1.7e308, 1.0, 2.0]),
    ]
    pairs = [(key, value) for key, rows in enumerate(values) for value in rows]
    frame = spark.createDataFrame(pairs, "k0 bigint, v0 double").coalesce(1)
    theirs = [float(text) if text else None for text in SQUARES_NOT_FINITE.split(",")]
    if compat.version_of(spark) >= (4, 3):  # before, it merged with a part that has no rows, and had NaN for it
        found = dict(frame.groupBy("k0").agg(sf.var_samp("v0")).collect())
        assert repr([found[key] for key in range(len(values))]) == repr(theirs)
    for updating in (False, True):
        ours = _results(frame.toArrow(), updating=updating)
        for key, rows in enumerate(values):
            mine, spark_has = ours[key], theirs[key]
            if rows == [1.5e154, 0.0, 0.0] and not updating:
                # Squares as seen from the first value may be infinite where those from the mean are not yet.
                assert mine == math.inf
            elif spark_has is None or math.isnan(spark_has):
                assert repr(mine) == repr(spark_has), (rows, mine, spark_has)
            else:
                assert mine == pytest.approx(spark_has, rel=1e-12), (rows, mine, spark_has)
