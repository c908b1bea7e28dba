"""What the tests on real Spark share."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Stage
from pyspark.sql import SparkSession


@pytest.fixture
def stage(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, spark, monkeypatch)
