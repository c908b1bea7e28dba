"""Stores that earlier versions wrote go on: ``tests/stores`` has one of each, its driver dead in the middle of epoch 8.

A store is made once, by the version that it is of, with the job that is here; it names no folder, since the rows come
from a generator and go nowhere. Their stages are called by their order: the first start gives them their names, also if
it is killed between that and its first epoch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from driver import session
from kit import Ended, equal, finish
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.blocks import standing
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
KEPT = Path(__file__).parents[1] / "stores"
STORES = [KEPT / f"format-{number}.tar.xz" for number in (1, 2)]
ROWS, FIRST_SECOND = 200, 1_767_225_600
TOTALS, WINDOWS = "source_by_part_agg", "source_by_name_tumbling"
BEST = f"{TOTALS}_by_last_top_k"


def draw(spark: SparkSession, store: str, *, spread: bool = True) -> tuple[hf.Job, dict[str, hf.StageStream]]:
    """``ROWS`` rows a second of event time, one second a batch. The store of the first format knows no ``spread``."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 1)
        .option("startTimestamp", FIRST_SECOND * 1000)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )
    job = hf.Job("kept", spark, store=store)
    parts = (
        job.read(rows)
        .with_column("part", "value % 17")
        .with_column("x", "CAST(value AS DOUBLE) / 3")
        .with_column("name", "concat('n', value % 5)")
    )
    more = {"spread": hf.var("x")} if spread else {}
    totals = parts.key_by("part").agg(n=hf.count(), total=hf.sum("value"), **more, last=hf.max("name"))
    windows = (
        parts.key_by("name")
        .window(hf.tumbling("2 s"), time="timestamp", lateness="1 s")
        .agg(n=hf.count(), total=hf.sum("value"))
    )
    groups = windows.key_by("window_start").agg(names=hf.count(), rows=hf.sum("n"))
    best = totals.key_by("last").top_k(2, by=["total"])
    for stream, name in ((totals, "totals"), (windows, "windows"), (groups, "groups"), (best, "best")):
        stream.write("noop", name=name)
    return job, {"totals": totals, "groups": groups, "best": best}


@pytest.mark.drivers
@pytest.mark.parametrize(
    "kept",
    [pytest.param(kept, marks=() if kept == STORES[-1] else pytest.mark.heavy) for kept in STORES],
    ids=lambda path: path.name.removesuffix(".tar.xz"),
)
def test_a_store_of_an_earlier_version_goes_on(tmp_path: Path, spark: SparkSession, kept: Path) -> None:
    with tarfile.open(kept) as archive:
        archive.extractall(tmp_path, filter="data")
    store = str(tmp_path / "store")
    newest = Ledger(Store(store), "main").last_committed()
    assert newest is not None
    assert newest.fence.epoch == 7
    job, streams = draw(spark, store)
    if kept.name.startswith("format-1."):
        with pytest.raises(hf.StoreError, match=f"'{BEST}' follows the changes of stage '{TOTALS}', whose 'spread'"):
            job.start(slices=4)
        job, streams = draw(spark, store, spread=False)
    else:
        (tmp_path / "driver@after-graph@7").touch()
        with pytest.raises(hf.StoreError, match=f"'stage1' would be '{TOTALS}'"):
            draw(spark, store, spread=False)[0].start(slices=4)
        assert start_elsewhere(store, tmp_path).killed
        assert Ledger(Store(store), "main").last_committed() == newest
    with job.start(containers=2, slices=4, safety=hf.Delta(store_every=3)) as run:
        changed = [event.text for event in run.status().events if event.kind == "changed"]
        assert (f"stage 'stage1' is called '{TOTALS}' from now on" in changed) == kept.name.startswith("format-1.")
        # Epoch 8 was prepared when every stage had a place of its own in Spark's checkpoint; it is finished like that.
        assert changed[-1] == "Spark reads each source once, for all who read it"
        assert Ledger(Store(store), "main").spark != "spark"
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 10 or run._shell.failure is not None, 300)
        run.kill(run.status().containers[0].name)
        first = run._shell.machine.committed
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= first + 2, 300)
        found = {}
        for name, stream in streams.items():
            state = run.state(stream)
            found[name] = (state.to_arrow(), state.epoch)
        assert [stage.name for stage in run.status().stages] == [
            TOTALS,
            WINDOWS,
            f"{WINDOWS}_by_window_start_agg",
            BEST,
        ]
        reader = spark.read.format("holdfast").option("store", store)
        assert reader.option("stage", TOTALS).load().count() == 17
        with pytest.raises(AnalysisException, match="has no stage 'stage1'"):
            reader.option("stage", "stage1").load()
    graph = Ledger(Store(store), "main").graph()
    assert graph is not None
    assert (graph.version, graph.epoch, graph.mends, graph.made_names[0]) == (2, 7, 1, TOTALS)
    for name, (table, epoch) in found.items():
        check(name, table, epoch)


@pytest.mark.drivers
def test_a_store_without_blocks_finishes_its_epoch_and_goes_on_with_blocks(tmp_path: Path, spark: SparkSession) -> None:
    with tarfile.open(KEPT / "format-3.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = str(tmp_path / "store")
    before = standing(Ledger(Store(store), "main"))
    assert (before.last, before.position, before.newest) == (7, 7, None)
    assert before.former is not None
    assert before.former.batch_id == 7
    job, streams = draw(spark, store)
    found = {}
    with job.start(containers=2, slices=4, safety=hf.Delta(store_every=3)) as run:
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 11 or run._shell.failure is not None, 300)
        run.kill(run.status().containers[0].name)
        first = run._shell.machine.committed
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= first + 2, 300)
        for name, stream in streams.items():
            state = run.state(stream)
            found[name] = (state.to_arrow(), state.epoch)
    for name, (table, epoch) in found.items():
        check(name, table, epoch)
    ledger = Ledger(Store(store), "main")
    first_block = ledger.get_block(8)
    assert first_block is not None
    assert first_block.batch == before.former
    assert first_block.segments == (), "the rows are in the prepare"
    numbers = ledger.block_numbers()
    assert numbers == [*range(8, 8 + len(numbers))]
    assert standing(ledger).unread == ()


def start_elsewhere(store: str, faults: Path) -> Ended:
    """A driver in a process of its own, with its own JVM, that dies where a file in ``faults`` says."""
    environment = {**os.environ, "HOLDFAST_FAULTS": str(faults), "DRILL": store}
    command = [sys.executable, __file__, store]
    return finish(
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    )


def check(name: str, table: pa.Table, epoch: int) -> None:
    totals = f"""
        SELECT value % 17 AS part, count(*) AS n, sum(value)::BIGINT AS total, var_samp(value / 3) AS spread,
               max('n' || value % 5) AS last
        FROM range({ROWS * epoch}) t(value) GROUP BY part"""
    match name:
        case "totals":
            columns = ", ".join(table.column_names)
            equal("SELECT * FROM kept", f"SELECT {columns} FROM ({totals})", kept=table)
        case "groups":  # a window is final when a second lies behind its end
            equal(
                f"SELECT epoch(window_start)::BIGINT - {FIRST_SECOND} AS began, names, rows FROM kept",
                f"SELECT began, 5 AS names, {2 * ROWS} AS rows FROM range(0, {epoch - 3}, 2) t(began)",
                kept=table,
            )
        case "best":
            equal(
                "SELECT last, rank, part, total FROM kept",
                f"SELECT last, row_number() OVER (PARTITION BY last ORDER BY total DESC) AS rank, part, total "
                f"FROM ({totals}) QUALIFY rank <= 2",
                kept=table,
            )


if __name__ == "__main__":
    draw(session({"master": "local[2]"}), sys.argv[1])[0].start(containers=1, slices=4)
