"""Map-side partial aggregation in Spark SQL, without the shuffle that Spark would put behind it.

Where keys repeat within an epoch, rows shrink before they cross into Python. Spark has exactly that
operator, the *partial* aggregate below an exchange, but no public way to stop there. So the aggregate is
planned over the optimised plan of the rows, its lower half is taken, executed, and wrapped as a DataFrame
again. The aggregate itself does not pass the optimiser, on purpose: its rewrites (sums of small decimals as
unscaled longs, count of a column that is never null as count(1), constant keys dropped) would change which
buffer columns there are. Grouping equality (NaN, -0.0, null) is the planner's, so it is Spark's own. No
setting of the session is touched: adaptive execution is not part of the rules a bare physical plan is
prepared with.

Exact counts of distinct values make rows of their own: beside one for each key, one for each key and value (Spark's
grouping sets, so every row is read once). ``_g`` tells what a row is of: 0 a key, 1 a value of the first column that is
counted, and so on.

Whatever Spark reports by plan and not by row (``observe``, SQL metrics) is lost below the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import DataFrame

from holdfast.invariants import Impossible, some
from holdfast.operators.ahead import MANY, PartialColumn
from holdfast.plan.types import field_types, quoted

GROUP_COLUMN = "_g"
DISTINCT = "count_distinct"

# var and stddev share one buffer; Spark would otherwise keep it twice.
_SPARK_FUNCTION = {"mean": "avg", "var": "var_samp", "stddev": "var_samp"}
_COUNT_ROWS = "count(1)"
_LOWER_HALF = (1 << 32) - 1


def values_of(aggregates: Sequence[PartialColumn]) -> list[str]:
    """The columns whose distinct values are counted."""
    return list(dict.fromkeys(spec.column for spec in aggregates if spec.function == DISTINCT and spec.column))


def partial_aggregate(df: DataFrame, keys: Sequence[str], aggregates: Sequence[PartialColumn]) -> DataFrame:
    """One row per partition and key: the keys, the partial columns, ``_n``. With distinct values also ``_g``, and
    ``d0``, ``d1``, … with the values of the rows that are of one.

    Lazy and map-only: as many partitions as ``df`` has, and nothing runs before the result does. A minimum or
    maximum of a string makes Spark sort each partition by key first.
    """
    recipe = _recipe(_client(df), tuple(keys), tuple(aggregates), tuple(field_types(df.schema).items()))
    return DataFrame(recipe.apply(df), df.sparkSession)


class _Recipe:
    """The calls into the JVM for one set of keys and aggregates.

    Everything that does not depend on the rows is made once and kept: a list of columns costs a round trip for each
    of its items, and an epoch of a few rows is all round trips.
    """

    def __init__(
        self,
        client: Any,
        keys: Sequence[str],
        aggregates: Sequence[PartialColumn],
        types: dict[str, str],
    ) -> None:
        self._buffers = _Buffers(aggregates)
        values = values_of(aggregates)
        self._names = [f"k{i}" for i in range(len(keys))]
        if values:
            self._names += [*(f"d{i}" for i in range(len(values))), GROUP_COLUMN]
        self._names += [f"b{i}" for i in range(self._buffers.width)]
        functions = JavaClass("org.apache.spark.sql.functions", client)
        planning = JavaClass("org.apache.spark.sql.execution.QueryExecution", client)
        self._seq = JavaClass("org.apache.spark.api.python.PythonUtils", client).toSeq
        self._activate = JavaClass("org.apache.spark.sql.classic.SparkSession", client).setActiveSession
        self._plan = planning.createSparkPlan
        self._prepare = planning.prepareExecutedPlan
        column, expr = functions.col, functions.expr
        used = {*keys, *(name for spec in aggregates for name in (spec.column, spec.where))}
        # No optimiser prunes for us, and a sort would carry every column.
        self._used = None
        if any(name not in used for name in types):
            self._used = self._seq([column(quoted(name)) for name in types if name in used])
        self._keys = self._seq([column(quoted(name)) for name in (*keys, *values)])
        sets = [keys, *([*keys, value] for value in values)]
        self._sets = self._seq([self._seq([column(quoted(name)) for name in one]) for one in sets]) if values else None
        self._filter = " AND ".join(
            f"NOT ({GROUP_COLUMN} = {_grouping_id(len(values), at)} AND d{at} IS NULL)" for at in range(len(values))
        )
        first, *rest = [expr(call) for call in self._buffers.calls]
        self._first, self._rest = first, self._seq(rest)
        named = [f"k{i} AS {quoted(key)}" for i, key in enumerate(keys)]
        self._columns = self._seq([*named, *_values(len(values)), *self._buffers.columns(len(values))])
        self._schema: Any = None

    def apply(self, df: DataFrame) -> Any:
        session = df.sparkSession._jsparkSession
        # Physical operators take the session that is active on the thread that makes them.
        self._activate(session)
        rows: Any = df._jdf if self._used is None else df._jdf.select(self._used)
        if self._sets is None:
            aggregate = rows.groupBy(self._keys).agg(self._first, self._rest).queryExecution().analyzed()
            aggregate = aggregate.withNewChildren(self._seq([rows.queryExecution().optimizedPlan()]))
        else:  # the sets come between, and what is below a batch of a stream is one scan anyway
            grouped = rows.groupingSets(self._sets, self._keys)
            aggregate = grouped.agg(self._first, self._rest).queryExecution().analyzed()
        final = self._plan(session.sessionState().planner(), aggregate)
        partial = self._prepare(session, final.child())
        if self._schema is None:
            self._schema = self._named(session, partial)
        found = session.internalCreateDataFrame(partial.execute(), self._schema, False)
        return (found.where(self._filter) if self._filter else found).selectExpr(self._columns)

    def _named(self, session: Any, partial: Any) -> Any:
        """The schema of the buffers by position, every column nullable: the next epoch's may be."""
        # What p{i}_{j} means hangs on these positions, so a planner that lays buffers out otherwise must not pass.
        if partial.output().size() != len(self._names):
            raise Impossible(f"{partial.output()} for {self._buffers.calls}")
        unnamed = session.internalCreateDataFrame(partial.execute(), partial.schema(), False)
        return unnamed.toDF(self._seq(self._names)).schema().asNullable()


@lru_cache(maxsize=64)
def _recipe(
    client: Any,
    keys: tuple[str, ...],
    aggregates: tuple[PartialColumn, ...],
    types: tuple[tuple[str, str], ...],
) -> _Recipe:
    return _Recipe(client, keys, aggregates, dict(types))


class _Buffers:
    """Which buffer columns Spark keeps, each aggregate once, and how the partial columns read from them."""

    def __init__(self, aggregates: Sequence[PartialColumn]) -> None:
        self._aggregates = aggregates
        self._starts: dict[str, int] = {}
        self.width = 0
        for spec in (*aggregates, PartialColumn("count")):
            for call, width in self._calls(spec):
                if call not in self._starts:
                    self._starts[call] = self.width
                    self.width += width

    @property
    def calls(self) -> list[str]:
        return list(self._starts)

    def columns(self, values: int) -> list[str]:
        """SQL of every partial column over ``b0, b1, ...``, with so many columns of distinct values."""
        selected: list[str] = []
        for i, spec in enumerate(self._aggregates):
            own = [f"b{self._starts[call] + part}" for call, width in self._calls(spec) for part in range(width)]
            if _is_decimal_sum(spec):
                own = [f"CASE WHEN {own[1]} THEN NULL ELSE {own[0]} END"]
            selected += [f"{value} AS p{i}_{part}" for part, value in enumerate(own)]
        rows = f"b{self._starts[_COUNT_ROWS]}"
        if values:  # every row is also in its key's
            rows = f"CASE WHEN {GROUP_COLUMN} = {_grouping_id(values)} THEN {rows} ELSE 0L END"
        return [*selected, f"{rows} AS {MANY}"]

    def _calls(self, spec: PartialColumn) -> list[tuple[str, int]]:
        """What Spark is to compute, and the number of buffer columns that each has."""
        if spec.function == DISTINCT:  # nothing where all rows count
            return [] if spec.where is None else [(f"count({quoted(spec.where)})", 1)]
        if spec.column is None:
            return [(_COUNT_ROWS, 1)]
        name = quoted(spec.column)
        if spec.function == "sum" and len(spec.types) == 2:  # in halves, whose sums cannot overflow
            return [(f"sum({name} & {_LOWER_HALF}L)", 1), (f"sum(shiftright({name}, 32))", 1)]
        # A decimal sum has a column beside it that says whether it is still empty.
        width = 2 if _is_decimal_sum(spec) else len(spec.types)
        return [(f"{_SPARK_FUNCTION.get(spec.function, spec.function)}({name})", width)]


def _is_decimal_sum(spec: PartialColumn) -> bool:
    return spec.function == "sum" and spec.types[0].startswith("decimal")


def _grouping_id(values: int, at: int | None = None) -> int:
    """What Spark calls the groups by keys alone, or by keys and one of the values: a bit for each that is missing."""
    none = (1 << values) - 1
    return none if at is None else none ^ (1 << (values - 1 - at))


def _values(count: int) -> list[str]:
    if not count:
        return []
    which = " ".join(f"WHEN {_grouping_id(count, at)} THEN {at + 1}" for at in range(count))
    return [
        *(f"d{at}" for at in range(count)),
        f"CAST(CASE {GROUP_COLUMN} {which} ELSE 0 END AS INT) AS {GROUP_COLUMN}",
    ]


def _client(df: DataFrame) -> Any:
    gateway = df.sparkSession.sparkContext._gateway
    gateway = some(gateway, "Holdfast needs a classic session with its own JVM")
    return gateway._gateway_client
