"""What goes wrong in the thread that runs epochs is heard by whoever waits for them, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.driver.loop import Shell
from holdfast.errors import StoreError

pytestmark = pytest.mark.spark


def test_a_decision_about_a_failed_epoch_that_fails_itself_ends_the_run(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(shell: Shell, error: Exception) -> None:
        raise StoreError("The store does not say who has the job.", safe="Nothing was changed.") from error

    monkeypatch.setattr(Shell, "_decide", cannot)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "in" / "1.parquet")
    job = hf.Job("shop", spark, store=tmp_path / "store")
    rows = job.read(spark.readStream.schema("k bigint").parquet(str(tmp_path / "in")))

    def raises(key, rows, context):  # type: ignore[no-untyped-def]
        raise ValueError("not this one")

    rows.key_by("k").process(raises, "k bigint").write("noop")
    run = job.start(containers=1, slices=4, trigger={"availableNow": True})
    try:
        with pytest.raises(StoreError, match="does not say who has the job"):
            run.await_termination(300)
    finally:
        run.stop()
    assert run.stopped
