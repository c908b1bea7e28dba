"""A folder belongs to whoever has put its name there first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import StoreError
from holdfast.spark import claims
from holdfast.spark.claims import Claim

pytestmark = pytest.mark.spark

OURS = Claim("id-1", "sink", "shop", "/data/store")


@pytest.fixture(params=["local", "elsewhere"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The local disk can play another file system, that only Hadoop reaches."""
    if request.param == "elsewhere":
        monkeypatch.setattr(claims, "_local", lambda uri: None)
    return f"{tmp_path.as_uri()}/out/"


def test_the_first_has_it_for_ever(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    assert not claims.look(spark, folder, OURS)
    claims.take(spark, folder, OURS)
    assert claims.look(spark, folder, OURS)
    assert claims.look(spark, f"{tmp_path}/./out", replace(OURS, store="/moved/store", name="renamed"))
    claims.take(spark, folder, OURS)
    for other, words in (
        (replace(OURS, job="id-2", store="/new"), r"(?s)another job: 'shop' \(id-1\) with its store in /data/store"),
        (replace(OURS, sink="other"), r"sink 'sink' of this job"),
    ):
        for refused in (claims.look, claims.take):
            with pytest.raises(StoreError, match=words):
                refused(spark, folder, other)


def test_of_many_one_gets_it(spark: SparkSession, folder: str) -> None:
    def attempt(number: int) -> bool:
        try:
            claims.take(spark, folder, replace(OURS, job=f"id-{number}"))
        except StoreError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, range(8))) == [False] * 7 + [True]


def test_a_claim_that_cannot_be_read_is_nobodys(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / claims.FILE).write_text('{"job": "id-1"')
    with pytest.raises(StoreError, match="should say whose folder this is"):
        claims.look(spark, folder, OURS)
