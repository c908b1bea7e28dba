"""A user's own function on real Spark: typed state, timers, dead letters, what it is told when it goes wrong, and kills
in the middle; state and sinks always against a batch over the same files.

The function counts visits by minute: a map of open minutes, each with a timer at its end that puts it out. What is due
when is the watermark's affair, so the oracle is a plain GROUP BY over the rows that were not late.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import committed_files
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf
from holdfast.driver import upgrade as upgrading
from holdfast.driver.live_job import SECTION
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark

MINUTE, SECOND = 60_000_000, 1_000_000
START = 1_717_236_000_000_000
LATENESS = 20
FILES = 5
ZONE = "spark.sql.session.timeZone"
OUTPUT = "user string, minute timestamp, visits bigint"


def by_minute(*, forgiving: bool = False) -> type:
    """Made inside a function, so that it is pickled whole: containers cannot import this file."""

    class ByMinute:
        total = hf.states.value("bigint", default=0)
        open = hf.states.map("bigint", "bigint")

        def rows(self, user, rows, context):  # type: ignore[no-untyped-def]
            for row in rows:
                if row["page"] == "torn":
                    if forgiving:
                        continue
                    raise ValueError(f"a torn page of {user}")
                context.state.total += 1
                minute = int(row["ts"].timestamp()) // 60
                context.state.open[minute] = context.state.open.get(minute, 0) + 1
                context.set_timer(dt.datetime.fromtimestamp(60 * (minute + 1), dt.UTC))
                if row["page"] == "shop":
                    context.emit({"user": user, "ts": row["ts"]}, to="shoppers")

        def timer(self, user, time, context):  # type: ignore[no-untyped-def]
            minute = int(time.timestamp()) // 60 - 1
            visits = context.state.open.pop(minute)
            yield {"user": user, "minute": time - dt.timedelta(minutes=1), "visits": visits}

    return ByMinute


@dataclass
class Visits:
    """Files of visits, one an epoch, out of order and some of them late."""

    base: Path
    torn: tuple[int, ...] = ()
    """Epochs in which one visit in a hundred is of a page that the function cannot take."""

    def __post_init__(self) -> None:
        draw = np.random.default_rng(5)
        (self.base / "in").mkdir(parents=True)
        rows = 600
        for epoch in range(1, FILES + 1):
            at = START + np.sort(draw.integers(0, 90 * SECOND, rows)) + epoch * 90 * SECOND
            at -= draw.integers(0, LATENESS * SECOND, rows)
            at -= np.where(draw.random(rows) < 0.02, draw.integers(0, 300 * SECOND, rows), 0)
            page = draw.choice(["home", "help", "shop"], rows)
            page[draw.random(rows) < (0.01 if epoch in self.torn else 0)] = "torn"
            user = [f"u{number}" for number in draw.integers(0, 80, rows)]
            path = self.base / "in" / f"{epoch:04d}.parquet"
            pq.write_table(pa.table({"user": user, "page": page, "ts": pa.array(at, pa.timestamp("us", "UTC"))}), path)
            os.utime(path, (START / SECOND + epoch, START / SECOND + epoch))

    def stream(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema("user string, page string, ts timestamp").option("maxFilesPerTrigger", 1)
        return files.parquet(str(self.base / "in"))

    def stage(self, job: hf.Job, function: Any, **options: Any) -> hf.StageStream:
        keyed = job.read(self.stream(job.spark)).key_by("user", name="visits")
        return keyed.process(function, OUTPUT, time="ts", lateness=f"{LATENESS} s", late="count", **options)

    def query(self, sql: str, upto: int = FILES) -> list[dict[str, Any]]:
        """``visits`` are the rows that were not late, with epochs, times in µs; ``{end}`` is the last watermark."""
        files = " UNION ALL ".join(
            f"SELECT user, page, epoch_us(ts) AS ts, {epoch} AS epoch FROM '{self.base}/in/{epoch:04d}.parquet'"
            for epoch in range(1, upto + 1)
        )
        lateness = LATENESS * SECOND
        known = (
            f"WITH all_rows AS ({files}), "
            f"marks AS (SELECT e AS epoch, (SELECT max(ts) - {lateness} FROM all_rows WHERE all_rows.epoch < e) AS mark"
            f" FROM range(1, {upto + 1}) r(e)), "
            "visits AS (SELECT * FROM all_rows JOIN marks USING (epoch) WHERE mark IS NULL OR ts >= mark) "
        )
        with duckdb.connect() as connection:
            found = connection.sql(known + sql.replace("{end}", f"(SELECT max(ts) - {lateness} FROM all_rows)"))
            names = found.columns
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    # --- the oracle

    def closed(self, torn: str = "false") -> list[tuple[str, int, int]]:
        sql = f"""SELECT user, ts // {MINUTE} * {MINUTE} AS minute, count(*) AS visits FROM visits WHERE NOT ({torn})
                  GROUP BY user, minute"""
        rows = self.query(f"SELECT * FROM ({sql}) WHERE minute + {MINUTE} <= {{end}}")
        return sorted((row["user"], row["minute"], row["visits"]) for row in rows)

    def state(self, upto: int = FILES, torn: str = "false") -> dict[str, tuple[int, dict[int, int]]]:
        """The total and the open minutes of every user."""
        sql = f"""SELECT user, ts // {MINUTE} AS minute, count(*) AS visits,
                         (minute + 1) * {MINUTE} > {{end}} AS open
                  FROM visits WHERE NOT ({torn}) GROUP BY user, minute"""
        found: dict[str, tuple[int, dict[int, int]]] = {}
        for row in self.query(sql, upto):
            total, minutes = found.setdefault(row["user"], (0, {}))
            found[row["user"]] = (total + row["visits"], minutes)
            if row["open"]:
                minutes[row["minute"]] = row["visits"]
        return found


def state_of(run: hf.Run, stage: hf.StageStream) -> dict[str, tuple[int, dict[int, int]]]:
    return {
        row["user"]: (row["total"], {int(minute): visits for minute, visits in json.loads(row["open"] or "{}").items()})
        for row in run.state(stage).to_arrow().to_pylist()
    }


def written(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    """What a file sink has, times in µs."""
    with duckdb.connect() as connection:
        return sorted(connection.sql(f"SELECT {columns} FROM read_parquet({committed_files(folder)})").fetchall())


def ended(run: hf.Run) -> None:
    run.await_termination()


def go(job: hf.Job, act: Callable[[hf.Run], None] = ended, **options: Any) -> None:
    safety = hf.Delta(every=1, store_every=2)
    with job.start(containers=2, slices=8, trigger={"availableNow": True}, safety=safety, **options) as run:
        act(run)


@pytest.mark.parametrize(
    "faults", [pytest.param((), marks=pytest.mark.heavy), ("container@mid-apply@2", "container@mid-sink@4")]
)
def test_state_timers_and_two_outputs(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, faults: tuple[str, ...]
) -> None:
    """Without faults and with containers that die in the middle: the same answer, that of a batch."""
    (tmp_path / "faults").mkdir()
    monkeypatch.setenv("HOLDFAST_FAULTS", str(tmp_path / "faults"))
    for fault in faults:
        (tmp_path / "faults" / fault).touch()
    visits = Visits(tmp_path)
    job = hf.Job("visits", spark, store=str(tmp_path / "store"))
    stage = visits.stage(job, by_minute(), outputs={"shoppers": "user string, ts timestamp"})
    stage.write("parquet", str(tmp_path / "minutes"))
    stage.output("shoppers").write("parquet", str(tmp_path / "shoppers"))

    def act(run: hf.Run) -> None:
        run.await_termination()
        assert list((tmp_path / "faults").iterdir()) == []
        assert [event.kind for event in run.status().events].count("lost") == len(faults)
        for container in run.status().containers:
            if container.alive:
                run.kill(container.name)  # what is compared has been through copies or the store
        assert state_of(run, stage) == visits.state()

    go(job, act)
    assert written(tmp_path / "minutes", "user, epoch_us(minute), visits") == visits.closed()
    shoppers = sorted((row["user"], row["ts"]) for row in visits.query("SELECT * FROM visits WHERE page = 'shop'"))
    assert written(tmp_path / "shoppers", "user, epoch_us(ts)") == shoppers


def test_rows_as_arrow_and_timers_of_the_clock(
    tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """Nothing comes any more when the timers are due, and one of the containers that had set them is dead.

    What they put out goes through steps that need the session as it was when the run began: a setting, a function.
    """
    spark.udf.register("loudly", lambda text: text.upper())
    request.addfinalizer(lambda: spark.sql("DROP TEMPORARY FUNCTION loudly"))
    request.addfinalizer(partial(spark.conf.set, ZONE, spark.conf.get(ZONE)))
    spark.conf.set(ZONE, "Asia/Tokyo")

    class Quiet:
        seen = hf.states.value("bigint", default=0)

        def rows(self, user, rows, context):  # type: ignore[no-untyped-def]
            context.state.seen += rows.num_rows
            context.set_timer(context.clock + dt.timedelta(seconds=1), kind="clock")
            users = pa.array([user] * rows.num_rows)
            yield pa.record_batch({"user": users, "page": rows.column("page"), "ts": rows.column("ts")})

        def timer(self, user, time, context):  # type: ignore[no-untyped-def]
            context.emit({"user": user, "seen": context.state.seen}, to="quiet")

    visits = Visits(tmp_path)
    job = hf.Job("quiet", spark, store=str(tmp_path / "store"))
    keyed = job.read(visits.stream(spark)).key_by("user", name="visits")
    outputs = {"quiet": "user string, seen bigint"}
    stage = keyed.process(Quiet, "user string, page string, ts timestamp", outputs=outputs, rows="arrow")
    stage.write("parquet", str(tmp_path / "same"))
    there = [F.expr("loudly(user)").alias("loud"), F.expr("date_format(timestamp_seconds(0), 'HH')").alias("hour")]
    stage.output("quiet").select("user", "seen", *there).write("parquet", str(tmp_path / "quiet"))
    every = visits.query("SELECT user, page, ts FROM all_rows")
    totals = sorted(Counter(row["user"] for row in every).items())

    def told() -> list[tuple[Any, ...]]:
        rows = written(tmp_path / "quiet", "user, seen")
        return sorted(dict(rows).items())  # in order of `seen`: the last of a user is the largest

    with job.start(containers=2, slices=8, safety=hf.Delta(every=1)) as run:
        run.process_all_available()
        run.kill(run.status().containers[0].name)
        deadline = time.monotonic() + 60
        while told() != totals:
            assert time.monotonic() < deadline, (told(), run.status())
            time.sleep(0.2)
        # The timers make an epoch of their own; what it put out can be seen before its commit.
        assert run._shell.wait_for(lambda: run._shell.machine.committed > FILES, 60)
    there_too = written(tmp_path / "quiet", "user, loud, hour")
    assert there_too == [(user, user.upper(), "09") for user, *_ in there_too]
    assert written(tmp_path / "same", "user, page, epoch_us(ts)") == sorted(tuple(row.values()) for row in every)


def test_late_rows_are_counted(tmp_path: Path, spark: SparkSession) -> None:
    visits = Visits(tmp_path)
    job = hf.Job("late", spark, store=str(tmp_path / "store"))
    stage = visits.stage(job, by_minute(), outputs={"shoppers": "user string, ts timestamp"})

    def act(run: hf.Run) -> None:
        run.await_termination()
        (status,) = run.status().stages
        (late,) = visits.query("SELECT (SELECT count(*) FROM all_rows) - count(*) AS n FROM visits")
        assert status.counts == {"late": late["n"]}
        assert late["n"] > 0
        assert status.keys == len(visits.state())
        (end,) = visits.query("SELECT {end} AS micros")
        assert status.watermark == dt.datetime.fromtimestamp(end["micros"] / SECOND, dt.UTC)
        assert run.state(stage).get("u7")["total"] == visits.state()["u7"][0]

    go(job, act)


def test_dead_letters(tmp_path: Path, spark: SparkSession) -> None:
    """The rows of a call that raised are letters, all of them; nothing else of it is left, and the run goes on."""
    visits = Visits(tmp_path, torn=(2, 4))
    job = hf.Job("letters", spark, store=str(tmp_path / "store"))
    options = {"outputs": {"shoppers": "user string, ts timestamp"}, "errors": "dead_letter"}
    stage = visits.stage(job, by_minute(), **options)
    stage.write("parquet", str(tmp_path / "minutes"))
    stage.output("errors").write("parquet", str(tmp_path / "letters"))
    torn = "(epoch, user) IN (SELECT (epoch, user) FROM visits WHERE page = 'torn')"

    def act(run: hf.Run) -> None:
        run.await_termination()
        assert state_of(run, stage) == visits.state(torn=torn)
        assert run.status().stages[0].counts["dead letters"] == len(letters)

    letters = visits.query(f"SELECT user, page, ts, epoch FROM visits WHERE {torn}")
    go(job, act)
    assert written(tmp_path / "minutes", "user, epoch_us(minute), visits") == visits.closed(torn)
    found = written(tmp_path / "letters", "user, error, row, _epoch")
    for user, error, _, _ in found:
        assert f"key '{user}': ValueError: a torn page of {user}" in error
    assert sorted((user, json.loads(row)["page"], epoch) for user, _, row, epoch in found) == sorted(
        (letter["user"], letter["page"], letter["epoch"]) for letter in letters
    )


def poisoned(visits: Visits, spark: SparkSession, function: type) -> tuple[hf.Job, hf.StageStream]:
    job = hf.Job("raises", spark, store=str(visits.base / "store"))
    stage = visits.stage(job, function, outputs={"shoppers": "user string, ts timestamp"})
    stage.write("parquet", str(visits.base / "minutes"))
    return job, stage


def test_a_function_that_raises_ends_the_run_and_leaves_the_epoch_out(tmp_path: Path, spark: SparkSession) -> None:
    visits = Visits(tmp_path, torn=(3,))
    job, stage = poisoned(visits, spark, by_minute())

    def act(run: hf.Run) -> None:
        with pytest.raises(hf.FunctionError) as caught:
            run.await_termination()
        torn = {row["user"] for row in visits.query("SELECT user FROM visits WHERE page = 'torn'")}
        assert any(f"key '{user}': ValueError: a torn page of {user}" in caught.value.what for user in torn)
        assert "'page': 'torn'" in caught.value.what
        assert "Stage 'visits'" in caught.value.what
        assert state_of(run, stage) == visits.state(upto=2)
        assert run.status().epoch == 2

    go(job, act)
    assert max(written(tmp_path / "minutes", "_epoch")) == (2,)


@pytest.mark.parametrize("dies", [False, True])
def test_a_mended_function_goes_on_with_the_epoch_that_failed(tmp_path: Path, spark: SparkSession, dies: bool) -> None:
    """Also if the first driver that had it died when the store knew of it, and nothing had been applied."""
    visits = Visits(tmp_path, torn=(3,))
    job, _ = poisoned(visits, spark, by_minute())
    with pytest.raises(hf.FunctionError):
        go(job)
    job, stage = poisoned(visits, spark, by_minute(forgiving=True))
    if dies:
        ledger = Ledger(Store(job.store), SECTION)
        known = ledger.find_job()
        assert known is not None
        upgrade = upgrading.look(ledger, known, job.plan().sized(known.slices))
        assert upgrade is not None
        upgrade.perform(ledger.take_ownership("h", 1, "").incarnation)

    def mended(run: hf.Run) -> None:
        run.await_termination()
        assert state_of(run, stage) == visits.state(torn="page = 'torn'")
        said = [event.text for event in run.status().events if event.kind == "changed"]
        assert ("epoch 3, which had failed, is finished by the job as it is now" in said) != dies

    go(job, mended)
    assert written(tmp_path / "minutes", "user, epoch_us(minute), visits") == visits.closed("page = 'torn'")


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"user": "x", "minute": "noon", "visits": 1}, "column 'minute': 'noon' is a str, not a timestamp"),
        ({"user": "x", "visits": 1}, "has no column minute"),
        ([7], "7 is a int, not a dict"),
    ],
)
def test_a_wrong_result_is_told(tmp_path: Path, spark: SparkSession, result: Any, says: str) -> None:
    visits = Visits(tmp_path)
    job = hf.Job("wrong", spark, store=str(tmp_path / "store"))
    stage = visits.stage(job, lambda key, rows, context: result if key == "u7" else None)

    def act(run: hf.Run) -> None:
        with pytest.raises(hf.FunctionError) as caught:
            run.await_termination()
        assert says in caught.value.what
        assert "key 'u7'" in caught.value.what
        assert "Stage 'visits'" in caught.value.what
        assert run.state(stage).to_arrow().num_rows == 0

    go(job, act)
