"""Rows in memory with Spark's types, and the stateless verbs on them.

Stands where a DataFrame stands in a job that Spark runs: for its columns while a job is drawn, with rows in it while
one runs. The verbs have DataFrame's names, because the steps of a stream are functions of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql.types import BooleanType, DataType, IntegerType, StructField, StructType

from holdfast.errors import PlanError
from holdfast.invariants import Impossible, invariant, some
from holdfast.plan.compile import LEAF
from holdfast.plan.ddl import data_type
from holdfast.plan.frames import DIFF, Constant, Expr, Expression, Found, Given, Where
from holdfast.state.value_hashing import xxhash64
from holdfast.testing import sql
from holdfast.testing.values import arrow_schema, atomic_of


@dataclass(frozen=True)
class Named:
    """A column by its name."""

    name: str


@dataclass(frozen=True)
class Computed:
    """The value of SQL text."""

    text: str
    kind: DataType
    role: str


@dataclass(frozen=True)
class Hashed:
    """The hash of an expression, null where that is."""

    of: Expression


@dataclass(frozen=True)
class Kept:
    """A value in rows for which the condition is true, null in all others; without one, true."""

    condition: str
    of: Named | Computed | None


class MemoryFrame:
    """A frame that needs no Spark."""

    isStreaming = True  # noqa: N815 - Spark's name for it

    def __init__(
        self, schema: StructType, table: pa.Table | None = None, origins: Mapping[str, str] | None = None
    ) -> None:
        self.schema = schema
        self.origins = origins or {}
        """Which columns of the frame before, unchanged, a step has made these of."""
        self.table = arrow_schema(schema).empty_table() if table is None else table
        invariant(self.table.column_names == schema.names, "a frame's table has the columns of its schema")

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    # --- what a draft asks --------------------------------------------------------------------------------

    def find(self, given: Given, role: str) -> Found:
        if isinstance(given, Constant):
            return Found(given.name, IntegerType(), given)
        if isinstance(given, Where):
            return self._kept(given, role)
        if isinstance(given, Expr):
            kind = sql.type_of(sql.computed(self.table.slice(0, 0), given.text, role), f'The {role} "{given.text}"')
            return Found(given.name or given.text, kind, self._read(given.text) or Computed(given.text, kind, role))
        if not isinstance(given, str):
            raise _needs_spark(role)
        return Found(given, self._field(given, role).dataType, Named(given))

    def hashed(self, value: Expression) -> Hashed:
        return Hashed(value)

    def plain(self, given: Given) -> str | None:
        if isinstance(given, Expr):
            read = self._read(given.text)
            return None if read is None else read.name
        return given if isinstance(given, str) and given in self.columns else None

    def _read(self, text: str) -> Named | None:
        """The column that the text is the name of, if it is nothing else."""
        said = text.strip()
        quoted = len(said) > 2 and said[0] == said[-1] == "`"
        name = said[1:-1].replace("``", "`") if quoted else said
        return Named(name) if name in self.columns and (quoted or name.isidentifier()) else None

    def values(self, expression: Expression) -> pa.Array:
        """An expression that ``find`` or ``hashed`` gave, for every row."""
        match expression:
            case Named(name):
                return self.table.column(name).combine_chunks()
            case Constant(value=value):
                return pa.array([value] * self.table.num_rows, pa.int32())
            case Computed(text, kind, role):
                made = sql.computed(self.table, text, role)
                return made.cast(some(atomic_of(kind), "only atomic types are made here").arrow)
            case Kept(condition, of):
                kept = self._condition(condition, "'where' of an aggregate")
                values = pa.array([True] * len(kept), pa.bool_()) if of is None else self.values(of)
                return pc.if_else(kept, values, pa.scalar(None, values.type))
            case Hashed(of):
                values = self.values(of)
                hashed = some(of.of if isinstance(of, Kept) else of, "nobody asks for the hash of a condition")
                kind = hashed.kind if isinstance(hashed, Computed) else self._field(hashed.name, "hash").dataType
                mask = values.is_null().to_numpy(zero_copy_only=False)
                return pa.array(xxhash64([values], [kind.simpleString()]), mask=mask)
        raise Impossible(f"no expression of this frame: {expression}")

    # --- the stateless verbs ------------------------------------------------------------------------------

    def select(self, *columns: str | Column | Expr) -> MemoryFrame:
        role = "'select' step"
        given: list[str | Expr] = []
        for one in columns:
            given += [one] if isinstance(one, Expr) else self._named(one)
        found = [self.find(one, role) for one in given]
        fields = [StructField(one.name, one.type) for one in found]
        table = pa.table([self.values(one.value) for one in found], names=[one.name for one in found])
        origins = {one.name: one.value.name for one in found if isinstance(one.value, Named)}
        schema = StructType(fields)
        return MemoryFrame(schema, table.cast(arrow_schema(schema)), origins)

    def where(self, condition: str | Column) -> MemoryFrame:
        return MemoryFrame(self.schema, self.table.filter(self._condition(condition, "'where' step")))

    filter = where

    def withColumn(self, name: str, value: str | Column) -> MemoryFrame:  # noqa: N802 - Spark's name for it
        if not isinstance(value, str):
            raise _needs_spark("'with_column' step")
        made = sql.computed(self.table, value, "'with_column' step")
        found = self._with(name, made, sql.type_of(made, f"The column '{name}'"))
        found.origins = {column: column for column in self.columns if column != name}
        if value.strip() in self.columns:
            found.origins = {**found.origins, name: value.strip()}
        return found

    def toDF(self, *names: str) -> MemoryFrame:  # noqa: N802 - Spark's name for it
        fields = [StructField(name, field.dataType) for name, field in zip(names, self.schema.fields, strict=True)]
        return MemoryFrame(StructType(fields), self.table.rename_columns(list(names)))

    def with_constant(self, name: str, value: int, kind: str) -> MemoryFrame:
        found = data_type(kind)
        found = some(found, f"no type {kind}")
        return self._with(name, pa.array([value] * self.table.num_rows, pa.int64()), found)

    def union(self, other: MemoryFrame) -> MemoryFrame:
        """By position, as Spark's; but types must be the same, for none is widened here."""
        mine, theirs = ([field.dataType.simpleString() for field in one.schema.fields] for one in (self, other))
        if mine != theirs:
            raise PlanError(
                f"These streams do not fit together: ({', '.join(mine)}) and ({', '.join(theirs)}).",
                todo="Select the same columns in the same order, with the same types.",
            )
        return MemoryFrame(self.schema, pa.concat_tables([self.table, other.table.rename_columns(self.columns)]))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise PlanError(
                f"A test without Spark has no DataFrame.{name}.",
                safe="Nothing was started.",
                todo="Use select, where, withColumn and union with names and SQL text, or test this step with Spark.",
            )

    def _with(self, name: str, values: pa.Array, datatype: DataType) -> MemoryFrame:
        kind = atomic_of(datatype)
        kind = some(kind, "only atomic types are made here")
        field, column = StructField(name, datatype), values.cast(kind.arrow)
        if name in self.schema.names:
            at = self.schema.names.index(name)
            fields = [*self.schema.fields[:at], field, *self.schema.fields[at + 1 :]]
            return MemoryFrame(StructType(fields), self.table.set_column(at, name, column))
        return MemoryFrame(StructType([*self.schema.fields, field]), self.table.append_column(name, column))

    def _condition(self, condition: str | Column | Expr, role: str) -> pa.Array:
        if isinstance(condition, Expr):
            condition = condition.text
        if not isinstance(condition, str):
            raise _needs_spark(role)
        kept = sql.computed(self.table, condition, role)
        if not pa.types.is_boolean(kept.type):
            raise PlanError(f'The {role} "{condition}" is a {kept.type}, not a condition.')
        return kept

    def _kept(self, given: Where, role: str) -> Found:
        self._condition(given.condition, f"'where' of the {role}")  # asked now, so that a wrong one is refused now
        condition = given.condition.text if isinstance(given.condition, Expr) else given.condition
        if not isinstance(condition, str):
            raise Impossible("just asked")
        if given.value is None:
            return Found(condition, BooleanType(), Kept(condition, None))
        found = self.find(given.value, role)
        return Found(found.name, found.type, Kept(condition, found.value))

    def _named(self, given: str | Column) -> list[str]:
        if not isinstance(given, str):
            raise _needs_spark("'select' step")
        # Hidden columns are asked for by name: a star must not bring them twice.
        return [name for name in self.columns if name not in (DIFF, LEAF)] if given == "*" else [given]

    def _field(self, name: str, role: str) -> StructField:
        found = [field for field in self.schema.fields if field.name == name]
        if not found:
            known = ", ".join(column for column in self.columns if column not in (DIFF, LEAF))
            raise PlanError(
                f"There is no column '{name}' for the {role}.",
                safe="Nothing was started.",
                todo=f"The columns there are: {known}.",
            )
        return found[0]


def positive(table: pa.Table) -> pa.Table:
    """Of rows with signs those that are, without their signs."""
    return table.filter(pc.greater(table.column(DIFF), 0)).drop_columns([DIFF])


def _needs_spark(role: str) -> PlanError:
    return PlanError(
        f"The {role} is an expression of Spark's, which only Spark can evaluate.",
        safe="Nothing was started.",
        todo="In code that is tested without Spark, name columns and write SQL text: with_column('day', 'date(ts)').",
    )
