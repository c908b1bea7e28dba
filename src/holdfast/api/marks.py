"""Exactly-once for a sink of one's own: an epoch is remembered in the transaction that writes its rows.

The table ``holdfast_epochs(job, sink, epoch)`` has one row for each sink, its newest epoch. The mark is written before
the rows: of two drivers that are at the same epoch one waits for the other, and then finds that there is nothing to do.
Only the newest epoch of a job can ever come again. So one that is older than the mark is a mistake (a store put back
from an old copy, a driver that was replaced long ago), and skipping it would lose rows in silence: it is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import TaskContext

from holdfast.errors import PlanError, SinkError
from holdfast.plan.epochs import Epoch

TABLE = "holdfast_epochs"
_TABLE_NAME = re.compile(r"\w+(\.\w+)*")
_STYLES: dict[str, Callable[[int], str]] = {
    "qmark": lambda _: "?",
    "format": lambda _: "%s",
    "pyformat": lambda at: f"%(p{at})s",
    "named": lambda at: f":p{at}",
    "numeric": lambda at: f":{at + 1}",
}


@contextmanager
def once(connection: Any, epoch: Epoch, *, table: str = TABLE, paramstyle: str | None = None) -> Iterator[bool]:
    """Write an epoch's rows and the mark that they are written, in one transaction of a DB-API 2 connection.

    In a function of ``for_each_batch``, on the driver::

        def save(df, epoch):
            with contextlib.closing(sqlite3.connect("shop.db")) as connection:
                with hf.once(connection, epoch) as new:
                    if new:
                        connection.executemany("INSERT INTO totals VALUES (?, ?)", [tuple(r) for r in df.collect()])

    The block ends with a commit; if it raises, or the epoch is not ``new``, with a rollback of everything in it. The
    connection must not commit by itself, and neither may the block. ``table`` is made if it is missing.
    ``paramstyle`` is the driver's, where it cannot be seen from the connection.
    """
    if not isinstance(epoch, Epoch):
        raise PlanError(
            f"hf.once needs the epoch as the function was given it, not {epoch!r}.",
            todo="Pass the second argument on as it is: it knows whose epoch it is.",
        )
    if TaskContext.get() is not None:
        raise PlanError(
            "hf.once was called in a task: each would have a transaction of its own, and the first one's mark would "
            "make the others skip their rows.",
            todo="Call it on the driver, once for the whole epoch.",
        )
    marks = _Marks(connection, table, paramstyle)
    new = marks.begin(epoch)
    if not new and table in epoch.marked:
        raise PlanError(
            f"hf.once was used twice for epoch {epoch:d} of sink '{epoch.sink}': the first one's mark would make the "
            "second one skip its rows.",
            safe="What the first one wrote is there, with its mark.",
            todo="Write all of an epoch's rows in one block; or give each block a table of marks of its own (table=…).",
        )
    try:
        yield new
    except BaseException:
        connection.rollback()
        raise
    if new:
        connection.commit()
        epoch.marked.add(table)
    else:
        connection.rollback()


class _Marks:
    """The table of marks, as one driver's SQL speaks of it."""

    def __init__(self, connection: Any, table: str, paramstyle: str | None) -> None:
        if not _TABLE_NAME.fullmatch(table):
            raise PlanError(f"{table!r} cannot be the name of a table.")
        if getattr(connection, "in_transaction", False):
            raise PlanError(
                "hf.once was given a connection with a transaction under way, which it would end.",
                todo="Commit it before, or use a connection of its own.",
            )
        if _commits_by_itself(connection):
            raise _no_transaction()
        self._connection = connection
        self._table = table
        self._style = paramstyle or _paramstyle(connection)
        if self._style not in _STYLES:
            raise PlanError(f"There is no paramstyle {self._style!r}.", todo=f"One of {', '.join(_STYLES)}.")

    def begin(self, epoch: Epoch) -> bool:
        """Begin a transaction with the mark; False if the epoch is there already, and then nothing has begun."""
        newest = self._first_look(epoch)
        self._connection.rollback()  # what it has seen must not be all that the transaction sees
        if newest == epoch:
            return False
        if newest is None or newest < epoch:
            try:
                self._run("INSERT INTO {table} (job, sink, epoch) VALUES ({0}, {1}, {2})", *_said(epoch))
            except Exception:
                # Another driver was first? Every database has its own word for that, so look.
                self._connection.rollback()
                if self._newest(epoch) != epoch:
                    raise
                self._connection.rollback()
                return False
            newest = self._newest(epoch)
        if newest is not None and newest > epoch:
            self._connection.rollback()
            raise SinkError(
                f"Epoch {epoch:d} came to sink '{epoch.sink}', whose table {self._table} says that it has epoch "
                f"{newest} already. A job gives no epoch again but its newest.",
                safe="Nothing was written.",
                todo="If the job's store was put back from an older copy, put the database back to the same time, or "
                f"delete the rows above epoch {epoch - 1} and the mark. If another driver runs the job, stop this one.",
            )
        self._run("DELETE FROM {table} WHERE job = {0} AND sink = {1} AND epoch < {2}", *_said(epoch))
        if not getattr(self._connection, "in_transaction", True):
            self._run("DELETE FROM {table} WHERE job = {0} AND sink = {1} AND epoch = {2}", *_said(epoch))
            raise _no_transaction()
        return True

    def _first_look(self, epoch: Epoch) -> int | None:
        try:
            return self._newest(epoch)
        except PlanError:
            raise
        except Exception:  # there is no table yet, in whatever words
            self._connection.rollback()
        try:
            self._run(
                "CREATE TABLE {table} (job VARCHAR(64) NOT NULL, sink VARCHAR(255) NOT NULL, epoch BIGINT NOT NULL, "
                "PRIMARY KEY (job, sink, epoch))"
            )
            self._connection.commit()
        except Exception:  # somebody else has just made it; or we may not, and the next look says so
            self._connection.rollback()
        return self._newest(epoch)

    def _newest(self, epoch: Epoch) -> int | None:
        found = self._run("SELECT sink, epoch FROM {table} WHERE job = {0} AND sink = {1}", epoch.job, epoch.sink)
        if others := {sink for sink, _ in found} - {epoch.sink}:
            raise PlanError(
                f"The database takes sink '{epoch.sink}' and sink '{others.pop()}' for one: their marks would be "
                "mixed up.",
                safe="Nothing was written.",
                todo="Give one of them a name that differs in more than case, and has at most 255 letters.",
            )
        return max((int(epoch) for _, epoch in found), default=None)

    def _run(self, statement: str, *values: object) -> list[Any]:
        places = [_STYLES[self._style](at) for at in range(len(values))]
        by_name = self._style in ("pyformat", "named")
        given = {f"p{at}": value for at, value in enumerate(values)} if by_name else values
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement.format(*places, table=self._table), *([given] if values else []))
            return cursor.fetchall() if cursor.description else []
        finally:
            cursor.close()


def _said(epoch: Epoch) -> tuple[str, str, int]:
    return epoch.job, epoch.sink, int(epoch)


def _commits_by_itself(connection: Any) -> bool:
    """Drivers tell in three ways; one that does not tell cannot be trusted with it."""
    ask: Any = getattr(connection, "get_autocommit", None)
    if callable(ask):
        return bool(ask())
    told: Any = getattr(connection, "autocommit", None)
    if told is not None and not callable(told):
        return told is True
    if hasattr(connection, "in_transaction"):
        return False  # seen once there should be one
    raise PlanError(
        f"hf.once cannot see whether a {type(connection).__name__} commits by itself: it has no autocommit, "
        "get_autocommit or in_transaction.",
        todo="Use a driver that tells (sqlite3, psycopg, pg8000, PyMySQL, oracledb, pyodbc …), or keep your own mark "
        "(epoch.job, epoch.sink, epoch) in the transaction that writes the rows.",
    )


def _no_transaction() -> PlanError:
    return PlanError(
        "hf.once was given a connection that commits every statement by itself: rows and mark could not be written "
        "together.",
        todo="Turn autocommit off for it (connection.autocommit = False; sqlite3: leave isolation_level as it is).",
    )


def _paramstyle(connection: Any) -> str:
    """What the driver's module says; drivers keep their connection class in it or somewhere below."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            if isinstance(found := getattr(sys.modules.get(name), "paramstyle", None), str):
                return found
            name = name.rpartition(".")[0]
    raise PlanError(
        f"hf.once cannot see how a {type(connection).__name__} takes parameters.",
        todo="Say it: hf.once(connection, epoch, paramstyle='qmark'), as the driver's module has it.",
    )
