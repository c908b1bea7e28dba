"""Put-if-absent and Spark's checkpoint files, through Hadoop's own file systems."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import StoreError
from holdfast.spark import hadoop
from holdfast.spark.hadoop import batch_offsets, hadoop_creator, query_id, read_file

pytestmark = pytest.mark.spark


@pytest.fixture(params=["rename", "object"])
def create(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bytes], bool]:
    if request.param == "object":  # the local disk can play both kinds of store
        monkeypatch.setattr(hadoop, "_OBJECT_STORES", frozenset({"file"}))
    return hadoop_creator(spark, tmp_path.as_uri())


def test_the_first_wins_and_its_bytes_stay(create: Callable[[str, bytes], bool], tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    assert create("main/prepare/7.0", content) is True
    assert create("main/prepare/7.0", b"somebody else") is False
    assert (tmp_path / "main/prepare/7.0").read_bytes() == content
    left = [path.name for path in (tmp_path / "main/prepare").iterdir() if not path.name.endswith(".crc")]
    assert left == ["7.0"]


def test_empty_content_is_content(create: Callable[[str, bytes], bool], tmp_path: Path) -> None:
    assert create("owner", b"") is True
    assert create("owner", b"x") is False
    assert (tmp_path / "owner").read_bytes() == b""


def test_a_store_that_cannot_be_written_says_which_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "wall").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="wall/owner/1"):
        hadoop_creator(spark, tmp_path.as_uri())("wall/owner/1", b"x")


def test_many_names_from_many_threads(spark: SparkSession, tmp_path: Path) -> None:
    create = hadoop_creator(spark, tmp_path.as_uri())
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda n: create(f"commit/{n}", b"%d" % n), range(12)))
    assert all(won)
    assert {int(path.name): path.read_bytes() for path in (tmp_path / "commit").iterdir() if path.name[0] != "."} == {
        n: b"%d" % n for n in range(12)
    }


def test_spark_checkpoint_is_readable(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.parquet(str(tmp_path / "in"))
    offsets: list[str] = []
    query = (
        spark.readStream.schema("id bigint")
        .parquet(str(tmp_path / "in"))
        .writeStream.foreachBatch(lambda _, b: offsets.append(batch_offsets(spark, str(tmp_path / "c"), b)))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.id == query_id(spark, str(tmp_path / "c")) == query_id(spark, (tmp_path / "c").as_uri())
    assert len(offsets) == 1
    assert offsets[0] == (tmp_path / "c/offsets/0").read_text()
    with pytest.raises(FileNotFoundError):
        batch_offsets(spark, str(tmp_path / "c"), 99)
    with pytest.raises(FileNotFoundError):
        read_file(spark, (tmp_path / "absent").as_uri())
