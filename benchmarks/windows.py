"""What a row costs in a sliding window, against the number of its panes: 10, 30, 100, 300 of one second each.

A window of 300 s that moves by 1 s holds 300 panes, and a row belongs to 300 windows; it must not cost 300 updates.
Keys are dense: each has rows in every second, so that every window puts out one row a key and moves in the same steps
whatever its size. Each size is its own job over the same Parquet files; what counts is the median, over its epochs
after the largest window has filled, of the seconds that Spark gives an epoch (addBatch: all that Holdfast does, and the
sink). ``max`` cannot be taken back and is shown beside, for what it costs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import CORES, DATA, measure_apart, median, parser, report, scratch, session, table

SCHEMA = "k bigint, v bigint, t timestamp"
START = 1_767_225_600
PANES = (10, 30, 100, 300)


def data(keys: int, rate: int, seconds: int, epoch: int) -> Path:
    """Files of ``epoch`` seconds; every key has ``rate`` rows in each second."""
    folder = DATA / f"dense-{keys}-{rate}-{seconds}-{epoch}"
    if folder.exists():
        return folder
    half_done = DATA / f"_{folder.name}"
    half_done.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, seconds, epoch)):
        draw = np.random.default_rng([7, number])
        rows = keys * rate * epoch
        micros = (START + first) * 1_000_000 + np.arange(rows) * (epoch * 1_000_000) // rows
        made = {
            "k": draw.permuted(np.tile(np.arange(keys), rate * epoch).reshape(rate * epoch, keys), axis=1).ravel(),
            "v": draw.integers(0, 1000, rows),
            "t": pa.array(micros, pa.timestamp("us", tz="UTC")),
        }
        path = half_done / f"{number:04d}.parquet"
        pq.write_table(pa.table(made), path)
        os.utime(path, (START + number, START + number))
    half_done.rename(folder)
    return folder


def run(folder: Path, panes: int, what: str, warm: int, memory: str) -> dict[str, float]:
    import holdfast as hf

    with session(memory) as spark, scratch() as base:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
        job = hf.Job("windows", spark, store=str(base / "store"))
        keyed = job.read(stream).key_by("k").window(hf.sliding(f"{panes} s", every="1 s"), on="t")
        wanted = {"n": hf.count(), "total": hf.sum("v")} if what == "sum" else {"most": hf.max("v")}
        keyed.agg(**wanted).write("noop")
        with job.start(containers=CORES, trigger={"availableNow": True}) as started:
            started.await_termination()
            assert started.query is not None
            epochs = [one["durationMs"]["addBatch"] / 1000 for one in started.query.recentProgress]
    return {"epoch_s": median(epochs[warm:]), "epochs": len(epochs) - warm}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2000)
    made.add_argument("--rate", type=int, default=10, help="rows of a key in a second")
    made.add_argument("--seconds", type=int, default=480)
    made.add_argument("--epoch", type=int, default=20, help="seconds of event time an epoch")
    made.add_argument("--rounds", type=int, default=3)
    options = made.parse_args()
    if options.quick:
        options.keys, options.seconds, options.rounds = 500, 360, 1
    folder = data(options.keys, options.rate, options.seconds, options.epoch)
    warm = max(PANES) // options.epoch
    if options.contestant:
        what, panes = options.contestant.split(":")
        print(json.dumps(run(folder, int(panes), what, warm, options.memory)))
        return
    rows = options.keys * options.rate * options.epoch
    costs: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for what in ("sum", "max"):
            for panes in PANES:
                found = measure_apart(f"{what}:{panes}")
                costs.setdefault(f"{what}:{panes}", []).append(found["epoch_s"] / rows * 1e6)
    shown = table(
        f"{options.keys:,} keys, {rows:,} rows an epoch of {options.epoch} s; µs a row, whole epochs",
        *("panes", "count and sum", "against 10 panes", "max", "against 10 panes"),
    )
    medians = {name: median(values) for name, values in costs.items()}
    for panes in PANES:
        cells = []
        for what in ("sum", "max"):
            cost = medians[f"{what}:{panes}"]
            cells += [f"{cost:.3f}", f"{cost / medians[f'{what}:10'] - 1:+.0%}"]
        shown.add_row(str(panes), *cells)
    growth = {panes: medians[f"sum:{panes}"] / medians["sum:10"] - 1 for panes in PANES}
    report(shown, {"us_per_row": {str(p): round(medians[f"sum:{p}"], 4) for p in PANES}, "growth_300": growth[300]})


if __name__ == "__main__":
    main()
