"""SQL text over rows in memory, by DuckDB.

DuckDB's SQL is not Spark's. The common ground is wide (arithmetic, comparisons, CASE, string and date functions of the
standard), but not the whole of it: ``docs/testing.md`` lists where they part. The other way, asking Spark itself, would
start the JVM that this kit exists to do without.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import DataType

from holdfast.errors import FunctionError, PlanError
from holdfast.plan.ddl import data_type
from holdfast.plan.quotes import in_double_quotes

if TYPE_CHECKING:
    import duckdb

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.uint8(): "smallint",
    pa.int32(): "int",
    pa.uint16(): "int",
    pa.int64(): "bigint",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.null(): "string",
}


def computed(table: pa.Table, text: str, role: str) -> pa.Array:
    """The value of an expression for every row."""
    duckdb = _duckdb()
    cursor = _connection().cursor()
    try:
        cursor.register("given", table)
        found = cursor.sql(f"SELECT ({in_double_quotes(text)}\n) AS value FROM given").to_arrow_table()
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        raise PlanError(
            f'DuckDB cannot resolve the {role} "{text}": {_first_line(error)}',
            safe="Nothing was started.",
            todo=f"Write SQL that Spark and DuckDB share. The columns there are: {', '.join(table.column_names)}.",
        ) from None
    except duckdb.Error as error:
        raise FunctionError(
            f'The {role} "{text}" failed: {_first_line(error)}', safe="The epoch was not begun.", todo="Mend it."
        ) from None
    finally:
        cursor.close()
    if found.num_rows != table.num_rows:
        raise PlanError(f'The {role} "{text}" is not one value a row.', safe="Nothing was started.")
    return found.column("value").combine_chunks()


def type_of(array: pa.Array, what: str) -> DataType:
    """The Spark type of what DuckDB has made."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        name: str | None = "timestamp_ntz" if kind.tz is None else "timestamp"
    elif pa.types.is_decimal(kind):
        name = f"decimal({kind.precision},{kind.scale})"
    else:
        name = _NAMES.get(kind)
    found = data_type(name) if name else None
    if found is None:
        raise PlanError(f"{what} has DuckDB's type {kind}.", todo="Cast it to an atomic type that Spark has too.")
    return found


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise PlanError(
            "SQL text in a test needs DuckDB, which is not installed.",
            safe="Nothing was started.",
            todo="pip install 'holdfast[testing]'. Steps that only name columns do not need it.",
        ) from None
    return duckdb


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    # One thread, so that rows stay in their order; times are UTC's, whatever the machine's zone is.
    connection = _duckdb().connect(config={"threads": 1, "python_enable_replacements": False})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection  # type: ignore[no-any-return]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
