"""Changes of a hub that runs: every row of every epoch by the version that the epoch names, whoever dies.

The oracle is a batch over the rows of each epoch's files, by the filter, function and jobs that were in force in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver import source
from hub_driver import MOST
from kit import NEVER, equal, finish, write_files
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast.log.blocks import batch_at
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[__name__])

ROWS = 800
DEATHS_FILES = 16
HUB_DRIVER = Path(__file__).with_name("hub_driver.py")
PLACES = ("after-prepare", "mid-apply", "mid-sink", "after-sinks", "after-commit", "after-segments")


class Doubling:
    """Adds up ``v``, times what its parameters say."""

    total = hf.states.value("bigint", default=0)

    def rows(self, key: Any, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.total += context.parameters.get("times", 1) * sum(row["v"] or 0 for row in rows)
        yield {"total": context.state.total}


class Counting:
    """The same state, another meaning: how many rows there were."""

    total = hf.states.value("bigint", default=0)

    def rows(self, key: Any, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.total += len(rows)
        yield {"total": context.state.total}


class Touchy(Doubling):
    """Raises as long as its parameters say so."""

    def rows(self, key: Any, rows: list[dict[str, Any]], context: Any) -> Any:
        if context.parameters.get("bad"):
            raise ValueError(f"no more of {key}")
        yield from super().rows(key, rows, context)


class Feed:
    """Files one by one, each an epoch of its own, and which epoch had which."""

    def __init__(self, base: Path) -> None:
        self.base = base
        write_files(base / "all", 30, ROWS, keys=30, seed=9)
        (base / "input").mkdir()
        self.given = 0

    def give(self, run: hf.Run, files: int = 1) -> None:
        for _ in range(files):
            before, name = run.status().epoch, f"{self.given:04d}.parquet"
            (self.base / "all" / name).rename(self.base / "input" / name)
            self.given += 1
            run.process_all_available()
            assert run.status().epoch > before

    def rows(self) -> pa.Table:
        """Every row with the epoch that has it, by the log."""
        return rows_by_epoch(self.base)


def rows_by_epoch(base: Path) -> pa.Table:
    """Every row with the epoch that has it and the version of the graph that the epoch is in terms of, by the log: a
    batch has the files up to its offset."""
    ledger = Ledger(Store(str(base / "store")), "main")
    last = ledger.last_committed()
    assert last is not None
    files = sorted((base / "input").iterdir())
    tables, read = [], 0
    for epoch in range(1, last.fence.epoch + 1):
        prepare = ledger.get_prepare(epoch, 1)
        assert prepare is not None
        batch = batch_at(ledger, prepare.position)
        assert batch is not None
        offset = json.loads(batch.offsets)["logOffset"] + 1
        for table in map(pq.read_table, files[read:offset]):
            for name, value in (("e", epoch), ("version", prepare.graph)):
                table = table.append_column(name, pa.array([value] * len(table), pa.int64()))
            tables.append(table)
        read = offset
    return pa.concat_tables(tables)


def draw(base: Path, spark: SparkSession) -> hf.Hub:
    hub = hf.Hub("shop", spark, store=base / "store")
    frame = source(spark, str(base / "input"))
    hub.read(frame, name="rows")
    totals = hub.job("totals")
    totals.stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v")).write(
        "parquet", str(base / "out")
    )
    own = hub.job("own").stream("rows").where("v > 0")
    own.key_by("g", name="mine").process(Doubling, "total bigint", parameters={"times": 1}).write("noop")
    return hub


def state(run: hf.Run, name: str, truth: str, rows: pa.Table) -> None:
    held = run.state(name).to_arrow()
    columns = [column for column in held.column_names if not column.startswith("_")]
    equal(f"SELECT {', '.join(columns)} FROM held", truth, held=held, rows=rows)


def wait_whole(run: hf.Run) -> None:
    assert run.await_settled(NEVER)


def await_epoch(run: hf.Run, epoch: int) -> None:
    """A change is certain when its epoch is prepared, and to be seen when that is committed."""
    assert run._shell.wait_for(lambda: run._shell.machine.committed >= epoch, NEVER)


def test_changes_hold_from_their_epoch_on_whoever_dies(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(tmp_path)
    hub = draw(tmp_path, spark)
    with hub.start(containers=2, slices=4) as run:
        feed.give(run)
        filtered = run.update("totals/sums", where="v % 2 = 0")
        feed.give(run, 2)
        late = hub.job("late", creator="eve")
        late.sql("SELECT g, count(*) AS n, max(x) AS most FROM rows WHERE t IS NOT NULL GROUP BY g", name="later")
        added = run.add(late)
        feed.give(run)
        run.kill(run.status().containers[0].name)
        doubled = run.update("own/mine", parameters={"times": 2})
        feed.give(run)
        counted = run.update("own/mine", function=Counting)
        again = run.update("totals/sums", where="g <> 'g1'")
        feed.give(run)
        assert [filtered.version, added.version, doubled.version, counted.version, again.version] == [1, 2, 3, 4, 5]
        run.kill(run.status().containers[1].name)
        wait_whole(run)
        first = feed.rows()
        sums = (
            f"SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows WHERE e < {filtered.epoch} "
            f"OR (e < {again.epoch} AND v % 2 = 0) OR (e >= {again.epoch} AND g <> 'g1') GROUP BY k"
        )
        later = f"SELECT g, count(*) AS n, max(x) AS most FROM rows WHERE e >= {added.epoch} GROUP BY g"
        mine = (
            f"SELECT g, sum(CASE WHEN e < {doubled.epoch} THEN v WHEN e < {counted.epoch} THEN 2 * v ELSE 1 END)"
            "::BIGINT AS total FROM rows WHERE v > 0 GROUP BY g"
        )
        for name, truth in (("totals/sums", sums), ("late/later", later), ("own/mine", mine)):
            state(run, name, truth, first)
        jobs = run.jobs
        assert [job.name for job in jobs] == ["totals", "own", "late"]
        assert jobs["late"].creator == "eve"
        assert jobs["late"].keys == 30
        assert jobs["late"].rows == ROWS
        assert [change.text for change in run.history()] == [
            "stage 'totals/sums': its filter is v % 2 = 0",
            "job 'late' was added",
            "stage 'own/mine': its parameters are {\"times\": 2}",
            "stage 'own/mine': its function is another",
            "stage 'totals/sums': its filter is g <> 'g1'",
        ]
    # The program as it was: what was changed stays.
    hub = draw(tmp_path, spark)
    with hub.start(containers=2, slices=4) as run:
        for name, truth in (("totals/sums", sums), ("late/later", later), ("own/mine", mine)):
            state(run, name, truth, first)
        feed.give(run)
        for name, truth in (("totals/sums", sums), ("late/later", later), ("own/mine", mine)):
            state(run, name, truth, feed.rows())
        removed = run.remove("late")
        assert [stage.name for stage in run.status().stages] == ["totals/sums", "own/mine"]
        with pytest.raises(hf.PlanError, match="There is no stage 'late/later'"):
            run.state("late/later")
        feed.give(run)
        back = hub.job("late")
        back.stream("rows").key_by("g", name="later").agg(n=hf.count())
        returned = run.add(back)
        assert returned.epoch > removed.epoch
        feed.give(run)
        run.kill(run.status().containers[0].name)
        wait_whole(run)
        state(run, "totals/sums", sums, feed.rows())
        later = f"SELECT g, count(*) AS n FROM rows WHERE e >= {returned.epoch} GROUP BY g"
        state(run, "late/later", later, feed.rows())
    with pytest.raises(hf.StoreError, match="'late' was added while hub 'shop' ran, and only a program can draw it"):
        draw(tmp_path, spark).start(containers=1, slices=4)
    hub = draw(tmp_path, spark)
    hub.job("late").stream("rows").key_by("g", name="later").agg(n=hf.count())
    with hub.start(containers=1, slices=4) as run:
        state(run, "late/later", later, feed.rows())
        feed.give(run)
        state(run, "late/later", later, feed.rows())
        state(run, "totals/sums", sums, feed.rows())
    written = pq.read_table(tmp_path / "out")
    newest = "row_number() OVER (PARTITION BY k ORDER BY _epoch DESC) = 1"
    equal(f"SELECT * EXCLUDE (_epoch) FROM written QUALIFY {newest}", sums, written=written, rows=feed.rows())


def test_jobs_that_raise_one_after_the_other_and_changes_from_a_sink(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(tmp_path)
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    said: list[str] = []

    def inside(_: Any, __: Any) -> None:
        for call in (
            lambda: run.update("one/mine", parameters={}),
            lambda: run.resume("one"),
            lambda: run.remove("one"),
        ):
            with pytest.raises(hf.PlanError, match="from inside a sink") as caught:
                call()
            said.append(caught.value.what)

    hub.job("totals").stream("rows").key_by("k", name="sums").agg(n=hf.count()).for_each_batch(inside)
    for name in ("one", "two"):
        own = hub.job(name).stream("rows").where("v > 0").select("g", "v", F.lit(name).alias("job"))
        own.key_by("g", name="mine").process(Touchy, "total bigint").write("noop")
    with hub.start(containers=2, slices=4) as run:
        feed.give(run)
        assert said
        epochs = {}
        for name in ("one", "two"):
            run.update(f"{name}/mine", parameters={"bad": True})
            feed.give(run)
            epochs[name] = run.status().epoch
        feed.give(run)
        assert [job.name for job in run.jobs if job.error is not None] == ["one", "two"]
        run.update("one/mine", parameters={})
        run.update("two/mine", parameters={}, reset=True)  # it waits for its rows
        back = run.resume("two").epoch
        feed.give(run)
        run.kill(run.status().containers[0].name)
        wait_whole(run)
        mine = "SELECT g, sum(v)::BIGINT AS total FROM rows WHERE v > 0 AND ({}) GROUP BY g"
        state(run, "one/mine", mine.format(f"e < {epochs['one']}"), feed.rows())
        state(run, "two/mine", mine.format(f"e >= {back}"), feed.rows())


def test_what_others_read_of_a_job_that_raises_above_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    """It raises on the second level, when the rows of its first are prepared for others already."""
    feed = Feed(tmp_path)
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    lender = hub.job("lender")
    lender.stream("rows").key_by("k", name="counts").agg(n=hf.count())
    first = lender.stream("rows").select("k", "g", "v").key_by("k", "g", name="firsts").distinct()
    first.key_by("g", name="mine").process(Touchy, "total bigint")
    reader = hub.job("reader").stream("lender/counts").key_by(F.expr("n % 5").alias("rest"), name="rests")
    reader.agg(keys=hf.count())
    rests = "SELECT n % 5 AS rest, count(*) AS keys FROM (SELECT k, count(*) AS n FROM rows GROUP BY k) GROUP BY rest"
    with hub.start(containers=2, slices=4) as run:
        feed.give(run)
        run.update("lender/mine", parameters={"bad": True})
        feed.give(run, 2)
        assert run.jobs["lender"].error is not None
        run.update("lender/mine", parameters={})
        run.resume("lender")
        feed.give(run)
        run.kill(run.status().containers[0].name)
        wait_whole(run)
        state(run, "reader/rests", rests, feed.rows())
        state(run, "lender/counts", "SELECT k, count(*) AS n FROM rows GROUP BY k", feed.rows())


def test_a_job_that_raises_is_left_out_and_the_others_go_on(tmp_path: Path, spark: SparkSession) -> None:
    def drawn() -> hf.Hub:
        hub = hf.Hub("shop", spark, store=tmp_path / "store")
        hub.read(source(spark, str(tmp_path / "input")), name="rows")
        sums = hub.job("totals").stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
        sums.write("noop")
        own = hub.job("own").stream("rows").where("v > 0")
        mine = own.key_by("g", name="mine").process(Touchy, "total bigint")
        mine.write("parquet", str(tmp_path / "own"))
        own.key_by("g", name="beside").agg(n=hf.count())
        # It is one with a stage of the job that raises, and goes on nevertheless.
        hub.job("twin").stream("rows").where("v > 0").key_by("g", name="twin").agg(n=hf.count())
        return hub

    feed = Feed(tmp_path)
    counts = "SELECT g, count(*) AS n FROM rows WHERE v > 0 GROUP BY g"
    sums = "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows GROUP BY k"
    with drawn().start(containers=2, slices=4) as run:
        assert [stage.name for stage in run.status().stages] == ["totals/sums", "own/mine", "own/beside"]
        feed.give(run, 2)
        run.update("own/mine", parameters={"bad": True})
        feed.give(run)
        raised = run.status().epoch
        feed.give(run)
        why = run.jobs["own"].error
        assert why is not None
        assert "no more of" in why
        assert f"(epoch {raised})" in why
        assert [job.error for job in run.jobs if job.name != "own"] == [None, None]
        assert max(pq.read_table(tmp_path / "own")["_epoch"].to_pylist()) < raised
        run.kill(run.status().containers[0].name)
        wait_whole(run)
        mine = "SELECT g, sum(v)::BIGINT AS total FROM rows WHERE v > 0 AND ({}) GROUP BY g"
        run.update("own/mine", reset=True)  # while it is left out, nothing happens to it
        feed.give(run)
        for name, truth in (("totals/sums", sums), ("twin/twin", counts), ("own/mine", mine.format(f"e < {raised}"))):
            state(run, name, truth, feed.rows())
    with drawn().start(containers=2, slices=4) as run:
        assert run.jobs["own"].error == "it raised in an earlier run"
        feed.give(run)
        with pytest.raises(hf.PlanError, match="Job 'totals' is not left out"):
            run.resume("totals")
        run.update("own/mine", parameters={"bad": False})
        resumed = run.resume("own")
        feed.give(run, 2)
        assert run.jobs["own"].error is None
        run.kill(run.status().containers[1].name)
        wait_whole(run)
        kept = mine.format(f"e >= {resumed.epoch}")
        for name, truth in (("totals/sums", sums), ("twin/twin", counts), ("own/mine", kept)):
            state(run, name, truth, feed.rows())
    epochs = set(pq.read_table(tmp_path / "own")["_epoch"].to_pylist())
    assert max(epochs) > resumed.epoch
    assert not epochs.intersection(range(raised, resumed.epoch)), "it has nothing of those"


def test_a_stage_is_emptied_or_shows_fewer_rows_and_its_readers_follow(tmp_path: Path, spark: SparkSession) -> None:
    def drawn() -> hf.Hub:
        hub = draw(tmp_path, spark)
        tops = hub.job("tops").stream("rows").where("v IS NOT NULL").select("g", "v", "k")
        tops.key_by("g", name="top").top_k(5, by=[F.col("v").desc(), F.col("k").asc()]).write("noop")
        ranks = hub.job("over").stream("tops/top").key_by("rank", name="ranks")
        ranks.agg(n=hf.count(), total=hf.sum("v"))
        sizes = hub.job("under").stream("totals/sums").key_by("n", name="sizes")
        sizes.agg(keys=hf.count(), total=hf.sum("total"))
        return hub

    feed, top, sums = Feed(tmp_path), [5, 0], [0]

    def check(run: hf.Run) -> None:
        tops = (
            "SELECT g, row_number() OVER (PARTITION BY g ORDER BY v DESC, k) AS rank, v, k FROM rows "
            f"WHERE v IS NOT NULL AND e >= {top[1]} QUALIFY rank <= {top[0]}"
        )
        counts = f"SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows WHERE e >= {sums[0]} GROUP BY k"
        for name, truth in (
            ("tops/top", tops),
            ("over/ranks", f"SELECT rank, count(*) AS n, sum(v)::BIGINT AS total FROM ({tops}) GROUP BY rank"),
            ("totals/sums", counts),
            ("under/sizes", f"SELECT n, count(*) AS keys, sum(total)::BIGINT AS total FROM ({counts}) GROUP BY n"),
        ):
            state(run, name, truth, feed.rows())

    with drawn().start(containers=2, slices=4) as run:
        feed.give(run, 2)
        check(run)
        await_epoch(run, run.update("tops/top", k=3).epoch)
        top[0] = 3
        check(run)  # an epoch without rows is enough
        sums[0] = run.update("totals/sums", reset=True).epoch
        await_epoch(run, sums[0])
        assert run.state("totals/sums").to_arrow().num_rows == run.state("under/sizes").to_arrow().num_rows == 0
        feed.give(run)
        check(run)
        run.kill(run.status().containers[0].name)
        top[0] = 7
        top[1] = run.update("tops/top", k=7, reset=True).epoch
        feed.give(run)
        sums[0] = run.update("totals/sums", reset=True).epoch
        feed.give(run)
        run.kill(run.status().containers[1].name)
        wait_whole(run)
        check(run)
        emptied = run.update("own/mine", parameters={"times": 3}, reset=True).epoch
        feed.give(run)
        state(
            run,
            "own/mine",
            f"SELECT g, 3 * sum(v)::BIGINT AS total FROM rows WHERE v > 0 AND e >= {emptied} GROUP BY g",
            feed.rows(),
        )
        with pytest.raises(hf.PlanError, match=r"keeps the first 7, so .* the first 8 .*\n.*\n.*k=8, reset=True"):
            run.update("tops/top", k=8)
        with pytest.raises(hf.PlanError, match="it has no k"):
            run.update("totals/sums", k=8)
        with pytest.raises(hf.PlanError, match="is no number of rows"):
            run.update("tops/top", k=0)
        with pytest.raises(hf.PlanError, match="reads rows that can be taken back: once it is empty"):
            run.update("over/ranks", reset=True)
        with pytest.raises(hf.PlanError, match="one thing of a stage at a time"):
            run.update("tops/top", k=2, where="v > 0")
        assert [change.text for change in run.history()][-4:] == [
            "stage 'totals/sums': it is emptied",
            "stage 'tops/top': its k is 7, it is emptied",
            "stage 'totals/sums': it is emptied",
            "stage 'own/mine': its parameters are {\"times\": 3}, it is emptied",
        ]
    with drawn().start(containers=1, slices=4) as run:
        check(run)  # it is as it was left, and not emptied again
        feed.give(run)
        check(run)


# --- a driver that dies ---------------------------------------------------------------------------------------------


class Deaths:
    """A driver that changes its hub at random, killed and started again; the oracle goes by what the log says."""

    def __init__(self, base: Path) -> None:
        self.base = base
        (base / "faults").mkdir()
        (base / "input").mkdir()
        write_files(base / "all", DEATHS_FILES, 300, keys=40, seed=11)

    def start(self, seed: int, seconds: float, *, done: bool) -> subprocess.Popen[str]:
        name = str(self.base / f"config-{time.monotonic_ns()}.json")
        environment = {**os.environ, "HOLDFAST_FAULTS": str(self.base / "faults"), "DRILL": name}
        environment["PYSPARK_PYTHON"] = sys.executable
        given = [str(self.base), str(seed), str(seconds), "done" if done else "on"]
        command = [sys.executable, str(HUB_DRIVER), *given, name]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.base
        )

    def acks(self) -> list[dict[str, Any]]:
        file = self.base / "acks"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def kill_after_acks(self, process: subprocess.Popen[str], acks: int) -> None:
        """Within milliseconds of the moment at which a change has returned."""
        wanted, deadline = len(self.acks()) + acks, time.monotonic() + NEVER
        while len(self.acks()) < wanted:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
        finish(process, NEVER)

    def finish(self, seed: int) -> None:
        """Start it once more, with all files, and hold it to what the log says."""
        ended = finish(self.start(seed + 1000, 2, done=True), NEVER)  # other names for its jobs
        assert ended.code == 0, ended.error
        self.check()

    def check(self) -> None:
        ledger = Ledger(Store(str(self.base / "store")), "main")
        told = json.loads((self.base / "state.json").read_text())
        graphs = ledger.graphs()
        known = {one.version: one for one in graphs.later}
        used, resets = {}, {}
        for epoch in range(1, told["epoch"] + 1):
            prepare = ledger.get_prepare(epoch, 1)
            assert prepare is not None
            used[epoch] = prepare.graph
            resets |= dict.fromkeys(prepare.resets, epoch)  # the last one counts
        # What has returned is in force from the epoch that it said, and no version is used before it.
        assert list(used.values()) == sorted(used.values())
        for ack in self.acks():
            assert used[ack["epoch"]] == ack["version"]
            assert ack["epoch"] == 1 or used[ack["epoch"] - 1] < ack["version"]
            assert resets.get(ack.get("reset"), 0) >= (ack["epoch"] if "reset" in ack else 0)

        def where(version: int) -> str:
            records = known[version].updates if version else []
            return next((one["where"] for one in reversed(records) if "where" in one), "true")

        stored, updates = graphs.notes()
        k = min([MOST, *(one["k"] for one in updates if "k" in one)])
        sums, first = resets.get("totals/sums", 0), resets.get("tops/top", 0)
        rows = rows_by_epoch(self.base)
        assert len(rows) == DEATHS_FILES * 300
        for public, held in told["states"].items():
            name, number = stored.get(public, public), public.removeprefix("live").partition("/")[0]
            there = [v for v in {*used.values()} if any(one["name"] == name for one in graphs.stages(v))]
            by_version = " OR ".join(f"(version = {version} AND ({where(version)}))" for version in {*used.values()})
            top = (
                "SELECT g, row_number() OVER (PARTITION BY g ORDER BY v DESC, k, x) AS rank, v, k, x FROM rows "
                f"WHERE v IS NOT NULL AND e >= {first} QUALIFY rank <= {k}"
            )
            if public in ("tops/top", "over/ranks", "under/sizes"):
                counts = (
                    "(SELECT k, count(*) AS n, sum(v) AS total FROM rows "
                    f"WHERE ({by_version}) AND e >= {sums} GROUP BY k)"
                )
                truth = {
                    "tops/top": top,
                    "over/ranks": f"SELECT rank, count(*) AS n, sum(v)::BIGINT AS total FROM ({top}) GROUP BY rank",
                    "under/sizes": f"SELECT n, count(*) AS keys, sum(total)::BIGINT AS total FROM {counts} GROUP BY n",
                }[public]
                columns = ", ".join(name for name in held[0] if name != "_epoch") if held else "*"
                if held:
                    equal(
                        f"SELECT {columns} FROM held",
                        f"SELECT {columns} FROM ({truth})",
                        held=pa.Table.from_pylist(held),
                        rows=rows,
                    )
                else:
                    assert not duckdb.sql(truth).fetchall()
                continue
            if public == "totals/sums":
                kept = f"e >= {sums} AND ({by_version})"
            else:
                kept = f"version IN ({', '.join(map(str, there))}) AND k % {2 + int(number) % 5} = 0"
            truth = f"SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows WHERE {kept} GROUP BY k"
            if held:
                equal("SELECT k, n, total FROM held", truth, held=pa.Table.from_pylist(held), rows=rows)
            else:
                assert not there or not duckdb.sql(truth).fetchall()
            if public == "totals/sums":
                written = pq.read_table(self.base / "out")
                newest = "row_number() OVER (PARTITION BY k ORDER BY _epoch DESC) = 1"
                since = f"WHERE _epoch >= {sums} QUALIFY {newest}"
                equal(f"SELECT * EXCLUDE (_epoch) FROM written {since}", truth, written=written, rows=rows)


@pytest.mark.drivers
def test_what_has_returned_is_in_force_after_a_death_of_the_driver(tmp_path: Path, drill_seed: int) -> None:
    """Killed within milliseconds of a change that returned."""
    drill = Deaths(tmp_path)
    drill.kill_after_acks(drill.start(drill_seed, NEVER, done=False), 3 + drill_seed % 3)
    drill.finish(drill_seed)


@pytest.mark.drivers
def test_a_driver_dies_between_a_graph_and_its_prepare_and_in_the_epoch_of_a_change(
    tmp_path: Path, drill_seed: int
) -> None:
    drill = Deaths(tmp_path)
    for epoch in range(4 + drill_seed % 3, 60):
        (tmp_path / "faults" / f"driver@after-live-graph@{epoch}").touch()
    died = finish(drill.start(drill_seed, NEVER, done=False), NEVER)
    assert died.killed, died.error
    for fault in (tmp_path / "faults").iterdir():
        fault.unlink()
    store = Ledger(Store(str(tmp_path / "store")), "main")
    counting, prepared = store.graph(), store.last_prepared()
    assert store.next_graph() > (counting.version if counting else 0) + 1, "a graph that never counted"
    assert prepared is not None
    (tmp_path / "faults" / f"driver@{PLACES[drill_seed % len(PLACES)]}@{prepared[0] + 5}").touch()
    assert finish(drill.start(drill_seed + 2, NEVER, done=False), NEVER).killed
    drill.finish(drill_seed + 3)
