"""An epoch that is given up ends at once, whatever Spark is doing for it, and with its own error."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import NEVER, until
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.api.keyed import StageStream
from holdfast.driver import sizes
from holdfast.driver.live_job import SECTION
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
LONG = 1000
"""Seconds: longer than a test may take."""


def dawdling(unless: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows as they are, but only after a long time, or when the file is there; ``begun`` beside it says it waits."""
    begun = unless.with_name("begun")

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            until = time.monotonic() + LONG
            while not unless.exists() and time.monotonic() < until:
                time.sleep(0.1)
            yield batch

    return pass_on


class Rows:
    """One file an epoch, each with the keys 0 to 9."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.folder, self.store, self.spark = base / "in", base / "store", spark
        self.folder.mkdir()
        self.files = 0

    def add(self) -> None:
        self.files += 1
        pq.write_table(pa.table({"k": list(range(10))}), self.folder / f"{self.files:04d}.parquet")

    def job(self, steps: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> tuple[hf.Job, StageStream]:
        job = hf.Job("given_up", self.spark, store=str(self.store))
        stream = self.spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(str(self.folder))
        return job, job.read(steps(stream)).key_by("k", name="counts").agg(n=hf.count())


@pytest.fixture
def rows(tmp_path: Path, spark: SparkSession) -> Rows:
    return Rows(tmp_path, spark)


def test_a_sink_ends_with_its_batch_whatever_it_does(
    rows: Rows, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container is lost and the log cannot be read: nobody will ever have the rows it waits for."""
    monkeypatch.setattr(sizes, "SMALL_BYTES", 0)  # by a scan
    rows.add()
    job, counts = rows.job()
    ended: list[str] = []
    running: list[hf.Run] = []

    def sink(frame: DataFrame, epoch: int) -> None:
        if epoch < 2:
            return
        (run,) = running
        here = run._jobs.scan("counts", epoch, "changed")
        prepare = rows.store / "main" / "prepare" / "0000000001.1"
        damaged = bytearray(prepare.read_bytes())
        damaged[200] ^= 0xFF
        prepare.write_bytes(damaged)
        run.kill(run.status().containers[0].name)
        slow = spark.range(1).mapInArrow(dawdling(tmp_path / "never"), "id bigint")
        for wait in (frame.count, lambda: list(here.part(0)), slow.count):  # in tasks, in the driver, for nobody
            try:
                wait()
            except Exception as error:
                ended.append(type(error).__name__)
        raise RuntimeError("what becomes of a sink that was cancelled is nobody's business")

    counts.for_each_batch(sink, name="sink")
    with job.start(containers=1, slices=4, safety=None) as run:
        run.process_all_available()
        running.append(run)
        rows.add()
        with pytest.raises(hf.CorruptionError, match=r"prepare/0000000001\.1"):
            run.process_all_available()
        assert len(ended) == 3
        assert not [event for event in run.status().events if "RunSink" in event.text or "business" in event.text]


@pytest.mark.parametrize("where", ["intake", pytest.param("sink", marks=pytest.mark.heavy)])
def test_a_stop_does_not_wait_for_a_long_epoch(rows: Rows, tmp_path: Path, spark: SparkSession, where: str) -> None:
    go_on, begun = tmp_path / "go-on", threading.Event()
    seen: Counter[tuple[int, int, int]] = Counter()

    def start() -> hf.Run:
        slow = dawdling(go_on)

        def sink(frame: DataFrame, epoch: int) -> None:
            begun.set()
            got = (frame.mapInArrow(slow, frame.schema) if where == "sink" else frame).collect()
            seen.update((epoch, row["k"], row["n"]) for row in got)

        job, counts = rows.job(lambda frame: frame.mapInArrow(slow, "k bigint") if where == "intake" else frame)
        counts.for_each_batch(sink, name="sink")
        return job.start(containers=1, slices=4)

    rows.add()
    run = start()
    if where == "sink":
        assert begun.wait(NEVER)
    else:
        until((tmp_path / "begun").exists, NEVER, "a task of the intake has begun")
    waiter: list[BaseException] = []

    def follow() -> None:
        try:
            run.process_all_available()
        except BaseException as error:
            waiter.append(error)

    following = threading.Thread(target=follow)
    following.start()
    run.stop(patience=0.0)
    following.join(NEVER)
    assert [type(error) for error in waiter] == [hf.HoldfastError]
    assert "was stopped" in str(waiter[0])
    assert not seen

    go_on.touch()
    with start() as again:
        again.process_all_available()  # a batch that was only planned is planned once more, with what there is then
        rows.add()
        again.process_all_available()
        assert again.status().epoch == 2
    assert seen == Counter((epoch, key, epoch) for epoch in (1, 2) for key in range(10))


def test_a_driver_that_is_replaced_ends_its_sink(rows: Rows, tmp_path: Path) -> None:
    """It looked before the sink began. What it still wrote would come after what its successor has written."""
    rows.add()
    job, counts = rows.job()
    slow, begun = dawdling(tmp_path / "never"), threading.Event()

    def sink(frame: DataFrame, epoch: int) -> None:
        begun.set()
        frame.mapInArrow(slow, frame.schema).collect()

    counts.for_each_batch(sink, name="sink")
    with job.start(containers=1, slices=4) as run:
        assert begun.wait(NEVER)
        Ledger(Store(str(rows.store)), SECTION).take_ownership("elsewhere", 1, "")
        with pytest.raises(hf.FencedError, match="incarnation 2 has taken over"):
            run.process_all_available()
    assert not list((rows.store / "main" / "commit").glob("0*"))
