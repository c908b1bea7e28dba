"""A job stops, is written anew, and comes back over the store it had."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import driver
import duckdb
import pytest
from kit import Drill
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast.api.keyed import StageStream
from holdfast.api.stream import Stream

pytestmark = pytest.mark.spark
SCHEMA = "k bigint, g string, v bigint, ts timestamp"
Build = Callable[..., dict[str, StageStream]]


class Shop:
    """One store, one folder of input, and jobs over them that follow each other."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base = spark, base
        self.files = 0
        (base / "in").mkdir()

    def more(self, files: int = 2, rows: int = 300) -> None:
        for _ in range(files):
            self.files += 1
            lines = [
                json.dumps(
                    {
                        "k": at * 7 % 23 + self.files % 3,
                        "g": f"g{at * self.files % 11}",
                        "v": at * 31 % 97,
                        "ts": f"2024-01-01T00:{self.files:02d}:{at % 60:02d}Z",
                    }
                )
                for at in range(rows)
            ]
            hidden = self.base / f"{self.files}.json"
            hidden.write_text("\n".join(lines))
            hidden.rename(self.base / "in" / f"{self.files:04d}.json")
            time.sleep(0.01)

    def run(
        self, build: Build, sources: Mapping[str, int] | None = None, **options: Any
    ) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """All state after all there is to read, and what the run said of changes.

        ``sources`` all have the same files, each so many of them an epoch.
        """
        job = hf.Job("shop", self.spark, store=str(self.base / "store"))
        reader = self.spark.readStream.schema(SCHEMA)
        streams = build(
            *[
                job.read(reader.option("maxFilesPerTrigger", files).json(str(self.base / "in")), name)
                for name, files in (sources or {"source": 1}).items()
            ]
        )
        for name, stream in streams.items():
            stream.write("noop", name=name)
        with job.start(containers=2, slices=8, trigger={"availableNow": True}, **options) as run:
            run.await_termination()
            found = {
                name: sorted(run.state(stream).to_arrow().to_pylist(), key=repr) for name, stream in streams.items()
            }
            return found, [event.text for event in run.status().events if event.kind == "changed"]

    def oracle(self, query: str, since: int = 0) -> list[dict[str, Any]]:
        """A query over ``every`` row and the ``young`` ones, of files after the change."""
        every, young = ([str(path) for path in sorted((self.base / "in").iterdir())[first:]] for first in (0, since))
        with duckdb.connect() as connection:
            connection.sql(f"CREATE VIEW every_row AS FROM read_json({every})")
            connection.sql(f"CREATE VIEW young AS FROM read_json({young})")
            return sorted(connection.sql(query).to_arrow_table().to_pylist(), key=repr)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    made = Shop(spark, tmp_path)
    made.more(3)
    return made


def counted(**aggregates: Any) -> Build:
    return lambda rows: {"counts": rows.key_by("k", name="counts").agg(**aggregates)}


def test_aggregates_come_and_go(shop: Shop) -> None:
    shop.run(counted(n=hf.count(), total=hf.sum("v")), safety=hf.Delta(store_every=2))
    shop.more()
    found, changes = shop.run(counted(high=hf.max("g"), total=hf.sum("v")), safety=hf.Delta(store_every=2))
    assert changes == [
        "stage 'counts': aggregate 'high' is new: it starts at null for the keys there are",
        "stage 'counts': aggregate 'n' is gone: its state is dropped",
    ]
    query = (
        "SELECT k, high, total FROM (SELECT k, sum(v)::BIGINT total FROM every_row GROUP BY k) "
        "LEFT JOIN (SELECT k, max(g) high FROM young GROUP BY k) USING (k)"
    )
    assert found["counts"] == shop.oracle(query, since=3)

    # The same graph again is no change; and a loss right after the restart finds the new graph's own checkpoint.
    shop.more(1)
    found, changes = shop.run(counted(high=hf.max("g"), total=hf.sum("v")), safety=None)
    assert not changes
    assert found["counts"] == shop.oracle(query, since=3)


def test_windows_and_a_stage_over_them(shop: Shop) -> None:
    """The watermark goes on where it was, and the new stage follows it."""

    def before(rows: Stream) -> dict[str, StageStream]:
        windows = rows.key_by("k", name="windows").window(hf.tumbling("2 minutes"), time="ts").agg(n=hf.count())
        return {"windows": windows}

    def after(rows: Stream) -> dict[str, StageStream]:
        windows = (
            rows.key_by("k", name="windows")
            .window(hf.tumbling("2 minutes"), time="ts")
            .agg(total=hf.sum("v"), n=hf.count())
        )
        return {"windows": windows, "sums": windows.key_by("k", name="sums").agg(n=hf.sum("n"), windows=hf.count())}

    shop.run(before)
    shop.more(4)
    found, changes = shop.run(after)
    assert changes == [
        "stage 'windows': aggregate 'total' is new: it starts at null for the keys there are",
        "stage 'sums' is new: it starts empty, with the rows of the next epoch",
    ]
    # Files are a minute each; three had closed [0, 2), the others close [2, 4) and [4, 6).
    closed = "ts >= '2024-01-01 00:02:00' AND ts < '2024-01-01 00:06:00'"
    assert found["sums"] == shop.oracle(
        "SELECT k, sum(n)::BIGINT n, count(*) windows FROM (SELECT k, count(*) n FROM every_row "
        f"WHERE {closed} GROUP BY k, minute(ts) // 2) GROUP BY k"
    )
    shop.more(1)
    again, changes = shop.run(before)
    assert changes == [
        "stage 'windows': aggregate 'total' is gone: its state is dropped",
        "stage 'sums' is gone: its state is dropped",
    ]
    assert sum(row["n"] for row in again["windows"]) == 300  # of minute 8, the only one that is open


class Counting:
    count = hf.states.value("bigint", default=0)

    def rows(self, key: int, rows: Any, context: Any) -> None:
        context.state.count += len(rows)


class Weighing:
    count = hf.states.value("bigint", default=0)
    weight = hf.states.value("bigint")

    def rows(self, key: int, rows: Any, context: Any) -> None:
        context.state.count += 10 * len(rows)
        context.state.weight = (context.state.weight or 0) + sum(row["v"] for row in rows)


def own(function: Any) -> Build:
    return lambda rows: {"own": rows.key_by("k", name="own").process(function, output="k bigint")}


def test_a_function_and_its_states(shop: Shop) -> None:
    """Epochs that were committed before are the old function's, even if they are only in the log."""
    register_pickle_by_value(sys.modules[__name__])  # as if this were the script that was started
    try:
        shop.run(own(Counting), safety=hf.Delta(store_every=2))
        shop.more()
        found, changes = shop.run(own(Weighing))
    finally:
        unregister_pickle_by_value(sys.modules[__name__])
    assert changes == [
        "stage 'own': state 'weight' is new: it starts empty for the keys there are",
        "stage 'own': its function is another: it is called from the next epoch on",
    ]
    assert found["own"] == shop.oracle(
        "SELECT k, (n + coalesce(9 * young_n, 0))::BIGINT count, weight FROM "
        "(SELECT k, count(*) n FROM every_row GROUP BY k) LEFT JOIN "
        "(SELECT k, count(*) young_n, sum(v)::BIGINT weight FROM young GROUP BY k) USING (k)",
        since=3,
    )


def decided(base: Path) -> dict[str, bytes]:
    paths: Iterable[Path] = (path for path in sorted((base / "store").rglob("*")) if path.is_file())
    return {str(path): path.read_bytes() for path in paths if "/owner/" not in str(path)}


def test_what_means_something_else_is_refused_and_shown(shop: Shop) -> None:
    shop.run(counted(n=hf.count(), total=hf.sum("v")))
    before = decided(shop.base)
    with pytest.raises(hf.StoreError, match="key columns: k: bigint in the store, g: string now") as caught:
        shop.run(lambda rows: {"counts": rows.key_by("g", name="counts").agg(n=hf.count(), total=hf.sum("v"))})
    assert "another name" in caught.value.todo
    with pytest.raises(hf.StoreError, match=r"'total': sum\(bigint\) → bigint in the store, sum\(double\) → double"):
        shop.run(
            lambda rows: {
                "counts": rows.with_column("v", "cast(v as double)")
                .key_by("k", name="counts")
                .agg(n=hf.count(), total=hf.sum("v"))
            }
        )
    with pytest.raises(hf.StoreError, match="source 'renamed': nothing in the store, which has source"):
        shop.run(counted(n=hf.count(), total=hf.sum("v")), {"renamed": 1})
    assert decided(shop.base) == before


def test_stages_and_sinks_over_sources_come_and_go(shop: Shop) -> None:
    """Every row is in what was there when it came, once, and in nothing else, in whatever order sources are read."""

    def counts(rows: Stream) -> dict[str, StageStream]:
        return {"counts": rows.key_by("k", name="counts").agg(n=hf.count())}

    def groups(rows: Stream) -> dict[str, StageStream]:
        return {"groups": rows.key_by("g", name="groups").agg(n=hf.count())}

    def more(one: Stream, two: Stream) -> dict[str, StageStream]:
        two.where("v > 90").select("k", "v").write("parquet", str(shop.base / "large"))
        return {"young": two.key_by("v", name="young").agg(n=hf.count()), **groups(two), **counts(one)}

    def counted(key: str, since: int = 0) -> list[dict[str, Any]]:
        return shop.oracle(f"SELECT {key}, count(*) n FROM young GROUP BY {key}", since)

    both = {"one": 1, "two": 2}  # files an epoch: they are never equally far
    found, _ = shop.run(lambda one, two: counts(one) | groups(two), both)
    assert found == {"counts": counted("k"), "groups": counted("g")}
    shop.more()
    found, changes = shop.run(more, both)
    assert changes == ["stage 'young' is new: it starts empty, with the rows of the next epoch"]
    assert found == {"counts": counted("k"), "groups": counted("g"), "young": counted("v", since=3)}
    shop.more()
    found, changes = shop.run(lambda two: groups(two), {"two": 2})
    assert changes == [
        "source 'one' is gone: how far it was read is forgotten",
        "stage 'young' is gone: its state is dropped",
        "stage 'counts' is gone: its state is dropped",
    ]
    assert found == {"groups": counted("g")}
    large = shop.spark.read.parquet(str(shop.base / "large")).toArrow().select(["k", "v"]).to_pylist()
    young = sorted((shop.base / "in").iterdir())[3:5]
    truth = [json.loads(line) for path in young for line in path.read_text().splitlines()]
    assert sorted(map(repr, large)) == sorted(repr({"k": row["k"], "v": row["v"]}) for row in truth if row["v"] > 90)


def test_sources_that_are_one_dataframe_keep_their_stages(shop: Shop) -> None:
    """Spark has one reader for both, so which notes are whose cannot be told from its checkpoint."""

    def start(*more: str) -> None:
        job = hf.Job("shop", shop.spark, store=str(shop.base / "store"))
        frame = shop.spark.readStream.schema(SCHEMA).json(str(shop.base / "in"))
        every, some = job.read(frame, "every"), job.read(frame.where("v > 0"), "some")
        apart = every.transform(lambda df: df.select("*", F.explode(F.array("v")).alias("one")))
        others = {"beside": every, "apart": apart}
        for name, rows in (("every", every), ("some", some), *((name, others[name]) for name in more)):
            rows.key_by("k", name=name).agg(n=hf.count()).write("noop", name=name)
        with job.start(containers=1, slices=4, trigger={"availableNow": True}) as run:
            run.await_termination()

    start()
    before = decided(shop.base)
    with pytest.raises(hf.StoreError, match="'every' and 'some' are made of the same streaming DataFrame"):
        start("apart")
    assert decided(shop.base) == before
    start("beside")  # a stage that reads in the same pass needs no place of its own


@pytest.mark.drivers
def test_an_epoch_in_flight_is_finished_by_the_job_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    drill = Drill(tmp_path, files=3)
    drill.plant("driver@after-prepare@2")
    assert drill.run().killed
    job = hf.Job("drill", spark, store=drill.config["store"])
    job.read(driver.source(spark, drill.config["input"])).key_by("k").agg(n=hf.count())
    with pytest.raises(hf.StoreError, match="epoch 2 was begun") as caught:
        job.start(slices=16)
    assert "so that epoch 2 is finished" in caught.value.todo
    assert drill.run().code == 0
    drill.check()
