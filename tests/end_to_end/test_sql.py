"""SQL on real Spark: a job of many queries, a container killed in it; Spark in batch says the same to the same texts.

The 500 queries of ``./dev bench sql`` are more of these.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sql_jobs import ASKED, play

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("days_are_utc_days")]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(["windows", "numbered", "outer", "with"], id="some"),
        pytest.param(ASKED, id="all", marks=pytest.mark.heavy),
    ],
)
def test_a_job_of_queries(tmp_path: Path, spark: SparkSession, kinds: list[str]) -> None:
    played = play(spark, tmp_path, 100, kinds, kill=True)
    for query, found, right in played:
        assert found == right, query.text
    assert sum(bool(right) for _, _, right in played) > len(kinds) / 2
