"""Put-if-absent through Hadoop's own file systems, alone and under a store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem
from pyspark.sql import SparkSession

from holdfast.errors import StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from holdfast.spark import hadoop
from holdfast.spark.hadoop import hadoop_creator, list_names

pytestmark = pytest.mark.spark


@pytest.fixture(params=["rename", "object"])
def create(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bytes], bool]:
    if request.param == "object":  # the local disk can play both kinds of store
        monkeypatch.setattr(hadoop, "_OBJECT_STORES", frozenset({"file"}))
    return below(spark, tmp_path)


def below(spark: SparkSession, folder: Path) -> Callable[[str, bytes], bool]:
    create = hadoop_creator(spark, folder.as_uri())
    return lambda name, content: create(f"{folder.as_uri()}/{name}", content)


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
        below(spark, tmp_path)("wall/owner/1", b"x")


def test_many_names_from_many_threads(spark: SparkSession, tmp_path: Path) -> None:
    create = below(spark, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda n: create(f"commit/{n}", b"%d" % n), range(12)))
    assert all(won)
    assert {int(path.name): path.read_bytes() for path in (tmp_path / "commit").iterdir() if path.name[0] != "."} == {
        n: b"%d" % n for n in range(12)
    }


def test_a_store_on_another_file_system(spark: SparkSession, tmp_path: Path) -> None:
    """The pair that S3 and HDFS use: Arrow reads and writes, Hadoop decides between rivals."""
    local = Store.on(LocalFileSystem(), str(tmp_path))
    create = hadoop_creator(spark, tmp_path.as_uri())
    store = Store.on(LocalFileSystem(), str(tmp_path), lambda uri, data: create(uri.replace("local:", "file:"), data))
    ledger = Ledger(store, "main")
    assert ledger.take_ownership("here", 1, "nowhere").incarnation == 1
    assert ledger.take_ownership("there", 2, "nowhere").incarnation == 2
    assert local.list("owner") == ["0000000001", "0000000002"]


def test_names_in_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "7.compact").touch()
    assert list_names(spark, str(tmp_path / "folder")) == ["7.compact"]
    assert list_names(spark, (tmp_path / "absent").as_uri()) == []
