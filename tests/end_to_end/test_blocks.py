"""Blocks between Spark's batches and epochs, on real Spark: what is taken in and not read when a run ends.

A driver dies here by an exception where a drill would kill it: what it leaves in the store is the same. Real deaths of
drivers are in ``test_exactly_once``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import NEVER, Drill, committed_files, equal, until
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.log.blocks import standing
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark


class Shop:
    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark = base, spark
        self.files = 0
        (base / "in").mkdir()

    def add(self, files: int = 1) -> None:
        for _ in range(files):
            self.files += 1
            path = self.base / f"{self.files:04d}.parquet"
            pq.write_table(pa.table({"k": list(range(5)), "v": [self.files] * 5}), path)
            os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
            path.rename(self.base / "in" / path.name)  # whole: somebody may look meanwhile

    def draw(self, *, best: bool = False, raw: bool = False, **more: Callable[..., Any]) -> hf.Job:
        job = hf.Job("shop", self.spark, store=str(self.base / "store"))
        stream = self.spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1)
        rows = job.read(stream.parquet(str(self.base / "in")))
        totals = {"best": hf.max("v")} if best else {}
        counts = rows.key_by("k", name="counts").agg(n=hf.count(), total=hf.sum("v"), **totals)
        for name, function in more.items():
            counts.for_each_batch(function, name=name)
        counts.write("parquet", str(self.base / "out"), name="out")
        if raw:
            rows.write("parquet", str(self.base / "raw"), name="raw")
        return job

    def run(self, drain: bool = False, prefetch: int = 0, **drawn: Any) -> list[tuple[int, ...]]:
        """The state when all there is has been read."""
        job = self.draw(**drawn)
        options = {"trigger": {"availableNow": True}, "drain": drain, "prefetch": prefetch}
        with job.start(containers=1, slices=4, **options) as run:  # type: ignore[arg-type]
            assert run.await_termination()
            assert (run.query is None) is drain
            return sorted(tuple(row.values()) for row in run.state("counts").to_arrow().to_pylist())

    @property
    def ledger(self) -> Ledger:
        return Ledger(Store(str(self.base / "store")), "main")

    @property
    def unread(self) -> list[int]:
        return [block.number for block in standing(self.ledger).unread]

    def counted(self, *more: Any) -> list[tuple[int, ...]]:
        return [(k, self.files, sum(range(1, self.files + 1)), *more) for k in range(5)]

    def check_sinks(self) -> None:
        truth = " UNION ALL ".join(
            f"SELECT {epoch} AS e, k, {epoch} AS n, {sum(range(epoch + 1))} AS total FROM range(5) t(k)"
            for epoch in range(1, self.files + 1)
        )
        found = committed_files(self.base / "out")
        equal(f"SELECT _epoch AS e, k, n, total::BIGINT AS total FROM read_parquet({found})", truth)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


class Died(Exception):
    pass


@contextlib.contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, place: str, number: int) -> Iterator[None]:
    """The driver goes no further than there."""

    def passes(role: str, name: str, at: int) -> None:
        if (role, name, at) == ("driver", place, number):
            raise Died(place)

    with monkeypatch.context() as patched:
        patched.setattr(faults, "place", passes)
        yield


@pytest.mark.parametrize("prefetch", [0, 1])
def test_unread_blocks_of_another_layout_are_refused_until_they_are_read(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    """First other sinks, which read the block as it is; then one more aggregate, which cannot."""
    got: list[int] = []

    def take(df: DataFrame, epoch: hf.Epoch) -> None:
        got.append(int(epoch))

    shop.add(2)
    with dying(monkeypatch, "after-block", 2), pytest.raises(hf.HoldfastError):
        shop.run(prefetch=prefetch)
    assert shop.unread == [2]
    assert shop.run(take=take, prefetch=prefetch) == shop.counted()
    assert got == [2], "the new sink gets what was taken in"
    shop.add()
    with dying(monkeypatch, "after-block", 3), pytest.raises(hf.HoldfastError):
        shop.run(prefetch=prefetch)
    assert shop.unread == [3]
    shop.add()
    with pytest.raises(hf.StoreError, match="its store has block 3 of the source, taken in before that") as refused:
        shop.run(best=True, prefetch=prefetch)
    assert "drain=True" in str(refused.value)
    assert shop.unread == [3]
    shop.files -= 1
    assert shop.run(drain=True) == shop.counted(), "the last file is not taken in"
    assert shop.unread == []
    shop.files += 1
    assert shop.run(best=True, prefetch=prefetch) == shop.counted(shop.files)
    shop.check_sinks()


def test_whoever_dies_around_a_sink_over_the_source_gives_it_each_batch_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.add(4)
    for number, place in enumerate(("after-begun", "mid-sink", "after-source-sink", "after-block"), 1):
        with dying(monkeypatch, place, number), pytest.raises(hf.HoldfastError):
            shop.run(raw=True)
        there = standing(shop.ledger)
        assert (there.last, there.begun is None) == ((number, True) if place == "after-block" else (number - 1, False))
    assert shop.run(raw=True) == shop.counted()
    shop.check_sinks()
    equal(
        f"SELECT k, v, _epoch AS block FROM read_parquet({committed_files(shop.base / 'raw')})",
        "SELECT k, v, v AS block FROM range(5) a(k), range(1, 5) b(v)",
    )
    assert standing(shop.ledger).begun is None


def test_the_next_batch_is_taken_in_while_an_epoch_is_under_way(shop: Shop) -> None:
    """In the sink of the first epoch the second block comes; without prefetch it would never."""
    came = []

    def take(df: DataFrame, epoch: hf.Epoch) -> None:
        if epoch == 1:
            for _ in range(3000):
                if shop.ledger.get_block(2) is not None:
                    came.append(2)
                    break
                waiting.wait(0.1)

    waiting = threading.Event()
    shop.add(3)
    assert shop.run(prefetch=1, take=take) == shop.counted()
    assert came == [2]
    shop.check_sinks()


def test_what_was_there_is_waited_for_and_not_what_comes_all_the_time(shop: Shop) -> None:
    """There is a block that nobody has read whenever an epoch ends."""
    going, waiting = [True], threading.Event()

    def take(df: DataFrame, epoch: hf.Epoch) -> None:
        if going:
            shop.add()
            while going and shop.ledger.get_block(int(epoch) + 1) is None:
                waiting.wait(0.05)

    shop.add()
    with shop.draw(take=take).start(containers=1, slices=4, prefetch=1) as run:
        run.process_all_available()
        going.clear()
        run.process_all_available()
        assert sorted(tuple(row.values()) for row in run.state("counts").to_arrow().to_pylist()) == shop.counted()
    shop.check_sinks()


def test_whoever_waits_for_what_a_stop_gives_up_hears_of_that(shop: Shop) -> None:
    """Spark has done its part: the block is there."""
    leave = threading.Event()
    shop.add(2)
    run = shop.draw(take=lambda df, epoch: leave.wait(300)).start(containers=1, slices=4, prefetch=1)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(run.process_all_available)
        until(lambda: run._live._waiters and run._live._waiters[0].over, NEVER, "Spark has done its part")
        stopping = pool.submit(run.stop, 0.1)
        until(lambda: not run._shell.machine._busy, NEVER, "the epoch is given up")
        leave.set()
        with pytest.raises(hf.HoldfastError, match="was stopped before it was done"):
            waiting.result()
        stopping.result()
    assert shop.unread
    assert shop.run(take=lambda df, epoch: None) == shop.counted()
    shop.check_sinks()


def test_an_epoch_that_fails_on_a_quiet_source_is_heard(shop: Shop) -> None:
    """With prefetch nobody waits in ``foreachBatch`` any more when the sink raises."""

    stuck = [True]

    def take(df: DataFrame, epoch: hf.Epoch) -> None:
        if stuck:
            raise ValueError("the till is stuck")

    shop.add()
    job = shop.draw(take=take)
    with job.start(containers=1, slices=4, prefetch=1) as run:
        with pytest.raises(hf.SinkError, match="the till is stuck"):
            run.process_all_available()
        with pytest.raises(hf.SinkError, match="the till is stuck"):
            run.await_termination(300)
    stuck.clear()
    assert shop.run(take=take) == shop.counted()
    shop.check_sinks()


def test_a_sink_over_the_source_cannot_wait_for_one_over_stages(shop: Shop) -> None:
    job = hf.Job("shop", shop.spark, store=str(shop.base / "store"))
    rows = job.read(shop.spark.readStream.schema("k bigint, v bigint").parquet(str(shop.base / "in")))
    rows.key_by("k").agg(n=hf.count()).write("noop", name="counts")
    rows.write("noop", name="raw", after="counts")
    with pytest.raises(hf.PlanError, match="'raw' stands straight over a source and is written after 'counts'"):
        job.start(containers=1, slices=4)


def test_containers_killed_with_blocks_ahead(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = Drill(tmp_path, files=6, config={"shape": "all", "prefetch": 1})
    drill.plant(*[f"container@{place}" for place in ("mid-apply@2", "mid-sink@3", "mid-apply@5")])
    drill.run_here(spark, monkeypatch)
    assert drill.planted == []
    drill.check()
