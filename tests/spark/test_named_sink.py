"""The two ends of a named stream on real Spark: an epoch is one block whoever finishes it, and rows come back whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast.log.store import Store
from holdfast.log.streams import NamedStream
from holdfast.plan.graph import Named, Output, Sink, Stage
from holdfast.spark.named_sink import NamedSink
from holdfast.spark.named_source import BlocksPart, BlocksReader, BlockStream, Wanted, layout_of, parts_of, schema_of

pytestmark = pytest.mark.spark


def sink_of(path: Path, df: DataFrame, *, updating: bool = False) -> NamedSink:
    node = Output(Stage("s", ()), "", updating)
    named = Named("hot", None, windowed=False, whole=True)
    sink = NamedSink(Store(path), Sink("stream:hot", node, "stream", "update", df.schema, named=named), "id", "shop")
    sink.declare(first=True)
    return sink


def read(path: Path) -> pa.Table:
    wanted = Wanted(str(path), "hot")
    stream = NamedStream(Store(path), "hot")
    parts = parts_of(stream, 1, stream.newest())
    return pa.Table.from_batches(
        [batch for part in parts for batch in BlocksReader(wanted, schema_of(layout_of(wanted))).read(part)]
    )


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 20_000, 1, 3).select("id", F.lit("x" * 20).alias("text"), (F.col("id") / 7).alias("part"))


def test_an_epoch_is_one_block_whoever_finishes_it_and_one_that_was_replaced_stops(
    tmp_path: Path, spark: SparkSession, rows: DataFrame
) -> None:
    sink, other = sink_of(tmp_path, rows), sink_of(tmp_path, rows)
    few = spark.createDataFrame([(1, "few", 0.5), (2, None, 1.5)], "id bigint, text string, part double")
    sink.write(few, 3, 0)
    other.write(few, 3, 0)
    sink.write(few.limit(0), 4, 1)
    other.write(rows, 5, 1)
    sink.write(rows, 5, 1)
    stream = NamedStream(Store(tmp_path), "hot")
    blocks = [stream.blocks.get(number) for number in stream.kept()]
    assert [block and (block.number, block.epoch, block.rows) for block in blocks] == [(1, 3, 2), (2, 5, 20_000)]
    assert [one.name for block in blocks if block for one in block.files if one.inline is None], "large ones are files"
    assert len(stream.store.list("rows")) == 3
    with pytest.raises(hf.FencedError, match="Block 2 of stream 'hot' is of epoch 5, and this driver is at epoch 4"):
        sink.write(few, 4, 1)
    assert read(tmp_path).equals(pa.concat_tables([one.toArrow().cast(read(tmp_path).schema) for one in (few, rows)]))


def test_a_file_that_was_altered_is_not_read(tmp_path: Path, rows: DataFrame) -> None:
    sink_of(tmp_path, rows).write(rows, 1, 0)
    file = sorted((tmp_path / "stream/hot/rows").iterdir())[1]
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(RuntimeError, match=r"is not what was written for block 1 \(epoch 1\)"):
        read(tmp_path)


def test_a_reader_takes_blocks_in_order_at_most_so_many_and_leaves_a_mark(tmp_path: Path, spark: SparkSession) -> None:
    few = spark.createDataFrame([(1, "a")], "id bigint, text string")
    sink = sink_of(tmp_path, few)
    for epoch in range(1, 6):
        sink.write(few, epoch, epoch - 1)

    def reader(**options: Any) -> BlockStream:
        wanted = Wanted.of({"reader": "b", **options}, str(tmp_path), "hot")
        return BlockStream(wanted, schema_of(layout_of(wanted)))

    first = reader()
    assert first.initialOffset() == {"block": 0}
    assert reader().initialOffset() == {"block": 0}, "nothing is done yet: it may be the same one again"
    assert first.latestOffset({"block": 0}, None) == {"block": 5}
    assert first.latestOffset() == {"block": 5}, "as Spark 4.1 asks"
    assert first.latestOffset({"block": 0}, SimpleNamespace(max_files=2)) == {"block": 2}
    (part,) = first.partitions({"block": 1}, {"block": 3})
    assert isinstance(part, BlocksPart)
    assert [one.block for one in part.rows] == [2, 3], "small ones go together"
    first.commit({"block": 3})
    lease = NamedStream(Store(tmp_path), "hot").lease("b")
    assert lease is not None
    assert (lease.first, lease.position) == (1, 3)
    with pytest.raises(RuntimeError, match="has read up to block 3, and this query begins anew"):
        reader().initialOffset()
    with pytest.raises(hf.StoreError, match="has a reader 'b' already: a query of Spark's"):
        reader(holder="job 'x'")
    # Another query by that name goes on; the first one sees that it has been replaced.
    assert reader().latestOffset({"block": 3}, None) == {"block": 5}
    with pytest.raises(RuntimeError, match="another query has come since this one began"):
        first.commit({"block": 4})
    with pytest.raises(hf.PlanError, match="Option 'blocks' cannot be 'two'"):
        reader(blocks="two")
