"""Sinks over starts that fail, change and begin anew: no epoch is lost, none is written where it does not belong."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf
from holdfast.api.keyed import StageStream
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from holdfast.spark import claims

pytestmark = pytest.mark.spark


class Shop:
    """One file an epoch, each with the keys 0 to 4; a job that counts them, drawn anew for every start."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark, self.files = base, spark, 0
        (base / "in").mkdir()

    def add(self) -> None:
        self.files += 1
        path = self.base / "in" / f"{self.files:04d}.parquet"
        pq.write_table(pa.table({"k": list(range(5))}), path)
        os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))

    def draw(self, store: str = "store") -> tuple[hf.Job, StageStream]:
        job = hf.Job("shop", self.spark, store=str(self.base / store))
        stream = self.spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1)
        return job, job.read(stream.parquet(str(self.base / "in"))).key_by("k").agg(n=hf.count())

    def run(self, write: Callable[[StageStream], object], store: str = "store", **options: object) -> None:
        job, counts = self.draw(store)
        write(counts)
        with job.start(containers=1, slices=4, trigger={"availableNow": True}, **options) as run:  # type: ignore[arg-type]
            run.await_termination()


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


class Till:
    """A sink that notes what it gets, and raises in one epoch."""

    def __init__(self, broken_at: int = 0) -> None:
        self.broken_at = broken_at
        self.got: list[tuple[int, list[tuple[int, ...]]]] = []

    def __call__(self, df: DataFrame, epoch: hf.Epoch) -> None:
        rows = sorted(tuple(row) for row in df.collect())
        if epoch == self.broken_at:
            raise ValueError("the till is stuck")
        self.got.append((int(epoch), rows))

    @property
    def epochs(self) -> list[int]:
        return [epoch for epoch, _ in self.got]


def true_after(epoch: int) -> list[tuple[int, ...]]:
    return [(k, epoch) for k in range(5)]


def test_a_later_sink_that_fails_does_not_repeat_the_earlier_ones(shop: Shop, tmp_path: Path) -> None:
    first, second, stuck = Till(), Till(), Till(broken_at=2)

    def write(counts: StageStream) -> None:
        counts.for_each_batch(first, name="first")
        counts.write("parquet", str(tmp_path / "files"), name="files")
        counts.for_each_batch(second, name="second")
        counts.for_each_batch(stuck, name="stuck")

    shop.add()
    shop.add()
    for _ in range(3):
        with pytest.raises(
            hf.SinkError, match=r"\AValueError: the till is stuck \(raised by sink 'stuck' in"
        ) as raised:
            shop.run(write)
        assert isinstance(raised.value.__cause__, ValueError)
        assert str(raised.value).startswith("ValueError: the till is stuck")
    assert first.epochs == second.epochs == [1, 2], "not once for every start"
    assert stuck.epochs == [1]
    assert len(list((tmp_path / "store" / "main" / "prepare").glob("0000000002.taken-*"))) == 2

    stuck.broken_at = 0
    shop.add()
    shop.run(write)
    for till in (first, second, stuck):
        assert till.got == [(epoch, true_after(epoch)) for epoch in (1, 2, 3)]
    found = shop.spark.read.parquet(str(tmp_path / "files")).groupBy("_epoch").count().collect()
    assert sorted(map(tuple, found)) == [(1, 5), (2, 5), (3, 5)]


def test_a_sink_without_rows_is_not_called_and_its_numbers_have_no_gap(shop: Shop, tmp_path: Path) -> None:
    """Files know an epoch by its number: one that is used twice would be rows that are not written."""
    calls: list[int] = []

    def run() -> None:
        job = hf.Job("shop", shop.spark, store=tmp_path / "store")
        stream = shop.spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1)
        rows = job.read(stream.parquet(str(tmp_path / "in")).withColumn("file", F.input_file_name()))
        counts = rows.key_by("k", name="counts").agg(n=hf.count())
        counts.where("n % 3 = 0").write("parquet", str(tmp_path / "all"), name="all")
        rare = rows.where("k = 2 AND file RLIKE '000[36]'").key_by("k", name="rare").agg(n=hf.count())
        rare.write("parquet", str(tmp_path / "rare"), name="rare")
        rare.for_each_batch(lambda df, epoch: calls.append(int(epoch)), name="always")
        with job.start(containers=1, slices=4, trigger="availableNow") as started:
            started.await_termination()

    for files in (3, 1, 4):
        for _ in range(files):
            shop.add()
        run()
    assert calls == [*range(1, 9)], "a function is called for every epoch"
    log = [path for path in (tmp_path / "rare" / "_spark_metadata").iterdir() if path.name.isdigit()]
    assert sorted(int(path.name) for path in log) == [0, 1]
    found = shop.spark.read.parquet(str(tmp_path / "rare")).collect()
    assert sorted(map(tuple, found)) == [(2, 1, 3), (2, 2, 6)]
    commit = Ledger(Store(str(tmp_path / "store")), "main").last_committed()
    assert commit is not None
    assert commit.sinks == {"all": 7, "rare": 1, "always": 7}


def test_a_sink_that_has_the_epoch_does_not_get_it_again_when_another_is_dropped(shop: Shop) -> None:
    first, stuck = Till(), Till(broken_at=2)

    def both(counts: StageStream) -> None:
        counts.for_each_batch(first, name="first")
        counts.for_each_batch(stuck, name="stuck")

    shop.add()
    shop.add()
    with pytest.raises(hf.SinkError):
        shop.run(both)
    assert first.epochs == [1, 2]
    shop.run(lambda counts: counts.for_each_batch(first, name="first"), drop_sinks=["stuck"])
    assert first.got == [(epoch, true_after(epoch)) for epoch in (1, 2)]


def test_an_epoch_goes_to_the_sinks_that_it_was_prepared_for(shop: Shop, tmp_path: Path) -> None:
    stays, goes, comes = Till(), Till(broken_at=2), Till()

    def before(counts: StageStream) -> None:
        counts.for_each_batch(goes, name="goes")
        counts.with_column("n", hf.epoch()).for_each_batch(stays, name="stays", after="goes")

    def after(counts: StageStream) -> None:
        counts.where(hf.epoch() > 1).select("k", hf.epoch().alias("n")).for_each_batch(stays, name="stays")
        counts.for_each_batch(comes, name="comes")

    shop.add()
    shop.add()
    with pytest.raises(hf.SinkError, match="raised by sink 'goes' in epoch 2"):
        shop.run(before)
    for _ in range(2):
        with pytest.raises(hf.StoreError, match=r"(?s)Epoch 2 .*sink 'goes'.*drop_sinks=\['goes'\]"):
            shop.run(after)
    assert (stays.epochs, comes.epochs) == ([1], [])
    with pytest.raises(hf.PlanError, match="drop_sinks names 'stays'"):
        shop.run(after, drop_sinks=["stays"])

    shop.add()
    goes.broken_at = 0
    shop.run(before)  # the sink is back: it gets its epoch, whatever was tried in between
    assert (goes.epochs, stays.epochs) == ([1, 2, 3], [1, 2, 3])

    shop.add()
    goes.broken_at = 4
    with pytest.raises(hf.SinkError):
        shop.run(before)
    shop.add()
    shop.run(after, drop_sinks=["goes"])
    assert goes.epochs == [1, 2, 3], "given up knowingly"
    assert stays.got == [(epoch, true_after(epoch)) for epoch in (1, 2, 3, 4, 5)]
    assert comes.epochs == [5], "a sink that comes begins with the next epoch"
    shop.add()
    shop.run(before)
    assert (goes.epochs, stays.epochs[-1], comes.epochs) == ([1, 2, 3, 6], 6, [5])


@pytest.mark.parametrize("had_it", [False, True])
def test_files_that_were_dropped_with_an_epoch_go_on_where_they_are(shop: Shop, tmp_path: Path, had_it: bool) -> None:
    """Whether they had the epoch that they were given up in, nobody knows but their folder."""
    stuck = Till(broken_at=2)

    def both(counts: StageStream) -> None:
        if had_it:
            counts.write("parquet", str(tmp_path / "files"), name="files")
            counts.for_each_batch(stuck, name="stuck", after="files")
        else:
            counts.for_each_batch(stuck, name="stuck")
            counts.write("parquet", str(tmp_path / "files"), name="files", after="stuck")

    def alone(counts: StageStream) -> None:
        counts.for_each_batch(stuck, name="stuck")

    def fails_at(epoch: int) -> None:
        shop.add()
        stuck.broken_at = epoch
        with pytest.raises(hf.SinkError):
            shop.run(both)
        stuck.broken_at = 0

    shop.add()
    fails_at(2)
    shop.add()
    shop.run(alone, drop_sinks=["files"])
    fails_at(4)  # they are back, and the epoch is not finished at the first start
    shop.add()
    shop.run(both)
    found = shop.spark.read.parquet(str(tmp_path / "files")).collect()
    wanted = [1, 2, 4, 5] if had_it else [1, 4, 5]
    assert sorted(map(tuple, found)) == sorted((k, n, n) for n in wanted for k in range(5))
    commit = Ledger(Store(str(tmp_path / "store")), "main").last_committed()
    assert commit is not None
    assert (commit.sinks or {})["files"] == len(wanted) - 1
    assert commit.dropped == {}


def test_one_folder_for_two_sinks_is_refused_however_it_is_spelt(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    relative = os.path.relpath(folder)
    spellings = [
        f"{folder}/",
        f"{tmp_path}//out",
        f"{tmp_path}/./out",
        f"{tmp_path}/in/../out",
        f"{tmp_path}/link",
        f"file:{folder}",
        f"file://{folder}",
        f"file://{tmp_path}/link/",
        relative,
        f"./{relative}",
        f"{folder}/inside",
        str(tmp_path),
    ]
    for number, other in enumerate(spellings):
        job, counts = shop.draw()
        counts.write("parquet", str(folder), name="one")
        counts.write("json", other, name=f"other{number}")
        with pytest.raises(hf.PlanError, match=rf"'one' and 'other{number}'"):
            job.start()
    job, counts = shop.draw()
    counts.write("parquet", str(folder), name="one")
    counts.write("json", f"{folder}2", name="beside")
    job.plan()
    assert not list(folder.iterdir())
    assert not (tmp_path / "store").exists()


def test_a_folder_belongs_to_one_sink_of_one_job(shop: Shop, tmp_path: Path, spark: SparkSession) -> None:
    out = tmp_path / "out"

    def write(counts: StageStream) -> None:
        counts.write("parquet", str(out), name="mine")

    shop.run(write)  # no epoch yet, and the folder is taken nevertheless
    assert sorted(path.name for path in out.iterdir()) == [claims.FILE, "_spark_metadata"]
    for store, name, words in (
        ("other", "mine", "of another job: 'shop'"),
        ("store", "renamed", "belongs to the sink 'mine' of this job"),
    ):
        with pytest.raises(hf.StoreError, match=f"(?s){words}"):
            shop.run(lambda counts, name=name: counts.write("parquet", str(out), name=name), store)  # type: ignore[misc]
    assert sorted(path.name for path in out.iterdir()) == [claims.FILE, "_spark_metadata"]

    shop.add()
    shop.run(write)
    (out / claims.FILE).unlink()  # as a folder of old: its history says whose it is
    with pytest.raises(hf.StoreError, match="where 1 epochs of it are, but this store knows of 0"):
        shop.run(write, "other")
    assert not (out / claims.FILE).exists(), "whoever is refused claims nothing"
    shop.add()
    shop.run(write)
    assert (out / claims.FILE).exists()

    assert spark.read.parquet(str(out)).count() == 10
    stream = spark.readStream.schema("k bigint, n bigint, _epoch bigint").parquet(str(out))
    seen = stream.writeStream.format("memory").queryName("claimed_folder").trigger(availableNow=True)
    query = seen.option("checkpointLocation", str(tmp_path / "cp")).start()
    query.awaitTermination()
    assert spark.table("claimed_folder").count() == 10
    assert ds.dataset(out, format="parquet").count_rows() == 10
    assert spark.read.option("recursiveFileLookup", "true").parquet(str(out)).count() == 10


def test_an_old_table_of_marks_with_a_new_store_is_written(shop: Shop, tmp_path: Path) -> None:
    """And an epoch that comes again, after its rows were written and before its commit, is not."""
    database = tmp_path / "db"
    stumbles = {2}

    def save(df: DataFrame, epoch: hf.Epoch) -> None:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS counts (job, k, n, epoch)")
            with hf.once(connection, epoch) as new:
                if new:
                    rows = [(epoch.job, *row, int(epoch)) for row in df.collect()]
                    connection.executemany("INSERT INTO counts VALUES (?, ?, ?, ?)", rows)
        if epoch in stumbles:
            stumbles.discard(int(epoch))
            raise OSError("gone after the rows were written")

    def write(counts: StageStream) -> None:
        counts.for_each_batch(save, name="table")

    for _ in range(3):
        shop.add()
    with pytest.raises(hf.SinkError, match=r"\AOSError: gone after"):
        shop.run(write)
    shop.run(write)
    shop.run(write, "new store")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT job, epoch, k, n FROM counts ORDER BY 1, 2, 3").fetchall()
        marks = connection.execute("SELECT count(DISTINCT job), min(epoch), max(epoch) FROM holdfast_epochs").fetchone()
    truth = [(epoch, k, epoch) for epoch in (1, 2, 3) for k in range(5)]
    jobs = sorted({row[0] for row in found})
    assert len(jobs) == 2
    assert found == [(job, *row) for job in jobs for row in truth]
    assert marks == (2, 3, 3)


def test_the_epoch_is_no_column_for_state(shop: Shop) -> None:
    job = hf.Job("shop", shop.spark, store="nowhere")
    source = job.read(shop.spark.readStream.schema("k bigint").parquet(str(shop.base / "in")))
    counts = source.key_by("k").agg(n=hf.count())
    late = counts.with_column("e", hf.epoch())
    wrong: list[Callable[[], object]] = [
        lambda: source.with_column("e", hf.epoch()),
        lambda: source.where(hf.epoch() > 1),
        lambda: source.key_by(hf.epoch()).agg(n=hf.count()),
        lambda: counts.key_by(hf.epoch()).agg(n=hf.count()),
        lambda: counts.key_by("k", name="x").agg(n=hf.sum(hf.epoch())),
        lambda: late.key_by("e").agg(n=hf.count()),
        lambda: late.union(late).top_k(3, by="n"),
        lambda: counts.transform(lambda df: df.withColumn("e", hf.epoch())),
    ]
    for draw in wrong:
        with pytest.raises(hf.PlanError, match=r"hf\.epoch\(\) stands where"):
            draw()
    text = counts.select("k", F.concat(F.lit("epoch "), hf.epoch()).alias("text"), hf.epoch())
    assert [(field.name, field.dataType.simpleString()) for field in text.schema.fields] == [
        ("k", "bigint"),
        ("text", "string"),
        ("epoch", "bigint"),
    ]
    assert late.columns == ["k", "n", "e"]
