"""The same running count and sum per key, by Holdfast and by Spark's RocksDB store, behind one small interface.

Both read the same kind of files with a trigger of a second and write every changed key to ``noop``. Both can be asked
when they committed, loaded with half of what they were just measured to be able to do, and checked at the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from kit.load import Feed, Files, commit_times

TRIGGER = "1 second"
SHARE = 0.5  # of the measured maximum
STORE = "spark.sql.streaming.stateStore."
ROCKSDB = {
    STORE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    STORE + "rocksdb.changelogCheckpointing.enabled": "true",
    STORE + "rocksdb.trackTotalNumberOfRows": "false",
}


class Contestant(Protocol):
    files: Files

    @property
    def query(self) -> StreamingQuery: ...
    def times(self) -> list[float]: ...
    def process_all(self) -> None: ...
    def check(self) -> None: ...
    def stop(self) -> None: ...


def stream(spark: SparkSession, files: Files, files_per_epoch: int | None = None) -> DataFrame:
    reader = spark.readStream.schema("k long, v long")
    if files_per_epoch:
        reader = reader.option("maxFilesPerTrigger", files_per_epoch)
    return reader.parquet(str(files.watched))


class Holdfast:
    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        files: Files,
        files_per_epoch: int | None = None,
        trigger: dict[str, Any] | None = None,
        **start: Any,
    ) -> None:
        import holdfast as hf

        self.files = files
        self._commits = folder / "store" / "main" / "commit"
        job = hf.Job("bench", spark, store=str(folder / "store"))
        self._counted = job.read(stream(spark, files, files_per_epoch)).key_by("k").agg(n=hf.count(), total=hf.sum("v"))
        self._counted.write("noop", mode="update")
        self.run = job.start(trigger=trigger or {"processingTime": TRIGGER}, **start)

    @property
    def query(self) -> StreamingQuery:
        assert self.run.query is not None
        return self.run.query

    def times(self) -> list[float]:
        return list(commit_times(self._commits).values())

    def process_all(self) -> None:
        self.run.process_all_available()

    def check(self) -> None:
        """Every row counted once, whatever was done to the containers meanwhile."""
        self.process_all()
        state = self.run.state(self._counted).to_arrow()
        _expect(state.num_rows, pc.sum(state["n"]).as_py(), self.files)

    def stop(self) -> None:
        self.run.stop()

    def events(self, since: float, *kinds: str) -> list[Any]:
        """What happened since then, newest last; of some kinds only if they are named."""
        found = [event for event in self.run.status().events if event.at >= since]
        return [event for event in found if not kinds or event.kind in kinds]

    def pids(self) -> dict[str, int]:
        return {one.name: one.pid for one in self.run.status().containers if one.alive}


class SparkRocksDB:
    """Spark's own. It may be stopped and started again, with as many state partitions as its checkpoint has."""

    def __init__(self, spark: SparkSession, folder: Path, files: Files) -> None:
        self.files = files
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        self.start()

    def start(self) -> None:
        counted = stream(self._spark, self.files).groupBy("k").agg(fn.count("*").alias("n"), fn.sum("v").alias("total"))
        writer = counted.writeStream.format("noop").outputMode("update")
        self.query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(processingTime=TRIGGER).start()

    def times(self) -> list[float]:
        return list(commit_times(self.checkpoint / "commits").values())

    def process_all(self) -> None:
        self.query.processAllAvailable()

    def check(self) -> None:
        self.process_all()
        self.stop()
        state = self._spark.read.format("statestore").load(str(self.checkpoint))
        row = state.agg(fn.count("*"), fn.sum("value.count")).first()
        assert row is not None
        _expect(row[0], row[1], self.files)

    def stop(self) -> None:
        self.query.stop()


def _expect(keys: int, rows: int, files: Files) -> None:
    if (keys, rows) != (files.keys, files.rows):
        raise SystemExit(f"The state is wrong: {keys:,} keys of {rows:,} rows, not {files.keys:,} of {files.rows:,}.")


def preload(contestant: Contestant) -> None:
    """Fills the state with every key, a file an epoch."""
    for file in contestant.files.every_key_once():
        contestant.files.give(file)
        contestant.process_all()


def maximum(contestant: Contestant, burst: int, times: int = 3) -> float:
    """The rows a second of the best of a few epochs that had all the rows they could take."""
    found = []
    files = contestant.files.random(max(1, burst // 8), 8)
    for _ in range(times):
        seen = len(contestant.query.recentProgress)
        for file in files:
            contestant.files.give(file)
        contestant.process_all()
        epochs = [one for one in contestant.query.recentProgress[seen:] if one.numInputRows]
        seconds = sum(one.durationMs["triggerExecution"] for one in epochs) / 1000
        found.append(sum(one.numInputRows for one in epochs) / seconds)
    return max(found)


@contextmanager
def under_load(contestant: Contestant, burst: int, calm: float) -> Iterator[Loaded]:
    """Preloaded, measured, and fed with half of its maximum since ``calm`` seconds when this is entered."""
    preload(contestant)
    best = maximum(contestant, burst)
    with Feed(contestant.files, SHARE * best) as feed:
        begun = time.time() + 3  # the first epochs of a feed are not yet even
        time.sleep(3 + calm)
        yield Loaded(feed.rate, best, begun, time.time())
    contestant.check()


@dataclass(frozen=True)
class Loaded:
    """A contestant at its load, and the span of time in which nothing disturbed it."""

    rate: float
    maximum: float
    calm_from: float
    calm_to: float


def await_commit(contestant: Contestant, after: float, patience: float = 300.0) -> float:
    """The time of the first commit later than ``after``."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        late = [at for at in contestant.times() if at > after]
        if late:
            return late[0]
        if not contestant.query.isActive:
            raise SystemExit(f"The query ended: {contestant.query.exception()}")
        time.sleep(0.02)
    raise SystemExit(f"No commit within {patience:.0f} s.")


class Sampler:
    """Calls ``sample`` at a fixed pace in a thread of its own; ``found`` has (time, value)."""

    def __init__(self, sample: Callable[[], float], every: float = 1.0) -> None:
        self.found: list[tuple[float, float]] = []
        self._sample = sample
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True, name="sampler")

    def _go(self) -> None:
        while not self._end.wait(self._every):
            self.found.append((time.time(), self._sample()))

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def rates(self) -> list[float]:
        """How fast a counter grew, sample by sample."""
        return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(self.found)]


def cpu_seconds(pids: dict[str, int]) -> dict[str, float]:
    """The CPU time of processes of this machine so far; those that are gone are left out."""
    found = {}
    for name, pid in pids.items():
        try:
            used = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[name] = used.user + used.system
    return found


def all_cpu_seconds() -> float:
    """Of this process and everything below it, also what has ended: the JVM, Spark's Python workers, containers."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total
