"""How many bytes a key takes in memory: an int64 key with a count and a sum.

Holdfast's 128 slices say their own size, at rest (all epochs committed) and within an epoch that has touched most
keys and may still be undone. The Python dict ``{key: [count, sum]}`` is measured by what its process grew.
Spark's heap provider is taken at its own word: ``memoryUsedBytes`` of the query's progress, with the two versions
Spark keeps by default, and the newest version alone.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from common import Clicks, choose, measure_apart, parser, report, scratch, session, table
from numpy.typing import NDArray
from pyspark.sql import functions as fn

SLICES = 128
EPOCHS = 4
HEAP_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def holdfast(clicks: Clicks, memory: str) -> dict[str, Any]:
    from holdfast.operators.aggregate import AggregateOperator, StageSpec
    from holdfast.operators.spec import AggregateSpec, Column

    count, total = AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v", "bigint")
    operator = AggregateOperator(StageSpec((Column("k", "bigint"),), (count, total)))
    slices = [operator.new_slice() for _ in range(SLICES)]
    random = np.random.default_rng(2024)
    for epoch in range(1, EPOCHS + 1):
        keys = random.integers(0, clicks.keys, clicks.epoch_rows)
        values = random.integers(0, 1000, clicks.epoch_rows)
        hashes = hashed(keys)
        homes = hashes % SLICES
        for number, state in enumerate(slices):
            mine = homes == number
            columns = {"_h": hashes[mine], "k0": keys[mine], "v": values[mine]}
            state.apply(epoch, operator.decode(pa.RecordBatch.from_pydict(columns)))
            if epoch < EPOCHS:
                state.release(epoch)
    within = sum(state.nbytes for state in slices)
    for state in slices:
        state.release(EPOCHS)
    return {
        "keys": sum(state.rows for state in slices),
        "bytes": sum(state.nbytes for state in slices),
        "also": ["within an epoch", "in_epoch", within],
    }


def hashed(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Any good 64-bit hash will do (this is splitmix64): what is measured is what the table makes of it."""
    found = keys.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return (found ^ (found >> np.uint64(31))).view(np.int64)


def python_dict(clicks: Clicks, memory: str) -> dict[str, Any]:
    process = psutil.Process()
    random = np.random.default_rng(2024)
    gc.collect()
    before = process.memory_info().rss
    state: dict[int, list[int]] = {}
    for _ in range(0, clicks.rows, 10_000):
        keys = random.integers(0, clicks.keys, 10_000).tolist()
        for key, value in zip(keys, random.integers(0, 1000, 10_000).tolist(), strict=True):
            entry = state.get(key)
            if entry is None:
                state[key] = [1, value]
            else:
                entry[0] += 1
                entry[1] += value
    gc.collect()
    return {"keys": len(state), "bytes": process.memory_info().rss - before}


def spark_heap(clicks: Clicks, memory: str) -> dict[str, Any]:
    settings = {"spark.sql.streaming.stateStore.providerClass": HEAP_PROVIDER}
    with session(memory, **settings) as spark, scratch() as folder:
        counted = clicks.stream(spark).groupBy("k").agg(fn.count("*"), fn.sum("v"))
        writer = counted.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
        query.awaitTermination()
        last = query.lastProgress
        assert last is not None
        (operator,) = last.stateOperators
        metrics = operator.customMetrics
        return {
            "keys": operator.numRowsTotal,
            "bytes": operator.memoryUsedBytes,
            "also": ["newest version alone", "newest", metrics["stateOnCurrentVersionSizeBytes"]],
        }


CONTESTANTS = {"holdfast": holdfast, "dict": python_dict, "spark_heap": spark_heap}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2_000_000)
    choose(made, list(CONTESTANTS))
    options = made.parse_args()
    if options.quick:
        options.keys = 200_000
    # Four rows a key: nearly every key (98 %) is there.
    clicks = Clicks(options.keys * EPOCHS, options.keys, options.keys)
    if options.contestant:
        print(json.dumps(CONTESTANTS[options.contestant](clicks, options.memory)))
        return

    clicks.make()
    measured = {name: measure_apart(name) for name in options.contestants}
    shown = table("An int64 key with a count and a sum", "who", "keys", "bytes", "bytes a key")
    result: dict[str, float | None] = {f"{name}_bytes_per_key": None for name in CONTESTANTS}

    def add(label: str, name: str, keys: int, size: int) -> None:
        shown.add_row(label, f"{keys:,}", f"{size:,}", f"{size / keys:.1f}")
        result[f"{name}_bytes_per_key"] = size / keys

    for name, one in measured.items():
        add(name, name, one["keys"], one["bytes"])
        if "also" in one:
            label, short, size = one["also"]
            add(f"{name}, {label}", f"{name}_{short}", one["keys"], size)
    report(shown, result)


if __name__ == "__main__":
    main()
