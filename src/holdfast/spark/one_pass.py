"""Many readers of one source in one pass of Spark: filters as bits, expressions side by side.

Every reader comes as the DataFrame that it would read alone. Spark has resolved it to a chain of projections and
filters over the source; where it is anything else (a join, an explode, a union), calls what Spark cannot guard (a
Python function) or repeat (``rand``), or computes something ahead of a filter, which Spark would run first, the reader
keeps a branch of its own. A chain is taken apart from below: a filter becomes a column that is true or false and never
null, and what a projection computes behind it is computed only where that column is true, because it may fail for rows
that the filter was there to keep away. Attributes keep the numbers that Spark has given them, so nothing is renamed or
parsed again; and what several readers compute alike is one column.

A filter that wants one value of a column, ``country = 'NZ'``, is a *case*. Where a column has many of them the column
crosses and no bits for them, so that a pass is no larger, and takes no longer, for a hundred of them than for ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.invariants import some
from holdfast.plan.passes import WORD, Share, mask_of, word_of
from holdfast.spark.analysis import each
from holdfast.spark.catalyst import Catalyst, Expr, number_of, value_of
from holdfast.spark.observing import Look, largest, observe

MANY_CASES = 8
"""Of fewer each is a bit, as any filter: then the column need not cross."""
TELLING = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Types whose values are equal here where they are in Spark; a string by its bytes, in no other collation."""


@dataclass(frozen=True)
class Reader:
    """Somebody's rows, as they would be read alone; and where event times are to be seen on the way, whichever rows a
    filter drops behind that."""

    rows: DataFrame
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """A reader's rows within the pass: which ones, and the attributes that its columns are."""

    filter: Expr | _Case | None
    columns: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, eq=False)
class _Case:
    """A filter that wants one value of a column; ``condition`` says so as Spark does."""

    attribute: Expr
    literal: Expr
    value: int | str
    condition: Expr

    @staticmethod
    def of(condition: Expr) -> _Case | None:
        if condition.nodeName() != "EqualTo":
            return None
        attribute, constant = condition.left(), condition.right()
        if constant.nodeName() == "AttributeReference":
            attribute, constant = constant, attribute
        if attribute.nodeName() != "AttributeReference" or attribute.dataType().simpleString() not in TELLING:
            return None
        value = value_of(constant)
        return None if value is None else _Case(attribute, constant, value, condition)

    @property
    def key(self) -> tuple[int, int | str]:
        return number_of(self.attribute), self.value


class _Wide:
    """The columns that the pass has so far. Each stands in the first layer behind all that it is computed from, so that
    Spark decides, as for any plan, which layers it merges."""

    def __init__(self, source: DataFrame) -> None:
        self._spark = Catalyst(source.sparkSession)
        self._base = _analyzed(source)
        self._source_output = list(each(self._base.output()))
        self._depths = {number_of(one): 0 for one in self._source_output}
        self._layers: list[list[Expr]] = []
        self._alike: dict[int, list[tuple[Expr, Expr]]] = {}

    def chain(self, rows: DataFrame) -> list[Any] | None:
        """The projections and filters between the source and these rows, from below; None: it is something else."""
        found: list[Any] = []
        filtered = False
        node = _analyzed(rows)
        while not node.fastEquals(self._base):
            if node.nodeName() not in ("Project", "Filter"):
                return None
            computed = each(node.projectList()) if node.nodeName() == "Project" else [node.condition()]
            if not all(map(self._spark.guardable, computed)):
                return None
            if node.nodeName() == "Filter":
                filtered = True
            elif filtered and not all(map(_plain, computed)):
                return None  # alone, Spark runs the filter first: here it would be computed for rows of others too
            found.append(node)
            node = node.child()
        return found[::-1]

    def add(self, rows: DataFrame) -> _Rows:
        chain = some(self.chain(rows), "asked before: readable")
        spark, renames = self._spark, list[Expr]()
        kept: Expr | _Case | None = None
        for node in chain:
            if node.nodeName() == "Filter":
                condition = spark.renamed(node.condition(), renames)
                if kept is None and (case := _Case.of(condition)) is not None:
                    kept = case
                    continue
                true = spark.true(condition)
                kept = self._column(true if kept is None else spark.both(self.filter(kept), true), "_kept")
                continue
            for alias in (one for one in each(node.projectList()) if one.nodeName() == "Alias"):
                value = spark.renamed(alias.child(), renames)
                if kept is not None and value.nodeName() not in ("AttributeReference", "Literal"):
                    value = spark.where(self.filter(kept), value)
                renames.append(spark.with_child(alias, self._column(value, alias.name())))
        columns = [(one.name(), spark.renamed(one, renames)) for one in each(_analyzed(rows).output())]
        return _Rows(kept, tuple(columns))

    def filter(self, kept: Expr | _Case) -> Expr:
        """The attribute that has it, also of a case."""
        return self._column(self._spark.true(kept.condition), "_kept") if isinstance(kept, _Case) else kept

    def _column(self, value: Expr, name: str) -> Expr:
        """The attribute that has it."""
        if value.nodeName() == "AttributeReference":
            return value
        alike = self._alike.setdefault(value.semanticHash(), [])
        for other, attribute in alike:
            if other.semanticEquals(value):
                return attribute
        alias = self._spark.alias(value, name)
        attribute = alias.toAttribute()
        depth = max((self._depths[number_of(one)] for one in each(value.references().toSeq())), default=0)
        if depth == len(self._layers):
            self._layers.append([])
        self._layers[depth].append(alias)
        self._depths[number_of(attribute)] = depth + 1
        alike.append((value, attribute))
        return attribute

    def among(self, cases: Iterable[_Case]) -> list[Column]:
        """Of every column that has cases, whether its value is one of them: Spark looks that up too."""
        found: dict[int, list[_Case]] = {}
        for case in cases:
            found.setdefault(number_of(case.attribute), []).append(case)
        return [
            self._spark.column(self._spark.one_of(some[0].attribute, [case.literal for case in some]))
            for some in found.values()
        ]

    @property
    def layers(self) -> list[Any]:
        """What every layer adds, as Spark takes it."""
        return [self._spark.list([F.col("*"), *map(self._spark.column, layer)]) for layer in self._layers]

    def column(self, attribute: Expr) -> Column:
        return self._spark.column(attribute)

    def list(self, columns: Iterable[Column]) -> Any:
        return self._spark.list(columns)

    @property
    def names(self) -> Any:
        """The source's columns by their names, under the numbers that they have here."""
        made = (
            self._spark.alias(self._spark.named(one.name()), one.name(), one.exprId()) for one in self._source_output
        )
        return self._spark.list(map(self._spark.column, made))


def readable(source: DataFrame, rows: DataFrame) -> bool:
    """Whether these rows of the source can be had in a pass with others."""
    return _Wide(source).chain(rows) is not None


class Likeness:
    """Tells which frames over a source have the same rows: the same filter, the same columns, however they are said."""

    def __init__(self, source: DataFrame) -> None:
        self._wide = _Wide(source)

    def of(self, rows: DataFrame) -> object:
        """Equal for such frames; None where it cannot be told."""
        if self._wide.chain(rows) is None:
            return None
        found = self._wide.add(rows)
        kept: object = found.filter
        if kept is not None:
            kept = kept.key if isinstance(kept, _Case) else number_of(kept)
        return kept, tuple((name, number_of(attribute)) for name, attribute in found.columns)


class Pass:
    """The rows of all readers of a source, each of which is ``readable``: drawn once, and made over whichever rows of
    the source there are. ``shares`` is what each reader takes of them."""

    def __init__(self, source: DataFrame, readers: Sequence[Reader]) -> None:
        wide = _Wide(source)
        taken = _with_cases(wide, [wide.add(reader.rows) for reader in readers])
        self._looks = _looks(wide, readers)
        self._layers, self._names = wide.layers, wide.names
        cases = [rows.filter for rows in taken if isinstance(rows.filter, _Case)]
        filters = _unlike(
            rows.filter for rows in taken if rows.filter is not None and not isinstance(rows.filter, _Case)
        )
        self._anybodys: Column | None = None
        if all(rows.filter is not None for rows in taken):  # else every row is somebody's
            wanted = [*map(wide.column, filters.values()), *wide.among(cases)]
            self._anybodys = reduce(lambda one, other: one | other, wanted)
        self.filters = len(filters)
        bits = {number: bit for bit, number in enumerate(filters)}
        every = [attribute for rows in taken for _, attribute in rows.columns]
        columns = _unlike([*every, *(case.attribute for case in cases)])
        names = {number: f"p{at}" for at, number in enumerate(columns)}
        words = [
            reduce(
                lambda one, other: one.bitwiseOR(other),
                (
                    F.when(wide.column(filters[number]), F.lit(mask_of(bit))).otherwise(F.lit(0).cast("bigint"))
                    for number, bit in list(bits.items())[first : first + WORD]
                ),
            ).alias(word_of(first))
            for first in range(0, len(bits), WORD)
        ]
        self._crossing = wide.list(
            [*[wide.column(columns[number]).alias(name) for number, name in names.items()], *words]
        )

        def share(rows: _Rows) -> Share:
            mine, kept = tuple((name, names[number_of(attribute)]) for name, attribute in rows.columns), rows.filter
            if isinstance(kept, _Case):
                return Share(mine, case=(names[number_of(kept.attribute)], kept.value))
            return Share(mine, None if kept is None else bits[number_of(kept)])

        self.shares = tuple(map(share, taken))

    def over(self, source: DataFrame) -> DataFrame:
        """Of the source's own frame, as the readers were drawn on it."""
        frame = source
        for layer in self._layers:
            frame = _selected(frame, layer)
        if self._looks:
            frame = observe(frame, self._looks)
        if self._anybodys is not None:
            frame = frame.where(self._anybodys)
        return _selected(frame, self._crossing)

    def over_some(self, rows: DataFrame) -> DataFrame:
        """Of some rows of the source that came as another frame, with columns of the same names."""
        return self.over(_selected(rows, self._names))


def _selected(frame: DataFrame, columns: Any) -> DataFrame:
    return DataFrame(frame._jdf.select(columns), frame.sparkSession)


def share_of(crossing: DataFrame, share: Share) -> DataFrame:
    """The rows of one reader, as they were."""
    rows = crossing
    if share.bit is not None:
        rows = rows.where(F.col(word_of(share.bit)).bitwiseAND(F.lit(mask_of(share.bit))) != 0)
    elif share.case is not None:
        place, value = F.col(share.case[0]), F.lit(share.case[1])
        days = crossing.schema[share.case[0]].dataType.typeName() == "date"
        rows = rows.where((F.unix_date(place) if days else place) == value)
    return rows.select(*[F.col(place).alias(name) for name, place in share.columns])


def _looks(wide: _Wide, readers: Sequence[Reader]) -> list[tuple[list[str], Column]]:
    """The readers' looks at their event times, as looks at columns of the pass; those that see the same are one."""
    found: dict[object, tuple[list[str], Column]] = {}
    for look in (look for reader in readers for look in reader.looks):
        rows = wide.add(look.times)
        ((_, time),) = rows.columns
        kept = None if rows.filter is None else wide.filter(rows.filter)
        seen = (number_of(time), None if kept is None else number_of(kept), look.ahead)
        among = None if kept is None else wide.column(kept)
        found.setdefault(seen, ([], largest(wide.column(time), look.type, look.ahead, among)))[0].extend(look.names)
    return list(found.values())


def _with_cases(wide: _Wide, taken: Sequence[_Rows]) -> list[_Rows]:
    """Where a column has few cases they are filters as others are."""
    values: dict[int, set[int | str]] = {}
    for case in (rows.filter for rows in taken if isinstance(rows.filter, _Case)):
        values.setdefault(number_of(case.attribute), set()).add(case.value)
    few = {number for number, wanted in values.items() if len(wanted) < MANY_CASES}
    return [
        replace(rows, filter=wide.filter(kept))
        if isinstance(kept := rows.filter, _Case) and number_of(kept.attribute) in few
        else rows
        for rows in taken
    ]


def _unlike(attributes: Iterable[Expr]) -> dict[int, Expr]:
    return {number_of(one): one for one in attributes}


def _plain(column: Expr) -> bool:
    """Whether it is an attribute or a literal, perhaps under another name."""
    value = column.child() if column.nodeName() == "Alias" else column
    return value.nodeName() in ("AttributeReference", "Literal")


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()
