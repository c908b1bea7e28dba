"""Holdfast's own Nexmark queries give the oracle's rows, where rows of one time come in two epochs and out of order."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from nexmark_kit import checking, generator, oracle, spark_queries
from nexmark_kit.queries import QUERIES

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("days_are_utc_days")]

EVERY_TIME = ("q6",)  # three levels, a union, timers, and a changelog into a mean
CHECKED = [
    pytest.param(query, marks=() if query in EVERY_TIME else pytest.mark.heavy) for query in QUERIES if query != "q12"
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 10 s; disorder of 3.5 s, less than the queries' lateness, which their borders cut through."""
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    return generator.write(folder, 6000, 3, rate=200, disorder=700)


@pytest.mark.parametrize("query", CHECKED)
def test_holdfast_gives_the_oracles_rows(spark: SparkSession, folder: Path, tmp_path: Path, query: str) -> None:
    job = hf.Job(query, spark, store=str(tmp_path / "store"))
    stream = QUERIES[query](job, spark_queries.streams(spark, folder, files_per_trigger=1))
    epochs: list[tuple[int, pa.Table]] = []
    stream.for_each_batch(lambda frame, epoch: epochs.append((epoch, frame.toArrow())))
    with job.start(containers=2, trigger={"availableNow": True}) as run:
        run.await_termination()
    assert checking.check(query, folder, epochs) > 0


def test_every_stateful_query_is_written() -> None:
    assert QUERIES.keys() == {*oracle.QUERIES, "q12"} - {"q0", "q1", "q2", "q22"}
