"""The same per-key function, in Python, with state: here, in Spark's transformWithStateInPandas, and in Bytewax.

The function keeps a count and a sum of each key and puts out one row for each key and batch. Each contestant gets as
much of the same stream as it needs to run for a while: at Spark's speed a minute is some ten thousand keys. The time
is from starting the query to its end. Results are compared with a batch query. Bytewax (one worker), and protobuf for
Spark's way, are no dependencies of Holdfast: a contestant that needs what is not installed is left out, saying so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import CORES, DATA, choose, measure_apart, median, parser, report, scratch, session, table
from pyspark.sql import SparkSession

SCHEMA = "k bigint, v bigint"
START = 1_700_000_000


def data(rows: int, files: int) -> Path:
    """Half as many keys as rows, in files of one epoch each."""
    folder = DATA / f"per-key-{rows}-{files}"
    if not folder.exists():
        half_done = DATA / f"_{folder.name}"
        half_done.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            draw = np.random.default_rng([3, number])
            made = {"k": draw.integers(0, max(1, rows // 2), rows // files), "v": draw.integers(0, 1000, rows // files)}
            pq.write_table(pa.table(made), half_done / f"{number:04d}.parquet")
            os.utime(half_done / f"{number:04d}.parquet", (START + number, START + number))
        half_done.rename(folder)
    return folder


def keys_of(folder: Path) -> int:
    """Calls of the function: distinct keys of every file."""
    return sum(len(pq.read_table(path, columns=["k"])["k"].unique()) for path in sorted(folder.glob("*.parquet")))


def truth(folder: Path) -> str:
    rows = pq.read_table(folder)
    totals = rows.group_by("k").aggregate([("v", "count"), ("v", "sum")])
    return fingerprint(zip(*(totals[name].to_pylist() for name in ("k", "v_count", "v_sum")), strict=True))


def fingerprint(rows: Any) -> str:
    return str(sum(hash((int(k), int(n), int(total))) for k, n, total in rows) & 0xFFFFFFFFFFFFFFFF)


def holdfast(folder: Path, memory: str) -> tuple[float, str]:
    import holdfast as hf

    def counted(key, rows, context):  # type: ignore[no-untyped-def]
        state = context.state
        state.n += len(rows)
        state.total += sum(row["v"] for row in rows)
        return [{"k": key, "n": state.n, "total": state.total}]

    with session(memory) as spark, scratch() as base:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
        job = hf.Job("process", spark, store=str(base / "store"))
        states = {"n": hf.states.value("bigint", default=0), "total": hf.states.value("bigint", default=0)}
        counts = job.read(stream).key_by("k").process(counted, "k bigint, n bigint, total bigint", state=states)
        counts.write("noop")
        start = time.perf_counter()
        with job.start(containers=CORES, trigger={"availableNow": True}) as run:
            run.await_termination()
            seconds = time.perf_counter() - start
            found = run.state(counts).to_arrow()
    return seconds, fingerprint(zip(*(found[name].to_pylist() for name in ("k", "n", "total")), strict=True))


def spark_process(folder: Path, memory: str) -> tuple[float, str]:
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Counted(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.state = handle.getValueState("state", "n long, total long")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
            n, total = self.state.get() if self.state.exists() else (0, 0)
            for frame in rows:
                n, total = n + len(frame), total + int(frame["v"].sum())
            self.state.update((n, total))
            yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})

        def close(self) -> None:
            pass

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {"spark.sql.streaming.stateStore.providerClass": provider}
    with session(memory, **settings) as spark, scratch() as base:
        final: dict[int, tuple[int, int, int]] = {}
        seconds = _timed(spark, folder, base, Counted(), final)
    return seconds, fingerprint(final.values())


def _timed(spark: SparkSession, folder: Path, base: Path, processor: Any, final: dict[int, Any]) -> float:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
    counts = stream.groupBy("k").transformWithStateInPandas(
        processor, outputStructType="k long, n long, total long", outputMode="Update", timeMode="None"
    )

    def take(frame: Any, _: int) -> None:
        for row in frame.collect():
            final[row["k"]] = (row["k"], row["n"], row["total"])

    start = time.perf_counter()
    writer = counts.writeStream.foreachBatch(take).outputMode("update").option("checkpointLocation", str(base / "cp"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - start


def bytewax(folder: Path, memory: str) -> tuple[float, str]:
    from bytewax import operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    rows = [
        (str(k), int(v))
        for path in sorted(folder.glob("*.parquet"))
        for k, v in zip(*(column.to_pylist() for column in pq.read_table(path).columns), strict=True)
    ]

    def counted(state: Any, value: int) -> tuple[Any, Any]:
        n, total = state or (0, 0)
        state = (n + 1, total + value)
        return state, state

    out: list[Any] = []
    flow = Dataflow("counts")
    kept = op.stateful_map("counts", op.input("rows", flow, TestingSource(rows, batch_size=1000)), counted)
    op.output("out", kept, TestingSink(out))
    start = time.perf_counter()
    run_main(flow)
    seconds = time.perf_counter() - start
    return seconds, fingerprint((int(k), n, total) for k, (n, total) in dict(out).items())


NEEDS = {"spark": "google.protobuf.descriptor", "bytewax": "bytewax"}
CONTESTANTS = {"holdfast": holdfast, "spark": spark_process, "bytewax": bytewax}


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package it is in
        return False


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=4_000_000, help="for Holdfast")
    made.add_argument("--spark-rows", type=int, default=20_000)
    made.add_argument("--bytewax-rows", type=int, default=1_000_000)
    made.add_argument("--files", type=int, default=4)
    choose(made, list(CONTESTANTS))
    options = made.parse_args()
    if options.quick:
        options.rows, options.spark_rows, options.bytewax_rows = 400_000, 4_000, 100_000
    sizes = {"holdfast": options.rows, "spark": options.spark_rows, "bytewax": options.bytewax_rows}
    if options.contestant:
        compete(options, sizes[options.contestant])
        return
    DATA.mkdir(exist_ok=True)
    rates: dict[str, float] = {}
    missing: list[str] = []
    shown = table(
        "A count and a sum of every key in a Python function", "contestant", "rows", "rows/s", "keys/s", "holdfast is"
    )
    for name in options.contestants:
        if (needed := NEEDS.get(name)) and not installed(needed):
            missing.append(f"{name} needs the package {needed}, which is not installed: not measured")
            continue
        data(sizes[name], options.files)
        found = measure_apart(name)
        rates[name] = found["keys"] / found["seconds"]
        times = f"{rates['holdfast'] / rates[name]:.1f}×" if "holdfast" in rates else "–"
        shown.add_row(name, f"{sizes[name]:,}", f"{sizes[name] / found['seconds']:,.0f}", f"{rates[name]:,.0f}", times)
    shown.caption = "; ".join(missing) or None
    ours = rates.get("holdfast")
    report(
        shown,
        {
            **{f"{name}_keys_s": rates.get(name) for name in CONTESTANTS},
            **{f"vs_{name}": ours / rates[name] if ours and name in rates else None for name in ("spark", "bytewax")},
        },
    )


def compete(options: argparse.Namespace, rows: int) -> None:
    folder = data(rows, options.files)
    seconds, state = CONTESTANTS[options.contestant](folder, options.memory)
    if state != truth(folder):
        raise SystemExit(f"{options.contestant}: the result is not that of a batch query")
    keys = rows if options.contestant == "bytewax" else keys_of(folder)  # it calls the function for every row
    print(json.dumps({"seconds": median([seconds]), "keys": keys}))


if __name__ == "__main__":
    main()
