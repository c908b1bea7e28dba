"""An epoch's rows and the mark that they are written, in one transaction or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.api import marks


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(connect(tmp_path)) as opened:
        opened.execute("CREATE TABLE rows (n INTEGER)")
        yield opened


def connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "db", timeout=10)


def save(connection: Any, epoch: int, *, job: str = "j", sink: str = "s", fails: bool = False, **options: Any) -> bool:
    with hf.once(connection, hf.Epoch(epoch, job, sink), **options) as new:
        if new:
            connection.cursor().execute(f"INSERT INTO rows VALUES ({epoch:d})")
        if fails:
            raise ValueError("half way")
    return new


def found(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT n FROM rows ORDER BY rowid")]


def marked(connection: sqlite3.Connection, table: str = marks.TABLE) -> list[tuple[Any, ...]]:
    return sorted(connection.execute(f"SELECT job, sink, epoch FROM {table}"))


def test_an_epoch_that_comes_twice_is_written_once(connection: sqlite3.Connection) -> None:
    assert [save(connection, epoch) for epoch in (1, 1, 2, 2, 5, 5)] == [True, False, True, False, True, False]
    assert found(connection) == [1, 2, 5]
    assert marked(connection) == [("j", "s", 5)], "one mark a sink, however long it runs"


def test_what_fails_half_way_leaves_neither_rows_nor_mark(connection: sqlite3.Connection) -> None:
    save(connection, 1)
    with pytest.raises(ValueError, match="half way"):
        save(connection, 2, fails=True)
    assert (found(connection), marked(connection)) == ([1], [("j", "s", 1)])
    assert save(connection, 2)
    assert found(connection) == [1, 2]


def test_a_new_store_and_another_sink_have_epochs_of_their_own(connection: sqlite3.Connection) -> None:
    """The mark of another job's epoch 1 must not make this one's be skipped."""
    assert save(connection, 7, job="old store")
    assert save(connection, 1, job="new store")
    assert save(connection, 1, job="new store", sink="other")
    assert found(connection) == [7, 1, 1]


def test_an_epoch_older_than_the_mark_is_refused_and_not_skipped(connection: sqlite3.Connection) -> None:
    save(connection, 9)
    with pytest.raises(hf.SinkError, match=r"(?s)Epoch 8 came.*has epoch 9 already.*older copy"):
        save(connection, 8)
    assert not connection.in_transaction
    assert found(connection) == [9]


def test_whoever_writes_without_asking_writes_once_all_the_same(connection: sqlite3.Connection) -> None:
    for _ in range(2):
        with hf.once(connection, hf.Epoch(1, "j", "s")):
            connection.execute("INSERT INTO rows VALUES (1)")
    assert found(connection) == [1]


def test_of_drivers_that_race_one_writes(tmp_path: Path, connection: sqlite3.Connection) -> None:
    answers: list[bool] = []
    ready = threading.Barrier(4)

    def drive() -> None:
        with contextlib.closing(connect(tmp_path)) as mine:
            for epoch in range(1, 6):
                ready.wait()
                answers.append(save(mine, epoch))

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found(connection) == [1, 2, 3, 4, 5]
    assert sorted(answers) == [False] * 15 + [True] * 5


def test_a_rival_that_was_first_after_we_had_looked(
    tmp_path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(connection, 1)
    look = marks._Marks._first_look

    def slowly(self: marks._Marks, epoch: hf.Epoch) -> int | None:
        seen = look(self, epoch)
        with contextlib.closing(connect(tmp_path)) as rival:
            monkeypatch.setattr(marks._Marks, "_first_look", look)
            for number in overtaken_by:
                save(rival, number)
        return seen

    overtaken_by = [2]
    monkeypatch.setattr(marks._Marks, "_first_look", slowly)
    assert not save(connection, 2)
    overtaken_by = [3, 4]  # and its mark of 3 is gone again
    monkeypatch.setattr(marks._Marks, "_first_look", slowly)
    with pytest.raises(hf.SinkError, match="has epoch 4 already"):
        save(connection, 3)
    assert found(connection) == [1, 2, 3, 4]


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path, connection: sqlite3.Connection) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other:
        with pytest.raises(hf.PlanError, match="commits every statement"):
            save(other, 1)
        assert (found(other), marked(other)) == ([], []), "nothing looks as if it had been written"
    for telling in ({"autocommit": True}, {"get_autocommit": lambda: True}):
        with pytest.raises(hf.PlanError, match="commits every statement"):
            save(types.SimpleNamespace(**telling), 1)
    with pytest.raises(hf.PlanError, match="cannot see whether"):
        save(types.SimpleNamespace(), 1)


def test_a_transaction_under_way_is_not_ended(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO rows VALUES (0)")
    with pytest.raises(hf.PlanError, match="under way"):
        save(connection, 1)
    connection.commit()
    assert found(connection) == [0]


class Foreign:
    """A driver of another style over the same database: what it is told is said to sqlite in its own style."""

    autocommit = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.commit, self.rollback = connection.commit, connection.rollback

    def cursor(self) -> Foreign:
        return self

    def execute(self, statement: str, given: Any = ()) -> None:
        if isinstance(given, dict):
            for name in given:
                statement = statement.replace(f"%({name})s", f":{name}")
        else:
            statement = statement.replace("%s", "?")
            for number in range(len(given), 0, -1):
                statement = statement.replace(f":{number}", f"?{number}")
        self._answer = self._connection.execute(statement, given)

    @property
    def description(self) -> Any:
        return self._answer.description

    def fetchall(self) -> Any:
        return self._answer.fetchall()

    def close(self) -> None:
        return


@pytest.mark.parametrize("style", ["qmark", "format", "pyformat", "named", "numeric"])
def test_every_style_of_parameters(connection: sqlite3.Connection, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Foreign(connection)
    with pytest.raises(hf.PlanError, match="how a Foreign takes parameters"):
        save(foreign, 1)
    assert [save(foreign, epoch, paramstyle=style) for epoch in (1, 1, 2)] == [True, False, True]
    driver = types.ModuleType("some_driver")
    driver.paramstyle = style  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_driver", driver)
    monkeypatch.setattr(Foreign, "__module__", "some_driver.connections")
    assert not save(foreign, 2)
    assert found(connection) == [1, 2]


def test_what_it_cannot_work_with_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(hf.PlanError, match="as the function was given it"):
        hf.once(connection, 3).__enter__()  # type: ignore[arg-type]
    with pytest.raises(hf.PlanError, match="name of a table"):
        save(connection, 1, table="t; DROP TABLE rows")
    with pytest.raises(hf.PlanError, match="no paramstyle"):
        save(connection, 1, paramstyle="guess")
    assert save(connection, 1, table="main.elsewhere")
    assert marked(connection, "elsewhere") == [("j", "s", 1)]


def test_a_second_block_for_one_epoch_is_refused_and_not_skipped(connection: sqlite3.Connection) -> None:
    epoch = hf.Epoch(1, "j", "s")
    with hf.once(connection, epoch) as new:
        assert new
        connection.execute("INSERT INTO rows VALUES (1)")
    with pytest.raises(hf.PlanError, match="twice for epoch 1 of sink 's'"):
        hf.once(connection, epoch).__enter__()
    with hf.once(connection, epoch, table="others") as new:
        assert new
        connection.execute("INSERT INTO rows VALUES (2)")
    assert found(connection) == [1, 2]
    assert not save(connection, 1), "the same epoch in another call is a repetition"


def test_names_that_the_database_takes_for_one_are_refused(connection: sqlite3.Connection) -> None:
    connection.execute(
        f"CREATE TABLE {marks.TABLE} (job TEXT, sink TEXT COLLATE NOCASE, epoch BIGINT, PRIMARY KEY (job, sink, epoch))"
    )
    assert save(connection, 1, sink="Totals")
    with pytest.raises(hf.PlanError, match="'totals' and sink 'Totals' for one"):
        save(connection, 1, sink="totals")
    assert found(connection) == [1]
