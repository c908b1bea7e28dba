"""``run.sql``, ``run.ask``: a question to the live state, every stage a table, all of them as of one committed epoch.

It means what Spark SQL means. What DuckDB answers alike (``alike``) it answers, over rows that are read here; all else,
and what is larger than ``MOST_BYTES``, is for Spark, whose tasks read under the same pins. Where the key of a stage is
given, that key's row alone is read, at its owner; a copy, which may be older, is never asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from holdfast.api.epoch_reads import as_of_one_epoch
from holdfast.api.keys import key_request
from holdfast.api.rows import Rows
from holdfast.api.sql.alike import answer_columns
from holdfast.api.sql.grammar import parsed
from holdfast.api.sql.scope import conjuncts
from holdfast.api.sql.text import Node, Text
from holdfast.errors import EpochGone, HoldfastError
from holdfast.plan.compile import PlannedStage
from holdfast.plan.quotes import in_double_quotes
from holdfast.spark.analysis import asking_spark
from holdfast.spark.frames import frame_of
from holdfast.spark.scan import Scan
from holdfast.wire.questions import Get

if TYPE_CHECKING:
    from holdfast.api.run import Run

MOST_BYTES = 256 << 20
_KEYED = {"expressions", "from_", "where", "group", "having", "order", "limit", "distinct"}
_EXPLAIN = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)


class TooLarge(Exception):
    """More than is read into the driver."""


@dataclass(frozen=True)
class Asked:
    """A stage that a question names."""

    name: str
    """As the text has it."""
    stage: PlannedStage
    columns: tuple[str, ...]
    """Those that are read."""
    key: tuple[Any, ...] | None = None
    """The one key that is asked for."""

    @property
    def schema(self) -> pa.Schema:
        whole = self.stage.plan.build().state_schema
        return pa.schema([whole.field(name) for name in self.columns])


@dataclass(frozen=True)
class Asking:
    """What a question may name: the stages, by what they are called in it, and as the store calls them."""

    call: str
    stages: Mapping[str, str]
    whose: str = ""
    """Of which job they are all there is."""

    @property
    def there(self) -> str:
        if self.whose:
            own = [name for name in self.stages if not name.startswith(f"{self.whose}/")]
            return f"The stages of job '{self.whose}' are: {', '.join(own) or 'none'}. run.sql reads those of all jobs."
        return f"The stages are: {', '.join(self.stages)}."


def answer(run: Run, given: str, asking: Asking) -> Rows:
    explain = _EXPLAIN.match(given) if isinstance(given, str) else None
    text, statements = parsed(given[explain.end() :] if explain else given)
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise text.wrong(
            statements[0] if statements else None,
            f"{asking.call} answers one query.",
            "SELECT … FROM a stage, or EXPLAIN SELECT …",
        )
    question = Question(run, text, statements[0], asking)
    if explain:
        lines = question.plan()
        return Rows(pa.table({"plan": pa.array(lines, pa.string())}), run._shell.machine.committed)
    epoch, table = as_of_one_epoch(run, question.named, question.read, pinned=not question.one_answer)
    return Rows(table, epoch)


class Question:
    def __init__(self, run: Run, text: Text, query: Node, asking: Asking) -> None:
        self._run, self._text, self._query = run, text, query
        self._asking = asking
        self._stages = {name.lower(): run._plan.stage(stage) for name, stage in asking.stages.items()}
        self.asked = self._find()
        self._alike = answer_columns(text, query, {name: one.schema for name, one in self.asked.items()})

    @property
    def one_answer(self) -> bool:
        """One call to one container brings all that is read: nothing has to be held for a second one."""
        return all(one.key is not None for one in self.asked.values()) and self._alike is not None

    @property
    def named(self) -> str:
        return ", ".join(f"'{one.stage.plan.name}'" for one in self.asked.values())

    def plan(self) -> list[str]:
        """How it would be answered."""
        engine = "DuckDB, or Spark if it is more than 256 MiB" if self._alike is not None else "Spark"
        lines = [f"answered by {engine}"]
        for one in self.asked.values():
            what = "one key, at its owner" if one.key is not None else "all rows"
            lines.append(f"{one.stage.plan.name}: {what}; columns {', '.join(one.columns)}")
        return lines

    def read(self, epoch: int, reader: str) -> pa.Table:
        small = {name: self._row(one, epoch) for name, one in self.asked.items() if one.key is not None}
        if self._alike is not None:
            tables = dict(small)
            try:
                left = MOST_BYTES
                for name, one in self.asked.items():
                    if name not in tables:
                        tables[name] = self._all(one, epoch, reader, left)
                        left -= tables[name].nbytes
                found = self._by_duckdb(tables)
            except TooLarge:
                found = None
            if found is not None:
                return found
        return self._by_spark(epoch, reader, small)

    # --------------------------------------------------------------------------------------- what is asked

    def _find(self) -> dict[str, Asked]:
        common = {one.alias.lower() for one in self._query.find_all(exp.CTE)}
        found: dict[str, Asked] = {}
        nodes = list(self._query.find_all(exp.Table))
        for node in nodes:
            name = ".".join(part.name for part in node.parts)
            stage = self._stages.get(name.lower())
            if stage is not None and name.lower() in common:
                raise self._text.wrong(
                    node, f"'{name}' is a stage and a query of WITH.", "Give the query another name."
                )
            if name.lower() in common or name.lower() in found:
                continue
            if stage is None:
                if self._is_table(name):
                    continue
                of = f" in job '{self._asking.whose}'" if self._asking.whose else ""
                raise self._text.wrong(node, f"there is no stage '{name}'{of}.", self._asking.there)
            key = self._key(node, stage) if len(nodes) == 1 else None
            found[name.lower()] = Asked(name, stage, self._columns(stage), key)
        if not found:
            raise self._text.wrong(self._query, "no stage is named.", self._asking.there)
        return found

    def _is_table(self, name: str) -> bool:
        try:
            self._run.job.spark.table(name)
        except AnalysisException:
            return False
        return True

    def _columns(self, stage: PlannedStage) -> tuple[str, ...]:
        """Those that somebody may mean: all where there is a star."""
        names = stage.plan.build().state_schema.names
        if any(_needs_all(one) for one in self._query.walk()):
            return tuple(names)
        said = {part.name.lower() for one in self._query.find_all(exp.Column) for part in one.parts}
        return tuple(name for name in names if name.lower() in said) or tuple(names[:1])

    def _key(self, node: exp.Table, stage: PlannedStage) -> tuple[Any, ...] | None:
        """The key, where a query reads this stage alone and says what each column of its key is equal to."""
        select = node.find_ancestor(exp.Select)
        if select is None or select is not self._query or not select.args.get("where"):
            return None
        if any(value for part, value in select.args.items() if part not in _KEYED) or _is_decorated(node):
            return None
        names = {"", (node.alias or node.name).lower()}
        given: dict[str, Any] = {}
        for one in conjuncts(select.args["where"].this):
            if not isinstance(one, exp.EQ):
                continue
            column, value = one.this, one.expression
            if not isinstance(column, exp.Column):
                column, value = value, column
            mine = isinstance(column, exp.Column) and len(column.parts) <= 2 and column.table.lower() in names
            if mine and (constant := _constant(value)) is not None:
                given.setdefault(column.name.lower(), constant)
        keys = stage.plan.operator.keys
        found = [given.get(key.name.lower()) for key in keys]
        fits = all(_is_of(value, key.type) for value, key in zip(found, keys, strict=True))
        return tuple(found) if found and fits else None

    # ------------------------------------------------------------------------------------------- reading it

    def _row(self, one: Asked, epoch: int) -> pa.Table:
        """The rows of one key, from whoever owns it; whoever asks waits until somebody does."""
        run, plan = self._run, one.stage.plan
        number, request = key_request(plan.name, plan.operator.keys, one.key or (), "UTC", run._file.slices)
        owner = run._shell.machine.owner(number)
        if owner is None:
            raise EpochGone(f"Slice {number} has no owner at the moment.")
        got = run._fleet.call(owner, Get(plan.name, number, epoch, request))
        with pa.ipc.open_stream(got.rows) as reader:
            return reader.read_all().select(list(one.columns))

    def _all(self, one: Asked, epoch: int, reader: str, most: int) -> pa.Table:
        scan = replace(self._run._jobs.scan(one.stage.plan.name, epoch, "read"), reader=reader, columns=one.columns)
        batches, size = [], 0
        for part in range(len(scan.parts)):
            for batch in scan.part(part):
                batches.append(batch)
                size += batch.nbytes
                if size > most:
                    raise TooLarge
        return pa.Table.from_batches(batches, one.schema)

    # ------------------------------------------------------------------------------------------- answering

    def _by_duckdb(self, tables: Mapping[str, pa.Table]) -> pa.Table | None:
        """None: it does not know an answer either, so Spark says what is wrong."""
        try:
            import duckdb
        except ImportError:
            return None
        zone = self._run.job.spark.conf.get("spark.sql.session.timeZone") or "UTC"
        cursor = _connection().cursor()
        try:
            cursor.execute(f"SET TimeZone = '{zone}'")
            cursor.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
            for name, table in tables.items():
                cursor.register(self.asked[name].name, table)
            found = cursor.sql(in_double_quotes(self._text.text.rstrip().rstrip(";"))).to_arrow_table()
            fields = self._alike or []
            columns = [column.cast(one.type) for column, one in zip(found.columns, fields, strict=True)]
            return pa.table(columns, schema=pa.schema(fields))
        except (duckdb.Error, pa.ArrowException, ValueError):
            return None
        finally:
            cursor.close()

    def _by_spark(self, epoch: int, reader: str, small: Mapping[str, pa.Table]) -> pa.Table:
        with _views(self._run.job.spark) as (session, view):
            for name, one in self.asked.items():
                schema = type(one.stage.state)([one.stage.state[column] for column in one.columns])
                if name in small:
                    view(one.name, frame_of(session, small[name], schema))
                    continue
                scan = self._run._jobs.scan(
                    one.stage.plan.name, epoch, "read", parts=session.sparkContext.defaultParallelism
                )
                scan = replace(scan, reader=reader, columns=one.columns)
                numbers = session.range(0, len(scan.parts), 1, len(scan.parts))
                view(one.name, numbers.mapInArrow(_reading(scan), schema))
            with asking_spark(session.range(0), "question"):
                asked = session.sql(self._text.text.rstrip().rstrip(";"))
            try:
                return asked.toArrow()
            except HoldfastError:
                raise
            except Exception as error:
                if "EpochGone" in str(error) or "no longer held" in str(error):
                    raise EpochGone(f"Epoch {epoch} went while Spark read it.") from error
                raise


@cache
def _connection() -> Any:
    """One for all questions; each has a cursor, with tables of its own."""
    import duckdb

    return duckdb.connect(config={"threads": 1, "python_enable_replacements": False})


def _reading(scan: Scan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return lambda batches: scan(batches)


@contextmanager
def _views(spark: SparkSession) -> Iterator[tuple[SparkSession, Any]]:
    """A session like the job's, with views of its own, which go with it."""
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    made: list[str] = []

    def view(name: str, frame: DataFrame) -> None:
        plain = name.isascii() and name.isidentifier()
        frame.createOrReplaceTempView(name if plain else f"`{name}`")
        made.append(name)

    try:
        yield session, view
    finally:
        for name in made:
            session.catalog.dropTempView(name)


def _is_decorated(node: exp.Table) -> bool:
    alias = node.args.get("alias")
    parts = {part for part, value in node.args.items() if value}
    return not parts <= {"this", "alias"} or bool(alias is not None and alias.args.get("columns"))


def _needs_all(node: Node) -> bool:
    """What goes by columns that it does not name."""
    if isinstance(node, exp.Star):
        return not isinstance(node.parent, exp.Count)
    if isinstance(node, exp.Join):
        return bool(node.method or node.args.get("using"))
    if isinstance(node, exp.TableAlias):
        return bool(node.args.get("columns"))
    return isinstance(node, exp.Pivot | exp.Lateral)


def _constant(node: Node) -> Any:
    match node:
        case exp.Literal() if node.is_string:
            return None if "\\" in node.name else node.name
        case exp.Literal() if node.name.isdigit():
            return int(node.name)
        case exp.Neg() if isinstance(node.this, exp.Literal) and node.this.name.isdigit():
            return -int(node.this.name)
    return None


def _is_of(value: Any, kind: str) -> bool:
    """Whether a constant is a value of a key's type as it stands, so that nothing is cast."""
    bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}.get(kind)
    if bits is not None:
        return isinstance(value, int) and -(1 << bits) <= value < 1 << bits
    return kind == "string" and isinstance(value, str)
