"""Statements: a query, or a script of declarations, views and INSERTs, drawn into a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from holdfast.api.sql.grammar import DECLARED, Declared, parsed
from holdfast.api.sql.refusals import refuse_unknown
from holdfast.api.sql.scope import Relation, Scope, Table
from holdfast.api.sql.select import Query
from holdfast.api.sql.text import Node, Text
from holdfast.api.sql.times import as_span, microseconds
from holdfast.api.stream import Stream
from holdfast.errors import PlanError

if TYPE_CHECKING:
    from holdfast.api.drawing import Drawing

_STATEMENTS = "SELECT, CREATE STREAM, CREATE TABLE, CREATE VIEW … AS, INSERT INTO … SELECT"


def drawn(job: Drawing, given: str, name: str | None, dialect: str) -> Stream | None:
    """Draw what the text says into the job; the rows of its last query."""
    text, statements = parsed(given, dialect)
    script = Script(job, text)
    if name is not None and sum(isinstance(one, exp.Query) for one in statements) != 1:
        raise PlanError(
            "A name is for the one query of a text.",
            safe="Nothing was started.",
            todo="Leave it out, or use CREATE VIEW.",
        )
    found = None
    for one in statements:
        found = script.run(one, name) or found
    return found


class Script:
    def __init__(self, job: Drawing, text: Text) -> None:
        self._job = job
        self._text = text

    def run(self, node: Node, name: str | None) -> Stream | None:
        match node:
            case exp.Query():
                return self._query(node, name)
            case exp.Create() if DECLARED in node.meta:
                return self._declare(node, node.meta[DECLARED])
            case exp.Create() if node.kind == "VIEW" and isinstance(node.this, exp.Schema):
                raise self._text.wrong(node.this, "a view has the columns of its query.", "Give them names there: AS.")
            case exp.Create() if node.kind == "VIEW" and isinstance(node.expression, exp.Query):
                return self._query(node.expression, _name(node))
            case exp.Insert():
                return self._insert(node)
        raise self._text.wrong(node, "this is no statement of a stream.", f"There are {_STATEMENTS}.")

    def _query(self, node: Node, name: str | None) -> Stream:
        refuse_unknown(self._text, node)
        made = Query(self._text, self._find, self._sources).relation(node, name)
        if name is not None:
            self._job._name_stream(name, made.stream, made.times)
        return made.stream

    def _find(self, name: str) -> Relation | Table | None:
        found = self._job._stream_called(name)
        if found is not None:
            return Relation.of(found[0], name, found[1])
        columns = self._job._table_columns(name)
        return None if columns is None else Table(name, tuple(columns), name)

    def _sources(self) -> list[Relation]:
        names = [source.name.lower() for source in self._job._sources]
        found = [Relation.of(*_pair(self._job, name)) for name in names]
        if not found:
            raise PlanError("SQL: the job reads nothing yet.", safe="Nothing was started.", todo="job.read(df, name=…)")
        return found

    def _declare(self, node: exp.Create, declared: Declared) -> Stream | None:
        name = _name(node)
        if declared.query is not None:
            if node.kind == "TABLE":
                raise self._text.wrong(
                    node.this,
                    "a table of a query's rows would end.",
                    "CREATE VIEW … AS SELECT, then INSERT INTO a table.",
                )
            return self._query(declared.query, name)
        if node.kind == "TABLE":
            if name.lower() in self._job._named_sinks:
                raise self._text.wrong(node.this, f"there is a table '{name}' already.", "Give it another name.")
            self._job._named_sinks[name.lower()] = (declared.options, tuple(declared.partition_by))
            return None
        options = dict(declared.options)
        stream = self._job._declared_source(name, ", ".join(declared.columns), options.pop("format", None), options)
        times = self._watermark(declared, Relation.of(stream, name, {}))
        self._job._name_stream(name, stream, {**self._job._named_streams[name.lower()][1], **times})
        return None

    def _watermark(self, declared: Declared, rows: Relation) -> dict[str, str]:
        if declared.watermark is None:
            return {}
        column, behind = declared.watermark
        scope = Scope(self._text, rows.columns)
        time = scope.plain(column)
        late: int | None = 0
        if isinstance(behind, exp.Sub) and scope.plain(behind.this) == time:
            late = microseconds(self._text.cut(behind.expression))
        elif scope.plain(behind) != time:
            late = None
        if time is None or late is None:
            raise self._text.wrong(
                behind, "a watermark is a column, less a span of time.", "WATERMARK FOR ts AS ts - INTERVAL 10 SECONDS"
            )
        return {time: as_span(late)}

    def _insert(self, node: exp.Insert) -> Stream:
        target = node.this
        if isinstance(target, exp.Schema) or node.args.get("overwrite") or not isinstance(node.expression, exp.Query):
            raise self._text.wrong(target, "rows of a stream are only ever added.", "INSERT INTO name SELECT …")
        name = ".".join(part.name for part in target.parts)
        found = self._job._named_sinks.get(name.lower())
        if found is None:
            raise self._text.wrong(
                target,
                f"there is no table '{name}' to write to.",
                f"CREATE TABLE {name} USING parquet OPTIONS (path '…')",
            )
        options, partition_by = dict(found[0]), found[1]
        stream = self._query(node.expression, name)
        mode = options.pop("mode", "update")
        form = options.pop("format", None) or self._job._default_format
        return stream._written(form, mode, name, partition_by, options)


def _name(node: exp.Create) -> str:
    table = node.this.this if isinstance(node.this, exp.Schema) else node.this
    return ".".join(part.name for part in table.parts)


def _pair(job: Drawing, name: str) -> tuple[Stream, str, dict[str, str]]:
    stream, times = job._named_streams[name]
    return stream, name, dict(times)
