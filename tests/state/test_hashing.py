"""Our xxhash64 against Spark's, value for value."""

from __future__ import annotations

import datetime as dt
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.state.hashing import can_hash, xxhash64

pytestmark = pytest.mark.spark

TYPES = {
    "b": "boolean",
    "t": "tinyint",
    "s": "smallint",
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "e": "date",
    "z": "timestamp",
    "n": "timestamp_ntz",
}


def rows(count: int) -> list[tuple[object, ...]]:
    draw = random.Random(7)

    def value(kind: str) -> object:
        if draw.random() < 0.1:
            return None
        match kind:
            case "boolean":
                return draw.random() < 0.5
            case "tinyint" | "smallint" | "int" | "bigint":
                bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[kind]
                return draw.choice([0, -1, (1 << bits) - 1, -(1 << bits), draw.randint(-(1 << bits), (1 << bits) - 1)])
            case "float" | "double":
                return draw.choice([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, draw.gauss(0, 1e9)])
            case "date":
                return dt.date(1970, 1, 1) + dt.timedelta(days=draw.randint(-30_000, 30_000))
            case _:
                zone = dt.UTC if kind == "timestamp" else None
                return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(
                    microseconds=draw.randint(-(1 << 50), 1 << 50)
                )

    return [tuple(value(kind) for kind in TYPES.values()) for _ in range(count)]


def test_every_type_alone_and_together(spark: SparkSession) -> None:
    schema = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    frame = spark.createDataFrame(rows(400), schema)
    hashes = [F.xxhash64(name).alias(f"h_{name}") for name in TYPES]
    table = frame.select("*", *hashes, F.xxhash64(*TYPES).alias("h_all")).toArrow().combine_chunks()
    for name in TYPES:
        assert xxhash64([table[name].chunk(0)]).tolist() == table[f"h_{name}"].to_pylist(), name
    assert xxhash64([table[name].chunk(0) for name in TYPES]).tolist() == table["h_all"].to_pylist()
    part = table.slice(37, 100)
    assert xxhash64([part["l"].chunk(0), part["d"].chunk(0)]).shape == (100,)
    assert xxhash64([part["l"].chunk(0)]).tolist() == part["h_l"].to_pylist()


def test_what_is_left_to_spark() -> None:
    assert can_hash(["bigint", "date"])
    assert not can_hash(["bigint", "string"])
    assert not can_hash(["decimal(10,2)"])
    assert xxhash64([pa.array(np.arange(0))]).tolist() == []
